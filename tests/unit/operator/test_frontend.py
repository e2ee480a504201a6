"""The socket between the frontend, which parses HTTP of strangers, and the controller, which does not trust it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from allranks.kube.auth import Connection
from allranks.operator import health_check
from allranks.operator.app import Operator
from allranks.operator.ports import socket_protocol
from allranks.operator.ports.backend import NoAnswer, Page
from allranks.operator.ports.frontend import ClientLimits, SocketClient
from allranks.operator.ports.socket_protocol import Check, Count, Identify, Metrics, Report, request_frame
from allranks.operator.ports.socket_server import SocketError, SocketLimits, SocketServer
from allranks.operator.settings import Settings
from allranks.telemetry import outcomes
from allranks.telemetry.listener import Listener
from allranks.telemetry.messages import BODY_BYTES, Answer, Denied
from support.frontend_process import frontend, get

STORED = Answer(200, {"interval": 5.0, "stacks": ""})


class FakeBackend:
    """Accepts the token `right`."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, bytes]] = []
        self.counts: dict[int, int] = {}
        self.checks = self.identified = 0
        self.page = b"up 1\n"
        self.stored = STORED
        self.wrong = ""
        self.hold: asyncio.Event | None = None
        self.orders: asyncio.Event | None = None
        self.polls = 0
        self.code_bytes = 0

    async def identify(self, token: str) -> None:
        self.identified += 1
        if self.hold:
            await self.hold.wait()
        if token != "right":
            raise Denied(403, "no such pod", 2.0)

    async def report(self, token: str, body: bytes) -> Answer:
        self.reports.append((token, body))
        return self.stored

    async def outcome(self, token: str, body: bytes) -> Answer:
        if self.hold:
            await self.hold.wait()
        return Answer(200, {"received": len(body), "stored": True})

    async def process(self, token: str, body: bytes) -> Answer:
        self.polls += 1
        if self.orders:
            await self.orders.wait()
        return Answer(200, {"order": None})

    async def code(self, token: str, body: bytes) -> Answer:
        return Answer(200, {"archive": "A" * self.code_bytes})

    async def check(self, name: str) -> str:
        self.checks += 1
        if self.wrong == "raise":
            raise RuntimeError("a bug of ours")
        return self.wrong and f"{name}: {self.wrong}"

    async def metrics(self) -> Page:
        return Page("text/plain", self.page)

    async def admits(self, authorization: str, peer: str) -> int:
        return 200 if authorization == f"Bearer of {peer}" else 401

    def count(self, status: int, count: int = 1) -> None:
        self.counts[status] = self.counts.get(status, 0) + count


