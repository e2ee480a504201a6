"""The compact form of `replicaRestarts`, so that the status of the largest job fits into etcd.

Only the stored status has it: in memory, all restarted replicas are in `replica_restarts`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from allranks.api.status import ReplicaRestarts, RestartedIndexes, Status
from allranks.core.facts import naming
from allranks.core.facts.restarts import MAX_DETAILED


def fold(status: Status) -> Status:
    """Return the status to store. Nothing is lost: replicas with a recorded failure keep their own entries, and so do
    all replicas if they are few."""
    if len(status.replica_restarts) <= MAX_DETAILED:
        return status
    entries: dict[str, ReplicaRestarts] = {}
    by_role: dict[str, list[tuple[int, ReplicaRestarts]]] = defaultdict(list)
    for key, entry in status.replica_restarts.items():
        if entry.failure or entry.counted:
            entries[key] = entry
        else:
            role, _, index = key.rpartition("-")
            by_role[role].append((int(index), entry))
    compact = {
        role: _fold_role(sorted(replicas, key=lambda replica: replica[0])) for role, replicas in sorted(by_role.items())
    }
    return status.model_copy(update={"replica_restarts": entries, "restarted_indexes": compact})


def _fold_role(entries: list[tuple[int, ReplicaRestarts]]) -> RestartedIndexes:
    counts, times = defaultdict[int, list[int]](list), defaultdict[datetime, list[int]](list)
    idle = defaultdict[int, list[int]](list)
    for index, entry in entries:
        counts[entry.count].append(index)
        if entry.restart_time:
            times[entry.restart_time].append(index)
        if entry.without_progress:
            idle[entry.without_progress].append(index)
    return RestartedIndexes(
        counts={str(count): naming.encode_indices(counts[count]) for count in sorted(counts)},
        unlaunched=naming.encode_indices(index for index, entry in entries if not entry.launched),
        without_progress={str(count): naming.encode_indices(idle[count]) for count in sorted(idle)},
        restart_times={
            time.isoformat().replace("+00:00", "Z"): naming.encode_indices(times[time]) for time in sorted(times)
        },
    )


def unfold(status: Status) -> Status:
    """Return the stored status with an entry for each restarted replica. Raises ValueError."""
    if not status.restarted_indexes:
        return status
    entries = {
        naming.replica_key(role, index): entry
        for role, compact in status.restarted_indexes.items()
        for index, entry in _unfold_role(compact)
    }
    restarts = entries | status.replica_restarts
    return status.model_copy(update={"replica_restarts": restarts, "restarted_indexes": None})


def _unfold_role(compact: RestartedIndexes) -> Iterator[tuple[int, ReplicaRestarts]]:
    unlaunched = naming.decode_indices(compact.unlaunched)
    times = {
        index: datetime.fromisoformat(time)
        for time, indexes in compact.restart_times.items()
        for index in naming.decode_indices(indexes)
    }
    idle = {
        index: int(count)
        for count, indexes in compact.without_progress.items()
        for index in naming.decode_indices(indexes)
    }
    for count, indexes in compact.counts.items():
        for index in sorted(naming.decode_indices(indexes)):
            launched = index not in unlaunched
            yield (
                index,
                ReplicaRestarts(
                    count=int(count),
                    launched=launched,
                    restart_time=times.get(index),
                    without_progress=idle.get(index),
                ),
            )
