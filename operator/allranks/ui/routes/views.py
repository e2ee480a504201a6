"""Views of many jobs, as pages and in the REST interface: nodes, history and cost, comparison."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, cast, get_args

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from allranks.archive.store import ArchiveError
from allranks.cli.format import cost as costs
from allranks.cli.format import progress as progress_text
from allranks.cli.format.duration import elapsed
from allranks.cli.format.json_form import as_json
from allranks.errors import ClusterError
from allranks.ui import answers, job_rows
from allranks.ui import sweeps as found_sweeps
from allranks.ui.answers import as_printed
from allranks.ui.entries import Entry, Manifest, Source, in_order, selection
from allranks.ui.problems import RESPONSES, Problem
from allranks.ui.routes import compare as comparison
from allranks.ui.routes import history as histories
from allranks.ui.routes.history import By, HistoryGroup
from allranks.ui.routes.nodes import Node, nodes
from allranks.ui.routes.pages import render, stream_address
from allranks.ui.routes.rest import StateOf
from allranks.ui.state import State
from allranks.ui.sweeps import Found

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MOST_DELETED = 200
"""Deleted jobs that the page of the history lists."""
MOST_CHOICES = 100
"""Jobs that the page of the comparison offers."""
Jobs = Annotated[
    list[str],
    Query(
        alias="job",
        max_length=comparison.MOST_JOBS,
        description="jobs/NAMESPACE/NAME, runs/JOB/TIME or archive/NAMESPACE/NAME-UID.",
    ),
]


# --- nodes -----------------------------------------------------------------------------------------------------------


async def _nodes(state: State) -> tuple[list[Node], str]:
    """The nodes, and what could not be read."""
    entries = await state.entries("jobs")
    if state.jobs is None:
        return [], state.no_cluster
    notes, found = [], dict[str, list[Manifest] | None]()
    for what in ("pods", "nodes"):
        try:
            found[what] = await (state.jobs.all_pods() if what == "pods" else state.jobs.nodes())
        except ClusterError as error:
            found[what] = None
            notes.append(str(error))
    return nodes(entries, found["pods"] or (), found["nodes"]), " ".join(notes)


@api.get("/nodes", response_model=list[Node], summary="Nodes: GPUs in use, failures, avoided")
async def list_nodes(state: StateOf) -> Response:
    state.cluster()
    found, _ = await _nodes(state)
    return as_printed([as_json(node) for node in found])


@pages.get("/nodes")
async def nodes_page(state: StateOf) -> Response:
    """GPUs of each node, what was lost there, and who avoids it."""
    found, note = await _nodes(state)
    rows = [
        (
            node.name,
            f"{node.gpus_used} of {node.gpus}" if node.gpus is not None else str(node.gpus_used or ""),
            node.gpus_used / node.gpus if node.gpus else None,
            ", ".join(f"{reason} {count}" for reason, count in node.failures.most_common()),
            elapsed(node.lost_seconds) if node.lost_seconds else "",
            node.avoided_by,
            node.jobs,
            node.unschedulable,
        )
        for node in found
    ]
    return render(
        "nodes", live=stream_address(source="jobs"), warning=state.problem if state.jobs else "", rows=rows, note=note
    )


# --- history and cost ------------------------------------------------------------------------------------------------


async def _entries_of_history(state: State, runs: bool) -> list[Entry]:
    """Jobs of the cluster, deleted ones of an archive, and runs. Raises Problem and ArchiveError."""
    sources: tuple[Source, ...] = ("jobs", "archive", "runs") if runs else ("jobs", "archive")
    return [entry for source in sources for entry in await state.entries(source)]


@api.get(
    "/history",
    response_model=list[HistoryGroup],
    summary="GPU-hours, money and goodput of all jobs, by group",
)
async def history(
    state: StateOf,
    by: Annotated[By, Query(description="team: the label team. week: in which the job ended.")] = "namespace",
    namespace: Annotated[str, Query(description="Only jobs of this namespace.")] = "",
    runs: Annotated[bool, Query(description="Count runs of this machine as well.")] = False,
) -> Response:
    entries = list(filter(selection(namespace or None), await _entries_of_history(state, runs)))
    found = await asyncio.to_thread(histories.groups, entries, by, state.now())
    return as_printed([as_json(group) for group in found])


@pages.get("/history")
async def history_page(state: StateOf, by: By = "namespace", namespace: str = "", runs: bool = False) -> Response:
    """What jobs used and lost, by group, and the trend by week."""
    note, sweeps = "", list[Found]()
    try:
        every = await _entries_of_history(state, runs)
        sweeps = await found_sweeps.deleted(state, namespace)
    except ArchiveError as error:
        note, every = str(error), [*await state.entries("jobs"), *(await state.entries("runs") if runs else [])]
    selected = list(filter(selection(namespace or None), every))
    now = state.now()
    deleted = sorted((one for one in selected if one.source == "archive"), key=_created, reverse=True)
    # Thousands of statuses are decoded: other requests must not wait for it.
    found, weeks = await asyncio.to_thread(histories.groupings, selected, (by, "week"), now)
    whole = histories.total(found)
    return render(
        "history",
        live="",
        warning=state.problem if state.jobs else "",
        no_cluster=state.no_cluster,
        by=by,
        kinds=["namespace", "team", "pool", "week"],
        namespace=namespace,
        namespaces=sorted({entry.group for entry in every if entry.source != "runs"}),
        runs=runs,
        rows=list(map(_row, found)),
        total=_row(whole) if len(found) > 1 else None,
        weeks=[(week.name, week.goodput, progress_text.percent(week.goodput), week.jobs) for week in weeks],
        lost=[(reason, costs.hours(value)) for reason, value in whole.lost_gpu_hours_by_reason.items()],
        archive=state.archive,
        archive_note=note,
        deleted=[job_rows.job_row(entry, now) for entry in deleted[:MOST_DELETED]],
        deleted_count=len(deleted),
        sweeps=[found_sweeps.row(one, now) for one in sweeps],
    )


def _created(entry: Entry) -> str:
    return str(entry.metadata.get("creationTimestamp") or "")


def _row(group: HistoryGroup) -> tuple[str, ...]:
    hours = group.gpu_hours
    held = hours.get("waiting", 0.0) + hours.get("starting", 0.0)
    ended = f"{group.succeeded} succeeded, {group.failed} failed" if group.succeeded or group.failed else ""
    return (
        group.name,
        str(group.jobs),
        ended,
        progress_text.percent(group.goodput),
        costs.hours(sum(hours.values())) if hours else "",
        costs.hours(hours["productive"]) if hours else "",
        costs.hours(held) if hours else "",
        costs.hours(hours["lost"]) if hours else "",
        ", ".join(costs.amount(value, currency) for currency, value in group.spent.items()),
        ", ".join(costs.amount(value, currency) for currency, value in group.spent_lost.items()),
    )


# --- comparison ------------------------------------------------------------------------------------------------------


async def _entries_of(state: State, paths: Sequence[str]) -> list[Entry]:
    """Raises Problem."""
    found = []
    for path in dict.fromkeys(paths):
        source, _, rest = path.partition("/")
        group, _, name = rest.partition("/")
        if source not in get_args(Source) or not group or not name:
            raise Problem(422, f"job: {path!r} is not jobs/NAMESPACE/NAME, runs/JOB/TIME or archive/NAMESPACE/NAME-UID")
        found.append(await state.find(cast("Source", source), group, name))
    return found


def _spec(entry: Entry) -> Manifest:
    spec: Manifest = entry.manifest.get("spec") or {}
    return spec


@api.get(
    "/compare",
    response_model=answers.Comparison,
    summary="The fields in which jobs differ, and the reports of these jobs",
)
async def compare(state: StateOf, job: Jobs) -> Response:
    entries = await _entries_of(state, job)
    reports = [await state.report(entry) for entry in entries]
    rows = comparison.differences([_spec(entry) for entry in entries])
    return as_printed(
        {
            "jobs": [f"{entry.source}/{entry.group}/{entry.name}" for entry in entries],
            "differences": [{"field": path, "values": values} for path, values in rows],
            "reports": [report.as_json() for report in reports],
        }
    )


@pages.get("/compare")
async def compare_page(state: StateOf, job: Jobs = []) -> Response:  # noqa: B006 (FastAPI copies it)
    """Curves of several jobs in one plot, their figures, and the differences of their manifests."""
    entries = await _entries_of(state, job)
    reports = [await state.report(entry) for entry in entries]
    plot, metric = comparison.curve(reports) if reports else (None, "")
    offered = [*in_order(await state.entries("jobs")), *in_order(await state.entries("runs"))]
    with contextlib.suppress(ArchiveError):  # the others can be compared
        offered += sorted(await state.entries("archive"), key=_created, reverse=True)
    return render(
        "compare",
        live="",
        warning=state.problem if state.jobs else "",
        entries=entries,
        chosen={entry.key for entry in entries},
        offered=offered[:MOST_CHOICES],
        plot=plot,
        metric=metric,
        rows=[_figures(entry, report) for entry, report in zip(entries, reports, strict=True)],
        differences=comparison.differences([_spec(entry) for entry in entries]),
        most=comparison.MOST_JOBS,
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
