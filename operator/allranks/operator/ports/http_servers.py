"""The ports for untrusted clients: metrics, probes and reports. They parse HTTP and ask a `Backend` for the rest.

They run in the operator's process, or without any rights in a process of their own (`frontend`). Everything is bounded.
Probes can have a port of their own. There, connections of one address are not rate-limited, since the kubelet may share
the node's address with others; when there is no room, the connection that is idle longest is closed, so a probe, which
sends its request immediately, is answered whatever others do.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from allranks.operator.ports.backend import Backend, Gate, NoAnswer, Page
from allranks.telemetry import server as reports
from allranks.telemetry.connections import Limits, Place
from allranks.telemetry.listener import Listener

METRICS_LIMITS = Limits(
    connections=128,
    connections_of_peer=32,
    new_of_peer=128,
    new_per_second=16.0,
    first_seconds=5.0,
    idle_seconds=30.0,
    request_seconds=15.0,
    unanswered_bytes=32_768,
)
PROBE_LIMITS = Limits(
    connections=64,
    connections_of_peer=64,
    new_of_peer=math.inf,
    new_per_second=math.inf,
    first_seconds=5.0,
    idle_seconds=5.0,
    request_seconds=5.0,
    unanswered_bytes=16_384,
)
SCRAPES, SCRAPES_OF_PEER = 16, 2
"""Responses of /metrics that are sent at the same time: a slow reader keeps a copy of its response in memory."""
SCRAPE_SECONDS = 1.0
"""A rendered response is shared for this long..."""
_RENDER_SHARE = 0.05
"""...or longer, so that rendering takes at most this share of the time."""

logger = logging.getLogger("allranks.operator")

Check = Callable[[], Awaitable[str]]
"""Returns what is wrong, empty if nothing is."""
Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]
"""(request, address of the peer) -> response"""


class Server(Listener):
    """Serves GET and HEAD of these paths."""

    def __init__(self, address: str, port: int, routes: Mapping[str, Handler], limits: Limits) -> None:
        super().__init__(self._respond, address=address, port=port, limits=limits)
        self._routes = routes

    async def _respond(self, request: web.BaseRequest, place: Place) -> web.StreamResponse:
        handler = self._routes.get(request.path)
        if handler is None:
            return _text("not found", 404)
        if request.method not in ("GET", "HEAD"):
            return _text("use GET", 405)
        try:
            return await handler(request, place.peer)
        except ConnectionError:
            raise  # the peer is gone
        except Exception:
            logger.exception("cannot answer %s", request.path)
            return _text("internal error; see the operator's log", 500)


def probe(check: Check) -> Handler:
    async def answer(_: web.BaseRequest, peer: str) -> web.StreamResponse:
        wrong = await check()
        return _text(wrong or "ok", 503 if wrong else 200)

    return answer


class SharedPage:
    """Renders the page at most once a second, or less often if this takes long. All readers share one rendering."""

    def __init__(self, render: Callable[[], Awaitable[Page]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._render, self._monotonic = render, monotonic
        self._fresh_until = float("-inf")
        self._rendering: asyncio.Future[Page] | None = None

    async def __call__(self) -> Page:
        """Raises what `render` raises."""
        if self._rendering is None or (self._rendering.done() and self._monotonic() >= self._fresh_until):
            self._rendering = asyncio.ensure_future(self._timed())
        return await asyncio.shield(self._rendering)

    async def _timed(self) -> Page:
        began = self._monotonic()
        page = await self._render()
        seconds = self._monotonic() - began
        self._fresh_until = began + max(SCRAPE_SECONDS, seconds / _RENDER_SHARE)
        return page


class Scrapes:
    """/metrics, for those whom the gate admits."""

    def __init__(self, page: Callable[[], Awaitable[Page]], gate: Gate) -> None:
        self._page, self._gate = page, gate
        self._sending: Counter[str] = Counter()

    async def answer(self, request: web.BaseRequest, peer: str) -> web.StreamResponse:
        code = await self._gate.admits(request.headers.get("Authorization", ""), peer)
        if code != 200:
            return _text(_REJECTIONS[code], code)
        if self._sending.total() >= SCRAPES or self._sending[peer] >= SCRAPES_OF_PEER:
            return _text("too many scrapes at the same time", 503)
        self._sending[peer] += 1
        try:
            try:
                content_type, body = await self._page()
            except NoAnswer as error:
                return _text(str(error), 503)
            response = web.StreamResponse(headers={"Content-Type": content_type, "Server": "allranks"})
            response.content_length = len(body)
            await response.prepare(request)
            if request.method != "HEAD":
                await response.write(body)
            await response.write_eof()
            return response
        finally:
            self._sending[peer] -= 1
            self._sending += Counter()  # drops zeros


_REJECTIONS = {
    401: "metrics need a valid token: Authorization: Bearer TOKEN",
    403: "this account may not get /metrics: bind it to the ClusterRole of metrics readers",
    503: "the token cannot be checked now",
}


def _text(text: str, status: int) -> web.Response:
    headers = {"Server": "allranks"} | ({"Retry-After": "1"} if status == 503 else {})
    response = web.Response(text=f"{text}\n", status=status, headers=headers)
    response.force_close()  # No keep-alive: connections are for the next probe.
    return response


@dataclass(frozen=True, slots=True)
class Ports:
    """Numbers of ports. 0 selects a free port; a port that is None is not served."""

    address: str = ""
    """Empty: all addresses, IPv4 and IPv6."""
    metrics: int = 8080
    """With /healthz and /readyz."""
    probes: int | None = None
    reports: int | None = None


class HttpServers:
    """`own_probes` are served on the port for probes, beside the probes of the backend."""

    def __init__(self, ports: Ports, backend: Backend, own_probes: Mapping[str, Handler] | None = None) -> None:
        async def identify(token: str) -> str:
            await backend.identify(token)
            return token

        address = ports.address
        probes = {f"/{name}": probe(functools.partial(backend.check, name)) for name in ("healthz", "readyz")}
        metrics = Scrapes(SharedPage(backend.metrics), backend)
        self.metrics = Server(address, ports.metrics, {**probes, "/metrics": metrics.answer}, METRICS_LIMITS)
        self.probes = (
            None
            if ports.probes is None
            else Server(address, ports.probes, {**probes, **(own_probes or {})}, PROBE_LIMITS)
        )
        self.reports = (
            None
            if ports.reports is None
            else reports.Server(
                identify,
                backend.report,
                outcome=backend.outcome,
                process=backend.process,
                code=backend.code,
                address=address,
                port=ports.reports,
                count=backend.count,
            )
        )

    async def start(self) -> None:
        """Raises OSError when a port is in use."""
        await self.metrics.start()
        logger.info("serving /metrics, /healthz and /readyz on port %s", self.metrics.port)
        if self.probes:
            await self.probes.start()
            logger.info("serving probes on port %s", self.probes.port)
        if self.reports:
            await self.reports.start()
            logger.info("receiving reports on port %s", self.reports.port)

    async def stop(self) -> None:
        for server in (self.reports, self.probes, self.metrics):
            if server:
                await server.stop()
