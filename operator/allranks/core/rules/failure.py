"""Pods that failed, were deleted or cannot start, ranks that hang, and corrections of past root causes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Literal

from allranks.api.job import Job, Progress
from allranks.api.status import Failure, Status
from allranks.core import in_place, transitions
from allranks.core.accounting.progress import curve_not_finite
from allranks.core.diagnosis import correlation, hang_detection, processes, report_loss, restart_policy, root_cause
from allranks.core.diagnosis.correlation import EarlierFailures
from allranks.core.diagnosis.culprit import culprit, culprit_of_hang
from allranks.core.diagnosis.reasons import LOST_PEER, cause_line, describe_failure
from allranks.core.diagnosis.verdict import judged
from allranks.core.facts import development, naming, topology
from allranks.core.facts.model import Event, Pod
from allranks.core.facts.restarts import CORRELATION_SECONDS, drop_details
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def reattribute(snapshot: Snapshot) -> Outcome:
    """Correct the root cause of a past attempt when later evidence shows an earlier failure."""
    o, status = snapshot.observed, snapshot.current
    past = [*o.removed.values(), *processes.as_ended(o, snapshot.outdated)]
    cause = correlation.corrected_cause(o.job, status, past, o.now, o.platform, snapshot.pods.values())
    counted = correlation.restart_counts(o.job, cause) if cause else None
    if cause is None or counted is None:
        return None
    cause = judged(o.job, Status(), cause)
    corrected = transitions.reattribute(o.job, status, cause, counted)
    if corrected == status:
        return None
    message = f"corrected: attempt {cause.attempt} failed because {describe_failure(cause)}"
    return write(corrected, Event("CauseFound", message))


def reattribute_end(snapshot: Snapshot) -> Outcome:
    """Correct the root cause of a job that has failed for good, when a pod of its last attempt shows another one.

    Only a rank that lost its peers is replaced: what failed by itself stays the cause.
    """
    o, status = snapshot.observed, snapshot.current
    recorded = status.last_failure
    if status.phase != "Failed" or not status.history or recorded is None or recorded.because != LOST_PEER:
        return None
    pods = [*o.removed.values(), *snapshot.pods.values(), *snapshot.outdated]
    cause = correlation.corrected_cause(o.job, status, pods, o.now, o.platform)
    if cause is None or cause.attempt != status.attempt or _same_evidence(cause, recorded):
        return None
    before = replace(status, history=status.history[:-1], phase="Running")
    cause = judged(o.job, before, cause)
    decision = restart_policy.decide_restart(o.job, before, cause, o.platform)
    condition = status.condition("Failed")
    reason = decision.reason if decision.action == "Fail" else condition.reason if condition else cause.reason
    described = describe_failure(cause)
    message = f"{described}: {decision.explanation}" if decision.action == "Fail" else described
    message = message if decision.names_cause else _with_last_line(message, cause)
    corrected = transitions.reattribute_end(status, cause, reason, message, o.now)
    return write(corrected, Event("CauseFound", f"corrected: the job failed because {described}"))


def _same_evidence(cause: Failure, recorded: Failure) -> bool:
    """Return whether nothing is new: a correction that would be found again after it was written would never end."""
    return (cause.pod, cause.rank, cause.because) == (recorded.pod, recorded.rank, recorded.because)


def handle_failures(snapshot: Snapshot) -> Outcome:
    """Evaluate failures one by one, each on the status that the previous one produced, and persist them in one write.

    A write has failures of one kind: individually restarted replicas, or ignored ones. It ends before counted and
    uncounted restarts would mix: they are counted separately. It holds at most `MAX_DECISIONS`, so that other jobs have
    their turn; the job is reconciled again at once.

    Pods that settle are evaluated when their kubelet has written their phase, or at the end of the time for it.
    """
    o, before = snapshot.observed, snapshot.persisted.restarts
    if not snapshot.failed and not snapshot.deleted_replicas:
        return WaitUntil(snapshot.settles_at) if snapshot.settles_at else None
    evaluation = _Evaluation(snapshot)
    failures = root_cause.failures(
        o.job, o.current, snapshot.failed, snapshot.deleted_replicas, o.now, o.platform, o.removed
    )
    status, events, kind = o.current, list[Event](), ""
    for failure in islice(failures, MAX_DECISIONS):
        next_kind, after, added = evaluation.decide(status, failure)
        if kind and after.restarts.counted > before.counted and after.restarts.disruptions > before.disruptions:
            break
        if kind == "ignored" and next_kind != "ignored":
            break  # without the ignored replicas, the job may be complete
        status, kind = after, next_kind
        events += added
        if kind == "final":
            break
    return write(drop_details(status, o.now), *events)


MAX_DECISIONS = 250
"""Decisions in one write. Each copies the list of restarted replicas."""


_Kind = Literal["restarted", "ignored", "final"]
"""`final`: the attempt or the job ends, so that no further failure of the attempt matters."""


class _Evaluation:
    """The failures of one reconcile. The root cause selects the rule. If any failed replica has group scope, the whole
    attempt restarts."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._job, self._now = snapshot, snapshot.observed.job, snapshot.observed.now
        self._earlier = EarlierFailures(self._job, snapshot.current)
        places = [*((pod.role, pod.index) for pod in snapshot.failed)]
        places += ((replica.role, replica.index) for replica in snapshot.deleted_replicas)
        self._in_group = {place for place in places if topology.scope(self._job, *place) == "Group"}

    @cached_property
    def _never_in_pods(self) -> frozenset[str]:
        return in_place.roles_that_never_restart_in_pods(self._snapshot)

    def decide(self, status: Status, failure: Failure) -> tuple[_Kind, Status, list[Event]]:
        """Return the decision about the next failure, on the status that the previous decisions produced."""
        job, now = self._job, self._now
        failure = culprit(replace(self._snapshot.evidence, status=status), failure)
        described = describe_failure(failure)
        upstream = self._earlier.upstream_of(failure)
        if upstream and upstream.failure:
            reason = f"caused by an earlier failure: {describe_failure(upstream.failure)}"
            event = Event("RankFailed", f"{described}: {reason}", warning=True)
            new_pods = in_place.why_new_pods(self._snapshot, status)
            restarted = transitions.restart_after_upstream_failure(
                job, status, upstream, upstream.failure, now, new_pods or ""
            )
            return "final", restarted, [event, Event("Restarting", reason)]
        if counted_before := self._earlier.counted(failure):
            failure = replace(failure, verdict=counted_before.verdict)
            reason = f"same failure as another replica within {CORRELATION_SECONDS} s; already counted"
            return "restarted", *self._restart_alone(status, failure, None, f"{described}: {reason}")

        failure = judged(job, status, failure)
        decision = restart_policy.decide_restart(job, status, failure, self._snapshot.observed.platform)
        decision = restart_policy.while_developed(job, decision, now)
        event = Event("RankFailed", f"{described}: {decision.explanation}", warning=True)
        if decision.action == "Fail":
            message = f"{described}: {decision.explanation}"
            if not decision.names_cause:
                message = _with_last_line(message, failure)
            return (
                "final",
                transitions.fail(self._summary(status), decision.reason, message, now, failure),
                [event],
            )
        if decision.action == "Ignore":
            self._in_group.discard((failure.role, failure.index))
            return "ignored", transitions.ignore(status, failure), [event]
        if decision.action == "AwaitCode":
            return "final", *_await_code(self._snapshot, status, failure, decision.explanation)
        counted = decision.action == "Restart"
        if self._in_group:
            new_pods = in_place.why_new_pods(self._snapshot, status, failure)
            restarted = transitions.restart(job, status, failure, counted, decision.explanation, now, new_pods)
            return "final", restarted, [event, Event("Restarting", decision.explanation + in_place.describe(new_pods))]
        return "restarted", *self._restart_alone(status, failure, counted, f"{described}: {decision.explanation}")

    def _restart_alone(
        self, status: Status, failure: Failure, counted: bool | None, message: str
    ) -> tuple[Status, list[Event]]:
        never = failure.role in self._never_in_pods
        new_pod = "" if never else in_place.why_new_pod(self._snapshot, status, failure)
        restarted = transitions.restart_replica(self._job, status, failure, counted, self._now, in_pod=new_pod is None)
        key = naming.replica_key(failure.role, failure.index)
        self._earlier.record(key, restarted.replica_restarts[key])
        return restarted, [Event("RankFailed", message + in_place.describe_alone(new_pod), warning=True)]

    def _summary(self, status: Status) -> Status:
        """Return the status with the pod counts that follow from the decisions so far."""
        return Snapshot(self._snapshot.observed.with_current(status)).summarised


