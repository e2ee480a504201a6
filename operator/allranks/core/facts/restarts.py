"""Bounds of restarts, and what a status keeps of many."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import GROUP
from allranks.api.status import ReplicaRestarts, Status

RESTART_ANNOTATION = f"{GROUP}/restart-attempt"
"""On a job, written with the right to change it: the number of the attempt that a new one is to replace. It is no
request any more when that attempt has ended, so that nothing else has to be recorded."""

CORRELATION_SECONDS = 60
"""Failures within this time of an upstream failure (a lost parameter server, say) are taken for its consequences."""


MAX_DETAILED = 24
"""Replicas whose failure is recorded. The status of ten thousand failures would not fit into etcd (1.5 MB)."""


def drop_details(status: Status, now: datetime) -> Status:
    """Drop most failures of a large number of individually restarted replicas, and the ends of their past backoffs.

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
    return replace(
        status,
        replica_restarts={
            key: entry if key in kept else _without_details(entry, now) for key, entry in restarts.items()
        },
    )


def _without_details(entry: ReplicaRestarts, now: datetime) -> ReplicaRestarts:
    waits_in_pod = entry.in_pod and not entry.launched
    past = entry.restart_time is None or (entry.restart_time <= now and not waits_in_pod)
    if entry.restart_time is None and entry.failure is None:
        return entry
    return ReplicaRestarts(
        count=entry.count,
        in_pod=entry.in_pod,
        launched=entry.launched,
        restart_time=None if past else entry.restart_time,
        without_progress=entry.without_progress,
    )


MAX_IDLE_RESTARTS = 300
"""Bound of restarts in a row without progress, after which an uncounted one fails the job. With the backoff they take a
day, which outlives outages of nodes and plugins, and shortages of spot instances: any step in between resets them."""
