"""The rules: what a failure leads to, when time is up, who has succeeded. Small predicates on frozen data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.job import Job, RestartRule
from allranks.api.status import Failure, ReplicaRestarts, Status
from allranks.core import naming, topology
from allranks.core.model import Pod
from allranks.core.root_cause import UNCOUNTED, same_way
from allranks.frameworks.base import Scope

Action = Literal["restart", "restartUncounted", "fail", "ignore"]

MAX_BACKOFF_SECONDS = 300
SIGKILL = 9
FOLLOWS_WITHIN_SECONDS = 60
"""So long after the loss of a parameter server, say, the failure of the others is taken for its consequence."""
NO_PROGRESS_SECONDS = 120
"""Without reports of progress, an attempt that lived less than this has made none."""

BAD_START = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
    | {"CreateContainerError", "RunContainerError"}
)
"""Waiting reasons that end the job after startupDeadlineSeconds: nobody but its author can mend them."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What to do about a failure, and a sentence that says why."""

    action: Action
    why: str
    reason: str = ""
    """For `fail`: the reason of condition Failed."""


def rule_on(job: Job, status: Status, failure: Failure) -> Ruling:
    """First match wins: the user's rules, then the default ones in the order of the design."""
    action, why = by_rules(job.spec.restart.rules or [], failure) or _by_default(
        _just_before(job, status, failure), failure, _made_steps(status)
    )
    return within_budget(job, status, failure, action, why)


def within_budget(job: Job, status: Status, failure: Failure, action: Action, why: str) -> Ruling:
    """The job fails instead of a counted restart that it has no budget for."""
    counted = status.restarts.counted
    if action == "restart" and counted >= job.spec.restart.max_restarts:
        allowed = job.spec.restart.max_restarts
        budget = (
            "restart.maxRestarts is 0" if not allowed else f"all {allowed} restarts of restart.maxRestarts are used"
        )
        return Ruling("fail", budget, "MaxRestartsExceeded")
    return Ruling(action, why, failure.reason)


def origin(job: Job, status: Status, failure: Failure) -> ReplicaRestarts | None:
    """The replica that restarts alone and whose loss, which is counted already, took this one along."""
    noticed = failure.reason == "Error" and failure.exit_code is not None and failure.signal != SIGKILL
    if not noticed or scope(job, failure.role, failure.index) != "group":
        return None
    if (before := status.attempt_failure) and same_way(before, failure):
        return None  # it fails like that without any loss
    roles = topology.framework_of(job).roles
    lost = [
        (of.time, of.role, of.index, key)
        for key, restarted in status.replica_restarts.items()
        if (of := restarted.failure)
        and roles[of.role].required_by_peers
        and timedelta(0) <= failure.time - of.time <= timedelta(seconds=FOLLOWS_WITHIN_SECONDS)
    ]
    return status.replica_restarts[min(lost)[-1]] if lost else None


def echoes(job: Job, status: Status, failure: Failure) -> bool:
    """Of replicas that restart alone, several failed of one thing: only the first of them counts."""
    if failure.reason != "Error" or scope(job, failure.role, failure.index) == "group":
        return False
    began = failure.time - timedelta(seconds=failure.ran_seconds or 0.0)
    own = naming.replica_key(failure.role, failure.index)
    return any(
        key != own
        and restarted.counted
        and (of := restarted.failure) is not None
        and began < of.time
        and abs(failure.time - of.time) <= timedelta(seconds=FOLLOWS_WITHIN_SECONDS)
        and same_way(of, failure)
        for key, restarted in status.replica_restarts.items()
    )


def by_rules(rules: Iterable[RestartRule], failure: Failure) -> tuple[Action, str] | None:
    """What the user's rules say, and why; None: nothing."""
    for number, rule in enumerate(rules):
        matches = (
            (rule.exit_codes is not None and failure.exit_code in rule.exit_codes)
            or (rule.signals is not None and failure.signal in rule.signals)
            or (rule.reasons is not None and failure.reason in rule.reasons)
        )
        if matches:
            return rule.action, f"restart.rules[{number}] says {rule.action}"
    return None


