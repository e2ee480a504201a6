"""Receives reports of ranks while this replica is the leader.

Every replica listens, because the Service selects all ready pods and a standby is ready. A standby answers 503 and
closes the connection: the next one may reach the leader, and is kept then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from allranks.operator.report_auth import Reviews
from allranks.operator.settings import Settings
from allranks.telemetry.server import Denied, Server
from allranks.telemetry.store import Answer, ReportSource, ReportStore

STANDBY_SECONDS = 1.0
"""Retry-After of a standby."""


class Leader(Protocol):
    """A session of the operator."""

    reports: ReportStore
    reviews: Reviews

    @property
    def leading(self) -> bool: ...


class ReportServer(Server):
    """`session` returns the current session: each has its own caches."""

    def __init__(self, settings: Settings, session: Callable[[], Leader | None], count: Callable[[int], None]) -> None:
        super().__init__(
            self._identify_sender, self._ingest, address=settings.address, port=settings.report_port, count=count
        )
        self._session = session

    def _leader(self) -> Leader:
        """Raises Denied on a standby. The answers of a former leader would be as wrong as its writes."""
        session = self._session()
        if session is None or not session.leading:
            raise Denied(503, "this replica is not the leader, or not ready yet", STANDBY_SECONDS)
        return session

    async def _identify_sender(self, token: str) -> ReportSource:
        return await self._leader().reviews.identify(token)

    def _ingest(self, sender: ReportSource, body: bytes) -> Answer:
        try:
            return self._leader().reports.ingest(sender, body)
        except Denied as denied:
            return denied.answer
