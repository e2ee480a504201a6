"""Decides what a failure leads to: restart, counted or not, failure of the job, or nothing; and the backoff."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.job import Job, RestartRule
from allranks.api.status import Failure, RestartCounts, Status
from allranks.core.diagnosis import exec_failure, hang_detection, verdict
from allranks.core.diagnosis.exit_codes import FAULTS, SIGKILL, possible_signal, signal_name
from allranks.core.diagnosis.root_cause import is_uncounted, same_way
from allranks.core.facts import naming, stored_checkpoints, topology
from allranks.core.facts.bad_nodes import BY_PLATFORM, OF_NODE
from allranks.core.facts.model import ANY_PLATFORM, FETCH_FAILED, LIMIT_EXCEEDED, Platform
from allranks.core.facts.restarts import MAX_IDLE_RESTARTS

Action = Literal["Restart", "RestartUncounted", "Fail", "Ignore"]

MAX_BACKOFF_SECONDS = 300
NO_PROGRESS_SECONDS = 120
"""Without progress reports, an attempt that ran for less than this counts as one without progress."""


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """The action after a failure, and a sentence that explains it."""

    action: Action
    explanation: str
    reason: str = ""
    """For `Fail`: the reason of condition Failed."""
    names_cause: bool = False
    """The sentence names the cause, so that the last line of the log adds nothing."""


def decide_restart(job: Job, status: Status, failure: Failure, platform: Platform = ANY_PLATFORM) -> RestartDecision:
    """Apply the user's rules, then the default rules (docs/reference/semantics.md). The first match wins.

    On one machine (`platform.local`) the job's user waits for it.
    """
    rules = job.spec.restart.rules or []
    if topology.is_last_of_target(job, status, failure.role, failure.index):
        rules = [rule for rule in rules if rule.action != "Ignore"]  # no other replica can complete the job
    if by_user := by_rules(rules, failure):
        return within_budget(job, status, failure, *by_user)
    failure = judged(job, status, failure)
    trained = _has_trained(status, failure)
    by_platform = failure.because in BY_PLATFORM
    unexecuted = None if trained or by_platform else exec_failure.explain(job, failure, platform.local)
    if unexecuted:
        return RestartDecision("Fail", unexecuted.sentence, failure.reason, unexecuted.named)
    before = _just_before(job, status, failure)
    if failure.because == "CheckpointUnreadable":
        action, explanation = _without_checkpoint(job, status, before, failure)
    else:
        action, explanation = _by_default(before, failure, _made_steps(status))
    if failure.because in OF_NODE and before and _again_on_node(status, before, failure):
        action, explanation = "RestartUncounted", f"again on node {failure.node}, which is avoided"
    if platform.local and action == "Restart" and not trained and not restarts_requested(job):
        return not_restarted(job, failure, platform)
    if action == "Restart" and not failure.because and (repeated := same_step(status, failure)):
        explanation = f"failed in the same way in step {repeated[0]} of {repeated[1]} attempts"
        if repeated[1] >= SAME_STEP_ATTEMPTS:
            return RestartDecision("Fail", f"{explanation}{_explain_repetition(failure)}", failure.reason)
    return within_budget(job, status, failure, action, explanation)


def _explain_repetition(failure: Failure) -> str:
    if _killed(failure):
        return ": something kills it there, often for its memory"
    return ": a bug in the program or in its data" if failure.verdict == "Program" else ""


def _killed(failure: Failure) -> bool:
    return possible_signal(failure.exit_code, failure.signal) == SIGKILL


def judged(job: Job, status: Status, failure: Failure) -> Failure:
    """Return the failure with its verdict.

    `status`: of the attempt that failed, before the failure is recorded. An empty one if the attempts before it are not
    to be compared.
    """
    if failure.verdict is not None:
        return failure
    same = same_step(status, failure) if not _killed(failure) else None
    repeated = _twice_before_progress(_just_before(job, status, failure), failure, _made_steps(status))
    executed = _has_trained(status, failure) or exec_failure.explain(job, failure, local=False) is None
    case = verdict.Case(failure, executed, repeated or (same is not None and same[1] >= SAME_STEP_ATTEMPTS))
    return replace(failure, verdict=verdict.decide(case))


def restarts_requested(job: Job) -> bool:
    """Return whether the manifest or the command line sets `restart.maxRestarts`, even to its default."""
    return "max_restarts" in job.spec.restart.model_fields_set


def not_restarted(job: Job, failure: Failure, platform: Platform) -> RestartDecision:
    """Return the decision about a failure before the first step of a local run: its user corrects the program."""
    restarts = f"{platform.restart_option.format(job.spec.restart.max_restarts)} restarts it"
    return RestartDecision("Fail", f"not restarted: it failed before its first step ({restarts})", failure.reason)


def within_budget(job: Job, status: Status, failure: Failure, action: Action, explanation: str) -> RestartDecision:
    """Turn a restart into a failure of the job if it exceeds maxRestarts, or MAX_IDLE_RESTARTS if it does not count."""
    counted = status.restarts.counted
    if action == "Restart" and counted >= job.spec.restart.max_restarts:
        allowed = job.spec.restart.max_restarts
        budget = (
            "restart.maxRestarts is 0" if not allowed else f"all {allowed} restarts of restart.maxRestarts are used"
        )
        return RestartDecision("Fail", budget, "MaxRestartsExceeded")
    window = job.spec.restart.window
    if action == "Restart" and window and counted_restarts(job, status.restarts, failure.time) >= window.max_restarts:
        budget = f"{window.max_restarts} restarts in {window.seconds} s are used (restart.window)"
        return RestartDecision("Fail", budget, "MaxRestartsExceeded")
    if action == "RestartUncounted" and _is_exhausted(job, status, failure):
        return RestartDecision("Fail", f"{MAX_IDLE_RESTARTS} restarts in a row without progress", "NoProgress")
    return RestartDecision(action, explanation, failure.reason)


def counted_restarts(job: Job, restarts: RestartCounts, now: datetime) -> int:
    """Return the number of counted restarts, with `restart.window` only of restarts within the window."""
    window = job.spec.restart.window
    if window is None:
        return restarts.counted
    begin = now - timedelta(seconds=window.seconds)
    return sum(time > begin for time in restarts.recent or ())


def idle_restarts(status: Status, failure: Failure, alone: bool) -> int:
    """Return the number of restarts in a row without progress, with the one that follows this failure.

    A replica that restarts `alone` has a number of its own, and its own run time is its progress: the others may train.
    """
    entry = status.replica_restarts.get(naming.replica_key(failure.role, failure.index)) if alone else None
    ran = failure.ran_seconds
    begun = entry.restart_time if entry else status.running_time
    if begun and (ran is None or not alone):
        ran = max(ran or 0.0, (failure.time - begun).total_seconds())
    reports_steps = not alone and status.progress is not None and status.progress.step is not None
    if (made_progress(status) and not alone) or (not reports_steps and (ran or 0.0) >= NO_PROGRESS_SECONDS):
        return 0
    if alone:
        return ((entry.without_progress or 0) if entry else 0) + 1
    return (status.restarts.without_progress or 0) + 1


def _is_exhausted(job: Job, status: Status, failure: Failure) -> bool:
    """Return whether the restarts without progress exceed MAX_IDLE_RESTARTS.

    An elastic worker that restarts alone is never exhausted: the other workers continue without it.
    """
    alone = topology.scope(job, failure.role, failure.index) == "Pod"
    if alone and topology.elasticity(job) == "absorbs":
        return False
    return idle_restarts(status, failure, alone) > MAX_IDLE_RESTARTS


def by_rules(rules: Iterable[RestartRule], failure: Failure) -> tuple[Action, str] | None:
    """Return (action, explanation) of the first of the user's rules that matches; None if no rule matches."""
    for number, rule in enumerate(rules):
        matches = (
            (rule.exit_codes is not None and failure.exit_code in rule.exit_codes)
            or (rule.signals is not None and possible_signal(failure.exit_code, failure.signal) in rule.signals)
            or (rule.reasons is not None and failure.reason in rule.reasons)
        )
        if matches:
            return rule.action, f"restart.rules[{number}] says {rule.action}"
    return None


