"""The rows of the table of jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from allranks.kube.object_text import ObjectText
from allranks.ui.entries import Entry
from allranks.ui.experiment import DECODED_BYTES, Values, parameters
from allranks.views.format.duration import age
from allranks.views.format.plots import scaled
from allranks.views.job_view import JobView

SPARK_WIDTH, SPARK_HEIGHT = 90, 20


@dataclass(frozen=True)
class JobRow:
    """The row of a job or a run."""

    entry: Entry
    view: JobView
    """Without the spec, of which a hundred large ones would take half a gigabyte."""
    framework: str
    gpus: int
    """0 if it is unknown: it is not counted for a job of more than DECODED_BYTES."""
    age: str
    spark: str
    """The curve as points of a polyline of SPARK_WIDTH x SPARK_HEIGHT; empty if there is none."""
    values: Values


def job_row(entry: Entry, now: datetime) -> JobRow:
    whole = JobView(entry.manifest, entry.status, entry.until(entry.status, now), entry.active)
    view = replace(whole, manifest={"metadata": whole.metadata})
    created = age(entry.created, now) if entry.created else ""
    is_large = isinstance(entry.content, ObjectText) and len(entry.content.json) > DECODED_BYTES
    of_job = Values({} if is_large else parameters(whole.spec), whole.status)
    return JobRow(entry, view, whole.framework, 0 if is_large else whole.gpus, created, _spark(view.curve), of_job)


def _spark(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if len(numbers) < 2:
        return ""
    shares = [share or 0.0 for share in scaled(numbers)]
    step, height = SPARK_WIDTH / (len(numbers) - 1), SPARK_HEIGHT - 4
    return " ".join(f"{place * step:.1f},{2 + (1 - share) * height:.1f}" for place, share in enumerate(shares))
