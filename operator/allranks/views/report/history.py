"""The record of metrics: a row for each value that the programs of a job reported, as far as it is stored.

A run of this machine has all values, or four of many. The status of a job on a cluster has 64 points of the main
metric, and the first, lowest, highest and last value of each metric with their steps, but not with their times and
attempts.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from allranks.api.status import MetricRecord, ProgressStatus
from allranks.control_sequences import clean_text
from allranks.kube.job_codec import status_of
from allranks.local.run_directories import StoredRun
from allranks.views.report.model import samples_of
from allranks.views.report.run_files import Sample, stored_samples


class MetricValue(NamedTuple):
    """A value of a metric."""

    step: int
    time: datetime | None
    """None if the status does not have it."""
    attempt: int | None
    """None if the status does not have it, and there were several."""
    metric: str
    value: float
    """NaN also stands for an infinite value."""
    repeated: bool | None
    """Whether an earlier attempt had reported the metric at this step or a later one; None if that is unknown."""


def of_run(run: StoredRun) -> list[MetricValue]:
    """Return the values in the files of a run, by attempt and time."""
    samples = stored_samples(run, most=None)
    return list(_marked(_values(samples))) if samples else of_job(run.manifest)


def of_job(job: Mapping[str, Any]) -> list[MetricValue]:
    """Return the values in the status of a job: the points of its curve by attempt and time, then its records."""
    status = status_of(dict(job))
    if status.progress is None:
        return []
    timed = list(_marked(_values(samples_of(status.progress))))
    present = {(value.metric, value.step, value.value) for value in timed}
    attempt, repeated = (None, None) if status.attempt else (0, False)
    return timed + [
        MetricValue(step, None, attempt, metric, value, repeated)
        for metric, record in (status.progress.records or {}).items()
        for step, value in _recorded(metric, record, status.progress)
        if (metric, step, value) not in present
    ]


def _values(samples: Iterable[Sample]) -> Iterator[MetricValue]:
    """Yield the newest value of each metric at each step of an attempt."""
    values: dict[tuple[int, int, str], MetricValue] = {}
    for sample in samples:
        for metric, value in sample.metrics.items():
            place = (sample.attempt, sample.step, metric)
            before = values.get(place)
            # The end of a run states the values of its last step again, with the four digits of the status.
            if before is None or float(f"{before.value:.4g}") != value:
                values[place] = MetricValue(sample.step, sample.time, sample.attempt, metric, value, False)
    yield from values.values()


def _marked(values: Iterable[MetricValue]) -> Iterator[MetricValue]:
    """Mark the values of steps that an earlier attempt had made."""
    reached: dict[str, int] = {}
    for _, group in groupby(values, key=lambda value: value.attempt):
        attempt = list(group)
        for value in attempt:
            yield value._replace(repeated=value.step <= reached.get(value.metric, -1))
        for value in attempt:
            reached[value.metric] = max(value.step, reached.get(value.metric, -1))


def _recorded(metric: str, record: MetricRecord, progress: ProgressStatus) -> list[tuple[int, float]]:
    """Return (step, value) of a record, by step."""
    pairs = {(record.first_step, record.first), (record.lowest_step, record.lowest)}
    pairs |= {(record.highest_step, record.highest), (record.last_step, progress.metrics.get(metric))}
    finite = {(step, value) for step, value in pairs if step is not None and value is not None}
    others = [] if record.not_finite_step is None else [(record.not_finite_step, math.nan)]
    return sorted([*finite, *others], key=lambda pair: pair[0])


def as_csv(values: Sequence[MetricValue]) -> str:
    """Write a table with a header. A field that the status does not have is empty."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(MetricValue._fields)
    for value in values:
        time = value.time.isoformat().replace("+00:00", "Z") if value.time else ""
        repeated = "" if value.repeated is None else str(value.repeated).lower()
        metric = clean_text(value.metric, colour=False)
        table.writerow((value.step, time, value.attempt, metric, value.value, repeated))
    return text.getvalue()
