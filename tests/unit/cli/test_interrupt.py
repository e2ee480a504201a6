"""Ctrl-C while `allranks submit --logs` waits: a terminal asks, and only an answer deletes the job."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
from typing import Any

import pytest

from allranks.cli import interrupt
from allranks.cli.commands.delete import delete_job
from allranks.cli.options import run_on_cluster
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
    # As when a command starts: other tests run commands that set a handler of their own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    async def waits(cluster: Cluster) -> int:
        cluster.interrupted = "birds continues"
        async with interrupt.asks_on_interrupt(cluster, JOB, delete_job, detach=detach):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        return 0

    try:
        assert run_on_cluster(waits, Where(), {}) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert [method for method, _ in server.requests] == (["DELETE"] if deleted else [])
    printed = capsys.readouterr().err
    assert printed.endswith(f"{message}\n")
    assert ("Stop waiting for birds?" in printed) == (terminal and not detach)


def test_a_second_interrupt_instead_of_an_answer_leaves_the_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *_: Any) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert not interrupt.wants_to_cancel("birds")