def delay(job: Job, counted: int | None, idle: int) -> timedelta:
    """Return the delay of a restart: the longer of two backoffs.

    One is the backoff of counted restart number `counted` (None: it does not count), the other the backoff of the
    restarts in a row without progress. `backoffSeconds: 0` disables the first one only, which maxRestarts bounds.
    """
    if counted is None:
        return backoff(job, idle, least=1)
    return max(backoff(job, counted), backoff(job, idle))


def backoff(job: Job, number: int, least: int = 0) -> timedelta:
    """Return the delay of restart number `number` (from 1): none, then backoffSeconds (at least `least`) doubling to
    300 s."""
    if number <= 1:
        return timedelta(0)
    # The exponent is bounded too: 2**9999 would be a number of 3,000 digits.
    seconds = max(least, job.spec.restart.backoff_seconds) * 2 ** min(number - 2, 30)
    return timedelta(seconds=min(MAX_BACKOFF_SECONDS, seconds))


def _just_before(job: Job, status: Status, failure: Failure) -> Failure | None:
    """Return the replica's previous failure in this attempt if it restarts individually; else the previous
    attempt's."""
    alone = status.replica_restarts.get(naming.replica_key(failure.role, failure.index))
    if alone and alone.failure and topology.scope(job, failure.role, failure.index) == "Pod":
        return alone.failure
    return status.attempt_failure


