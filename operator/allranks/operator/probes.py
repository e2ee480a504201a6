"""HTTP server for /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str]
"""Returns what is wrong, empty if nothing is."""


class Server:
    """`port` 0 selects a free port, which `port` has after `start`."""

    def __init__(self, address: str, port: int, registry: CollectorRegistry, healthy: Check, ready: Check) -> None:
        self._address, self.port, self._registry = address, port, registry
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", _handler(healthy))
        app.router.add_get("/readyz", _handler(ready))
        # No keep-alive: an idle connection would delay the shutdown.
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=0, shutdown_timeout=1)

    async def start(self) -> None:
        """Raises OSError when the port is in use."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address or None, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _handler(check: Check) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(text=f"{wrong}\n", status=503) if wrong else web.Response(text="ok\n")

    return answer
