"""Failures that follow an earlier failure of an individually restarted replica, and are not counted again; and the
failures that are recorded for that.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, ReplicaRestarts, Status
from allranks.core.diagnosis.exit_codes import SIGKILL, possible_signal
from allranks.core.diagnosis.restart_policy import MAX_IDLE_RESTARTS
from allranks.core.diagnosis.root_cause import Way, same_way, way
from allranks.core.facts import naming, topology
from allranks.core.facts.status_update import changed

CORRELATION_SECONDS = 60
"""Failures within this time of an upstream failure (a lost parameter server, say) are taken for its consequences."""
MAX_DETAILED = 24
"""Replicas whose failure is recorded. The status of ten thousand failures would not fit into etcd (1.5 MB)."""


class EarlierFailures:
    """The recorded failures of individually restarted replicas, indexed: many replicas can fail in one look."""

    def __init__(self, job: Job, status: Status) -> None:
        self._job, self._before = job, status.attempt_failure
        self._exhausted = (status.restarts.without_progress or 0) >= MAX_IDLE_RESTARTS
        self._entries: dict[str, tuple[ReplicaRestarts, Failure, Way]] = {}
        self._counted: dict[Way, dict[str, Failure]] = {}
        for key, entry in status.replica_restarts.items():
            self.record(key, entry)

    def record(self, key: str, entry: ReplicaRestarts) -> None:
        """The replica was restarted. Its earlier failure no longer matters."""
        if former := self._entries.pop(key, None):
            self._counted.get(former[2], {}).pop(key, None)
        if entry.failure is None:
            return
        self._entries[key] = entry, entry.failure, way(entry.failure)
        if entry.counted:
            self._counted.setdefault(way(entry.failure), {})[key] = entry.failure

    def upstream_of(self, failure: Failure) -> ReplicaRestarts | None:
        """The failure of an individually restarted replica, already counted, that caused this one."""
        killed = possible_signal(failure.exit_code, failure.signal) == SIGKILL
        noticed = failure.reason == "Error" and failure.exit_code is not None and not killed
        if not noticed or topology.scope(self._job, failure.role, failure.index) != "Group":
            return None
        if self._before and same_way(self._before, failure):
            return None  # the previous attempt failed in the same way without an upstream failure
        if self._exhausted:
            return None  # it counts, so that such restarts end
        roles = topology.framework_of(self._job).roles
        lost = [
            (of.time, of.role, of.index, key)
            for key, (_, of, _) in self._entries.items()
            if roles[of.role].required_by_peers
            and timedelta(0) <= failure.time - of.time <= timedelta(seconds=CORRELATION_SECONDS)
        ]
        return self._entries[min(lost)[-1]][0] if lost else None

    def counted(self, failure: Failure) -> bool:
        """Whether another individually restarted replica failed in the same way just before, and was counted."""
        if failure.reason != "Error" or topology.scope(self._job, failure.role, failure.index) == "Group":
            return False
        began = failure.time - timedelta(seconds=failure.ran_seconds or 0.0)
        own = naming.replica_key(failure.role, failure.index)
        return any(
            key != own and began < of.time and abs(failure.time - of.time) <= timedelta(seconds=CORRELATION_SECONDS)
            for key, of in self._counted.get(way(failure), {}).items()
        )


def drop_details(status: Status, now: datetime) -> Status:
    """Drops most failures of a large number of individually restarted replicas, and the ends of their past backoffs.

    Kept are the counted ones, because failures of the same way do not count again; the first ones within
    `CORRELATION_SECONDS`, because they caused the others; and the latest ones. A replica whose failure is dropped is
    treated like one that fails for the first time: its next failure of the program counts.
    """
    restarts = status.replica_restarts
    if len(restarts) <= MAX_DETAILED:
        return status
    failures = {key: entry.failure for key, entry in restarts.items() if entry.failure}
    keys = sorted(failures, key=lambda key: (failures[key].time, failures[key].role, failures[key].index))
    latest = keys[::-1]
    window = timedelta(seconds=CORRELATION_SECONDS)
    first = [key for key in keys if failures[latest[0]].time - failures[key].time <= window]
    counted = [key for key in latest if restarts[key].counted]
    ordered = dict.fromkeys([*counted[: MAX_DETAILED // 2], *first[: MAX_DETAILED // 4], *latest])
    kept = set(list(ordered)[:MAX_DETAILED])
    return changed(
        status,
        replica_restarts={
            key: entry if key in kept else _without_details(entry, now) for key, entry in restarts.items()
        },
    )


def _without_details(entry: ReplicaRestarts, now: datetime) -> ReplicaRestarts:
    past = entry.restart_time is None or entry.restart_time <= now
    if entry.restart_time is None and entry.failure is None:
        return entry
    return ReplicaRestarts(
        count=entry.count,
        launched=entry.launched,
        restart_time=None if past else entry.restart_time,
        without_progress=entry.without_progress,
    )
