"""The curves of jobs: all stored values of their metrics, within bounds. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, Field

from allranks.views.report.model import Point, Report

MOST_POINTS = 20_000
"""Points of a job that are read. A run of a month has about 16,000, and more if its metrics have different steps."""
MOST_VALUES = 200_000
"""Of all curves in an answer, which has about 8 MB then."""
_PARTS = frozenset({"train", "training", "val", "valid", "validation", "eval", "evaluation", "test", "dev"})


class Series(BaseModel):
    """The values of a metric of a job, in the order of their times."""

    job: int = Field(description="Place of the job in the request, from 0.")
    metric: str
    group: str = Field(description="Metrics of the same group share a plot: loss of loss, val_loss and train/loss.")
    at: list[float] = Field(description="Seconds since the creation of the job.")
    step: list[int]
    epoch: list[int | None] = Field(description="Completed epochs, where the program reported them.")
    value: list[float | None] = Field(description="null for a value that is NaN or infinite.")
    attempts: list[int] = Field(description="Places at which attempts begin.")


class Curves(BaseModel):
    """The curves of jobs."""

    jobs: list[str]
    series: list[Series]
    thinned: bool = Field(description="Whether values are left out, because there are too many.")


def group_of(metric: str) -> str:
    """Return the name without `train`, `val`, `eval` and the like at its begin or end."""
    words = [word for word in re.split(r"[_/.\-\s]+", metric) if word]
    for place in (0, -1):
        if len(words) > 1 and words[place].lower() in _PARTS:
            words.pop(place)
            break
    return "_".join(words) or metric


def curves(names: Sequence[str], reports: Sequence[Report], thinned: bool = False) -> Curves:
    """Return the curves of all metrics, the main metric first. `thinned`: whether the reports left out points."""
    named = [(job, metric, report) for job, report in enumerate(reports) for metric in report.metric_names()]
    series = [_series(job, metric, report.points) for job, metric, report in named]
    total = sum(len(values.value) for values in series)
    every = math.ceil(total / MOST_VALUES)
    if every > 1:
        series = [_thinned(values, every) for values in series]
    return Curves(jobs=list(names), series=series, thinned=thinned or every > 1)


def _series(job: int, metric: str, points: Sequence[Point]) -> Series:
    with_metric = [point for point in points if metric in point.metrics]
    values = [point.metrics[metric] for point in with_metric]
    return Series(
        job=job,
        metric=metric,
        group=group_of(metric),
        at=[round(point.at, 3) for point in with_metric],
        step=[point.step for point in with_metric],
        epoch=_epochs(metric, points),
        value=[value if math.isfinite(value) else None for value in values],
        attempts=[
            place
            for place, point in enumerate(with_metric)
            if place == 0 or point.attempt != with_metric[place - 1].attempt
        ],
    )


def _epochs(metric: str, points: Sequence[Point]) -> list[int | None]:
    """Return the newest epoch of the attempt at each value: not every point of a file has one."""

    def newest() -> Iterator[int | None]:
        attempt, epoch = -1, None
        for point in points:
            if point.attempt != attempt:
                attempt, epoch = point.attempt, None
            epoch = epoch if point.epoch is None else point.epoch
            if metric in point.metrics:
                yield epoch

    return list(newest())


def _thinned(series: Series, every: int) -> Series:
    """Keep every n-th value, and the first and last one of each attempt."""
    count = len(series.value)
    begins, ends = set(series.attempts), {place - 1 for place in series.attempts} | {count - 1}
    kept = [place for place in range(count) if place % every == 0 or place in begins or place in ends]
    places = {place: number for number, place in enumerate(kept)}
    lists = {name: [getattr(series, name)[place] for place in kept] for name in ("at", "step", "epoch", "value")}
    return series.model_copy(update={**lists, "attempts": [places[place] for place in series.attempts]})
