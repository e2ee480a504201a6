"""The state of each trial after an observation of its job, and which trials are stopped early."""

from __future__ import annotations

import difflib
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from allranks.api.status import ProgressStatus
from allranks.api.sweep import Objective, Stop, SweepSpec
from allranks.api.sweep_status import Check, Trial, TrialPhase
from allranks.core.sweeps import trial_job
from allranks.core.sweeps.model import SweepObserved, TrialJob
from allranks.text import beginning, last_lines

MAX_RUNS_AGAIN = 3
"""Limit of runs after disruptions ended the job of a trial. Then it counts as lost."""
_LINE = 1000
"""Characters of a program's last line that are read."""
MESSAGE_BYTES, REASON_BYTES = 300, 64
"""Limits for each trial in the stored status, which holds up to 500 trials."""


def observe(observed: SweepObserved, min_steps: int | None) -> list[Trial]:
    """Return all trials with the observed state of their jobs, some of them stopped early."""
    trials = [_observe(observed, trial, min_steps) for trial in observed.status.trials]
    if min_steps is None or observed.sweep.spec.stop is None:
        return trials
    return list(_stop_early(observed, trials))


def _observe(observed: SweepObserved, trial: Trial, min_steps: int | None) -> Trial:
    if trial.ended:
        return trial
    job = observed.jobs.get(trial.job)
    if job is not None and not job.owned:
        return trial
    if job is None:
        return _disrupted(observed, trial, "its job was deleted") if trial.observed else trial
    if job.deleting:
        return trial  # it is judged when it is gone
    trial = _with_progress(observed, trial, job, min_steps)
    match job.status.phase:
        case "Succeeded":
            return _succeeded(observed, trial, job)
        case "Failed" if job.disrupted:
            condition = job.status.condition("Failed")
            return _disrupted(observed, trial, condition.message if condition else "")
        case "Failed":
            return _failed(observed, trial, job)
        case "Suspended" if trial.suspended:
            return replace(trial, phase="Pending") if trial.phase != "Pending" else trial
        case "Running" | "Restarting":
            return replace(trial, phase="Running") if trial.phase != "Running" else trial
    return trial


