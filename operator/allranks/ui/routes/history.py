"""History and cost of jobs by namespace, pool, week or label: jobs of the cluster and of an archive, and runs of this
machine.

The sentences below fields describe them in the OpenAPI document as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from pydantic import ConfigDict, Field

from allranks.api.status import FINISHED, Status
from allranks.archive.store import ArchiveError
from allranks.core.accounting import time_accounting
from allranks.kube.job_codec import status_of
from allranks.ui import job_rows
from allranks.ui.entries import Entry, Source, newest_first, selection
from allranks.ui.problems import RESPONSES
from allranks.ui.rendering import render
from allranks.ui.routes import sweeps
from allranks.ui.routes.rest import StateOf, as_printed
from allranks.ui.state import State
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.json_form import CONFIG, as_json

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MOST_DELETED = 200
"""Deleted jobs that the page lists."""
By = Literal["namespace", "pool", "week", "team"]
NONE = "(none)"


@dataclass
class HistoryGroup:
    """GPU-hours, money and goodput of a group of jobs, up to now."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    name: str
    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    used_seconds: Annotated[float, Field(exclude=True)] = 0.0
    """Time in which jobs were not queued."""
    productive_seconds: Annotated[float, Field(exclude=True)] = 0.0
    goodput: float | None = None
    """Productive time divided by all time but queued; null before there is any."""
    gpu_hours: dict[str, float] = field(default_factory=dict)
    """By kind: productive, starting, waiting, lost."""
    lost_gpu_hours_by_reason: dict[str, float] = field(default_factory=dict)
    """The largest first."""
    spent: dict[str, float] = field(default_factory=dict)
    """Money by currency."""
    spent_lost: dict[str, float] = field(default_factory=dict)
    """The part of it that was lost, by currency."""

    def add_seconds(self, productive: float, used: float) -> None:
        self.productive_seconds += productive
        self.used_seconds += used
        if self.used_seconds > 0:
            self.goodput = round(self.productive_seconds / self.used_seconds, 4)


def groups(entries: Iterable[Entry], by: By, now: datetime) -> list[HistoryGroup]:
    """Return the groups, those with the most GPU-hours first; weeks by time, the newest first."""
    return groupings(entries, (by,), now)[0]


def groupings(entries: Iterable[Entry], kinds: Sequence[By], now: datetime) -> list[list[HistoryGroup]]:
    """Return the groups of each kind. Each status is decoded once, and not kept."""
    by_kind: list[dict[str, HistoryGroup]] = [{} for _ in kinds]
    for entry in entries:
        manifest = entry.manifest
        status = status_of(manifest)
        until = entry.until(status, now)
        for by, of_kind in zip(kinds, by_kind, strict=True):
            name = _NAMES[by](manifest, status, until)
            _add(of_kind.setdefault(name, HistoryGroup(name)), status, until)
    return [_in_order(of_kind, by) for by, of_kind in zip(kinds, by_kind, strict=True)]


def _in_order(by_name: dict[str, HistoryGroup], by: By) -> list[HistoryGroup]:
    for group in by_name.values():
        by_size = sorted(group.lost_gpu_hours_by_reason.items(), key=lambda item: (-item[1], item[0]))
        group.lost_gpu_hours_by_reason = dict(by_size)
    if by == "week":
        return sorted(by_name.values(), key=lambda group: group.name, reverse=True)
    return sorted(by_name.values(), key=lambda group: (-sum(group.gpu_hours.values()), -group.jobs, group.name))


def total(groups: Iterable[HistoryGroup]) -> HistoryGroup:
    """Return the sum of all groups."""
    whole = HistoryGroup("all")
    for group in groups:
        whole.jobs += group.jobs
        whole.succeeded += group.succeeded
        whole.failed += group.failed
        whole.add_seconds(group.productive_seconds, group.used_seconds)
        for name in ("gpu_hours", "lost_gpu_hours_by_reason", "spent", "spent_lost"):
            _sum(getattr(whole, name), getattr(group, name))
    return whole