class World:
    def __init__(self, path: str, backend: FakeBackend, server: SocketServer) -> None:
        self.path, self.backend, self.server = path, backend, server
        self.wires: list[asyncio.StreamWriter] = []

    async def wire(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of its own that sends arbitrary bytes."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        self.wires.append(writer)
        return reader, writer


@asynccontextmanager
async def serving(folder: Path, **limits: Any) -> AsyncIterator[World]:
    backend = FakeBackend()
    server = SocketServer(str(folder / "operator.sock"), backend, SocketLimits(**limits))
    await server.start()
    world = World(server.path, backend, server)
    try:
        async with asyncio.timeout(300):
            yield world
    finally:
        for writer in world.wires:
            writer.transport.abort()
        await server.stop()


@asynccontextmanager
async def connected(path: str, **limits: Any) -> AsyncIterator[SocketClient]:
    client = SocketClient(path, ClientLimits(**{"count_seconds": 0.01, **limits}))
    task = asyncio.create_task(client.run())
    await until(lambda: client._writer is not None)
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def run(scenario: Awaitable[None]) -> None:
    uvloop.run(scenario)  # type: ignore[arg-type]  # as both processes do


async def reply(reader: asyncio.StreamReader) -> socket_protocol.Reply:
    data = await asyncio.wait_for(socket_protocol.read_frame(reader, socket_protocol.REPLY_BYTES), 30)
    return socket_protocol.decode_reply(data)


async def works(world: World) -> bool:
    """Whether another connection is served."""
    reader, writer = await world.wire()
    writer.write(request_frame(Check(5, "healthz")))
    answered = await reply(reader)
    writer.transport.abort()
    return answered.id == 5 and not answered.failed


# Calls


def test_each_call_of_the_frontend_is_answered_by_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            await client.identify("right")
            with pytest.raises(Denied, match="no such pod") as denied:
                await client.identify("wrong")
            assert (denied.value.answer.status, denied.value.answer.retry_after) == (403, 2.0)
            assert await client.report("right", b'{"step": 1}') == STORED
            assert world.backend.reports == [("right", b'{"step": 1}')]
            assert await client.check("readyz") == ""
            world.backend.wrong = "caches are not synced yet"
            assert await client.check("readyz") == "readyz: caches are not synced yet"
            assert await client.metrics() == Page("text/plain", b"up 1\n")
            assert [await client.admits("Bearer of a", peer) for peer in ("a", "b")] == [200, 401]
            client.count(200)
            client.count(200)
            client.count(401)
            await until(lambda: world.backend.counts == {200: 2, 401: 1})

    run(scenario())


def test_the_code_of_the_largest_job_passes_the_socket(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            await client.identify("right")
            world.backend.code_bytes = 4 * 2**20 // 3
            answer = await client.code("right", b'{"sha256": "x"}')
            assert (answer.status, len(answer.body["archive"])) == (200, world.backend.code_bytes)

    asyncio.run(scene())


def test_an_outcome_that_waits_for_the_api_server_delays_no_other_call(tmp_path: Path) -> None:
    """It may have twice as many bytes as a report."""

    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            world.backend.hold = asyncio.Event()
            body = bytes(outcomes.BODY_BYTES)
            waiting = asyncio.create_task(client.outcome("right", body))
            assert await client.report("right", b"{}") == STORED
            assert not waiting.done()
            world.backend.hold.set()
            assert await waiting == Answer(200, {"received": len(body), "stored": True})

    run(scenario())


def test_supervisors_that_wait_for_orders_take_no_room_of_reports(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = {"waiting": 2, "polls": 50}
        async with serving(tmp_path, in_flight_bytes=4096) as world, connected(world.path, **limits) as client:
            world.backend.orders = asyncio.Event()
            polls = [asyncio.create_task(client.process("right", b"{}")) for _ in range(50)]
            await until(lambda: world.backend.polls == 50)
            assert (await client.process("right", b"{}")).status == 503
            assert await client.report("right", b"{}") == STORED
            assert (await client.outcome("right", b"x")).status == 200
            await client.identify("right")
            assert not any(poll.done() for poll in polls)
            world.backend.orders.set()
            assert {answer.status for answer in await asyncio.gather(*polls)} == {200}
            assert (await client.process("right", b"{}")).status == 200

    run(scenario())


def test_the_controller_bounds_the_supervisors_that_wait_whatever_the_frontend_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, polls=3) as world, connected(world.path) as client:
            world.backend.orders = asyncio.Event()
            polls = [asyncio.create_task(client.process("right", b"{}")) for _ in range(5)]
            _, waiting = await asyncio.wait(polls, timeout=300, return_when=asyncio.FIRST_COMPLETED)
            await until(lambda: sum(poll.done() for poll in polls) == 2)
            assert [poll.result().status for poll in polls if poll.done()] == [503, 503]
            assert await client.check("readyz") == ""
            world.backend.orders.set()
            await asyncio.gather(*waiting)

    run(scenario())


def test_supervisors_that_wait_when_the_controller_ends_are_answered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            world.backend.orders = asyncio.Event()
            poll = asyncio.create_task(client.process("right", b"{}"))
            await until(lambda: world.backend.polls == 1)
            await world.server.stop()
            assert (await poll).status == 503

    run(scenario())


def test_a_token_that_is_no_ascii_text_is_rejected_without_a_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            with pytest.raises(Denied) as denied:
                await client.identify("\udce9")
            assert denied.value.answer.status == 401
            assert (await client.report("\udce9", b"{}")).status == 401
            assert await client.admits("Bearer \udce9", "a") == 401
            assert world.backend.reports == []

    run(scenario())


@pytest.mark.parametrize("status", [401, 403, 503])
def test_an_accepted_token_is_identified_again_only_after_a_rejection(tmp_path: Path, status: int) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            for _ in range(5):
                await client.identify("right")
                await client.report("right", b"{}")
            assert (world.backend.identified, len(world.backend.reports)) == (1, 5)
            for _ in range(2):
                with pytest.raises(Denied):
                    await client.identify("wrong")
            assert world.backend.identified == 3, "a rejection is not remembered here"
            world.backend.stored = Answer(status, {"error": "not accepted"})
            assert (await client.report("right", b"{}")).status == status
            await client.identify("right")
            assert world.backend.identified == 4

    run(scenario())


def test_accepted_tokens_are_bounded_and_expire(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path, accepted=1, accepted_seconds=0.0) as client:
            for count in (1, 2):
                await client.identify("right")
                assert world.backend.identified == count
            client._accepted[b"another"] = 0.0
            await client.identify("right")
            assert len(client._accepted) == 1

    run(scenario())


def test_slow_reviews_of_tokens_delay_no_other_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            world.backend.hold = asyncio.Event()
            slow = [asyncio.create_task(client.identify("right")) for _ in range(100)]
            assert await client.check("healthz") == ""
            assert (await client.report("right", b"{}")).status == 200
            assert not any(task.done() for task in slow)
            world.backend.hold.set()
            await asyncio.gather(*slow)

    run(scenario())


def test_an_exception_in_the_controller_is_logged_there_and_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            world.backend.wrong = "raise"
            assert await client.check("healthz") == "the operator failed to answer; see its log"
            world.backend.wrong = ""
            assert await client.check("healthz") == ""

    run(scenario())
    assert "a bug of ours" in caplog.text


# A hostile frontend


def frame(content: Any) -> bytes:
    data = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    return len(data).to_bytes(4, "big") + data


GARBAGE = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "no bytes": frame(b""),
    "a message that is too long": (socket_protocol.REQUEST_BYTES + 1).to_bytes(4, "big"),
    "4 GB": b"\xff\xff\xff\xff",
    "no MessagePack": frame(b"\xc1\xc1"),
    "text": frame("identify"),
    "an object": frame({"type": "check"}),
    "another call": frame(["delete", 1, "pod"]),
    "too few fields": frame(["report", 1, "token"]),
    "too many fields": frame(["check", 1, "healthz", "more"]),
    "a number that is negative": frame(["check", -1, "healthz"]),
    "a number that is too large": frame(["check", 2**63, "healthz"]),
    "another check": frame(["check", 1, "unhealthy"]),
    "a body that is too long": frame(["report", 1, "token", b"x" * (BODY_BYTES + 1)]),
    "a state that is too long": frame(["process", 1, "token", b"x" * (BODY_BYTES + 1)]),
    "a body of text": frame(["report", 1, "token", "{}"]),
    "a token that is too long": frame(["identify", 1, "x" * (socket_protocol.TOKEN_BYTES + 1)]),
    "a token of bytes": frame(["identify", 1, b"\xff"]),
    "text that is no UTF-8": frame(b"\x93\xa8identify\x01\xa2\xff\xff"),
    "counts that are too large": frame(["count", 1, {200: 10**9}]),
    "counts that are negative": frame(["count", 1, {200: -1}]),
    "too many counts": frame(["count", 1, dict.fromkeys(range(100), 1)]),
    "deep nesting": frame(b"\x91" * 30_000),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_an_invalid_request_closes_its_connection_and_no_other(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path) as client:
            reader, writer = await world.wire()
            writer.write(GARBAGE[name])
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(1), 30) == b""
            assert await client.check("healthz") == ""
            await until(lambda: world.server.connections == 1)
            assert (world.backend.reports, world.backend.counts) == ([], {})

    run(scenario())
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_a_half_request_holds_one_connection_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world:
            whole = request_frame(Report(1, "right", b"{}"))
            for end in (2, 4, len(whole) - 1):
                reader, writer = await world.wire()
                writer.write(whole[:end])
                assert await works(world)
                writer.write(whole[end:])
                assert (await reply(reader)).id == 1
                writer.transport.abort()
                await until(lambda: world.server.connections == 0)
            assert len(world.backend.reports) == 3

    run(scenario())


def test_connections_are_bounded_and_a_closed_one_makes_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, connections=3) as world:
            wires = [await world.wire() for _ in range(10)]
            await until(lambda: world.server.connections == 3)
            closed = 0
            for reader, _ in wires:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    closed += await asyncio.wait_for(reader.read(1), 0.2) == b""
            assert closed == 7
            for _, writer in wires:
                writer.transport.abort()
            await until(lambda: world.server.connections == 0)
            assert await works(world)

    run(scenario())


