"""The ports for strangers: metrics, probes and reports. They parse HTTP and ask a `Backend` for everything else.

They run in the operator's process, or without any rights in a process of their own (`frontend`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from allranks.operator.ports.backend import Backend
from allranks.operator.ports.probes import METRICS_LIMITS, PROBE_LIMITS, Handler, Scrapes, Server, SharedPage, probe
from allranks.telemetry import server as reports

logger = logging.getLogger("allranks.operator")


@dataclass(frozen=True, slots=True)
class Ports:
    """0 selects a free port; None: not served."""

    address: str = ""
    """Empty: all addresses, IPv4 and IPv6."""
    metrics: int = 8080
    """With /healthz and /readyz."""
    probes: int | None = None
    reports: int | None = None


class HttpServers:
    """`own_probes` are served on the port for probes beside those of the backend."""

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
