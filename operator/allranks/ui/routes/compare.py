"""Comparison of jobs and runs: their curves in one plot, and the fields in which their manifests differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from allranks.cli.format import progress as progress_text
from allranks.cli.job_report import plots
from allranks.cli.job_report.model import Report
from allranks.cli.job_report.plots import Plot

MOST_JOBS = 6
MOST_ROWS = 300
MOST_CHARACTERS = 200


def curve(reports: Sequence[Report]) -> tuple[Plot | None, str]:
    """(the curves of the metric that most of them have, over the time since the creation; the metric). The kind of a
    stroke is `line-N` for the job number N."""
    names = [name for report in reports for name in report.metric_names()]
    if not names:
        return None, ""
    metric = max(dict.fromkeys(names), key=lambda name: (names.count(name), name == reports[0].metric))
    strokes, kinds = list[list[tuple[float, float]]](), list[str]()
    for number, report in enumerate(reports):
        found = report.strokes(lambda point: point.metrics.get(metric, math.nan))
        strokes += found
        kinds += [f"line-{number}"] * len(found)
    longest = max((report.seconds for report in reports), default=0.0)
    if sum(map(len, strokes)) < 2 or longest <= 0:
        return None, metric
    description = "; ".join(
        f"{report.name}: {_last(report, metric)} after {report.seconds:.0f} s" for report in reports
    )
    plot = plots.curve("compare", f"{metric} of {len(reports)} jobs", description, strokes, longest)
    plot.stroke_kinds = kinds
    return plot, metric


def _last(report: Report, metric: str) -> str:
    values = [value for point in report.points if math.isfinite(value := point.metrics.get(metric, math.nan))]
    return progress_text.number(values[-1]) if values else "no values"


def differences(specs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """(path of a field, its value in each spec) of the fields that differ; empty where a spec does not have it."""
    flat = [dict(_fields(spec, "spec")) for spec in specs]
    paths = dict.fromkeys(path for one in flat for path in one)
    rows = [(path, [one.get(path, "") for one in flat]) for path in paths]
    return [(path, values) for path, values in rows if len(set(values)) > 1][:MOST_ROWS]


def _fields(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _fields(part, f"{path}.{key}")
    elif isinstance(value, list) and value and any(isinstance(part, Mapping | list) for part in value):
        for key, part in _named(value):
            yield from _fields(part, f"{path}[{key}]")
    else:
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield path, text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _named(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Items of a list by their name, such as containers and variables, so that an added one does not shift others."""
    for place, item in enumerate(items):
        yield (item["name"] if isinstance(item, Mapping) and isinstance(item.get("name"), str) else place), item
