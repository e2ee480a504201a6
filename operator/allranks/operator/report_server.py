"""Takes ranks' reports while this replica acts.

Where there are several replicas each of them listens, because a Service leads to all that are ready, and to be ready is
what those are there for that stand by. They send everybody away at once: the next connection may lead to the one that
acts, and then it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from allranks.operator.report_auth import Reviews
from allranks.operator.settings import Settings
from allranks.telemetry.server import Denied, Server
from allranks.telemetry.store import Answer, ReportSource, ReportStore

STANDBY_SECONDS = 1.0
"""So soon a sender that came to the wrong replica may try again."""


class Acting(Protocol):
    """A session of the operator."""

    reports: ReportStore
    reviews: Reviews

    @property
    def listens(self) -> bool: ...


class ReportServer(Server):
    """`session` answers with the present one: each has a memory of its own."""

    def __init__(self, settings: Settings, session: Callable[[], Acting | None], count: Callable[[int], None]) -> None:
        super().__init__(self._whose, self._taken, address=settings.address, port=settings.report_port, count=count)
        self._session = session

    def _acting(self) -> Acting:
        """Raises Denied. A former leader's answers would be as wrong as its writes."""
        session = self._session()
        if session is None or not session.listens:
            raise Denied(503, "this replica does not act, or not yet", STANDBY_SECONDS)
        return session

    async def _whose(self, token: str) -> ReportSource:
        return await self._acting().reviews.identify(token)

    def _taken(self, sender: ReportSource, body: bytes) -> Answer:
        try:
            return self._acting().reports.take(sender, body)
        except Denied as denied:
            return denied.answer
