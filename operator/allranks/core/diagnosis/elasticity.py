"""Determines the number of workers of an elastic job: as many as requested, and as there is room for.

Where a new size needs a restart (PyTorch), placeholder pods that do nothing show when the scheduler has room for more
workers. Where ranks absorb a new size (Horovod), workers without room are simply pending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from allranks.api.job import Job
from allranks.api.status import ReplicaRestarts, RoleStatus, Status
from allranks.core.facts import naming, pod_template, topology
from allranks.core.facts.model import Pod
from allranks.core.facts.restarts import drop_details
from allranks.core.facts.topology import ELASTIC_ROLE
from allranks.frameworks.base import Replica

GROW_SETTLE = timedelta(seconds=10)
"""Delay from room for one more worker to growth, so that one restart adds all that fit."""
GROW_BACKOFF_INITIAL, GROW_BACKOFF_MAX = timedelta(minutes=4), timedelta(hours=1)
"""Backoff after a failed scale-up: 4 min, then x4, at most 1 h."""
GROW_FAILURE_WINDOW = timedelta(hours=6)
"""Failed scale-ups older than this no longer count toward the backoff."""
SCHEDULER_RETRY = timedelta(seconds=15)
"""The scheduler retries an unschedulable pod within this time: its backoff is at most 10 s."""
TERMINATION_TIMEOUT = timedelta(minutes=5)
"""A pod that terminates for longer than this is not expected to free its room."""
PLACEHOLDER_RETRY = timedelta(seconds=60)
"""Delay before an ended placeholder is created again."""


def initial_roles(job: Job, status: Status) -> dict[str, RoleStatus]:
    """Return the sizes of a new attempt: the requested ones, without workers for which the previous attempt had no
    room."""
    roles = {role: RoleStatus(desired=size) for role, size in topology.wanted_sizes(job).items()}
    before = status.roles.get(ELASTIC_ROLE)
    if before and before.waiting:
        size = roles[ELASTIC_ROLE].desired
        fitting = min(size, before.desired)
        roles[ELASTIC_ROLE] = RoleStatus(desired=fitting, waiting=size - fitting)
    return roles


def can_resize_in_place(job: Job, status: Status) -> bool:
    """Return whether the current attempt can reach the requested size without a restart."""
    kind, present, requested = topology.elasticity(job), topology.sizes(job, status), topology.wanted_sizes(job)
    others = (present | {ELASTIC_ROLE: 0}) == (requested | {ELASTIC_ROLE: 0})
    return others and (
        kind == "absorbs" or (kind == "restarts" and requested.get(ELASTIC_ROLE, 0) >= present.get(ELASTIC_ROLE, 0))
    )


def set_desired_workers(job: Job, status: Status, now: datetime) -> Status:
    """Apply the requested number of workers to an attempt that can resize in place."""
    requested = topology.wanted_sizes(job)[ELASTIC_ROLE]
    present = status.roles[ELASTIC_ROLE]
    if topology.elasticity(job) == "restarts":
        return _with_workers(status, replace(present, waiting=requested - present.desired))
    removed = {naming.replica_key(ELASTIC_ROLE, index): None for index in range(requested, present.desired)}
    added = [naming.replica_key(ELASTIC_ROLE, index) for index in range(present.desired, requested)]
    counts = {key: entry.count for key, entry in status.replica_restarts.items()}
    # A removed worker that is added again must not reuse the name of its terminating pod.
    entries = {key: ReplicaRestarts(count=counts.get(key, 0) + 1, restart_time=now) for key in removed}
    entries |= {key: ReplicaRestarts(count=counts.get(key, 0), restart_time=now) for key in added}
    resized = replace(
        status,
        replica_restarts=status.replica_restarts | entries,
        ignored=[key for key in status.ignored if key not in removed],
        done=_without_removed(status.done, requested),
    )
    return _with_workers(drop_details(resized, now), replace(present, desired=requested))


def _without_removed(done: dict[str, str], workers: int) -> dict[str, str]:
    left = naming.encode_indices(
        index for index in naming.decode_indices(done.get(ELASTIC_ROLE, "")) if index < workers
    )
    return {role: left if role == ELASTIC_ROLE else text for role, text in done.items()}


def fit_workers(job: Job, status: Status, room: int) -> Status:
    """Set the next attempt's number of workers to `room`; the rest of the requested workers waits for room."""
    waiting = topology.wanted_sizes(job)[ELASTIC_ROLE] - room
    return _with_workers(status, RoleStatus(desired=room, waiting=waiting))


