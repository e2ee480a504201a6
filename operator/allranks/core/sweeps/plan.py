"""Decides what a sweep does next, from its status and the jobs of its trials.

Every decision is written to the status first and carried out afterwards, so an operator that is killed at any moment
continues with the same trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from allranks.api import sweep_values
from allranks.api.notify import Notification, SweepNotification, Target
from allranks.api.sweep_status import Best, SweepCondition, SweepPhase, SweepStatus, Trial, TrialCounts
from allranks.core.accounting import notifications
from allranks.core.facts.model import Event
from allranks.core.sweeps import suggestions, trial_job
from allranks.core.sweeps import trials as of_trials
from allranks.core.sweeps.model import CANNOT_SUGGEST, Suggestion, SweepObserved, SweepPlan

SAME_FAILURES = 3
"""If this many first trials fail in the same way, it is a bug that further trials would repeat."""


def plan(observed: SweepObserved) -> SweepPlan:
    """Return the next step of the sweep."""
    return with_outbox(observed, _plan(observed))


def _plan(observed: SweepObserved) -> SweepPlan:
    before = observed.status
    if before.finished:
        return SweepPlan(stop=_to_stop(observed))
    min_steps = _min_steps(observed)
    trials = of_trials.observe(observed, min_steps or before.min_steps)
    ask: Suggestion | None = None
    if failure := _same_failure(trials, sweep_values.number_of_trials(observed.sweep.spec)):
        trials = list(_stop_all(observed, trials))
    else:
        if not observed.sweep.spec.suspend:
            trials, ask = _with_new(observed, trials)
        trials = of_trials.with_suspension(observed, trials)
    if ask is None:
        observed = replace(observed, unsuggested="")
    after = _status(observed, trials, failure, min_steps)
    if _decided(before, after):
        return SweepPlan(after, write_ahead=True, events=tuple(_events(observed, after)))
    new = None if after == before else after
    return SweepPlan(new, False, _to_create(observed), _to_stop(observed), _to_resume(observed), ask)


def _min_steps(observed: SweepObserved) -> int | None:
    """Return `status.minSteps`, from the first trial that reports its total."""
    stop = observed.sweep.spec.stop
    if stop is None or stop.min_steps is not None:
        return stop.min_steps if stop else None
    if observed.status.min_steps is not None:
        return observed.status.min_steps
    for trial in observed.status.trials:
        job = observed.jobs.get(trial.job)
        if job and job.status.progress and job.status.progress.total_steps:
            return of_trials.default_min_steps(stop, job.status.progress.total_steps)
    return None


def _same_failure(trials: Sequence[Trial], total: int) -> str:
    """Return the failure of the first trials if all failed in the same way; empty if they did not."""
    first = trials[: min(SAME_FAILURES, total)]
    if len(first) < min(SAME_FAILURES, total) or any(trial.phase != "Failed" for trial in first):
        return ""
    if len({trial.reason for trial in first}) > 1:
        return ""
    which = f"the first {len(first)} trials" if len(first) > 1 else "the only trial"
    return f"{which} failed in the same way ({first[0].reason}): {first[0].message or 'see its log'}"


def _stop_all(observed: SweepObserved, trials: Iterable[Trial]) -> Iterable[Trial]:
    for trial in trials:
        if trial.ended:
            yield trial
        else:
            yield of_trials.stopped(observed, trial, "SweepFailed", "the first trials failed in the same way")


def _with_new(observed: SweepObserved, trials: list[Trial]) -> tuple[list[Trial], Suggestion | None]:
    """Return the trials with those that can start now, and the request for parameters that one of them waits for."""
    spec, out = observed.sweep.spec, list(trials)
    total = sweep_values.number_of_trials(spec)
    active = sum(not trial.ended for trial in out)
    while len(out) < total and active < spec.parallel:
        number = len(out)
        chosen = suggestions.suggest(spec, number, out, observed.suggested)
        if isinstance(chosen, Suggestion):
            return out, chosen
        job = trial_job.name(observed.sweep, number, 0)
        out.append(Trial(number=number, job=job, parameters=chosen, start_time=observed.now))
        active += 1
    return out, None


def _status(observed: SweepObserved, trials: list[Trial], failure: str, min_steps: int | None) -> SweepStatus:
    before, spec = observed.status, observed.sweep.spec
    total = sweep_values.number_of_trials(spec)
    counts = Counter(trial.phase for trial in trials)
    best = best_of(trials, spec.objective.goal) if spec.objective else None
    ended = sum(trial.ended for trial in trials)
    finished = bool(failure) or (ended == len(trials) and len(trials) >= total)
    runs = sum(trial.runs + (trial.phase == "Lost") for trial in trials)
    phase, conditions = _conditions(observed, finished, failure, best, trials)
    return replace(
        before,
        phase=phase,
        conditions=conditions,
        observed_generation=observed.sweep.metadata.generation,
        trials=trials,
        counts=TrialCounts(
            pending=counts["Pending"],
            running=counts["Running"],
            succeeded=counts["Succeeded"],
            failed=counts["Failed"],
            stopped=counts["Stopped"],
            lost=counts["Lost"],
        ),
        disruptions=runs,
        min_steps=min_steps if spec.stop and spec.stop.min_steps is None else None,
        best=best,
        start_time=before.start_time or observed.now,
        completion_time=observed.now if finished else None,
        summary=f"{ended}/{total}",
        best_summary=f"{best.value:.4g} (trial {best.trial})" if best else "",
    )


def best_of(trials: Iterable[Trial], goal: str) -> Best | None:
    """Return the best trial that succeeded; of equal ones the first."""
    sign = 1 if goal == "Minimize" else -1
    succeeded = [trial for trial in trials if trial.phase == "Succeeded" and trial.value is not None]
    if not succeeded:
        return None
    best = min(succeeded, key=lambda trial: (sign * (trial.value or 0.0), trial.number))
    assert best.value is not None
    return Best(trial=best.number, job=best.job, value=best.value, parameters=best.parameters)


def _conditions(
    observed: SweepObserved, finished: bool, failure: str, best: Best | None, trials: Sequence[Trial]
) -> tuple[SweepPhase, list[SweepCondition]]:
    objective = observed.sweep.spec.objective
    if not finished:
        if observed.sweep.spec.suspend:
            return "Suspended", _set(observed, ("Running", "False", "Suspended", "spec.suspend is true"))
        if waits := _not_created(observed, trials):
            return "Running", _set(observed, ("Running", "False", *waits))
        return "Running", _set(observed, ("Running", "True", "TrialsRunning", "trials are running"))
    running = ("Running", "False", "Finished", "the sweep has ended")
    if failure:
        return "Failed", _set(observed, running, ("Failed", "True", "SameFailure", f"{failure}; the sweep was stopped"))
    succeeded = sum(trial.phase == "Succeeded" for trial in trials)
    if not succeeded:
        return "Failed", _set(observed, running, ("Failed", "True", "NoResult", "no trial succeeded"))
    message = f"{succeeded} of {len(trials)} trials succeeded"
    if objective and best:
        message = f"the best {objective.metric} is {best.value:.6g}, of trial {best.trial}"
    return "Succeeded", _set(observed, running, ("Complete", "True", "TrialsEnded", message))


def _not_created(observed: SweepObserved, trials: Sequence[Trial]) -> tuple[str, str] | None:
    """Return (reason, message), if the API server refuses the job of a trial, its name is taken, or the next trial has
    no parameters."""
    for trial in trials:
        if trial.ended:
            continue
        if (job := observed.jobs.get(trial.job)) and not job.owned:
            return "NameTaken", f"another DistributedTraining has the name {trial.job}: delete it, or rename the sweep"
        if not job and (rejected := observed.rejected.get(trial.job)):
            return rejected[0][:128], f"the job of trial {trial.number} is refused: {rejected[1]}"[:4096]
    if observed.unsuggested:
        return CANNOT_SUGGEST, f"trial {len(trials)} has no parameters: {observed.unsuggested}"[:4096]
    return None


def _set(observed: SweepObserved, *conditions: tuple[str, str, str, str]) -> list[SweepCondition]:
    """Return the conditions with new values. The time changes only with the status."""
    out = []
    for kind, status, reason, message in conditions:
        old = observed.status.condition(kind)
        out.append(
            SweepCondition(
                type=kind,  # type: ignore[arg-type]
                status=status,  # type: ignore[arg-type]
                reason=reason,
                message=message,
                last_transition_time=old.last_transition_time if old and old.status == status else observed.now,
                observed_generation=observed.sweep.metadata.generation,
            )
        )
    return out


def _decided(before: SweepStatus, after: SweepStatus) -> bool:
    """Return whether a decision changed, and not only observed values of running trials."""
    old_status, new_status = _without_trials(before), _without_trials(after)
    if old_status != new_status or len(before.trials) != len(after.trials):
        return True
    pairs = zip(before.trials, after.trials, strict=True)
    return any(old is not new and _decisions(old) != _decisions(new) for old, new in pairs)


def _without_trials(status: SweepStatus) -> Any:
    return status.phase, status.conditions, status.disruptions, status.min_steps, status.observed_generation


def _decisions(trial: Trial) -> Trial:
    return replace(trial, step=None, value=None)


def _to_create(observed: SweepObserved) -> tuple[Any, ...]:
    if observed.sweep.spec.suspend:
        return ()
    return tuple(
        trial_job.manifest(observed.sweep, trial)
        for trial in observed.status.trials
        if not trial.ended and not trial.observed and trial.job not in observed.jobs
    )


def _to_stop(observed: SweepObserved) -> tuple[str, ...]:
    """Return the jobs of stopped and suspended trials that are not suspended yet and have not ended by themselves."""
    out = []
    for trial in observed.status.trials:
        job = observed.jobs.get(trial.job)
        must_stop = trial.phase == "Stopped" or (trial.suspended and not trial.ended and observed.sweep.spec.suspend)
        if not must_stop or job is None or not job.owned or job.deleting:
            continue
        if not job.suspended and job.status.phase not in ("Succeeded", "Failed"):
            out.append(trial.job)
    return tuple(out)


def _to_resume(observed: SweepObserved) -> tuple[str, ...]:
    """Return the jobs that the sweep suspended, if it is not suspended any more."""
    if observed.sweep.spec.suspend:
        return ()
    return tuple(
        trial.job
        for trial in observed.status.trials
        if trial.suspended and not trial.ended and (job := observed.jobs.get(trial.job)) and job.suspended
    )


def _events(observed: SweepObserved, after: SweepStatus) -> Iterable[Event]:
    """Yield Events for the changes, for `kubectl describe`."""
    before = {trial.number: trial for trial in observed.status.trials}
    for trial in after.trials:
        old = before.get(trial.number)
        if old is None:
            values = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
            yield Event("TrialCreated", f"trial {trial.number}: {values}")
        elif trial.runs != old.runs:
            yield Event("TrialDisrupted", f"trial {trial.number} is run again as {trial.job}", warning=True)
        elif trial.phase != old.phase and trial.ended:
            objective = observed.sweep.spec.objective
            value = f", {objective.metric} {trial.value:.6g}" if objective and trial.value is not None else ""
            reason = f": {trial.message}" if trial.message else value
            failed = trial.phase in ("Failed", "Lost")
            yield Event(f"Trial{trial.phase}", f"trial {trial.number} {trial.phase.lower()}{reason}", warning=failed)
    if "Suspended" in (observed.status.phase, after.phase) and observed.status.phase != after.phase:
        yield Event("Suspended", "suspended") if after.phase == "Suspended" else Event("Resumed", "resumed")
    for condition in after.conditions:
        if after.finished and condition.status == "True":
            yield Event(condition.reason, condition.message, warning=condition.type == "Failed")


def with_outbox(observed: SweepObserved, plan: SweepPlan) -> SweepPlan:
    """Add notifications of the end of the sweep, and the results of deliveries, to the plan's status.

    An entry is `Succeeded oncall`, and is added in the write with which the sweep ends.
    """
    before = observed.status
    after = plan.status or before
    if not (observed.notifies or before.notifications):
        return plan
    entries, events = notifications.with_results(before.notifications, observed.notified)
    if observed.notifies and after.finished and not before.finished:
        entries += [f"{after.phase} {receiver}" for receiver in _subscribers(observed, after.phase)]
    entries = notifications.bounded(entries)
    if entries == after.notifications:
        return plan
    return replace(plan, status=replace(after, notifications=entries), events=(*plan.events, *events))


def targets(observed: SweepObserved) -> dict[str, Target]:
    """Return name of the receiver -> entry of the sweep or the pool of its trials."""
    return dict(_named_notifications(observed))


def _subscribers(observed: SweepObserved, phase: str) -> list[str]:
    """Return the receivers of the sweep, of its pool, and of every job, without duplicates."""
    names = [name for name, entry in _named_notifications(observed) if phase in entry.occasions]
    return list(dict.fromkeys([*names, *observed.notifies.get(phase, ())]))


def _named_notifications(observed: SweepObserved) -> Iterator[tuple[str, SweepNotification | Notification]]:
    """Yield (name of the receiver, entry of the sweep or its pool)."""
    yield from notifications.named("", observed.sweep.spec.notify or ())
    yield from notifications.named("p", observed.pool_notify)
