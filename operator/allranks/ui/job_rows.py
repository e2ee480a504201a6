"""The rows of the table of jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from allranks.ui.entries import Entry
from allranks.views.format.duration import age
from allranks.views.format.plots import scaled
from allranks.views.job_view import JobView

SPARK_WIDTH, SPARK_HEIGHT = 90, 20


@dataclass(frozen=True)
class JobRow:
    """The row of a job or a run."""

    entry: Entry
    view: JobView
    age: str
    spark: str
    """The curve as points of a polyline of SPARK_WIDTH x SPARK_HEIGHT; empty if there is none."""


def job_row(entry: Entry, now: datetime) -> JobRow:
    view = JobView(entry.manifest, entry.status, entry.until(entry.status, now), entry.active)
    return JobRow(entry, view, age(entry.created, now) if entry.created else "", _spark(view.curve))


def _spark(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if len(numbers) < 2:
        return ""
    shares = [share or 0.0 for share in scaled(numbers)]
    step, height = SPARK_WIDTH / (len(numbers) - 1), SPARK_HEIGHT - 4
    return " ".join(f"{place * step:.1f},{2 + (1 - share) * height:.1f}" for place, share in enumerate(shares))
