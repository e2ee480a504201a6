"""Sweeps of a cluster, of this machine and of an archive: REST and pages."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.errors import ClusterError
from allranks.ui import sweeps
from allranks.ui.entries import Source
from allranks.ui.openapi import ObjectList, Sweep, SweepList
from allranks.ui.problems import RESPONSES, Problem
from allranks.ui.rendering import render, stream_address
from allranks.ui.routes.pages import event_rows
from allranks.ui.routes.rest import Namespace, StateOf, as_printed, object_list
from allranks.ui.sweeps import SweepEntry
from allranks.views.report import html
from allranks.views.report import sweep as sweep_report

rest = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
ITEM = "/sweeps/{source}/{group}/{name}"
"""`sweeps/jobs/NAMESPACE/NAME`, `sweeps/runs/SWEEP/TIME`, or `sweeps/archive/NAMESPACE/NAME-UID` for a deleted one."""


async def _find(state: StateOf, source: Source, group: str, name: str) -> SweepEntry:
    return await sweeps.find(state, source, group, name)


SweepOf = Annotated[SweepEntry, Depends(_find)]


@rest.get("/sweeps", response_model=SweepList, summary="Sweeps of the cluster")
async def list_sweeps(state: StateOf, namespace: str | None = None) -> Response:
    return object_list([sweep.manifest for sweep in await sweeps.of_cluster(state.cluster(), namespace)])


@rest.get("/sweeps/archive", response_model=SweepList, summary="Deleted sweeps, from the archive")
async def archive(state: StateOf, namespace: Namespace = None) -> Response:
    state.archived()
    return object_list([sweep.manifest for sweep in await sweeps.deleted(state, namespace)])


@rest.get(ITEM, response_model=Sweep, summary="A sweep with its status")
async def get_sweep(state: StateOf, sweep: SweepOf) -> Response:
    """The same as `allranks report -o json`: the sweep, with the importance of its parameters and its GPU time."""
    shown = (await sweeps.report(state, sweep)).as_json()
    if sweep.source == "runs":
        shown["status"] = {**shown["status"], "phase": sweep.phase}
    return as_printed(shown)


@rest.get(ITEM + "/events", response_model=ObjectList, summary="The Events of a sweep")
async def events(state: StateOf, sweep: SweepOf) -> Response:
    return object_list(await sweeps.events(state, sweep))


@rest.get(ITEM + "/report.html", response_class=HTMLResponse, summary="The report on a sweep as a page")
async def report_page(state: StateOf, sweep: SweepOf) -> HTMLResponse:
    policy = f"{html.POLICY}; frame-ancestors 'none'; sandbox"
    report = await sweeps.report(state, sweep)
    return HTMLResponse(sweep_report.page(report), headers={"Content-Security-Policy": policy})


@pages.get("/sweeps")
async def overview(state: StateOf, namespace: str = "") -> Response:
    """Show all sweeps, the newest first."""
    of_cluster: list[SweepEntry] = []
    note = state.no_cluster
    if state.jobs:
        try:
            of_cluster = sweeps.newest_first(await sweeps.of_cluster(state.jobs, namespace or None))
        except ClusterError as error:
            note = str(error)
    now = state.now()
    return render(
        "sweeps",
        live=stream_address(namespace=namespace),
        warning=state.problem if state.jobs else "",
        rows=[sweeps.row(sweep, now) for sweep in [*of_cluster, *await sweeps.of_machine(state)]],
        archive=state.archive,
        note=note,
    )


@pages.get(ITEM)
async def show_sweep(state: StateOf, sweep: SweepOf) -> Response:
    """Show the trials, the best trial, the importance of parameters, parallel coordinates, and Events."""
    rows, note = [], ""
    try:
        rows = event_rows(await sweeps.events(state, sweep), state.now())
    except (ClusterError, Problem) as error:
        note = str(error)
    return render(
        "sweep",
        live=stream_address(source=sweep.source, group=sweep.group) if sweep.source == "jobs" else "",
        warning=state.problem if sweep.source == "jobs" else "",
        sweep=sweep,
        report=await sweeps.report(state, sweep),
        address=_trial_address(sweep),
        events=rows,
        events_note=note,
    )


def _trial_address(sweep: SweepEntry) -> str:
    """Return the URL prefix of the pages of trials; empty if trials have no page."""
    if sweep.source == "archive":
        return f"/sweeps/{sweep.path}/trials/"
    return f"/jobs/{quote(sweep.group, safe='')}/" if sweep.source == "jobs" else ""


@pages.get(ITEM + "/trials/{job}")
async def trial(state: StateOf, sweep: SweepOf, job: str) -> Response:
    """Lead to the job of a trial of a deleted sweep, whose UID the status of the sweep does not have."""
    if sweep.source != "archive":
        raise Problem(404, "only the trials of a deleted sweep have this address")
    return RedirectResponse(f"/{await sweeps.trial_path(state, sweep, job)}", 303)
