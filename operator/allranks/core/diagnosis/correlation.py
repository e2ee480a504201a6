"""Failures that follow an earlier failure of an individually restarted replica, and are not counted again; and the
failures that are recorded for that.
"""

from __future__ import annotations

from datetime import timedelta

from allranks.api.job import Job
from allranks.api.status import Failure, ReplicaRestarts, Status
from allranks.core.diagnosis.exit_codes import SIGKILL, possible_signal
from allranks.core.diagnosis.root_cause import Way, same_way, way
from allranks.core.facts import naming, topology
from allranks.core.facts.restarts import CORRELATION_SECONDS, MAX_IDLE_RESTARTS


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
