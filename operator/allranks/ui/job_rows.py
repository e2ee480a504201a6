"""The rows of the table of jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from allranks.ui.entries import Entry
from allranks.views.format import cost as costs
from allranks.views.format import gpus
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import age, elapsed
from allranks.views.format.plots import scaled

SPARK_WIDTH, SPARK_HEIGHT = 90, 20


@dataclass(frozen=True)
class JobRow:
    """The row of a job or a run."""

    entry: Entry
    framework: str
    progress: str
    fraction: float | None
    """Share of completed steps."""
    rate: str
    eta: str
    goodput: str
    restarts: int
    gpus: int
    gpu_hours: str
    money: str
    """Empty without a price."""
    slow: int
    """Number of stragglers."""
    age: str
    took: str
    """Of a run that has ended."""
    spark: str
    """The curve as points of a polyline of SPARK_WIDTH x SPARK_HEIGHT; empty if there is none."""


def job_row(entry: Entry, now: datetime) -> JobRow:
    status = entry.status
    progress = status.progress
    trains = progress_text.trains(status) and entry.active
    restarts = status.restarts
    measured = progress_text.is_measured(status)
    until = entry.until(status, now)
    ended = status.completion_time or (None if entry.active else until)
    took = elapsed((ended - status.start_time).total_seconds()) if ended and status.start_time else ""
    spec = entry.manifest.get("spec") or {}
    cost = costs.of(status, until)
    return JobRow(
        entry=entry,
        framework=str(spec.get("framework") or ""),
        progress=progress_text.summary(progress) if progress else "",
        fraction=progress_text.fraction(progress),
        rate=next(iter(progress_text.rates(progress)), "") if progress and trains else "",
        eta=progress_text.eta(progress) if trains else "",
        goodput=progress_text.percent(progress_text.goodput(status, until)) if measured else "",
        restarts=restarts.counted + restarts.disruptions,
        gpus=gpus.total(entry.manifest, status),
        gpu_hours=costs.hours(cost.total_hours) if cost else "",
        money=costs.amount(cost.total_money, cost.currency) if cost else "",
        slow=len(progress.stragglers) if progress and trains else 0,
        age=age(entry.created, now) if entry.created else "",
        took=took,
        spark=_spark(progress_text.values(progress)),
    )


def _spark(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if len(numbers) < 2:
        return ""
    shares = [share or 0.0 for share in scaled(numbers)]
    step, height = SPARK_WIDTH / (len(numbers) - 1), SPARK_HEIGHT - 4
    return " ".join(f"{place * step:.1f},{2 + (1 - share) * height:.1f}" for place, share in enumerate(shares))
