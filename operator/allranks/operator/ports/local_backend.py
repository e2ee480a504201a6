"""Answers the HTTP servers in the controller's process: tokens, reports, probes and metrics.

Every replica listens, because the Service selects all ready pods and a standby is ready. A standby answers reports with
503 and the connection is closed: the next one may reach the leader, and is kept then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from allranks.operator.code_reader import CodeReader
from allranks.operator.metrics import Metrics
from allranks.operator.outcome_store import OutcomeStore
from allranks.operator.ports.backend import Gate, Page
from allranks.operator.ports.http_servers import SharedPage
from allranks.operator.ports.report_auth import Reviews
from allranks.telemetry.messages import Answer, Denied, ReportSource
from allranks.telemetry.processes import ProcessStore
from allranks.telemetry.store import ReportStore

Receiver = Callable[[ReportSource, bytes], Awaitable[Answer]]
"""Answers the request of a pod that is identified."""
STANDBY_SECONDS = 1.0
"""Retry-After of a standby."""


class Leader(Protocol):
    """A session of the operator."""

    reports: ReportStore
    reviews: Reviews
    outcomes: OutcomeStore
    processes: ProcessStore
    code: CodeReader

    @property
    def leading(self) -> bool: ...


class LocalBackend:
    """`session` returns the current session: each has its own caches. `checks` return the problem
    of each probe. Without a `gate`, everyone may read /metrics."""

    def __init__(
        self,
        session: Callable[[], Leader | None],
        checks: Mapping[str, Callable[[], str]],
        metrics: Metrics,
        gate: Gate | None,
    ) -> None:
        self._session, self._checks, self._metrics, self._gate = session, checks, metrics, gate
        self._page = SharedPage(self._render)

    async def identify(self, token: str) -> None:
        await self._leader().reviews.identify(token)

    async def report(self, token: str, body: bytes) -> Answer:
        """Take a report without waiting: the token was accepted before, or the answer is 503."""
        try:
            leader = self._leader()
            return leader.reports.ingest(leader.reviews.accepted(token), body)
        except Denied as denied:
            return denied.answer

    async def outcome(self, token: str, body: bytes) -> Answer:
        return await self._pass_on(lambda leader: leader.outcomes.receive, token, body)

    async def process(self, token: str, body: bytes) -> Answer:
        return await self._pass_on(lambda leader: leader.processes.poll, token, body)

    async def code(self, token: str, body: bytes) -> Answer:
        return await self._pass_on(lambda leader: leader.code.read, token, body)

    async def _pass_on(self, receiver: Callable[[Leader], Receiver], token: str, body: bytes) -> Answer:
        try:
            leader = self._leader()
            return await receiver(leader)(leader.reviews.accepted(token), body)
        except Denied as denied:
            return denied.answer

    async def check(self, name: str) -> str:
        return self._checks[name]()

    async def metrics(self) -> Page:
        return await self._page()

    async def _render(self) -> Page:
        """Take up to a second with very many series."""
        return Page(CONTENT_TYPE_LATEST, generate_latest(self._metrics.registry))

    async def admits(self, authorization: str, peer: str) -> int:
        return await self._gate.admits(authorization, peer) if self._gate else 200

    def count(self, status: int, count: int = 1) -> None:
        self._metrics.reported(status, count)

    def _leader(self) -> Leader:
        """Raises Denied on a standby. The answers of a former leader would be as wrong as its writes."""
        session = self._session()
        if session is None or not session.leading:
            raise Denied(503, "this replica is not the leader, or not ready yet", STANDBY_SECONDS)
        return session