def made_progress(status: Status) -> bool:
    """Return whether this attempt stored a checkpoint, or came to a step beyond all earlier attempts.

    A job that repeats its first step in each attempt makes no progress.
    """
    progress = status.progress
    if progress is None or progress.first_step_time is None or progress.step is None:
        return False
    reached = [past.last_step for past in status.history if past.first_step is not None and past.last_step is not None]
    return progress.checkpoint_time is not None or progress.step > max(reached, default=-1)


def _made_steps(status: Status) -> bool:
    """Return whether ranks reported a step in this attempt."""
    return status.progress is not None and status.progress.first_step_time is not None


def _has_trained(status: Status, failure: Failure) -> bool:
    """Return whether the job ever made progress, in any attempt, so that its program exists and can be executed.

    Progress is a reported step, or two minutes since all of its pods ran for the first time.
    """
    if status.progress is not None and status.progress.step is not None:
        return True
    since = status.first_running_time
    ran = max(failure.ran_seconds or 0.0, (failure.time - since).total_seconds() if since else 0.0)
    return ran >= NO_PROGRESS_SECONDS


def _by_default(before: Failure | None, failure: Failure, stepped: bool) -> tuple[Action, str]:
    if failure.because:
        return _by_evidence(before, failure)
    if failure.reason == FETCH_FAILED:
        return "RestartUncounted", "its inputs are fetched again; its program did not run"
    if is_uncounted(failure.reason):
        return "RestartUncounted", "a disruption, not a failure of the program"
    if failure.reason == LIMIT_EXCEEDED:
        return "Restart", "the pod exceeded a limit of its own"
    if failure.reason == "OOMKilled":
        if before and before.reason == "OOMKilled":
            return "Fail", "out of memory twice in a row"
        return "Restart", "out of memory for the first time"
    signal = possible_signal(failure.exit_code, failure.signal)
    unstarted = failure.reason in exec_failure.CANNOT_START
    if _twice_before_progress(before, failure, stepped):
        how = "ended by the same signal" if signal in FAULTS and not unstarted else "failed the same way"
        bug = ": a bug in the program, not a fault" if failure.verdict == "Program" else ""
        return "Fail", f"{how} twice before any progress{bug}"
    if unstarted:
        return "Restart", "its container could not be started"
    if failure.exit_code is not None and 1 <= failure.exit_code <= 127 and signal is None:
        return "Restart", "the program failed"
    if failure.exit_code is None:
        return "Restart", "the pod failed before its program ran"
    if failure.signal is not None:
        return "Restart", f"the program was ended by {signal_name(failure.signal)}"
    return "Restart", "the program was ended by a signal, or asked to be run again"


def _by_evidence(before: Failure | None, failure: Failure) -> tuple[Action, str]:
    """Return the decision about a failure whose cause is not the program of the replica, or is unknown."""
    again = before is not None and before.because == failure.because
    same_replica = before is not None and (before.role, before.index) == (failure.role, failure.index)
    if failure.because in ("NeverWhole", "PodRefused"):
        return "RestartUncounted", "the attempt was never whole"
    if failure.because == "NotJoined":
        action: Action = "Restart" if again and same_replica else "RestartUncounted"
        return action, "the group of ranks never formed"
    where = f": node {failure.node} is avoided" if failure.node else ""
    if failure.because in BY_PLATFORM:
        return "RestartUncounted", f"the platform reports its {_HARDWARE[failure.because]} as unhealthy{where}"
    if failure.because in OF_NODE:
        subject = "a device failed" if failure.because == "DeviceError" else "an init container of the pod failed"
        return "Restart", f"{subject}{where}"
    if failure.because == "WriteFailed":
        return "Restart", "a file could not be written"
    if failure.because == "Absent":
        return "Restart", "the other ranks waited for it without success"
    if failure.because == "NetworkError":
        return "Restart", "a host could not be reached, or its name could not be resolved"
    if failure.because == "CompletedEarly":
        return "Restart", "the other ranks could not continue without it"
    return "Restart", "it lost other ranks, and none of them failed"


