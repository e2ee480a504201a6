"""Ctrl-C while `allranks submit --logs` waits: a terminal asks, and only an answer deletes the job."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from allranks.cli.options import run_on_cluster
from allranks.client import interrupt
from allranks.client.jobs import delete_job
from allranks.kube.cluster import Cluster, Where

JOB = {"metadata": {"name": "birds", "namespace": "team", "uid": "1"}}


class Server:
    """The cluster of a command, which records what it is asked for."""

    def __init__(self) -> None:
        self.interrupted, self.requests = "", list[tuple[str, str]]()

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def request(self, method: str, path: str, **_: Any) -> None:
        await asyncio.sleep(0)
        self.requests.append((method, path))


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """As when a command starts: other tests run commands that set a handler of their own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("terminal", "detach", "answer", "deleted", "message"),
    [
        (True, False, "c\n", True, "birds is deleted"),
        (True, False, "\n", False, "birds continues"),
        (True, False, "", False, "birds continues"),
        (True, True, "c\n", False, "birds continues"),
        (False, False, "c\n", False, "birds continues"),
    ],
)
def test_an_interrupt_deletes_the_job_only_if_the_user_says_so(
    terminal: bool,
    detach: bool,
    answer: str,
    deleted: bool,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server()
    monkeypatch.setattr(Cluster, "connect", lambda _where: server)
    monkeypatch.setattr(interrupt, "can_ask", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))

    async def waits(cluster: Cluster) -> int:
        cluster.interrupted = "birds continues"
        async with interrupt.asks_on_interrupt(cluster, JOB, delete_job, detach=detach):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        return 0

    assert run_on_cluster(waits, Where(), {}) == 130
    assert [method for method, _ in server.requests] == (["DELETE"] if deleted else [])
    printed = capsys.readouterr().err
    assert printed.endswith(f"{message}\n")
    assert ("Stop waiting for birds?" in printed) == (terminal and not detach)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_an_attached_command_deletes_all_jobs(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    monkeypatch.setattr(Cluster, "connect", lambda _where: server)
    jobs = [JOB, {"metadata": {"name": "bees", "namespace": "hive", "uid": "2"}}]

    async def waits(cluster: Cluster) -> int:
        async with interrupt.deletes_on_interrupt(cluster, jobs, delete_job):
            signal.raise_signal(number)
            await asyncio.sleep(60)
        return 0

    assert run_on_cluster(waits, Where(), {}) == 130
    assert [(method, path.rpartition("/")[2]) for method, path in server.requests] == [
        ("DELETE", "birds"),
        ("DELETE", "bees"),
    ]
    assert capsys.readouterr().err.endswith("birds is deleted\nbees is deleted\n")


def test_an_attached_command_deletes_its_job_when_the_reader_of_its_output_has_ended() -> None:
    server = Server()

    async def waits() -> None:
        async with interrupt.deletes_on_interrupt(server, [JOB], delete_job):  # type: ignore[arg-type]
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        asyncio.run(waits())
    assert [method for method, _ in server.requests] == ["DELETE"]


def test_an_interrupt_that_does_not_interrupt_the_system_call_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread gets the signal, which is as if it came right before the main thread starts to wait."""
    monkeypatch.setattr(Cluster, "connect", lambda _where: Server())

    def interrupt_this_thread() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def waits(_cluster: Cluster) -> int:
        threading.Timer(0.2, interrupt_this_thread).start()  # when the loop waits
        await asyncio.sleep(300)
        return 0

    started = time.monotonic()
    assert run_on_cluster(waits, Where(), {}) == 130
    assert time.monotonic() - started < 300
    assert signal.set_wakeup_fd(-1) == -1


def test_a_second_interrupt_instead_of_an_answer_leaves_the_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *_: Any) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert not interrupt.wants_to_cancel("birds")