def with_suspension(observed: SweepObserved, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials with `suspended` set before the jobs are suspended, and removed when they are not any more.

    So a trial that a user suspended stays suspended.
    """
    suspend = observed.sweep.spec.suspend
    out = []
    for trial in trials:
        job = observed.jobs.get(trial.job)
        if trial.ended or job is None or not job.owned:
            suspended = trial.suspended and not trial.ended and suspend
        else:
            suspended = (suspend and (trial.suspended or not job.suspended)) or (trial.suspended and job.suspended)
        out.append(trial if suspended == trial.suspended else replace(trial, suspended=suspended))
    return out


def _with_progress(observed: SweepObserved, trial: Trial, job: TrialJob, min_steps: int | None) -> Trial:
    if not trial.observed:
        trial = replace(trial, observed=True)
    if progress := job.status.progress:
        objective = observed.sweep.spec.objective
        value = _value(objective, progress) if objective else None
        if progress.step is not None and progress.step != trial.step:
            trial = replace(trial, step=progress.step)
        if value is not None and value != trial.value:
            trial = replace(trial, value=value)
        if min_steps and (checks := new_checks(trial, progress, observed.sweep.spec, min_steps)):
            trial = replace(trial, checks=[*trial.checks, *checks])
    return trial


def _value(objective: Objective, progress: ProgressStatus) -> float | None:
    record = (progress.records or {}).get(objective.metric)
    if objective.value != "Best" or record is None:
        return progress.metrics.get(objective.metric)
    return record.lowest if objective.goal == "Minimize" else record.highest


def _succeeded(observed: SweepObserved, trial: Trial, job: TrialJob) -> Trial:
    objective = observed.sweep.spec.objective
    if objective is None or trial.value is not None:
        return replace(trial, phase="Succeeded", end_time=observed.now)
    metric = objective.metric
    reported = sorted(job.status.progress.metrics) if job.status.progress else []
    details = f"the program reported {', '.join(reported)}" if reported else "the program reported no metrics"
    near = difflib.get_close_matches(metric, reported, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    message = f"there is no value of {metric}{meant}: {details}"
    return ended(observed, trial, "Failed", "MetricMissing", message)


def _failed(observed: SweepObserved, trial: Trial, job: TrialJob) -> Trial:
    condition, cause = job.status.condition("Failed"), job.status.last_failure
    reason = cause.reason if cause else condition.reason if condition else "Error"
    if cause and cause.exit_code is not None:
        reason = f"{reason}({cause.exit_code})"
    message = (last_lines(cause.message, 1, _LINE) if cause else "") or (condition.message if condition else "")
    return ended(observed, trial, "Failed", reason, message)


def _disrupted(observed: SweepObserved, trial: Trial, cause: str) -> Trial:
    """Return the trial to run again, or as lost. It keeps its parameters and checks: it continues from its
    checkpoint."""
    if trial.runs >= MAX_RUNS_AGAIN:
        return ended(
            observed, trial, "Lost", "Disrupted", f"{MAX_RUNS_AGAIN + 1} jobs were ended by disruptions: {cause}"
        )
    runs = trial.runs + 1
    job = trial_job.name(observed.sweep, trial.number, runs)
    return replace(trial, phase="Pending", runs=runs, job=job, observed=False)


def _stop_early(observed: SweepObserved, trials: Sequence[Trial]) -> Iterable[Trial]:
    """Yield the trials. They are compared when they pass a check, in the order of their numbers."""
    for before, trial in zip(observed.status.trials, trials, strict=True):
        new = trial.checks[len(before.checks) :]
        job = observed.jobs.get(trial.job)
        progress = job.status.progress if job else None
        at_end = progress and progress.total_steps is not None and (progress.step or 0) >= progress.total_steps
        if not new or trial.ended or at_end:
            yield trial
            continue
        check = is_worse(trial, new, trials, observed.sweep.spec)
        yield trial if check is None else stopped(observed, trial, *_stop_reason(observed, check.step, check.value))


def _stop_reason(observed: SweepObserved, step: int, value: float) -> tuple[str, str]:
    spec = observed.sweep.spec
    assert spec.stop is not None
    assert spec.objective is not None
    share = "the median" if spec.stop.rule == "Median" else f"the best 1/{spec.stop.factor}"
    return spec.stop.rule, f"{spec.objective.metric} {value:.4g} at step {step} is worse than that of {share}"


def stopped(observed: SweepObserved, trial: Trial, reason: str, message: str) -> Trial:
    """Return the trial as stopped. Its job is suspended, so it stores a checkpoint, and can be resumed."""
    return ended(observed, trial, "Stopped", reason, message)


def ended(observed: SweepObserved, trial: Trial, phase: TrialPhase, reason: str, message: str) -> Trial:
    """Return the trial as ended without success."""
    reason, message = beginning(reason, REASON_BYTES), beginning(message, MESSAGE_BYTES)
    return replace(trial, phase=phase, reason=reason, message=message, end_time=observed.now)


MEDIAN_PEERS = 3
"""Other trials that rule Median needs at a check."""
MAX_CHECKS = 10
"""Later checks are left out: with factor 2, a trial has made 512 times the steps of its first check by then."""
_LATE = 1.5
"""A value that was reported later than this many times the steps of a check does not count for it."""


def default_min_steps(stop: Stop, total_steps: int) -> int:
    """Return the number of steps with which each trial has two checks."""
    return max(1, total_steps // stop.factor**2)


def steps_of_checks(stop: Stop, min_steps: int) -> Iterator[int]:
    """Yield the steps of checks, without an end for factor 2 and more."""
    return (min_steps * stop.factor**number for number in itertools.count())


def new_checks(trial: Trial, progress: ProgressStatus, spec: SweepSpec, min_steps: int) -> tuple[Check, ...]:
    """Return the checks that the trial has passed since the last observation, with the values of the metric there."""
    if spec.stop is None or spec.objective is None or progress.step is None:
        return ()
    metric, step = spec.objective.metric, progress.step
    passed = trial.checks[-1].step if trial.checks else 0
    due = [
        at for at in itertools.takewhile(lambda at: at <= step, steps_of_checks(spec.stop, min_steps)) if at > passed
    ]
    points = _points(progress, metric)
    checks = [Check(step=at, value=value) for at in due if (value := _interpolated(points, at)) is not None]
    if due and metric in progress.metrics and (not checks or checks[-1].step < due[-1]) and step <= _LATE * due[-1]:
        checks.append(Check(step=due[-1], value=progress.metrics[metric]))
    return tuple(checks[: MAX_CHECKS - len(trial.checks)])


def is_worse(trial: Trial, checks: Iterable[Check], trials: Sequence[Trial], spec: SweepSpec) -> Check | None:
    """Return the check at which the trial is worse than the others, if it is at one of `checks`. `trials` includes
    it."""
    assert spec.stop is not None
    assert spec.objective is not None
    sign = 1 if spec.objective.goal == "Minimize" else -1
    for check in checks:
        others = [
            sign * same.value
            for other in trials
            if other.number != trial.number
            for same in other.checks
            if same.step == check.step
        ]
        value = sign * check.value
        if spec.stop.rule == "Median":
            if len(others) >= MEDIAN_PEERS and value > statistics.median(others):
                return check
        elif sum(other < value for other in others) >= math.ceil((len(others) + 1) / spec.stop.factor):
            return check
    return None


def _points(progress: ProgressStatus, metric: str) -> list[tuple[int, float]]:
    """Return (step, value) of the curve by step, if it has the metric. After a restart, later points count."""
    if progress.curve_metric != metric:
        return []
    return sorted({point.step: point.value for point in progress.curve if point.value is not None}.items())


def _interpolated(points: Sequence[tuple[int, float]], step: int) -> float | None:
    """Return the value at this step, between the two points around it."""
    before = [point for point in points if point[0] <= step]
    after = [point for point in points if point[0] >= step]
    if not before or not after:
        return None
    (left, low), (right, high) = before[-1], after[0]
    return low if left == right else low + (high - low) * (step - left) / (right - left)
