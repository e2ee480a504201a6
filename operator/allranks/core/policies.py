"""The rules: what a failure leads to, when time is up, who has succeeded. Small predicates on frozen data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.job import Job, RestartRule
from allranks.api.status import Failure, Status
from allranks.core import names, topology
from allranks.core.failures import UNCOUNTED, same_way
from allranks.core.model import Pod
from allranks.frameworks.base import Scope

Action = Literal["restart", "restartUncounted", "fail", "ignore"]

MAX_BACKOFF_SECONDS = 300
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
        _just_before(job, status, failure), failure
    )
    counted = status.restarts.counted
    if action == "restart" and counted >= job.spec.restart.max_restarts:
        allowed = job.spec.restart.max_restarts
        budget = (
            "restart.maxRestarts is 0" if not allowed else f"all {allowed} restarts of restart.maxRestarts are used"
        )
        return Ruling("fail", budget, "MaxRestartsExceeded")
    return Ruling(action, why, failure.reason)


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
    """The failure of the attempt before this one, or of the same replica where that restarts alone."""
    if scope(job, failure.role) == "group":
        return status.attempt_failure
    alone = status.replica_restarts.get(names.replica_key(failure.role, failure.index))
    return alone.failure if alone else None


def _by_default(before: Failure | None, failure: Failure) -> tuple[Action, str]:
    if failure.reason in UNCOUNTED:
        return "restartUncounted", "a disruption, not a failure of the program"
    if failure.reason == "OOMKilled":
        if before and before.reason == "OOMKilled":
            return "fail", "out of memory twice in a row"
        return "restart", "out of memory for the first time"
    if failure.exit_code is not None and 1 <= failure.exit_code <= 127:
        if before and _no_progress(before) and _no_progress(failure) and same_way(before, failure):
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


def scope(job: Job, role: str) -> Scope:
    """Whether the failure of this role's pod restarts all or the pod alone."""
    return job.spec.restart.scope or topology.framework_of(job).roles[role].scope


def succeeded(job: Job, status: Status, pods: Mapping[tuple[str, int], Pod]) -> bool:
    """The pods whose completion ends the job have completed."""
    count = topology.sizes(job, status)

    def done(role: str, index: int) -> bool:
        pod = pods.get((role, index))
        return names.replica_key(role, index) in status.ignored or (pod is not None and pod.succeeded)

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
    """When this pod, if it cannot start because of its image or configuration, fails the job."""
    alone = status.replica_restarts.get(names.replica_key(pod.role, pod.index))
    begun = alone.restart_time if alone else status.restart_time or status.attempt_time
    return begun + timedelta(seconds=job.spec.startup_deadline_seconds) if begun else None
