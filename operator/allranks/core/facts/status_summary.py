"""Summarizes pods in the status: counts, whether the attempt runs, and conditions with reason and message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.job import GROUP, KIND, VERSION, Job
from allranks.api.status import WITHOUT_PODS, Condition, Phase, ProgressStatus, ReplicaRestarts, RoleStatus, Status
from allranks.core.facts import development, naming, topology
from allranks.core.facts.model import (
    FETCH_FAILED,
    FETCH_RETRYING,
    FETCHING,
    NOT_SCHEDULED,
    RESTART_IN_PLACE,
    START_TOGETHER,
    Event,
    Pod,
    RejectedCreate,
    is_start_error,
)

ConditionType = Literal["Running", "Restarting", "Suspended", "Complete", "Failed"]
LONGEST_MESSAGE = 2900
"""Characters of the message of a condition: with more, the largest status would have more than a megabyte."""
ALL_RUN = "AllRanksRunning"
TAKEN_BY_KUEUE = "TakenByKueue"
_TAKEN = (
    "Kueue's pod integration admits each pod by itself, not the job as a whole: add "
    f"{KIND}.{VERSION}.{GROUP} to integrations.externalFrameworks of Kueue's configuration, and name a queue in "
    "spec.scheduling.queue"
)
SLOW_START = timedelta(seconds=60)
"""A pod that does not run this long after its assignment to a node is named in the condition, with what it waits for.
Until then a start is not worth a status write: most pods run within seconds."""


def summarise(
    job: Job,
    status: Status,
    pods: Mapping[tuple[str, int], Pod],
    refused: Iterable[RejectedCreate],
    now: datetime,
    blocked: tuple[str, str] | None = None,
    note: tuple[str, str] | None = None,
    ending: str = "",
) -> Status:
    """Update the status of a running attempt: pod counts, `launched`, `running_time`, and why it is not running.

    `blocked` is the (reason, message) that prevents the creation of the missing pods. `note` is the (reason, sentence)
    that a job has which runs: the sentence is appended to its message. `ending` says which pods of older attempts still
    hold nodes: it is appended to the message about a pod without one.
    """
    count = topology.sizes(job, status)
    done = _done(status, count, pods)
    roles = {role: _role(status, role, size, pods, done) for role, size in count.items()}
    ready, desired = sum(r.ready for r in roles.values()), sum(count.values())
    running_time = status.running_time or (now if _all_run(job, count, pods, status.ignored, done) else None)
    restarted = {
        key: replace(entry, launched=True) if not entry.launched and _was_launched(key, entry, pods) else entry
        for key, entry in status.replica_restarts.items()
    }
    summary = replace(
        status,
        observed_generation=job.metadata.generation,
        roles=roles,
        ready=f"{ready}/{desired}",
        launched=status.launched or _all_launched(pods, done, desired),
        done=done,
        replica_restarts=restarted,
        running_time=running_time,
        first_running_time=status.first_running_time or running_time,
        selector=f"{naming.JOB_LABEL}={job.name},{naming.ROLE_LABEL}=worker",
    )
    waits = blocked or _backoff(status, now) or _waits_for(pods, refused, now)
    if waits and waits[0] == FETCHING and (error := _last_fetch_error(status)):
        waits = FETCH_RETRYING, f"{waits[1]}; the last try failed: {error}"
    if waits and waits[0] in NOT_SCHEDULED and ending:
        waits = waits[0], f"{waits[1]}; {ending}"
    if not running_time:
        waiting = sum(pod.waiting_reason == START_TOGETHER for pod in pods.values())
        present = f"{ready + waiting} of {desired} pods are there" if waiting else ""
        if waits is None:
            waits = "PodsPending", present or f"{ready} of {desired} pods run"
        elif present:
            waits = waits[0], f"{present}; {waits[1]}"
        return with_phase(summary, summary.phase, now, *waits)
    if waits:
        return with_phase(summary, "Running", now, waits[0], f"{ready} of {desired} pods run; {waits[1]}")
    message = f"all {desired} pods run" if ready == desired else f"{ready} of {desired} pods run"
    if note:
        return with_phase(summary, "Running", now, note[0], f"{message}; {note[1]}")
    return with_phase(summary, "Running", now, ALL_RUN, message)


def summarise_ended(job: Job, status: Status, pods: Mapping[tuple[str, int], Pod]) -> Status:
    """Update pod counts of a finished or suspended job; succeeded and failed counts never decrease.

    A pod that ends because of the cleanup counts as neither succeeded nor failed.
    """
    roles = {}
    for role, counts in status.roles.items():
        existing = [pod for index in range(counts.desired) if (pod := pods.get((role, index)))]
        by_itself = _count_pods([pod for pod in existing if not pod.terminating])
        roles[role] = replace(
            counts,
            active=_count_pods(existing).active,
            succeeded=max(counts.succeeded, by_itself.succeeded),
            failed=max(counts.failed, by_itself.failed),
        )
    ready = status.ready
    if status.phase in WITHOUT_PODS:
        roles = {role: RoleStatus(desired=counts.desired, active=counts.active) for role, counts in roles.items()}
        ready = f"0/{sum(counts.desired for counts in roles.values())}"
    return replace(status, roles=roles, observed_generation=job.metadata.generation, ready=ready)


_CONDITIONS: tuple[tuple[ConditionType, frozenset[str]], ...] = (
    ("Running", frozenset({"Running"})),
    ("Restarting", frozenset({"Restarting"})),
    ("Suspended", frozenset({"Suspended"})),
    ("Complete", frozenset({"Succeeded"})),
    ("Failed", frozenset({"Failed"})),
)


def with_phase(status: Status, phase: Phase, now: datetime, reason: str, message: str) -> Status:
    """Set the phase and the conditions that follow from it. The condition of the phase gets reason and message."""
    primary = {"Queued": "Running", "Pending": "Running", "Succeeded": "Complete"}.get(phase, phase)
    conditions = []
    for kind, phases in _CONDITIONS:
        state: Literal["True", "False"] = "True" if phase in phases else "False"
        before = status.condition(kind)
        if before is None and state == "False" and kind != primary:
            continue
        explains = kind == primary or (kind == "Running" and phase == "Restarting")
        flipped = before is None or before.status != state
        stays = before is not None and not flipped and kind != "Running"  # it has the reason of the phase
        kept_reason, kept_message = (before.reason, before.message) if before and stays else (phase, "")
        conditions.append(
            Condition(
                type=kind,
                status=state,
                # Condition Running has the reason of every phase: `kubectl get -o wide` shows it.
                reason=(reason or phase)[:128] if explains or kind == "Running" else kept_reason,
                message=message[:LONGEST_MESSAGE] if explains else kept_message,
                last_transition_time=now if before is None or flipped else before.last_transition_time,
                observed_generation=status.observed_generation,
            )
        )
    # Reports are expected while the job runs only, and no pod is placed after its end.
    active = ("Pending", "Running", "Restarting")
    kinds = {
        "ReportsLost": ("Running",),
        "HardwareUnhealthy": active,
        "CheckpointOverdue": ("Running",),
        "GangScheduling": active,
        "LowUtilization": (*active, "Queued", "Suspended"),
    }
    kept = [
        condition
        for condition in status.conditions
        if condition.type == "OutputsUploaded" or phase in kinds.get(condition.type, ())
    ]
    return replace(status, phase=phase, conditions=[*conditions, *kept])


def with_condition(
    status: Status,
    kind: Literal[
        "HardwareUnhealthy", "CheckpointOverdue", "LowUtilization", "OutputsUploaded", "ReportsLost", "GangScheduling"
    ],
    holds: bool,
    reason: str,
    message: str,
    now: datetime,
) -> Status:
    """Set a condition that does not follow from the phase."""
    state: Literal["True", "False"] = "True" if holds else "False"
    before = status.condition(kind)
    condition = Condition(
        type=kind,
        status=state,
        reason=reason,
        message=message[:LONGEST_MESSAGE],
        last_transition_time=before.last_transition_time if before and before.status == state else now,
        observed_generation=status.observed_generation,
    )
    return replace(status, conditions=[*(c for c in status.conditions if c.type != kind), condition])


def warning(before: Status, after: Status, kind: str) -> Event | None:
    """Return the Event when a condition about a fault becomes True, or says something new."""
    old, new = before.condition(kind), after.condition(kind)
    if new is None or new.status != "True" or (old and (old.status, old.message) == ("True", new.message)):
        return None
    return Event(kind, new.message, warning=True)


def _done(status: Status, sizes: Mapping[str, int], pods: Mapping[tuple[str, int], Pod]) -> dict[str, str]:
    """Return role -> the replicas that have completed in this attempt. A pod that is deleted later does not change
    this."""
    completed: dict[str, set[int]] = {}
    for (role, index), pod in pods.items():
        if pod.ended and pod.succeeded and index not in naming.decode_indices(status.done.get(role, "")):
            completed.setdefault(role, set()).add(index)
    added = {
        role: naming.encode_indices(more | naming.decode_indices(status.done.get(role, "")))
        for role, more in completed.items()
    }
    return {role: text for role in sizes if (text := added.get(role) or status.done.get(role, ""))}


def _backoff(status: Status, now: datetime) -> tuple[str, str] | None:
    """Return (reason, message) while the pods of the attempt are not created yet."""
    if status.restart_time is None or now >= status.restart_time:
        return None
    if development.awaits_code(status, now):
        time = f"{status.restart_time:%H:%M:%S} UTC"
        return "AwaitingCode", f"the ranks start with the next code, or at {time} (allranks dev is attached)"
    begin = "the pods are created" if status.pods_of_attempt is None else "the ranks start in their pods"
    begin += f" at {status.restart_time:%Y-%m-%dT%H:%M:%SZ}"
    if status.last_failure and status.last_failure.reason == FETCH_FAILED:
        return FETCH_RETRYING, f"{status.last_failure.message}; {begin}"
    idle, reason = status.restarts.without_progress or 0, status.last_failure.reason if status.last_failure else ""
    row = f"restart {idle} in a row without progress" if idle > 1 else "backoff"
    return "Backoff", f"{row} ({reason}): {begin}"


def _last_fetch_error(status: Status) -> str:
    """Return the last error of a fetch in this or the previous attempt; empty if there was none."""
    last = status.last_failure
    return last.message if last and last.reason == FETCH_FAILED and last.attempt >= status.attempt - 1 else ""


def _role(
    status: Status, role: str, size: int, pods: Mapping[tuple[str, int], Pod], done: Mapping[str, str]
) -> RoleStatus:
    over = naming.decode_indices(done.get(role, ""))
    counts = _count_pods([pod for index in range(size) if index not in over and (pod := pods.get((role, index)))])
    waiting = status.roles[role].waiting if role in status.roles else 0
    completed = counts.succeeded + len(over)
    return replace(counts, desired=size, waiting=waiting, succeeded=completed, ready=counts.ready + len(over))


def _all_launched(pods: Mapping[tuple[str, int], Pod], done: Mapping[str, str], desired: int) -> bool:
    collected = sum((role, index) not in pods for role, text in done.items() for index in naming.decode_indices(text))
    return len(pods) + collected == desired


def _count_pods(pods: list[Pod]) -> RoleStatus:
    succeeded = sum(pod.succeeded for pod in pods)
    return RoleStatus(
        active=sum(not pod.ended and not pod.deleted_at for pod in pods),
        ready=sum(_ready(pod) for pod in pods),
        succeeded=succeeded,
        failed=sum(pod.ended for pod in pods) - succeeded,
    )


def _all_run(
    job: Job,
    sizes: Mapping[str, int],
    pods: Mapping[tuple[str, int], Pod],
    ignored: list[str],
    done: Mapping[str, str],
) -> bool:
    """Return whether every required replica is ready. Ignored replicas are not required, and do not count as ready."""
    needed = [(role, index) for role, size in sizes.items() for index in range(size)]
    if without := frozenset(ignored):
        needed = [place for place in needed if naming.replica_key(*place) not in without]
    over = {role: naming.decode_indices(text) for role, text in done.items()}
    run = [
        place
        for place in needed
        if (over and place[1] in over.get(place[0], ())) or ((pod := pods.get(place)) is not None and _ready(pod))
    ]
    if topology.elasticity(job) == "absorbs" and job.spec.elastic:
        framework = topology.framework_of(job)
        places_of = ((role, index) for role, size in sizes.items() for index in range(size))
        essential = {place for place in places_of if framework.scope(*place, sizes, elastic=True) == "Group"}
        if essential <= set(run):
            return sum(role == topology.ELASTIC_ROLE for role, _ in run) >= job.spec.elastic.min_replicas
    return len(run) == len(needed)


def _ready(pod: Pod) -> bool:
    return pod.succeeded or (pod.phase == "Running" and not pod.ended and not pod.deleted_at and not pod.settling)


def _was_launched(key: str, entry: ReplicaRestarts, pods: Mapping[tuple[str, int], Pod]) -> bool:
    role, index = key.rsplit("-", 1)
    pod = pods.get((role, int(index)))
    if pod is None or pod.restart != entry.pod_number:
        return False
    return not entry.in_pod or (pod.phase == "Running" and not pod.ended)  # before that, the pod is the former one's


def _waits_for(
    pods: Mapping[tuple[str, int], Pod], refused: Iterable[RejectedCreate], now: datetime
) -> tuple[str, str] | None:
    """Return the most informative (reason, message): a rejection by the API server, then a start error, then others."""
    for rejection in sorted(refused, key=lambda r: (not r.tried, r.kind, r.name)):
        return rejection.reason, f"{rejection.kind} {rejection.name}: {rejection.message}"
    pending = [pod for _, pod in sorted(pods.items()) if pod.phase == "Pending" and not pod.ended]
    if taken := next((pod for pod in pending if pod.managed_by_kueue and pod.node is None), None):
        return TAKEN_BY_KUEUE, f"{taken.name}: {_TAKEN}"
    waiting = [pod for pod in pending if _named_at_once(pod) or _is_slow(pod, now)]
    for pod in sorted(waiting, key=_information):
        if pod.waiting_reason == FETCHING:
            return FETCHING, pod.waiting_message  # of no single pod: the message changes less often
        return pod.start_error or pod.waiting_reason or "PodsPending", f"{pod.name}: {pod.waiting_text}"
    return None


def _information(pod: Pod) -> tuple[bool, ...]:
    reason = pod.waiting_reason
    return (
        reason == FETCHING,
        not is_start_error(reason),
        reason != "Unschedulable",
        not pod.unprepared,
        not pod.waiting_message,
    )


def slow_start_at(pod: Pod) -> datetime | None:
    """Return when the condition begins to name this pod; None if it has no node, runs, or is named at once."""
    if pod.placed_at is None or pod.phase != "Pending" or pod.ended or _named_at_once(pod):
        return None
    if pod.waiting_reason in (RESTART_IN_PLACE, START_TOGETHER):
        return None
    return pod.placed_at + SLOW_START


def _named_at_once(pod: Pod) -> bool:
    return bool(pod.waiting_message) or is_start_error(pod.waiting_reason)


def _is_slow(pod: Pod, now: datetime) -> bool:
    begins = slow_start_at(pod)
    return begins is not None and begins <= now


def remarks(progress: ProgressStatus | None) -> str:
    """Return what is worth a look although the job succeeded: it ended early, or its ranks are independent copies."""
    copies = progress.copies if progress else None
    return "; ".join(filter(None, (ended_early(progress), copies)))


def ended_early(progress: ProgressStatus | None) -> str:
    """Return `it ended at step 20 of 100`; empty if the program came to its last step, or does not report steps."""
    if progress is None or progress.step is None or not progress.total_steps:
        return ""
    missing = progress.total_steps - progress.step
    near = max(1, progress.total_steps // 100)
    return f"it ended at step {progress.step} of {progress.total_steps}" if missing > near else ""
