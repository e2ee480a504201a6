"""History and cost of jobs in groups: jobs of the cluster and of an archive, and runs of this machine.

The sentences below fields describe them in the OpenAPI document as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from allranks.archive.store import ArchiveError
from allranks.kube.job_codec import status_of
from allranks.ui import job_rows
from allranks.ui.entries import Entry, Source, newest_first, selection
from allranks.ui.problems import RESPONSES
from allranks.ui.rendering import render
from allranks.ui.routes import sweeps
from allranks.ui.routes.rest import StateOf, as_printed
from allranks.ui.state import State
from allranks.views import usage
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.json_form import as_json
from allranks.views.usage import KEY_PATTERN, UsageGroup, UsedBy

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MOST_DELETED = 200
"""Deleted jobs that the page lists."""
MOST_LABELS = 20
"""Keys of labels that the page offers."""
By = Annotated[
    str,
    Query(
        pattern=f"^{KEY_PATTERN}$",
        description="namespace, pool, user, team, week, job or label:KEY. team: the label team. week: in which the job "
        "ended. user: the annotation allranks.dev/user.",
    ),
]
Days = Annotated[int | None, Query(ge=1, le=9999, description="Only jobs that ended in the last days, or run.")]


def _used(entries: Iterable[Entry], now: datetime, days: int | None) -> Iterator[UsedBy]:
    """Yield the jobs that ended in the last days. Each status is decoded once, and not kept."""
    selects = usage.selection(now - timedelta(days=days) if days else None, None)
    for entry in entries:
        manifest = entry.manifest
        status = status_of(manifest)
        if selects(job := UsedBy(manifest, status, entry.until(status, now))):
            yield job


def groupings(
    entries: Iterable[Entry], kinds: Sequence[str], now: datetime, days: int | None = None
) -> list[list[UsageGroup]]:
    """Return the groups of each kind."""
    return usage.groupings(_used(entries, now, days), [(kind,) for kind in kinds])


# --- routes ----------------------------------------------------------------------------------------------------------


async def _entries_of_history(state: State, runs: bool) -> list[Entry]:
    """Return jobs of the cluster, deleted jobs of an archive, and runs. Raises Problem and ArchiveError."""
    sources: tuple[Source, ...] = ("jobs", "archive", "runs") if runs else ("jobs", "archive")
    return [entry for source in sources for entry in await state.entries(source)]


@api.get(
    "/history",
    response_model=list[UsageGroup],
    summary="GPU-hours, money and goodput of all jobs, by group",
)
async def history(
    state: StateOf,
    by: By = "namespace",
    namespace: Annotated[str, Query(description="Only jobs of this namespace.")] = "",
    runs: Annotated[bool, Query(description="Count runs of this machine as well.")] = False,
    days: Days = None,
) -> Response:
    entries = list(filter(selection(namespace or None), await _entries_of_history(state, runs)))
    [grouped] = await state.compute(groupings, entries, (by,), state.now(), days)
    return as_printed([as_json(group) for group in grouped])


@pages.get("/history")
async def history_page(
    state: StateOf,
    by: By = "namespace",
    namespace: str = "",
    runs: bool = False,
    days: Annotated[str, Query(pattern="^([1-9][0-9]{0,3})?$")] = "",
) -> Response:
    """Show what jobs used and lost, by group, and the trend by week."""
    runs = runs or state.jobs is None  # there is nothing else
    note, deleted_sweeps = "", list[sweeps.SweepEntry]()
    last_days = int(days) if days else None
    try:
        entries = await _entries_of_history(state, runs)
        deleted_sweeps = await sweeps.deleted(state, namespace)
    except ArchiveError as error:
        note, entries = str(error), [*await state.entries("jobs"), *(await state.entries("runs") if runs else [])]
    selected = list(filter(selection(namespace or None), entries))
    now = state.now()
    deleted = newest_first(entry for entry in selected if entry.source == "archive")
    grouped, weeks = await state.compute(groupings, selected, (by, "week"), now, last_days)
    whole = usage.total(grouped)
    labels = usage.label_keys((entry.metadata for entry in selected), MOST_LABELS)
    kinds = ["namespace", "team", "user", "pool", "week", "job", *labels]
    return render(
        "history",
        live="",
        warning=state.problem if state.jobs else "",
        no_cluster=state.no_cluster,
        by=by,
        kinds=kinds if by in kinds else [*kinds, by],
        days=last_days,
        titles=usage.TITLES,
        namespace=namespace,
        namespaces=sorted({entry.group for entry in entries if entry.source != "runs"}),
        runs=runs,
        rows=[(group.name, *usage.cells(group)) for group in grouped],
        total=("all", *usage.cells(whole)) if len(grouped) > 1 else None,
        weeks=[(week.name, week.goodput, progress_text.percent(week.goodput), week.jobs) for week in weeks],
        lost=[(reason, costs.hours(value)) for reason, value in whole.lost_gpu_hours_by_reason.items()],
        archive=state.archive,
        archive_note=note,
        deleted=[job_rows.job_row(entry, now) for entry in deleted[:MOST_DELETED]],
        deleted_count=len(deleted),
        sweeps=[sweeps.row(sweep, now) for sweep in deleted_sweeps],
    )