def test_a_flood_has_few_requests_in_each_iteration_of_the_event_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, rate=1e9) as world:
            _, writer = await world.wire()
            writer.write(request_frame(Count(1, {200: 1})) * 20_000)
            most = handled = iterations = 0
            while handled < 20_000:
                await asyncio.sleep(0)
                now = world.backend.counts.get(200, 0)
                most, handled, iterations = max(most, now - handled), now, iterations + 1
            assert most <= SocketLimits().per_iteration
            assert iterations >= 20_000 / SocketLimits().per_iteration

    run(scenario())


@pytest.mark.parametrize("connections", [1, 4])
def test_the_rate_of_requests_is_bounded_for_all_connections_together(tmp_path: Path, connections: int) -> None:
    async def scenario() -> None:
        began = time.monotonic()
        async with serving(tmp_path, rate=100.0) as world:
            for _ in range(connections):
                _, writer = await world.wire()
                writer.write(request_frame(Count(1, {200: 1})) * 5000)
            await until(lambda: world.backend.counts.get(200, 0) > 130)
            handled, seconds = world.backend.counts[200], time.monotonic() - began
            assert handled <= 100 + 100 * seconds + connections

    run(scenario())


def test_large_replies_count_as_several_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        began = time.monotonic()
        async with serving(tmp_path, rate=1000.0, unit_bytes=1000) as world:
            world.backend.page = bytes(100_000)
            reader, writer = await world.wire()
            writer.write(b"".join(request_frame(Metrics(number)) for number in range(1000)))
            for number in range(15):
                assert (await reply(reader)).id == number
            assert 1000 + 1000 * (time.monotonic() - began) >= 14 * 100

    run(scenario())


