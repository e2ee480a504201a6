"""Every port of the operator against clients that hold it: probes are answered, and each number is bounded."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

import allranks
from allranks.kube.auth import Connection
from allranks.kube.errors import Refused
from allranks.operator.app import Operator
from allranks.operator.ports import metrics_auth
from allranks.operator.ports.backend import Gate, Page
from allranks.operator.ports.http_servers import (
    METRICS_LIMITS,
    PROBE_LIMITS,
    SCRAPES_OF_PEER,
    Scrapes,
    Server,
    SharedPage,
    probe,
)
from allranks.operator.ports.metrics_auth import MetricsGate
from allranks.operator.settings import Settings
from allranks.operator.timing import Clock
from allranks.telemetry.connections import Limits
from allranks.telemetry.listener import Listener

SETTINGS = Settings(
    address="127.0.0.1", port=0, probe_port=0, report_port=0, report_url="http://reports.example.org/v1/report"
)
HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
STRANGERS = [f"127.0.0.{number}" for number in range(2, 12)]
"""Addresses of the loopback."""


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> str:
        return (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)).decode()

    async def closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), 30) == b""
        except ConnectionError:
            return True


Connect = Callable[..., Awaitable[Client]]


@asynccontextmanager
async def serving(*listeners: Listener) -> AsyncIterator[Connect]:
    """`connect(listener, address, data)`"""
    clients: list[Client] = []

    async def connect(listener: Listener, address: str = "127.0.0.1", data: bytes = b"") -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(address, 0)))
        clients.append(client)
        client.writer.write(data)
        return client

    for listener in listeners:
        await listener.start()
    try:
        async with asyncio.timeout(300):
            yield connect
    finally:
        for client in clients:
            client.writer.transport.abort()
        for listener in listeners:
            await listener.stop()


def request(path: str = "/healthz", method: str = "GET", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


async def status(connect: Connect, listener: Listener, data: bytes, address: str = "127.0.0.1") -> int:
    client = await connect(listener, address, data)
    return int((await client.head()).split()[1])


def run(scenario: Awaitable[None]) -> None:
    uvloop.run(scenario)  # type: ignore[arg-type]  # as `allranks operator` does


class Everyone:
    async def admits(self, authorization: str, peer: str) -> int:
        return 200


def metrics_server(
    render: Callable[[], bytes] = lambda: b"up 1\n",
    limits: Limits = METRICS_LIMITS,
    gate: Gate | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Server:
    async def page() -> Page:
        return Page("text/plain", render())

    async def healthy() -> str:
        return ""

    scrapes = Scrapes(SharedPage(page, monotonic), gate or Everyone())
    return Server("127.0.0.1", 0, {"/metrics": scrapes.answer, "/healthz": probe(healthy)}, limits)


PORTS = ("server", "probes", "reports")


@pytest.mark.parametrize("name", PORTS)
def test_half_requests_on_a_port_are_bounded_and_delay_no_probe(name: str) -> None:
    """The flood has more connections than the port allows, from several addresses."""

    async def scenario() -> None:
        operator = Operator(SETTINGS, Connection("https://127.0.0.1:1", token="x"))
        assert operator.probes
        listener = getattr(operator, name)
        if name == "reports":
            listener._limits = replace(listener._limits, connections=128)  # 10,000 take too long
        most, most_of_peer = listener._limits.connections, listener._limits.connections_of_peer
        async with serving(*{listener, operator.server, operator.probes}) as connect:
            for number in range(2 * most):
                await connect(listener, STRANGERS[number % len(STRANGERS)], HALF)
            for _ in range(2 * most_of_peer if most_of_peer < most else 0):
                await connect(listener, STRANGERS[0], HALF)
            assert listener.connections <= most
            assert len(listener._connections._of_peer[STRANGERS[0]]) <= most_of_peer
            assert await status(connect, operator.probes, request()) == 200
            assert await status(connect, operator.probes, request("/readyz")) == 503
            # On a port that clients hold as well: also from an address that holds all its connections.
            if name != "reports":
                assert await status(connect, listener, request(), STRANGERS[1]) == 200

    run(scenario())


def test_every_port_of_the_operator_is_in_this_test() -> None:
    operator = Operator(SETTINGS, Connection("https://127.0.0.1:1", token="x"))
    assert {name for name, value in vars(operator).items() if isinstance(value, Listener)} == set(PORTS)
    sources = Path(allranks.__file__).parent
    sites = [path.name for path in sources.rglob("*.py") if re.search(r"TCPSite\(|start_server\(", path.read_text())]
    assert sites == ["listener.py"]


@pytest.mark.parametrize("limits", [METRICS_LIMITS, PROBE_LIMITS])
def test_a_request_without_an_end_is_closed_at_its_deadline(limits: Limits) -> None:
    async def scenario() -> None:
        server = metrics_server(limits=replace(limits, first_seconds=0.05, sweep_seconds=0.01))
        async with serving(server) as connect:
            client = await connect(server, data=HALF)
            assert await client.closed()
            assert server.connections == 0

    run(scenario())


@pytest.mark.parametrize("limits", [METRICS_LIMITS, PROBE_LIMITS])
def test_a_request_that_is_too_long_is_closed(limits: Limits) -> None:
    async def scenario() -> None:
        server = metrics_server(limits=limits)
        async with serving(server) as connect:
            client = await connect(server, data=HALF + b"".join(b"X%d: %s\r\n" % (n, b"x" * 1000) for n in range(200)))
            assert await client.closed() or "400" in await client.head()

    run(scenario())


def test_other_paths_and_methods_are_rejected() -> None:
    async def scenario() -> None:
        server = metrics_server()
        async with serving(server) as connect:
            assert await status(connect, server, request("/")) == 404
            assert await status(connect, server, request("/healthz", "DELETE")) == 405
            assert await status(connect, server, request("/metrics", "HEAD")) == 200
            assert await status(connect, server, b"\x16\x03\x01\r\n\r\n") == 400

    run(scenario())


def test_a_failing_check_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> str:
        raise RuntimeError("a bug of ours")

    async def scenario() -> None:
        server = Server("127.0.0.1", 0, {"/healthz": probe(fails)}, PROBE_LIMITS)
        async with serving(server) as connect:
            assert await status(connect, server, request()) == 500

    run(scenario())
    assert "cannot answer /healthz" in caplog.text


def test_metrics_are_rendered_once_a_second_and_shared() -> None:
    now: list[float] = [0.0]
    rendered: list[float] = []

    def render() -> bytes:
        rendered.append(now[0])
        now[0] += 0.01 if len(rendered) < 3 else 0.5
        return b"up 1\n"

    async def scenario() -> None:
        server = metrics_server(render, replace(METRICS_LIMITS, new_of_peer=1000), monotonic=lambda: now[0])
        async with serving(server) as connect:
            for moment, count in ((0.0, 1), (0.5, 1), (1.0, 2), (1.9, 2), (2.0, 3), (11.9, 3), (12.0, 4)):
                now[0] = moment
                answers = await asyncio.gather(*(status(connect, server, request("/metrics")) for _ in range(2)))
                assert (answers, len(rendered)) == ([200, 200], count), moment

    run(scenario())


def test_slow_readers_of_metrics_are_bounded_per_address_and_end_at_their_deadline() -> None:
    async def scenario() -> None:
        server = metrics_server(lambda: bytes(1 << 24), replace(METRICS_LIMITS, sweep_seconds=0.05))
        async with serving(server) as connect:
            for _ in range(SCRAPES_OF_PEER):
                slow = await connect(server, STRANGERS[0], request("/metrics"))
                assert "200 OK" in await slow.head()  # and nothing more is read
            assert await status(connect, server, request("/metrics"), STRANGERS[0]) == 503
            assert await status(connect, server, request("/metrics"), STRANGERS[1]) == 200
            assert await status(connect, server, request(), STRANGERS[0]) == 200
            assert server._connections
            server._connections._monotonic = lambda: time.monotonic() + METRICS_LIMITS.request_seconds
            while server.connections > 0:
                await asyncio.sleep(0.05)
            assert await status(connect, server, request("/metrics"), STRANGERS[0]) == 200

    run(scenario())


class ApiServer:
    """Answers reviews."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hold: asyncio.Event | None = None
        self.fails = False

    async def request(self, _verb: str, path: str, body: Any, **_: Any) -> bytes:
        return await self.create(path, body)

    async def create(self, path: str, body: Any) -> bytes:
        self.asked.append(body["kind"])
        if self.hold:
            await self.hold.wait()
        if self.fails:
            raise Refused("no", 403, "Forbidden")
        if body["kind"] == "TokenReview":
            token = body["spec"]["token"]
            valid = b"true" if token in ("scraper", "stranger") else b"false"
            return b'{"status": {"authenticated": %s, "user": {"username": "%s"}}}' % (valid, token.encode())
        assert body["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        return b'{"status": {"allowed": %s}}' % (b"true" if body["spec"]["user"] == "scraper" else b"false")

    async def close(self) -> None:
        pass


class FakeClock(Clock):
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def gate() -> tuple[MetricsGate, ApiServer, FakeClock]:
    api, clock = ApiServer(), FakeClock()
    return MetricsGate(lambda: api, clock), api, clock  # type: ignore[arg-type, return-value]


def test_metrics_with_authentication_need_an_account_that_may_read_them() -> None:
    async def scenario() -> None:
        protected, _, _ = gate()
        server = metrics_server(gate=protected)
        async with serving(server) as connect:
            for token, code in (("", 401), ("forged", 401), ("stranger", 403), ("scraper", 200)):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                assert await status(connect, server, request("/metrics", **headers)) == code, token
            assert await status(connect, server, request("/healthz")) == 200, "probes have no token"
        await protected.close()

    run(scenario())


def test_decisions_about_scrapers_are_cached_and_expire() -> None:
    async def scenario() -> None:
        protected, api, clock = gate()
        assert [await protected.admits("Bearer scraper", "a") for _ in range(3)] == [200] * 3
        assert api.asked == ["TokenReview", "SubjectAccessReview"]
        assert [await protected.admits("bearer forged", "a") for _ in range(3)] == [401] * 3
        assert api.asked[2:] == ["TokenReview"]
        clock.seconds = 61
        api.fails = True
        assert await protected.admits("Bearer scraper", "a") == 503, "a failed review is not cached"
        api.fails = False
        assert await protected.admits("Bearer scraper", "a") == 200

    run(scenario())


def test_reviews_are_limited_per_address_and_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_auth, "CACHED", 3)

    async def scenario() -> None:
        protected, api, _ = gate()
        codes = [await protected.admits(f"Bearer forged-{number}", "a") for number in range(20)]
        assert codes == [401] * metrics_auth.REVIEWS_OF_PEER + [503] * (20 - metrics_auth.REVIEWS_OF_PEER)
        assert await protected.admits("Bearer scraper", "b") == 200
        assert protected.tokens.cached == (1, 3)
        api.hold = asyncio.Event()
        waiting = [
            asyncio.create_task(protected.admits(f"Bearer t{n}", f"c{n}")) for n in range(2 * metrics_auth.WAITING)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rejected = [task.result() for task in waiting if task.done()]
        assert rejected == [503] * metrics_auth.WAITING
        api.hold.set()
        await asyncio.gather(*waiting)
        assert not protected.tokens._reviewing

    run(scenario())
