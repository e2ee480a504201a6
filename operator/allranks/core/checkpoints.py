"""Asks the ranks for a checkpoint before their pods are deleted on request, so that no work is lost.

A rule that deletes the pods of a running job for another reason than a failure calls `ask_first`. The request is
persisted, so a restarted operator continues to wait.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import CheckpointRequest, ProgressStatus, Status
from allranks.core.diagnosis import report_loss
from allranks.core.facts import pod_template
from allranks.core.facts.model import Event, Plan
from allranks.core.facts.rank_reports import Reports
from allranks.core.outcomes import Outcome, WaitForCheckpoint, write
from allranks.core.snapshot import Snapshot

LONGEST_WAIT = 600
"""Seconds. The wait is the grace period of the pods, which may be set to any value."""
REQUESTED = "CheckpointRequested"
WITHDRAWN = "CheckpointRequestWithdrawn"


def ask_first(snapshot: Snapshot, reason: str, occasion: str) -> Outcome:
    """Ask for a checkpoint, or wait for it; return None if the pods may be deleted now.

    `reason` is the reason of the decision, `occasion` completes the sentence "before ...". It is safe to call this in
    each reconcile, and by several rules: there is one request, and the first rule in the order of the rules acts.
    """
    status, now = snapshot.current, snapshot.observed.now
    if snapshot.failed or snapshot.deleted_replicas:
        return None  # the other ranks wait for the failed ones and cannot save
    if request := status.checkpoint_request:
        waits = now < request.deadline and not _stored(request, snapshot)
        return WaitForCheckpoint(request.deadline) if waits else None
    seconds = longest_wait(snapshot.observed.job, status, now)
    if not seconds:
        return None
    deadline = now + timedelta(seconds=seconds)
    request = CheckpointRequest(reason=reason, time=now, deadline=deadline, ranks=_reporting(snapshot))
    message = (
        f"the ranks are asked for a checkpoint before {occasion}: the pods are deleted when it is stored, and without "
        f"it at {request.deadline:%H:%M:%S} UTC"
    )
    return write(replace(status, checkpoint_request=request), Event(REQUESTED, message))


def _reporting(snapshot: Snapshot) -> int:
    """Return the number of ranks that report now.

    A restarted operator that has not received all reports uses the persisted number, without the share of ended pods.
    """
    recorded = (snapshot.persisted.progress, snapshot.current.progress)
    most = max((progress.reporting for progress in recorded if progress), default=0)
    ranks = snapshot.observed.reports.ranks if snapshot.observed.reports else ()
    live = sum(not rank.done for rank in ranks)
    if len(ranks) >= most:
        return live
    ended = sum(pod.ended for pod in snapshot.pods.values())
    deleted = sum(
        (r.role, r.index) not in snapshot.pods and snapshot.settled(r.role, r.index) for r in snapshot.replicas
    )
    return max(live, _without(most, ended + deleted, len(snapshot.pods) + deleted))


def _without(ranks: int, ended: int, pods: int) -> int:
    """Return the number of ranks that remain when `ended` of `pods` pods have ended.

    The result is rather too large if not every pod has ranks that report.
    """
    return ranks - ended * (ranks // pods) if pods else ranks


def longest_wait(job: Job, status: Status, now: datetime) -> int:
    """Return the longest wait for a request in seconds; 0 if no rank can be asked, or there is nothing to save."""
    return min(pod_template.longest_grace_period(job), LONGEST_WAIT) if _can_save(status, now) else 0


def result(snapshot: Snapshot) -> str:
    """Return the result of the request, for the message of the decision; empty if the ranks were not asked."""
    request = snapshot.current.checkpoint_request
    if request is None:
        return ""
    if not _stored(request, snapshot):
        return " without a new checkpoint, because the ranks stored none in time"
    progress = snapshot.current.progress
    step = progress.checkpoint_step if progress else None
    return " after a checkpoint" + ("" if step is None else f" of step {step}")


def withdraw(snapshot: Snapshot, plan: Plan) -> Plan:
    """Withdraw the request if no rule waits for the checkpoint any more: the user changed the spec back, for
    example."""
    status = snapshot.current
    if status.checkpoint_request is None or plan.decided or plan.awaits_checkpoint:
        return plan
    event = Event(WITHDRAWN, "the ranks are no longer asked for a checkpoint: the job continues")
    return Plan(next=replace(status, checkpoint_request=None), write_ahead=True, events=(event,))


def with_request(snapshot: Snapshot, plan: Plan) -> Plan:
    """Pass the request of the persisted status on to the ranks."""
    return replace(plan, checkpoint_request=number(snapshot.persisted), awaits_checkpoint=False)


def number(status: Status) -> int:
    """Return the number by which ranks tell requests apart, 0 without a request.

    It is the time in milliseconds, so a later request has a larger number.
    """
    return _number(status.checkpoint_request) if status.checkpoint_request else 0


def _number(request: CheckpointRequest) -> int:
    return int(request.time.timestamp() * 1000)


def _can_save(status: Status, now: datetime) -> bool:
    """Return whether ranks that store checkpoints on request have work that is in no checkpoint.

    The status decides, because a new operator has not received their reports yet.
    """
    progress, lost = status.progress, status.condition(report_loss.CONDITION)
    if progress is None or not progress.saves_on_request or (lost is not None and lost.status == "True"):
        return False
    return progress.first_step_time is not None and (
        progress.checkpoint_step is None or progress.checkpoint_step != progress.step or _made_a_step(progress, now)
    )


def _made_a_step(progress: ProgressStatus, now: datetime) -> bool:
    """Return whether a rank has probably made a step since the checkpoint, and not reported it yet."""
    if progress.checkpoint_time is None or (progress.step is not None and progress.step == progress.total_steps):
        return False
    seconds = [rank.step_seconds for rank in progress.ranks if rank.step_seconds]
    return bool(seconds) and now >= progress.checkpoint_time + timedelta(seconds=min(seconds))


def _stored(request: CheckpointRequest, snapshot: Snapshot) -> bool:
    """Return whether a checkpoint was stored since the request, and no other rank is expected to store one.

    Ranks that store on request, or have reported a checkpoint before, are expected to. Usually that is rank 0 alone.
    """
    reports = snapshot.observed.reports
    if reports is None or (reports.since >= request.time and _heard(reports, snapshot) < _expected(request, snapshot)):
        return False  # a restarted operator has not received the reports of all ranks yet
    ranks = reports.ranks
    newer = False
    for rank in ranks:
        stored = rank.checkpoint_at is not None and rank.checkpoint_at >= request.time
        handled = rank.handled_request >= _number(request) and rank.checkpoint_at is None
        if (rank.saves_on_request or rank.checkpoint_at) and not (stored or handled or rank.done):
            return False
        newer = newer or stored
    return newer


def _heard(reports: Reports, snapshot: Snapshot) -> int:
    """Return the number of reporting ranks whose pods have not ended."""
    ended = {pod.name for pod in snapshot.pods.values() if pod.ended}
    return sum(rank.pod not in ended for rank in reports.ranks)


def _expected(request: CheckpointRequest, snapshot: Snapshot) -> int:
    """Return the number of ranks that reported at the time of the request and whose pods have not ended since."""
    ended = sum(pod.exit is not None and pod.exit.finished_at > request.time for pod in snapshot.pods.values())
    running = sum(not pod.ended for pod in snapshot.pods.values())
    return _without(request.ranks, ended, running + ended)