def _await_code(snapshot: Snapshot, status: Status, failure: Failure, explanation: str) -> tuple[Status, list[Event]]:
    """Return the status and the Events of a failure after which the ranks wait for other code."""
    job, now = snapshot.observed.job, snapshot.observed.now
    new_pods = in_place.why_new_pods(snapshot, status, failure)
    end = development.until(job, now) or now
    restarted = transitions.await_code(job, status, failure, explanation, end, now, new_pods)
    event = Event("RankFailed", f"{describe_failure(failure)}: {explanation}", warning=True)
    return restarted, [event, Event("Restarting", explanation + in_place.describe(new_pods))]


def _with_last_line(text: str, failure: Failure) -> str:
    line = cause_line(failure)
    return f"{text}; last line: {line}" if line else text


def startup_failure(snapshot: Snapshot) -> Outcome:
    """Apply startupDeadlineSeconds to pods with a start error, until all ranks of the job have run once.

    The same images and volumes worked then. An unavailable registry, for example, ends without a change by the user:
    the job waits, and the condition names the pod.

    A pod that may not run as root and whose image does fails the job at once: only a change of the job cures it. Other
    errors of the configuration, such as a missing Secret, can end by themselves.
    """
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    if status.ever_ran:
        return None
    final = next((pod for pod in snapshot.start_errors if root_image_cure(pod)), None)
    deadlines = [(pod, startup_deadline(job, status, pod) or now) for pod in snapshot.start_errors]
    overdue = final or next((pod for pod, deadline in deadlines if deadline <= now), None)
    if overdue is None:
        return WaitUntil(min(deadline for _, deadline in deadlines)) if deadlines else None
    message = f"{overdue.name}: {overdue.waiting_text}" + (f": {cure}" if (cure := root_image_cure(overdue)) else "")
    failure = root_cause.end_of_pod(job, status, replace(overdue, disruption=None), now, snapshot.observed.platform)
    failure = judged(job, status, failure)
    failed = transitions.fail(snapshot.summarised, failure.reason, message, now, failure)
    return write(failed, Event(overdue.start_error, message, warning=True))