def _without_checkpoint(job: Job, status: Status, before: Failure | None, failure: Failure) -> tuple[Action, str]:
    """Return the decision about a failure while a checkpoint was read. One is set aside, and not the next one as well:
    if that cannot be read either, the cause may be something else."""
    again = before is not None and before.because == failure.because and same_way(before, failure)
    step, last = failure.checkpoint_step, before.checkpoint_step if before and again else None
    if step is not None and last is not None and step < last:
        return "Fail", f"the checkpoint of step {last} could not be read either, and was set aside"
    older = stored_checkpoints.before(job, status, step) if step is not None and last is None else None
    if older:
        return "Restart", f"the checkpoint of step {step} is set aside, and the job continues from step {older.step}"
    if again:
        return "Fail", "its newest checkpoint cannot be read, twice: set it aside, so that an older one is used"
    return "Restart", "its newest checkpoint cannot be read"


_HARDWARE: dict[str | None, str] = {"DeviceUnhealthy": "device", "NodeUnhealthy": "node"}


def _again_on_node(status: Status, before: Failure, failure: Failure) -> bool:
    """Return whether this failure repeats the previous, counted one on the same node. The next one counts again."""
    alone = status.replica_restarts.get(naming.replica_key(failure.role, failure.index))
    if alone is not None and alone.failure is before:
        counted = alone.counted
    else:
        counted = bool(status.history) and status.history[-1].counted
    return counted and before.because == failure.because and failure.node is not None and before.node == failure.node


def same_step(status: Status, failure: Failure) -> tuple[int, int] | None:
    """Return (step, attempts) if this failure repeats the failures of the attempts before it, in the same step."""
    progress = status.progress
    if progress is None or progress.first_step_time is None or progress.step is None or failure.exit_code is None:
        return None
    attempts = 1
    for past in reversed(status.history):
        stepped = past.first_step is not None and past.last_step == progress.step
        if not stepped or past.failure is None or not same_way(past.failure, failure):
            break
        attempts += 1
    return (progress.step + 1, attempts) if attempts > 1 else None


SAME_STEP_ATTEMPTS = 3
"""Attempts that fail in the same way in the same step: no fault of a machine does that."""


def _twice_before_progress(before: Failure | None, failure: Failure, stepped: bool) -> bool:
    """Return whether the program failed in the same way twice in a row, both times before any progress.

    `stepped`: ranks reported a step in the attempt of the second failure. A signal that a program causes itself repeats
    itself only in the same replica; other signals come from outside.
    """
    if before is None or stepped or not (_no_progress(before) and _no_progress(failure) and same_way(before, failure)):
        return False
    signal = possible_signal(failure.exit_code, failure.signal)
    if signal in FAULTS and failure.reason not in exec_failure.CANNOT_START:
        return (before.role, before.index) == (failure.role, failure.index)
    exited = failure.exit_code is not None and 1 <= failure.exit_code <= 127 and signal is None
    return exited or failure.reason in exec_failure.CANNOT_START


def _no_progress(failure: Failure) -> bool:
    return (failure.ran_seconds or 0.0) < NO_PROGRESS_SECONDS


def decide_after_hang(job: Job, status: Status, failure: Failure, platform: Platform = ANY_PLATFORM) -> RestartDecision:
    """Apply the user's rules for reason Hang or NoFirstStep, then `hang.action`, then the default without `hang`."""
    if by_user := by_rules(job.spec.restart.rules or [], failure):
        return within_budget(job, status, failure, *by_user)
    action, explanation = _default_after_hang(job, status, failure)
    if failure.because in BY_PLATFORM and (action == "Restart" or job.spec.hang is None):
        action, cause = _by_evidence(None, failure)
        explanation = f"{explanation}; {cause}"
    if platform.local and action == "Restart" and job.spec.hang is None and not restarts_requested(job):
        return not_restarted(job, failure, platform)
    return within_budget(job, status, failure, action, explanation)


def _default_after_hang(job: Job, status: Status, failure: Failure) -> tuple[Action, str]:
    explanation = f"no first step for {job.spec.startup_deadline_seconds} s (startupDeadlineSeconds)"
    if job.spec.hang:
        if failure.reason == hang_detection.REASON:
            explanation = f"no progress for {job.spec.hang.timeout_seconds} s (hang.timeoutSeconds)"
        return job.spec.hang.action, explanation
    before = status.attempt_failure
    if before and before.reason == hang_detection.NO_FIRST_STEP:
        return "Fail", f"{explanation}, twice in a row"
    return "Restart", explanation
