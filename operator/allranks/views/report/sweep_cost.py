"""GPU-hours and price of a sweep: the sum of the jobs of its trials. A trial that was run again has several. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from allranks.api.status import Status
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import SweepStatus, Trial
from allranks.core.sweeps import trial_job
from allranks.views.format import cost as costs
from allranks.views.format.cost import Cost

_NAMED = 5
"""Jobs that the note about missing ones names."""


class TrialJob(NamedTuple):
    """A job of a trial."""

    name: str
    status: Status
    until: datetime
    """The time up to which its GPU time counts."""


@dataclass(frozen=True, slots=True)
class TrialJobs:
    """The jobs of the trials of a sweep that could be read."""

    jobs: Sequence[TrialJob] = field(default_factory=list)
    problem: str = ""
    """Why other jobs could not be read."""


def job_names(sweep: Sweep, trial: Trial) -> list[str]:
    """Return the names of the jobs of all runs of a trial."""
    return [*(trial_job.name(sweep, trial.number, run) for run in range(trial.runs)), trial.job]


def observed_names(sweep: Sweep, status: SweepStatus) -> list[str]:
    """Return the names of all jobs of the sweep that exist or existed."""
    return [name for trial in status.trials for name in job_names(sweep, trial)[: trial.runs + trial.observed]]


def by_trial(sweep: Sweep, status: SweepStatus, jobs: TrialJobs) -> dict[int, Cost]:
    """Return number of the trial -> its cost, for trials with GPUs."""
    by_name: dict[str, list[Cost]] = {}
    for job in jobs.jobs:
        if cost := costs.cost_of(job.status, job.until):
            by_name.setdefault(job.name, []).append(cost)
    sums = {
        trial.number: costs.total(cost for name in job_names(sweep, trial) for cost in by_name.get(name, ()))
        for trial in status.trials
    }
    return {number: cost for number, cost in sums.items() if cost}


def note(sweep: Sweep, status: SweepStatus, jobs: TrialJobs | None) -> str:
    """Say which jobs are missing in the GPU time; empty if none is."""
    if jobs is None:
        return ""
    existing = {job.name for job in jobs.jobs}
    missing = [name for name in observed_names(sweep, status) if name not in existing]
    if not missing:
        return ""
    are = "1 job is missing, and its" if len(missing) == 1 else f"{len(missing)} jobs are missing, and their"
    problem = f" ({jobs.problem})" if jobs.problem else ""
    return f"{are} GPU time is not counted: {_first(missing)}{problem}"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def headers(whole: Cost) -> list[str]:
    """Return the columns of GPU time in the table of trials."""
    return ["GPU-hours", "Productive", "Lost", *(["Cost"] if whole.spent is not None else [])]


def cells(cost: Cost | None, whole: Cost) -> Iterator[str]:
    """Yield the cells in these columns; empty for a trial without GPU time."""
    if cost is None:
        yield from ("" for _ in headers(whole))
        return
    yield costs.hours(cost.total_hours)
    yield costs.hours(cost.gpu_hours["productive"])
    yield costs.hours(cost.gpu_hours["lost"])
    if whole.spent is not None:
        yield costs.amount(cost.total_money, cost.currency)


def rows(whole: Cost) -> tuple[list[str], list[Sequence[str]]]:
    """Return (headers, rows) of the table of GPU time, as in the report on a job."""
    priced = whole.spent is not None
    lines: Iterable[Sequence[str]] = (row if priced else row[:2] for row in costs.rows(whole))
    return ["What", "GPU-hours", *(["Price"] if priced else [])], list(lines)