def test_long_requests_count_as_several(tmp_path: Path) -> None:
    async def scenario() -> None:
        began = time.monotonic()
        async with serving(tmp_path, rate=1000.0, unit_bytes=100) as world:
            _, writer = await world.wire()
            writer.write(request_frame(Report(1, "x" * 5000, b"{}")) * 200)
            await until(lambda: len(world.backend.reports) >= 30)
            assert 1000 + 1000 * (time.monotonic() - began) >= 29 * 50

    run(scenario())


def test_a_frontend_that_reads_no_replies_gets_no_further_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, rate=1e9) as world:
            reader, writer = await world.wire()
            writer.transport.pause_reading()
            writer.write(b"".join(request_frame(Check(number, "healthz")) for number in range(100_000)))
            handled = -1
            while handled != world.backend.checks or not handled:
                handled = world.backend.checks
                await asyncio.sleep(0.2)
            assert handled < 100_000, "what is not read is kept in the socket and in one buffer"
            assert await works(world)
            del reader

    run(scenario())


def test_requests_that_wait_for_reviews_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, in_flight_bytes=100_000) as world:
            world.backend.hold = asyncio.Event()
            reader, writer = await world.wire()
            writer.write(b"".join(request_frame(Identify(number, "x" * 5000)) for number in range(100)))
            await until(lambda: world.server._in_flight > 90_000)
            for _ in range(20):
                await asyncio.sleep(0)
                assert world.server._in_flight <= 100_000
            assert await works(world)
            world.backend.hold.set()
            assert {(await reply(reader)).id for _ in range(100)} == set(range(100))
            assert world.server._in_flight == 0

    run(scenario())


def test_a_frontend_that_dies_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world:
            world.backend.hold = asyncio.Event()
            _, writer = await world.wire()
            for number in range(10):
                writer.write(request_frame(Identify(number, "right")))
            await until(lambda: len(world.server._waiting) == 10)
            writer.transport.abort()
            await until(lambda: world.server.connections == 0)
            world.backend.hold.set()
            await until(lambda: not world.server._waiting)
            assert world.server._in_flight == 0
            assert await works(world)

    run(scenario())


# A controller that is away


def test_the_frontend_connects_again_and_answers_503_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world:
            path = world.path
            async with connected(path) as client:
                await client.identify("right")
                world.backend.hold = asyncio.Event()
                waiting = asyncio.create_task(client.identify("wrong"))
                await until(lambda: world.server._waiting)
                await world.server.stop()
                with pytest.raises(Denied, match="the operator restarts") as denied:
                    await waiting
                assert (denied.value.answer.status, denied.value.answer.retry_after) == (503, 1.0)
                assert (await client.report("other", b"{}")).status == 503
                assert await client.check("readyz") == "the operator does not answer: it starts or restarts"
                with pytest.raises(NoAnswer):
                    await client.metrics()
                assert await client.admits("x", "a") == 503
                client.count(503)
                async with serving(tmp_path) as second:
                    await until(lambda: client._writer is not None)
                    await client.identify("right")
                    assert second.backend.identified == 1, "the new controller has accepted no token yet"
                    await until(lambda: second.backend.counts == {503: 1})

    run(scenario())