_RUN_AS_USER = "spec.template.spec.securityContext.runAsUser"
# Messages of the kubelet (verifyRunAsNonRoot in pkg/kubelet/kuberuntime/security_context_others.go).
_ROOT_IMAGES = {
    "image will run as root": f"the image runs as root, and the pod may not: set {_RUN_AS_USER} of the job to another "
    "user, for example 1000 (a TrainingPool's template, or the operator's setting `default_run_as_user`, which is "
    "policy.defaults.runAsUser in the chart, can set it for all jobs), or spec.podSecurity to Baseline if the "
    "namespace admits pods that run as root",
    "has non-numeric user": f"set {_RUN_AS_USER} of the job to the number of that user",
    "runAsUser breaks non-root policy": f"set {_RUN_AS_USER} of the job to a user other than 0, or runAsNonRoot to "
    "false if its namespace admits pods that run as root",
}


def root_image_cure(pod: Pod) -> str:
    """Return the change that cures a pod which the kubelet refuses to start because of its user; else an empty text."""
    if pod.start_error != "CreateContainerConfigError":
        return ""
    return next((cure for text, cure in _ROOT_IMAGES.items() if text in pod.waiting_message), "")


def startup_deadline(job: Job, status: Status, pod: Pod) -> datetime | None:
    """Return the end of startupDeadlineSeconds for this pod.

    It counts from the assignment to a node: an unscheduled pod does not pull its image.
    """
    alone = status.replica_restarts.get(naming.replica_key(pod.role, pod.index))
    begun = (alone.restart_time if alone else status.restart_time) or status.attempt_time
    placed = max([moment for moment in (begun, pod.placed_at) if moment], default=None)
    return placed + timedelta(seconds=job.spec.startup_deadline_seconds) if placed else None


