"""The process that parses HTTP of strangers: metrics, probes and reports. It has no token and no rights.

It runs in a container of its own in the operator's pod, and asks the controller over a Unix socket (`socket_protocol`).
It imports neither a client of the API server nor pydantic, so that it stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal

from allranks.operator.ports.http_servers import HttpServers, Ports
from allranks.operator.ports.probes import probe
from allranks.operator.ports.socket_client import SocketClient

logger = logging.getLogger("allranks.frontend")


class Frontend:
    """`run` once. /livez, on the port for probes, is about this process alone."""

    def __init__(self, ports: Ports, socket: str) -> None:
        self.client = SocketClient(socket)
        self.http = HttpServers(ports, self.client, {"/livez": probe(_alive)})

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or SIGTERM or SIGINT arrives. Raises OSError when a port is in use."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        client = asyncio.create_task(self.client.run(), name="socket")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await self.http.start()
            await asyncio.wait([client, stopping], return_when=asyncio.FIRST_COMPLETED)
            if client.done():
                client.result()  # raises: `run` never returns
        finally:
            await self.http.stop()
            for task in (client, stopping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        logger.info("stopped")


async def _alive() -> str:
    return ""