def test_a_controller_that_hangs_gets_a_bounded_number_of_calls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world, connected(world.path, waiting=50, report_seconds=0.5) as client:
            world.backend.hold = asyncio.Event()
            calls = [asyncio.create_task(client.identify("right")) for _ in range(60)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
            hung, refused = "the operator did not answer for 0.5 s", "too many reports wait for the operator"
            assert sorted(str(error) for error in ended) == [hung] * 50 + [refused] * 10
            assert client._calls == {}

    run(scenario())


def test_what_a_controller_does_not_read_is_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        accepted: list[asyncio.StreamWriter] = []

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.Event().wait()

        path = str(tmp_path / "deaf.sock")
        server = await asyncio.start_unix_server(deaf, path)
        async with connected(path, unsent_bytes=100_000, report_seconds=0.5) as client:
            calls = [asyncio.create_task(client.report("right", bytes(8000))) for _ in range(500)]
            await asyncio.sleep(0)
            assert client._unsent() <= 110_000
            assert {answer.status for answer in await asyncio.gather(*calls)} == {503}
        server.close()
        for writer in accepted:
            writer.transport.abort()

    run(scenario())


# Sockets


def test_the_socket_is_for_its_user_only_and_replaces_that_of_a_former_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "operator.sock"
        left = await asyncio.start_unix_server(lambda reader, writer: None, str(path))
        left.close()
        async with serving(tmp_path) as world:
            mode = path.stat().st_mode
            assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
            assert await works(world)
        assert not path.exists()

    run(scenario())


@pytest.mark.parametrize("path", ["missing/operator.sock", f"{'x' * 100}.sock"])
def test_a_socket_that_cannot_be_created_is_named(path: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        server = SocketServer(str(tmp_path / path), FakeBackend())
        with pytest.raises(SocketError, match=r"the socket .*sock cannot be created: .*: give a path"):
            await server.start()

    run(scenario())


def test_an_operator_with_a_socket_opens_no_port(tmp_path: Path) -> None:
    settings = Settings(socket=str(tmp_path / "s"), report_url="http://reports.example.org/v1/report", probe_port=0)
    operator = Operator(settings, Connection("https://127.0.0.1:1", token="x"))
    assert [value for value in vars(operator).values() if isinstance(value, Listener)] == []
    assert operator._http is None


def test_the_liveness_check_reports_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as world:

            async def check() -> str:
                return await asyncio.to_thread(health_check.check, world.path)

            assert await check() == ""
            world.backend.wrong = "no activity"
            assert await check() == "healthz: no activity"
            world.backend.wrong = "raise"
            assert await check() == "the check failed; see the operator's log"
            await world.server.stop()
            assert f"the operator does not answer at {world.path}" in await check()

    run(scenario())


def test_the_liveness_check_fails_when_the_event_loop_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "SECONDS", 0.1)

    async def scenario() -> None:
        async with serving(tmp_path) as world:
            # The kernel accepts the connection, and this thread, which has the loop, is busy.
            assert "timed out" in health_check.check(world.path)

    run(scenario())


def test_the_liveness_check_is_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", health_check.__name__, str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "does not answer" in done.stdout


# The process


REPORT = b'{"step": 1}'


def test_the_process_serves_every_port_from_the_socket_and_ends_on_sigterm(tmp_path: Path) -> None:
    path = str(tmp_path / "operator.sock")
    with frontend(path) as (process, ports):
        away = b"the operator does not answer: it starts or restarts\n"
        assert get(ports["probes"], "/livez") == (200, b"ok\n")
        assert get(ports["probes"], "/readyz") == get(ports["metrics"], "/healthz") == (503, away)
        assert get(ports["metrics"], "/metrics")[0] == 503
        assert get(ports["reports"], "/v1/report", REPORT, Authorization="Bearer right")[0] == 503

        async def scenario() -> None:
            async with serving(tmp_path) as world:
                await until(lambda: world.server.connections == 1)
                ask = asyncio.to_thread
                assert await ask(get, ports["probes"], "/readyz") == (200, b"ok\n")
                world.backend.wrong = "not synced"
                assert await ask(get, ports["probes"], "/readyz") == (503, b"readyz: not synced\n")
                assert await ask(get, ports["metrics"], "/metrics", Authorization="Bearer of 127.0.0.1") == (
                    200,
                    b"up 1\n",
                )
                assert (await ask(get, ports["metrics"], "/metrics"))[0] == 401
                code, body = await ask(get, ports["reports"], "/v1/report", REPORT, Authorization="Bearer right")
                assert (code, json.loads(body)) == (200, STORED.body)
                assert (await ask(get, ports["reports"], "/v1/report", REPORT, Authorization="Bearer wrong"))[0] == 403
                await until(lambda: world.backend.counts == {503: 1, 200: 1, 403: 1})
                assert world.backend.reports == [("right", REPORT)]

        run(scenario())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
