"""Decides what a failure leads to: restart, counted or not, failure of the job, or nothing; and the backoff."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.job import Job, RestartRule
from allranks.api.status import Because, Failure, RestartCounts, Status
from allranks.core.diagnosis import exec_failure, hang_detection
from allranks.core.diagnosis.comparison import SAME_STEP_ATTEMPTS, Comparison, idle_restarts, same_way
from allranks.core.diagnosis.reasons import CANNOT_START, FAULTS, is_uncounted, possible_signal, signal_name, was_killed
from allranks.core.diagnosis.verdict import judged
from allranks.core.facts import development, stored_checkpoints, topology
from allranks.core.facts.bad_nodes import BY_PLATFORM, OF_NODE
from allranks.core.facts.model import ANY_PLATFORM, FETCH_FAILED, LIMIT_EXCEEDED, Platform
from allranks.core.facts.restarts import MAX_IDLE_RESTARTS

Action = Literal["Restart", "RestartUncounted", "AwaitCode", "Fail", "Ignore"]
"""`AwaitCode`: the ranks restart with other code. It does not count."""

MAX_BACKOFF_SECONDS = 300


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
    compared = Comparison(job, status, failure)
    executed = compared.has_trained or failure.because in BY_PLATFORM
    if not executed and (unexecuted := exec_failure.explain(job, failure, platform.local)):
        return RestartDecision("Fail", unexecuted.sentence, failure.reason, unexecuted.named)
    if failure.because == "CheckpointUnreadable":
        action, explanation = _without_checkpoint(compared)
    elif failure.because:
        action, explanation = _by_evidence(compared.before, failure)
    else:
        action, explanation = _by_default(compared, failure)
    if failure.because in OF_NODE and compared.again_on_node:
        action, explanation = "RestartUncounted", f"again on node {failure.node}, which is avoided"
    if platform.local and failure.because == "PreflightFailed":
        return RestartDecision("Fail", "not restarted: there is no other node", failure.reason)
    if platform.local and action == "Restart" and not compared.has_trained and not restarts_requested(job):
        return not_restarted(job, failure, platform)
    if action == "Restart" and not failure.because and (attempts := compared.same_step):
        explanation = f"failed in the same way in step {compared.step} of {attempts} attempts"
        if attempts >= SAME_STEP_ATTEMPTS:
            return RestartDecision("Fail", f"{explanation}{_explain_repetition(failure)}", failure.reason)
    return within_budget(job, status, failure, action, explanation)


def while_developed(job: Job, decision: RestartDecision, now: datetime) -> RestartDecision:
    """Return the decision while `allranks dev` is attached: what would count, or end the job, waits for other code."""
    end = development.until(job, now)
    if end is None or decision.action not in ("Restart", "Fail"):
        return decision
    waits = f"the ranks wait for other code until {end:%H:%M:%S} UTC (allranks dev)"
    return RestartDecision("AwaitCode", waits, decision.reason)


def _explain_repetition(failure: Failure) -> str:
    if was_killed(failure):
        return ": something kills it there, often for its memory"
    return ": a bug in the program or in its data" if failure.verdict == "Program" else ""


def restarts_requested(job: Job) -> bool:
    """Return whether the manifest or the command line sets `restart.maxRestarts`, even to its default."""
    return "max_restarts" in job.spec.restart.model_fields_set


def not_restarted(job: Job, failure: Failure, platform: Platform) -> RestartDecision:
    """Return the decision about a failure before the first step of a local run: its user corrects the program."""
    restarts = f"{platform.restart_option.format(job.spec.restart.max_restarts)} restarts it"
    return RestartDecision("Fail", f"not restarted: no rank has reported a step ({restarts})", failure.reason)


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


def _by_default(compared: Comparison, failure: Failure) -> tuple[Action, str]:
    """Return the decision about a failure without evidence for another cause."""
    if failure.reason == FETCH_FAILED:
        return "RestartUncounted", "its inputs are fetched again; its program did not run"
    if is_uncounted(failure.reason):
        return "RestartUncounted", "a disruption, not a failure of the program"
    if failure.reason == LIMIT_EXCEEDED:
        return "Restart", "the pod exceeded a limit of its own"
    if failure.reason == "OOMKilled":
        if compared.before and compared.before.reason == "OOMKilled":
            return "Fail", "out of memory twice in a row"
        return "Restart", "out of memory for the first time"
    signal = possible_signal(failure.exit_code, failure.signal)
    unstarted = failure.reason in CANNOT_START
    if compared.twice_before_progress:
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


_BY_EVIDENCE: dict[Because, tuple[Action, str]] = {
    "LostPeer": ("Restart", "it lost other ranks or processes, and no other pod failed"),
    "NeverWhole": ("RestartUncounted", "the attempt was never whole"),
    "PodRefused": ("RestartUncounted", "the attempt was never whole"),
    "NotJoined": ("RestartUncounted", "the group of ranks never formed"),
    "Absent": ("Restart", "the other ranks waited for it without success"),
    "CompletedEarly": ("Restart", "the other ranks could not continue without it"),
    "DeviceUnhealthy": ("RestartUncounted", "the platform reports its device as unhealthy"),
    "NodeUnhealthy": ("RestartUncounted", "the platform reports its node as unhealthy"),
    "PreflightFailed": ("RestartUncounted", "its program did not run"),
    "DeviceError": ("Restart", "a device failed"),
    "InitContainer": ("Restart", "an init container of the pod failed"),
    "InitContainerOfNode": ("Restart", "an init container of the pod failed"),
    "WriteFailed": ("Restart", "a file could not be written"),
    "NetworkError": ("Restart", "a host could not be reached, or its name could not be resolved"),
}
"""Decisions about failures whose cause is not the program of the replica, or is unknown."""


def _by_evidence(before: Failure | None, failure: Failure) -> tuple[Action, str]:
    assert failure.because
    action, explanation = _BY_EVIDENCE[failure.because]
    if failure.because in OF_NODE and failure.node:
        explanation += f": node {failure.node} is avoided"
    if failure.because == "NotJoined" and before:
        again = (before.because, before.role, before.index) == (failure.because, failure.role, failure.index)
        action = "Restart" if again else action
    return action, explanation


def _without_checkpoint(compared: Comparison) -> tuple[Action, str]:
    """Return the decision about a failure while a checkpoint was read. One is set aside, and not the next one as well:
    if that cannot be read either, the cause may be something else."""
    before, failure = compared.before, compared.failure
    again = before is not None and before.because == failure.because and same_way(before, failure)
    step, last = failure.checkpoint_step, before.checkpoint_step if before and again else None
    if step is not None and last is not None and step < last:
        return "Fail", f"the checkpoint of step {last} could not be read either, and was set aside"
    older = stored_checkpoints.before(compared.job, compared.status, step) if step is not None else None
    if older and last is None:
        return "Restart", f"the checkpoint of step {step} is set aside, and the job continues from step {older.step}"
    if again:
        return "Fail", "its newest checkpoint cannot be read, twice: set it aside, so that an older one is used"
    return "Restart", "its newest checkpoint cannot be read"


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
