"""Which jobs hold nodes for a part of their pods while others find no room, for `core/diagnosis/contention.py`.

Every look at a job updates it. It is complete once each job was looked at, which is soon after the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from allranks.core.diagnosis import contention
from allranks.core.facts.contenders import Contender, Contention
from allranks.core.facts.model import Observed
from allranks.core.snapshot import Snapshot
from allranks.operator.cache import JobKey


@dataclass
class Contenders:
    """Calls `enqueue` for the jobs that are placed in part when one of the others changes."""

    enqueue: Callable[[JobKey], None]
    _contenders: dict[JobKey, Contender] = field(default_factory=dict)
    _given_up: dict[JobKey, datetime] = field(default_factory=dict)

    def observe(self, key: JobKey, observed: Observed) -> Contention:
        """Notes the state of this job, and returns that of the others."""
        own = contention.contender(observed, Snapshot(observed).pods) if contention.may_contend(observed) else None
        self._note(key, own, contention.given_up_at(observed.persisted))
        if own is None:
            return Contention()
        others = tuple(each for other, each in self._contenders.items() if other != key)
        times = [moment for other, moment in self._given_up.items() if other != key]
        return Contention(others, max(times, default=None))

    def forget(self, key: JobKey) -> None:
        """The job was deleted."""
        self._note(key, None, None)

    def _note(self, key: JobKey, own: Contender | None, given_up_at: datetime | None) -> None:
        before = self._contenders.get(key), self._given_up.get(key)
        if before == (own, given_up_at):
            return
        for place, value in ((self._contenders, own), (self._given_up, given_up_at)):
            if value is None:
                place.pop(key, None)
            else:
                place[key] = value  # type: ignore[assignment]
        for other in [other for other in self._contenders if other != key]:
            self.enqueue(other)