def _with_workers(status: Status, workers: RoleStatus) -> Status:
    return replace(status, roles={**status.roles, ELASTIC_ROLE: workers})


def shrink_deadline(job: Job, status: Status, leaving: Iterable[Pod], now: datetime) -> datetime | None:
    """Return the time from which an attempt that is not running yet may continue without the pods that find no room.

    `leaving` are pods of earlier attempts. They still occupy room, unless their node is lost or they do not terminate.
    """
    begun = status.restart_time or status.attempt_time
    if topology.elasticity(job) != "restarts" or status.running_time or begun is None or job.spec.elastic is None:
        return None
    occupying = [pod for pod in leaving if pod.node and not pod.ended and pod.node_lost_at is None]
    freed = [(pod.deleted_at or now) + TERMINATION_TIMEOUT for pod in occupying]
    wait = timedelta(seconds=job.spec.elastic.wait_seconds)
    if status.attempt:  # the end of the previous pods is not recorded: allow for their grace period
        wait = max(wait, timedelta(seconds=pod_template.longest_grace_period(job)) + SCHEDULER_RETRY)
    return max([begun + wait, *freed])


def shrink_target(
    job: Job,
    status: Status,
    places: Iterable[Replica],
    pods: Mapping[tuple[str, int], Pod],
    refused: Collection[str],
) -> int | None:
    """Return the number of workers with room if some have none and enough have.

    None: all have room, too few have, or it is undecided. `refused` are names of pods that the API server rejected.
    """
    assert job.spec.elastic
    roomless = 0
    for replica in places:
        pod = pods.get((replica.role, replica.index))
        if pod is None and replica.hostname not in refused:
            return None
        if pod is None or pod.node is None:
            if pod and pod.waiting_reason != "Unschedulable":
                return None
            roomless += 1
    room = status.roles[ELASTIC_ROLE].desired - roomless
    return room if roomless and room >= job.spec.elastic.min_replicas else None


def grow_target(status: Status, placeholders: Iterable[Pod], now: datetime) -> int | datetime | None:
    """Return the larger number of workers that there is room for; or the time at which to decide, while room may
    increase."""
    room_since = [pod.started_at or now for pod in placeholders if has_room(pod)]
    if not room_since:
        return None
    workers, settled = status.roles[ELASTIC_ROLE], min(room_since) + GROW_SETTLE
    if len(room_since) < workers.waiting and now < settled:
        return settled
    return workers.desired + len(room_since)


def ended_at(placeholder: Pod, now: datetime) -> datetime:
    moments = (
        placeholder.exit and placeholder.exit.finished_at,
        placeholder.termination_requested_at,
        placeholder.created_at,
    )
    return next((moment for moment in moments if moment), now)


def probe_not_before(status: Status) -> datetime | None:
    """Return the earliest time for placeholders: when all ranks run, plus the backoff after failed scale-ups."""
    if status.running_time is None:
        return None
    reasons = [(past.reason, past.end_time) for past in status.history]
    failures = sum(
        before == "Grown" and after == "Shrunk" and ended > status.running_time - GROW_FAILURE_WINDOW
        for (before, _), (after, ended) in pairwise(reasons)
    )
    backoff = min(GROW_BACKOFF_MAX, GROW_BACKOFF_INITIAL * 4 ** (failures - 1)) if failures else timedelta(0)
    return status.running_time + backoff


def has_room(placeholder: Pod) -> bool:
    """Return whether the placeholder runs, so that a worker would fit in its place."""
    return placeholder.phase == "Running" and not placeholder.ended and placeholder.termination_requested_at is None