def _just_before(job: Job, status: Status, failure: Failure) -> Failure | None:
    """That of the same replica in this attempt, where it restarts alone; else the one that ended the attempt before."""
    alone = status.replica_restarts.get(naming.replica_key(failure.role, failure.index))
    if alone and alone.failure and scope(job, failure.role, failure.index) == "pod":
        return alone.failure
    return status.attempt_failure


def _made_steps(status: Status) -> bool:
    """In the present attempt, as its ranks report."""
    return status.progress is not None and status.progress.first_step_time is not None


def _by_default(before: Failure | None, failure: Failure, stepped: bool) -> tuple[Action, str]:
    if failure.reason in UNCOUNTED:
        return "restartUncounted", "a disruption, not a failure of the program"
    if failure.reason == "OOMKilled":
        if before and before.reason == "OOMKilled":
            return "fail", "out of memory twice in a row"
        return "restart", "out of memory for the first time"
    if failure.exit_code is not None and 1 <= failure.exit_code <= 127:
        idle = not stepped and before is not None and _no_progress(before) and _no_progress(failure)
        if before and idle and same_way(before, failure):
            return "fail", "failed the same way twice before any progress: a bug in the program, not a fault"
        return "restart", "the program failed"
    if failure.exit_code is None:
        return "restart", "the pod failed before its program ran"
    return "restart", "the program was ended by a signal, or asked to be run again"


def _no_progress(failure: Failure) -> bool:
    return (failure.ran_seconds or 0.0) < NO_PROGRESS_SECONDS


def backoff(job: Job, counted: int) -> timedelta:
    """Wait before counted restart number `counted` (from 1): none, then backoffSeconds doubling to 300 s."""
    if counted <= 1:
        return timedelta(0)
    # The exponent is bounded too: 2**9999 would be a number of 3,000 digits.
    return timedelta(seconds=min(MAX_BACKOFF_SECONDS, job.spec.restart.backoff_seconds * 2 ** min(counted - 2, 30)))


def scope(job: Job, role: str, index: int) -> Scope:
    """Whether the failure of this pod restarts all or the pod alone."""
    framework, elastic = topology.framework_of(job), job.spec.elastic is not None
    return job.spec.restart.scope or framework.scope(role, index, topology.wanted_sizes(job), elastic)


def succeeded(job: Job, status: Status, pods: Mapping[tuple[str, int], Pod]) -> bool:
    """The pods whose completion ends the job have completed."""
    count = topology.sizes(job, status)

    def done(role: str, index: int) -> bool:
        pod = pods.get((role, index))
        return naming.replica_key(role, index) in status.ignored or (pod is not None and pod.succeeded)

    return all(
        done(role, i)
        for role, index in topology.success_target(job, status)
        for i in ([index] if index is not None else range(count.get(role, 0)))
    )


def active_deadline(job: Job, status: Status) -> datetime | None:
    """When activeDeadlineSeconds, which counts time unsuspended, is up."""
    limit = job.spec.active_deadline_seconds
    if limit is None or status.active_since is None:
        return None
    return status.active_since + timedelta(seconds=max(0.0, limit - status.active_seconds))


def startup_deadline(job: Job, status: Status, pod: Pod) -> datetime | None:
    """When this pod, if it cannot start because of its image or configuration, fails the job.

    It may have waited long for a node: before that nobody pulled its image.
    """
    alone = status.replica_restarts.get(naming.replica_key(pod.role, pod.index))
    begun = alone.restart_time if alone else status.restart_time or status.attempt_time
    placed = max([moment for moment in (begun, pod.placed_at) if moment], default=None)
    return placed + timedelta(seconds=job.spec.startup_deadline_seconds) if placed else None