NOT_FINITE = "NotFinite"


def fail_without_finite_loss(snapshot: Snapshot) -> Outcome:
    """Fail the job if its loss is NaN or infinite and `progress.onNotFinite` is `Fail`.

    A restart would continue from the same weights. No rank is named: the loss is mostly a mean over all of them.
    """
    o, status = snapshot.observed, snapshot.current
    lost = curve_not_finite(status.progress)
    if lost is None or (o.job.spec.progress or Progress()).on_not_finite != "Fail":
        return None
    if development.until(o.job, o.now):
        return None
    message = f"{lost[0]} is not finite since step {lost[1]}"
    began = status.running_time or status.attempt_time or o.now
    ran = max(0.0, (o.now - began).total_seconds())
    failure = Failure(attempt=status.attempt, reason=NOT_FINITE, message=message, time=o.now, ran_seconds=ran)
    failure = judged(o.job, status, failure)
    text = f"{message} (progress.onNotFinite: Fail)"
    failed = transitions.fail(snapshot.summarised, NOT_FINITE, text, o.now, failure)
    return write(failed, Event(NOT_FINITE, text, warning=True))


def handle_hang(snapshot: Snapshot) -> Outcome:
    """Restart all ranks at the end of a stall, unless a rule of the user says otherwise.

    The stall window has two ends: `sync_objects` requests stack dumps at the first, this rule acts at the second.
    """
    o, stall = snapshot.observed, snapshot.stall_window
    if stall is None or o.reports is None:
        return None
    if o.now < stall.due_at:
        return WaitUntil(stall.stuck_at if o.now < stall.stuck_at else stall.due_at)
    if not stall.confirmed:
        if o.job.spec.hang is None:
            return None  # silence alone is no reason to end ranks of a job without `hang`
        if o.now < stall.silent_due_at:
            return WaitUntil(stall.silent_due_at)  # A message causes a reconcile before that.
        if not hang_detection.path_works(o.reports, o.now):
            return WaitUntil(o.now + report_loss.SILENCE)
    failure = hang_detection.failure(o.job, o.current, o.reports, stall, o.now)
    if not stall.confirmed:
        failure = hang_detection.silence_failure(failure, stall)
    failure = judged(o.job, o.current, culprit_of_hang(snapshot.evidence, failure))
    decision = restart_policy.decide_after_hang(o.job, o.current, failure, o.platform)
    decision = restart_policy.while_developed(o.job, decision, o.now)
    if decision.action == "AwaitCode":
        status, events = _await_code(snapshot, o.current, failure, decision.explanation)
        return write(status, *events)
    event = Event(failure.reason, f"{failure.message}: {decision.explanation}", warning=True)
    if decision.action == "Fail":
        failed = transitions.fail(snapshot.summarised, decision.reason, failure.message, o.now, failure)
        return write(failed, event)
    if decision.action == "Ignore":
        recorded = hang_detection.already_recorded(o.current, stall)
        return None if recorded else write(replace(o.current, last_failure=failure), event)
    counted = decision.action == "Restart"
    new_pods = in_place.why_new_pods(snapshot, o.current, failure)
    restarted = transitions.restart(o.job, o.current, failure, counted, decision.explanation, o.now, new_pods)
    return write(restarted, event, Event("Restarting", decision.explanation + in_place.describe(new_pods)))
