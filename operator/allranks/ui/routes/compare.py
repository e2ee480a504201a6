"""Comparison of jobs and runs: the curves of their metrics, and the fields in which their manifests differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, cast, get_args

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, ConfigDict

from allranks.archive.store import ArchiveError
from allranks.core.facts.compatibility import parsed, program_arguments
from allranks.ui import experiment
from allranks.ui.curves import Curves
from allranks.ui.entries import Entry, Manifest, Source, in_order, newest_first
from allranks.ui.experiment import Values
from allranks.ui.problems import RESPONSES, Problem
from allranks.ui.rendering import address_of_curves, render
from allranks.ui.routes.rest import StateOf, as_printed
from allranks.ui.state import State
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import elapsed
from allranks.views.format.json_form import CONFIG
from allranks.views.report import text
from allranks.views.report.model import Report

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MOST_CHOICES = 100
"""Jobs that the page offers."""
MOST_JOBS = 6
MOST_ROWS = 300
MOST_CHARACTERS = 200


Jobs = Annotated[
    list[str],
    Query(
        alias="job",
        description=f"jobs/NAMESPACE/NAME, runs/JOB/TIME or archive/NAMESPACE/NAME-UID, up to {MOST_JOBS}.",
    ),
]


class Difference(BaseModel):
    """A field in which manifests differ."""

    field: str
    values: list[str]
    """One of each job; empty if its manifest does not have the field."""

    model_config = ConfigDict(**CONFIG)


class Comparison(BaseModel):
    """Jobs, the fields in which their manifests differ, and their reports."""

    jobs: list[str]
    differences: list[Difference]
    reports: list[Report]

    model_config = ConfigDict(**CONFIG)


def differences(specs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return (path, its value in each spec) of the fields that differ; empty where a spec does not have the field.

    Each option in `args` and `command` is a field of its own, as `spec.args --lr`, unless one is given twice.
    """
    fields = [dict(_fields(spec, "spec")) for spec in specs]
    paths = dict.fromkeys(path for of_spec in fields for path in of_spec)
    rows = [(path, [of_spec.get(path, "") for of_spec in fields]) for path in paths]
    return [(path, values) for path, values in rows if len(set(values)) > 1][:MOST_ROWS]


def _fields(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _fields(part, f"{path}.{key}")
    elif isinstance(value, list) and value and any(isinstance(part, Mapping | list) for part in value):
        for key, part in _named(value):
            yield from _fields(part, f"{path}[{key}]")
    elif isinstance(value, list) and path.endswith((".args", ".command")):
        yield from _words(list(map(str, value)), path)
    else:
        yield path, _cut(" ".join(map(str, value)) if isinstance(value, list) else str(value))


def _words(words: Sequence[str], path: str) -> Iterator[tuple[str, str]]:
    """Yield the options of the program, and the other words as one text."""
    arguments = program_arguments(words) if path.endswith(".command") else words
    parts = list(parsed(arguments))
    names = [name for name, _ in parts if name]
    if len(set(names)) < len(names):
        yield path, _cut(" ".join(words))
        return
    others = [*words[: len(words) - len(arguments)], *(value or "" for name, value in parts if not name)]
    yield path, _cut(" ".join(others))
    for name, value in parts:
        if name:
            yield f"{path} {name}", _cut("set" if value is None else value)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _named(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Return the items of a list by their names, such as containers, so that an added item does not shift others."""
    for place, item in enumerate(items):
        yield (item["name"] if isinstance(item, Mapping) and isinstance(item.get("name"), str) else place), item


def sides(jobs: Sequence[Values]) -> list[tuple[str, list[str]]]:
    """Return (title, its value in each job) of the parameters in which the jobs differ, and of all metrics."""
    keys = dict.fromkeys(key for job in jobs for key in job.keys())  # noqa: SIM118 (it is no mapping)
    rows = [(key, [job.text(key) for job in jobs]) for key in keys]
    return [
        (experiment.title(key), texts)
        for key, texts in sorted(rows, key=lambda row: experiment.KINDS.index(row[0].partition(":")[0]))
        if not key.startswith(experiment.PARAMETER) or len(set(texts)) > 1
    ][:MOST_ROWS]


# --- routes ----------------------------------------------------------------------------------------------------------


async def _entries_of(state: State, paths: Sequence[str]) -> list[Entry]:
    """Return the entries at these paths, without duplicates. Raises Problem."""
    entries = []
    if len(paths) > MOST_JOBS:
        raise Problem(422, f"job: {len(paths)} jobs are selected, and up to {MOST_JOBS} can be compared")
    for path in dict.fromkeys(paths):
        source, _, place = path.partition("/")
        group, _, name = place.partition("/")
        if source not in get_args(Source) or not group or not name:
            raise Problem(422, f"job: {path!r} is not jobs/NAMESPACE/NAME, runs/JOB/TIME or archive/NAMESPACE/NAME-UID")
        entries.append(await state.find(cast("Source", source), group, name))
    return entries


def _spec(entry: Entry) -> Manifest:
    spec: Manifest = entry.manifest.get("spec") or {}
    return spec


@api.get(
    "/compare",
    response_model=Comparison,
    summary="The fields in which jobs differ, and the reports of these jobs",
)
async def compare(state: StateOf, job: Jobs) -> Response:
    entries = await _entries_of(state, job)
    reports = [await state.report(entry) for entry in entries]
    rows = differences([_spec(entry) for entry in entries])
    return as_printed(
        {
            "jobs": [f"{entry.source}/{entry.group}/{entry.name}" for entry in entries],
            "differences": [{"field": path, "values": values} for path, values in rows],
            "reports": [report.as_json() for report in reports],
        }
    )


@api.get("/curves", response_model=Curves, summary="All stored values of the metrics of jobs, for curves")
async def curves(state: StateOf, job: Jobs) -> Response:
    return as_printed((await state.curves(await _entries_of(state, job))).model_dump())


@pages.get("/compare")
async def compare_page(state: StateOf, job: Jobs = []) -> Response:  # noqa: B006 (FastAPI copies it)
    """Show curves of several jobs, one plot for each metric, their figures, and the differences of their manifests."""
    entries = await _entries_of(state, job)
    reports = [await state.report(entry) for entry in entries]
    offered = [*in_order(await state.entries("jobs")), *in_order(await state.entries("runs"))]
    with contextlib.suppress(ArchiveError):  # the others can be compared
        offered += newest_first(await state.entries("archive"))
    return render(
        "compare",
        live="",
        warning=state.problem if state.jobs else "",
        entries=entries,
        chosen={entry.key for entry in entries},
        offered=offered[:MOST_CHOICES],
        curves=address_of_curves(job) if any(report.metric_names() for report in reports) else "",
        sides=sides([experiment.values(entry) for entry in entries]),
        metrics=[(entry, text.metrics(report)) for entry, report in zip(entries, reports, strict=True)],
        rows=[_figures(entry, report) for entry, report in zip(entries, reports, strict=True)],
        differences=differences([_spec(entry) for entry in entries]),
        most=MOST_JOBS,
    )


def _figures(entry: Entry, report: Any) -> tuple[Entry, tuple[str, ...]]:
    progress = report.progress
    return entry, (
        entry.phase,
        progress_text.summary(progress) if progress else "",
        ", ".join(list(progress_text.metrics(progress))[:3]) if progress else "",
        progress_text.percent(report.goodput),
        elapsed(report.seconds),
        costs.summary(report.cost),
    )