def _add(group: HistoryGroup, status: Status, now: datetime) -> None:
    group.jobs += 1
    group.succeeded += status.phase == "Succeeded"
    group.failed += status.phase == "Failed"
    if times := time_accounting.up_to(status, now):
        group.add_seconds(times.productive, times.starting + times.productive + times.lost)
    if cost := costs.cost_of(status, now):
        _sum(group.gpu_hours, cost.gpu_hours)
        _sum(group.lost_gpu_hours_by_reason, cost.lost_gpu_hours_by_reason)
        if cost.spent and cost.currency:
            _sum(group.spent, {cost.currency: sum(cost.spent.values())})
            _sum(group.spent_lost, {cost.currency: cost.spent["lost"]})


def _sum(into: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0.0) + value


def _week(_: Mapping[str, Any], status: Status, now: datetime) -> str:
    """Return the week in which the job ended, or the current one: 2026-W10."""
    ended = (status.completion_time or now) if status.phase in FINISHED else now
    year, week, _day = ended.astimezone(UTC).isocalendar()
    return f"{year}-W{week:02}"


def _metadata(job: Mapping[str, Any], name: str) -> Any:
    return (job.get("metadata") or {}).get(name)


_NAMES: dict[str, Callable[[Mapping[str, Any], Status, datetime], str]] = {
    "namespace": lambda job, _status, _now: str(_metadata(job, "namespace") or NONE),
    "pool": lambda job, _status, _now: str((job.get("spec") or {}).get("pool") or NONE),
    "team": lambda job, _status, _now: str((_metadata(job, "labels") or {}).get("team") or NONE),
    "week": _week,
}


# --- routes ----------------------------------------------------------------------------------------------------------


async def _entries_of_history(state: State, runs: bool) -> list[Entry]:
    """Return jobs of the cluster, deleted jobs of an archive, and runs. Raises Problem and ArchiveError."""
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
    grouped = await asyncio.to_thread(groups, entries, by, state.now())
    return as_printed([as_json(group) for group in grouped])


@pages.get("/history")
async def history_page(state: StateOf, by: By = "namespace", namespace: str = "", runs: bool = False) -> Response:
    """Show what jobs used and lost, by group, and the trend by week."""
    note, deleted_sweeps = "", list[sweeps.SweepEntry]()
    try:
        entries = await _entries_of_history(state, runs)
        deleted_sweeps = await sweeps.deleted(state, namespace)
    except ArchiveError as error:
        note, entries = str(error), [*await state.entries("jobs"), *(await state.entries("runs") if runs else [])]
    selected = list(filter(selection(namespace or None), entries))
    now = state.now()
    deleted = newest_first(entry for entry in selected if entry.source == "archive")
    # Thousands of statuses are decoded: other requests must not wait for it.
    grouped, weeks = await asyncio.to_thread(groupings, selected, (by, "week"), now)
    whole = total(grouped)
    return render(
        "history",
        live="",
        warning=state.problem if state.jobs else "",
        no_cluster=state.no_cluster,
        by=by,
        kinds=["namespace", "team", "pool", "week"],
        namespace=namespace,
        namespaces=sorted({entry.group for entry in entries if entry.source != "runs"}),
        runs=runs,
        rows=list(map(_row, grouped)),
        total=_row(whole) if len(grouped) > 1 else None,
        weeks=[(week.name, week.goodput, progress_text.percent(week.goodput), week.jobs) for week in weeks],
        lost=[(reason, costs.hours(value)) for reason, value in whole.lost_gpu_hours_by_reason.items()],
        archive=state.archive,
        archive_note=note,
        deleted=[job_rows.job_row(entry, now) for entry in deleted[:MOST_DELETED]],
        deleted_count=len(deleted),
        sweeps=[sweeps.row(sweep, now) for sweep in deleted_sweeps],
    )


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
