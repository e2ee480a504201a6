"""The report server against senders of every kind: an honest one is served immediately, whatever others do."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.config
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop

from allranks import open_files
from allranks.report.state import Means, State, message
from allranks.report.transport import AttemptOver, SendFailed, Transport
from allranks.telemetry import connections, messages, server
from allranks.telemetry.connections import Limits
from allranks.telemetry.messages import BODY_BYTES
from allranks.telemetry.server import Denied, Server
from allranks.telemetry.store import ReportSource, ReportStore, StoreLimits

SENDER = ReportSource(("team", "demo"), "uid-1", "demo-worker-0-0", "pod-1", "worker", 0, 0, 0, "node-a")
TOKENS = {f"token-{index}": replace(SENDER, index=index, pod_uid=f"pod-{index}") for index in range(300)}
BURST = StoreLimits().burst
QUICK = 8.0
"""Seconds that a busy machine may need. A report that waits for the timeout of another connection takes 10 or more."""
FAST = Limits(hold_seconds=0.0, wait_seconds=0.0, lingering_seconds=0.1, sweep_seconds=0.02)
TICK = 0.002
"""Seconds by which a timer of uvloop may be early: it counts whole milliseconds."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


class Raw:
    """A connection of a sender that sends arbitrary bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():  # uvloop's would raise RuntimeError once it is closed
            raise ConnectionResetError("closed")
        self.writer.write(data)
        await self.writer.drain()

    async def report(self, body: Any = None, token: str | None = "token-0", **headers: str) -> Answer:
        await self.send(request(body, token, **headers))
        return await self.answer()

    async def answer(self) -> Answer:
        async with asyncio.timeout(300):  # the wait_for of Python 3.11 sometimes loses the cancellation of its task
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(fields.get("Content-Length", 0)))
        content = json.loads(body) if fields["Content-Type"].startswith("application/json") else body.decode()
        return Answer(int(head[0].split()[1]), fields, content)

    async def closed(self) -> bool:
        """Whether the server closes the connection."""
        try:
            async with asyncio.timeout(300):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


def request(body: Any = None, token: str | None = "token-0", path: str = server.PATH, method: str = "POST",
            **headers: str) -> bytes:  # fmt: skip
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    fields = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(data))}
    fields |= {"Authorization": f"Bearer {token}"} if token is not None else {}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    return f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in fields.items()) + b"\r\n" + data  # fmt: skip # noqa: E501


class World:
    def __init__(self, server: Server, store: ReportStore) -> None:
        self.server, self.store = server, store
        self.counted: list[int] = []
        self.raw: list[Raw] = []
        self.pods = 0

    async def connect(self, address: str = "127.0.0.1") -> Raw:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self.server.port, local_addr=(address, 0)))
        self.raw.append(raw)
        return raw

    async def honest(self, step: int = 1) -> float:
        """A correct report; returns the seconds that it took."""
        self.pods += 1
        token, began = f"token-{300 - self.pods}", time.monotonic()
        raw = await self.connect()
        answer = await raw.report({"step": step}, token)
        assert (answer.status, answer.body) == (200, {"interval": 5.0, "stacks": "", "checkpoint": 0})
        raw.close()
        return time.monotonic() - began

    def steps(self) -> list[int | None]:
        return [rank.step for rank in self.store.snapshot(("team", "demo"), "uid-1", 0).ranks]


async def of_tokens(token: str) -> ReportSource | None:
    return TOKENS.get(token)


@asynccontextmanager
async def serving(
    limits: Limits = FAST,
    identify: Callable[[str], Awaitable[ReportSource | None]] = of_tokens,
    monotonic: Callable[[], float] = time.monotonic,
    **how: Any,
) -> AsyncIterator[World]:
    store = ReportStore(lambda: datetime.now(UTC), lambda job: None, monotonic=monotonic)
    counted: list[int] = []
    ingest = how.pop("ingest", store.ingest)
    served = Server(
        identify, ingest, address="127.0.0.1", limits=limits, count=counted.append, monotonic=monotonic, **how
    )
    await served.start()
    world = World(served, store)
    world.counted = counted
    try:
        async with asyncio.timeout(300):
            yield world
    finally:
        for raw in world.raw:
            raw.close()
        began = time.monotonic()
        await served.stop()
        assert time.monotonic() - began < QUICK, "the server does not stop"


def stopped() -> float:
    """A clock that does not advance: no token bucket is refilled."""
    return 0.0


def run(scenario: Awaitable[None]) -> None:
    uvloop.run(scenario)  # type: ignore[arg-type]  # as `allranks operator` does


def test_a_report_is_accepted_and_the_connection_is_kept() -> None:
    async def scenario() -> None:
        async with serving() as world:
            raw = await world.connect()
            for step in range(1, 4):
                answer = await raw.report({"step": step, "rank": 0})
                assert (answer.status, answer.body) == (200, {"interval": 5.0, "stacks": "", "checkpoint": 0})
                assert world.steps() == [step]
            world.store.stack_dump_id(("team", "demo"), "now")
            assert (await raw.report({"step": 4})).body["stacks"] == "now"
            assert (await raw.report({"step": 5}, Authorization="bearer  token-0 ", token=None)).status == 200
            assert world.counted == [200] * 5

    run(scenario())


def test_the_server_accepts_the_messages_of_the_library_and_the_library_its_responses(tmp_path: Path) -> None:
    token = tmp_path / "token"

    def post(wire: Transport, state: State) -> dict[str, Any]:
        return wire.post(message(state, Means(), {"loss": 0.5}, 12.0, waiting=False, done=False))

    async def scenario() -> None:
        async with serving() as world:
            wire = Transport(f"http://127.0.0.1:{world.server.port}{server.PATH}", str(token))
            state = State(step=8, total_steps=10, epoch=1, stepped_at=10.0, checkpoint_step=5, checkpoint_at=9.0)
            token.write_text("token-0")
            assert await asyncio.to_thread(post, wire, state) == {"interval": 5.0, "stacks": "", "checkpoint": 0}
            [rank] = world.store.snapshot(("team", "demo"), "uid-1", 0).ranks
            assert (rank.step, rank.total_steps, rank.epoch, rank.checkpoint_step) == (8, 10, 1, 5)
            assert (rank.metrics, rank.waiting, rank.done) == ({"loss": 0.5}, False, False)
            token.write_text("somebody's")
            with pytest.raises(SendFailed, match="401"):
                await asyncio.to_thread(post, wire, state)
            token.write_text("token-0")
            await asyncio.to_thread(post, wire, state)
            world.store.snapshot(("team", "demo"), "uid-1", 1)
            with pytest.raises(AttemptOver):
                await asyncio.to_thread(post, wire, state)
            wire.close()

    run(scenario())


async def chunked(raw: Raw, chunks: list[bytes]) -> None:
    head = request(b"", "token-0", Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
    await raw.send(head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks))


def test_a_message_in_chunks_is_one_message() -> None:
    async def scenario() -> None:
        async with serving() as world:
            raw = await world.connect()
            await chunked(raw, [b'{"step"', b": 6}", b""])
            assert (await raw.answer()).status == 200
            assert world.steps() == [6]

    run(scenario())


WRONG = {
    "no token": (request(token=None), 401),
    "a forged token": (request(token="forged"), 401),
    "another kind of login": (request(token=None, Authorization="Basic dG9rZW4="), 401),
    "a bearer of nothing": (request(token=None, Authorization="Bearer  "), 401),
    "another path": (request(path="/metrics"), 404),
    "a path that climbs": (request(path="/v1/report/../../etc/passwd"), 404),
    "another verb": (request(method="GET"), 405),
    "no JSON": (request(b"step=1"), 400),
    "too long": (request(b"{" + b" " * BODY_BYTES + b"}"), 413),
    "compressed": (request(b"\x1f\x8b", Content_Encoding="gzip"), 415),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a head without end": (b"POST /v1/report HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n", 400),
    "a length that is none": (request(Content_Length="many"), 400),
    "two lengths": (request(Transfer_Encoding="chunked", Content_Length="5"), 400),
}


@pytest.mark.parametrize("name", WRONG)
def test_responses_to_invalid_requests_contain_no_internals(name: str, caplog: pytest.LogCaptureFixture) -> None:
    data, status = WRONG[name]

    async def scenario() -> None:
        async with serving() as world:
            raw = await world.connect()
            await raw.send(data)
            answer = await raw.answer()
            assert answer.status == status
            assert "Traceback" not in str(answer.body)
            assert ".py" not in str(answer.body)
            assert world.steps() == []
            assert await world.honest() < QUICK

    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})  # uvicorn does so
    with caplog.at_level(logging.DEBUG, "allranks"):
        run(scenario())
    assert caplog.records == []


def test_an_internal_error_is_logged_once_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("a bug of ours")

    async def scenario() -> None:
        async with serving(ingest=fails) as world:
            for _ in range(3):
                answer = await (await world.connect()).report({"step": 1}, token="token-7")
                assert (answer.status, answer.headers["Retry-After"]) == (500, "30")
                assert "bug" not in str(answer.body)

    run(scenario())
    assert [record.message for record in caplog.records] == ["cannot process a report"]
    assert "token-7" not in caplog.text


def test_a_denied_sender_gets_the_reason_and_a_retry_after() -> None:
    async def later(_: str) -> ReportSource | None:
        raise Denied(503, "another replica acts", 1.0)

    async def scenario() -> None:
        async with serving(identify=later) as world:
            raw = await world.connect()
            answer = await raw.report({"step": 1})
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert answer.body == {"error": "another replica acts"}
            assert await raw.closed(), "the next connection may lead to the replica that acts"

    run(scenario())


def test_a_pod_that_sends_too_many_messages_is_rate_limited_and_others_are_not() -> None:
    async def scenario() -> None:
        async with serving(monotonic=stopped) as world:
            raw = await world.connect()
            answers = [await raw.report({"step": step}) for step in range(100)]
            assert [answer.status for answer in answers] == [200] * BURST + [429] * (100 - BURST)
            assert (answers[-1].status, answers[-1].headers["Retry-After"]) == (429, "5")
            assert await world.honest() < QUICK

    run(scenario())


def test_rejections_are_delayed_and_do_not_delay_others() -> None:
    async def scenario() -> None:
        async with serving(Limits(hold_seconds=0.5)) as world:
            raw = await world.connect()
            began = time.monotonic()
            rejected = asyncio.create_task(raw.report(b"no"))
            await world.honest()
            assert not rejected.done()
            assert (await rejected).status == 400
            assert time.monotonic() - began >= 0.5 - TICK

    run(scenario())


def test_a_429_is_delayed_as_long_as_its_retry_after_says() -> None:
    async def scenario() -> None:
        async with serving(Limits(wait_seconds=0.5), monotonic=stopped) as world:
            raw = await world.connect()
            assert {(await raw.report({"step": step})).status for step in range(BURST)} == {200}
            began = time.monotonic()
            limited = asyncio.create_task(raw.report({"step": 65}))
            await world.honest()
            assert not limited.done()
            assert (await limited).status == 429
            assert time.monotonic() - began >= 0.5 - TICK

    run(scenario())


def test_after_many_forged_tokens_of_an_address_further_ones_are_not_checked() -> None:
    asked: list[str] = []

    async def identify(token: str) -> ReportSource | None:
        asked.append(token)
        return TOKENS.get(token)

    async def scenario() -> None:
        async with serving(replace(FAST, rejections=10), identify, monotonic=stopped) as world:
            trusted = await world.connect()
            assert (await trusted.report({"step": 1})).status == 200
            raw = await world.connect()
            statuses = [(await raw.report({}, f"forged-{n}")).status for n in range(40)]
            assert statuses == [401] * 10 + [429] * 30
            assert len(asked) == 11
            assert (await trusted.report({"step": 2})).status == 200, "a connection with a valid token is not affected"

    run(scenario())


def test_a_connection_with_an_endless_body_is_closed() -> None:
    async def scenario() -> None:
        async with serving() as world:
            raw = await world.connect()
            await chunked(raw, [b" " * 4000] * 3)
            assert (await raw.answer()).status == 413
            assert await raw.closed()
            endless = await world.connect()
            await endless.send(request(Content_Length=str(10**12)))
            assert (await endless.answer()).status == 413
            assert await endless.closed()

    run(scenario())


def test_requests_that_do_not_wait_for_responses_are_not_read_forever() -> None:
    async def scenario() -> None:
        async with serving(Limits(hold_seconds=5.0)) as world:
            raw, sent = await world.connect(), 0
            try:
                while True:
                    await asyncio.wait_for(raw.send(request(b"no") * 1000), 0.5)
                    sent += 1
                    assert sent < 200, "it reads everything"
            except (ConnectionError, TimeoutError):
                pass
            assert await world.honest() < QUICK

    run(scenario())


SLOW = replace(FAST, first_seconds=0.2, idle_seconds=0.4, request_seconds=0.3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /v1/report HTTP/1.1\r\nX: y\r\n",
        request(Content_Length="100"),
        request({"step": 1}),
        request({"step": 1}) + b"POST /v1",
    ],
    ids=["says nothing", "ends in its head", "ends in its body", "is idle for long", "ends in its next head"],
)
def test_a_silent_connection_is_closed(data: bytes) -> None:
    async def scenario() -> None:
        async with serving(SLOW) as world:
            raw = await world.connect()
            await raw.send(data)
            if data.startswith(request({"step": 1})):
                await raw.answer()
            began = time.monotonic()
            assert await raw.closed()
            assert time.monotonic() - began < 2
            assert world.server.connections == 0

    run(scenario())


def test_a_supervisor_may_wait_longer_than_a_report_and_is_not_counted_as_one() -> None:
    waiting: list[asyncio.Future[messages.Answer]] = []

    async def process(sender: ReportSource, body: bytes) -> messages.Answer:
        assert (sender.pod_uid, body) == ("pod-0", b"{}")
        waiting.append(asyncio.get_running_loop().create_future())
        return await waiting[-1]

    async def scenario() -> None:
        async with serving(SLOW, process=process) as world:
            raw, forged = await world.connect(), await world.connect()
            await raw.send(request({}, path=server.PROCESS_PATH))
            assert (await send_and_read(forged, request({}, "forged", server.PROCESS_PATH))).status == 401
            while not waiting:
                await asyncio.sleep(0.005)
            idle = await world.connect()
            assert await idle.closed()  # several deadlines of SLOW have passed
            await asyncio.sleep(2 * SLOW.request_seconds)
            waiting[0].set_result(messages.Answer(200, {"order": None}))
            answer = await raw.answer()
            assert (answer.status, answer.body) == (200, {"order": None})
            assert world.counted == []

    run(scenario())


def test_without_a_store_of_supervisors_they_are_not_received() -> None:
    async def scenario() -> None:
        async with serving() as world:
            raw = await world.connect()
            assert (await send_and_read(raw, request({}, path=server.PROCESS_PATH))).status == 404

    run(scenario())


async def send_and_read(raw: Raw, data: bytes) -> Answer:
    await raw.send(data)
    return await raw.answer()


def test_a_slow_connection_is_closed() -> None:
    async def trickle(raw: Raw, data: bytes) -> None:
        try:
            for byte in data:
                await raw.send(bytes([byte]))
                await asyncio.sleep(0.01)
        except ConnectionError:
            return
        raise AssertionError("it was never cut off")

    async def scenario() -> None:
        async with serving(SLOW) as world:
            head = b"POST /v1/report HTTP/1.1\r\n" + b"X: y\r\n" * 200
            body = request(b" " * 4000)
            crowd = [(await world.connect(), data) for data in (head, body) for _ in range(20)]
            await asyncio.gather(*(trickle(raw, data) for raw, data in crowd))

    run(scenario())


def test_connections_are_limited_and_idle_ones_are_closed_first() -> None:
    async def scenario() -> None:
        limits = replace(FAST, connections=20, connections_of_peer=1000)
        async with serving(limits) as world:
            first = await world.connect()
            assert (await first.report({"step": 1})).status == 200
            silent = [await world.connect() for _ in range(100)]
            assert await first.closed(), "it was idle for the longest time"
            assert [await raw.closed() for raw in silent[:80]] == [True] * 80
            assert world.server.connections <= 20
            assert await world.honest() < QUICK

    run(scenario())


def test_connections_per_address_are_limited() -> None:
    async def scenario() -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def slow(token: str) -> ReportSource | None:
            if token == "slow":
                started.set()
                await go.wait()
            return TOKENS.get(token)

        async with serving(replace(FAST, connections_of_peer=2), slow) as world:
            busy = await world.connect()
            await busy.send(request({}, "slow"))
            await started.wait()
            idle = await world.connect()
            assert (await idle.report({})).status == 200
            other = await world.connect()
            assert (await other.report({})).status == 200
            assert await idle.closed()
            go.set()
            assert (await busy.answer()).status == 401, "what is being answered is left alone"

    run(scenario())


def test_the_rate_of_new_connections_per_address_is_limited() -> None:
    async def scenario() -> None:
        async with serving(replace(FAST, new_of_peer=10, new_per_second=0.0)) as world:
            crowd = [await world.connect("127.0.0.2") for _ in range(30)]
            assert [await raw.closed() for raw in crowd[10:]] == [True] * 20
            assert (await crowd[0].report({"step": 1})).status == 200
            assert world.server.connections == 10
            assert await world.honest() < QUICK

    run(scenario())


def test_a_new_connection_is_closed_when_all_others_of_its_address_are_busy() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def slow(_: str) -> ReportSource | None:
            await go.wait()
            return SENDER

        async with serving(replace(FAST, connections_of_peer=3), slow) as world:
            busy = [await world.connect() for _ in range(3)]
            for raw in busy:
                await raw.send(request({"step": 1}))
            while world.server.connections < 3 or not all(len(s) == 3 for s in [world.server._connections.busy]):  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            assert await (await world.connect()).closed()
            go.set()
            assert [(await raw.answer()).status for raw in busy] == [200] * 3

    run(scenario())


def test_honest_senders_are_served_during_an_attack() -> None:
    """Noise, forged tokens and halves of requests on as many connections as an address may have, each reconnected as
    soon as it is closed."""

    async def attack(world: World, kind: int) -> None:
        while True:
            raw = await world.connect("127.0.0.2")
            try:
                if kind % 4 == 0:
                    await raw.send(b"\x00" * 5000)
                elif kind % 4 == 1:
                    await raw.report({}, f"forged-{kind}")
                elif kind % 4 == 2:
                    await raw.send(request(Content_Length="100000"))
                else:
                    await raw.send(b"POST /v1/report HTTP/1.1\r\n")
                await raw.closed()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                raw.close()
                await asyncio.sleep(0.2)

    async def scenario() -> None:
        async with serving(Limits(connections_of_peer=100)) as world:
            crowd = [asyncio.create_task(attack(world, kind)) for kind in range(200)]
            took = []
            for step in range(40):
                took.append(await world.honest(step))
                assert world.server.connections <= 101
                await asyncio.sleep(0.02)
            for task in crowd:
                task.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            assert max(took) < 5, "every hostile request is held up for longer, or cut off"
            assert world.steps() == [*range(40)]
            assert {200, 401, 413} <= set(world.counted)

    run(scenario())


def test_remembered_addresses_are_limited() -> None:
    async def scenario() -> None:
        async with serving(replace(FAST, peers=3)) as world:
            for number in range(10):
                world.server._rejections.count(f"10.0.0.{number}")
            assert list(world.server._rejections._of_peer) == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]

    run(scenario())


@pytest.mark.parametrize(
    ("limits", "room"), [((1024, 4096), 3840), ((1024, 1024), 768), ((1 << 20, 1 << 20), 10_000), ((64, 64), 16)]
)
def test_the_limit_of_open_files_is_raised_as_far_as_allowed(
    limits: tuple[int, int], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [limits]
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: now[0])
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _, wanted: now.__setitem__(0, wanted))
    assert connections.room(10_000) == room
