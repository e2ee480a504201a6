"""Sweeps of a cluster, of this machine and of an archive: REST and pages."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.cli.job_report import html
from allranks.cli.job_report import sweep as sweep_report
from allranks.errors import ClusterError
from allranks.ui import answers
from allranks.ui import sweeps as found_sweeps
from allranks.ui.entries import Source
from allranks.ui.problems import RESPONSES, Problem
from allranks.ui.routes.pages import event_rows, render, stream_address
from allranks.ui.routes.rest import Namespace, StateOf
from allranks.ui.sweeps import Found

rest = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
ITEM = "/sweeps/{source}/{group}/{name}"
"""`sweeps/jobs/NAMESPACE/NAME`, `sweeps/runs/SWEEP/TIME`, or `sweeps/archive/NAMESPACE/NAME-UID` for a deleted one."""


async def _find(state: StateOf, source: Source, group: str, name: str) -> Found:
    return await found_sweeps.find(state, source, group, name)


FoundOf = Annotated[Found, Depends(_find)]


@rest.get("/sweeps", response_model=answers.SweepList, summary="Sweeps of the cluster")
async def sweeps(state: StateOf, namespace: str | None = None) -> Response:
    return answers.listed([one.manifest for one in await found_sweeps.of_cluster(state.cluster(), namespace)])


@rest.get("/sweeps/archive", response_model=answers.SweepList, summary="Deleted sweeps, from the archive")
async def archive(state: StateOf, namespace: Namespace = None) -> Response:
    state.archived()
    return answers.listed([one.manifest for one in await found_sweeps.deleted(state, namespace)])


@rest.get(ITEM, response_model=answers.Sweep, summary="A sweep with its status")
async def one(state: StateOf, found: FoundOf) -> Response:
    """The same as `allranks report -o json`: the sweep, with the importance of its parameters and its GPU time."""
    shown = (await found_sweeps.report(state, found)).as_json()
    if found.source == "runs":
        shown["status"] = {**shown["status"], "phase": found.phase}
    return answers.as_printed(shown)


@rest.get(ITEM + "/events", response_model=answers.EventList, summary="The Events of a sweep")
async def events(state: StateOf, found: FoundOf) -> Response:
    return answers.listed(await found_sweeps.events(state, found))


@rest.get(ITEM + "/report.html", response_class=HTMLResponse, summary="The report on a sweep as a page")
async def report_page(state: StateOf, found: FoundOf) -> HTMLResponse:
    policy = f"{html.POLICY}; frame-ancestors 'none'; sandbox"
    report = await found_sweeps.report(state, found)
    return HTMLResponse(sweep_report.page(report), headers={"Content-Security-Policy": policy})


@pages.get("/sweeps")
async def overview(state: StateOf, namespace: str = "") -> Response:
    """All sweeps, the newest first."""
    found: list[Found] = []
    note = state.no_cluster
    if state.jobs:
        try:
            found = found_sweeps.newest_first(await found_sweeps.of_cluster(state.jobs, namespace or None))
        except ClusterError as error:
            note = str(error)
    now = state.now()
    return render(
        "sweeps",
        live=stream_address(namespace=namespace),
        warning=state.problem if state.jobs else "",
        rows=[found_sweeps.row(one, now) for one in [*found, *await found_sweeps.of_machine(state)]],
        archive=state.archive,
        note=note,
    )


@pages.get(ITEM)
async def sweep(state: StateOf, found: FoundOf) -> Response:
    """Trials, the best one, the importance of parameters, parallel coordinates, and Events."""
    rows, note = [], ""
    try:
        rows = event_rows(await found_sweeps.events(state, found), state.now())
    except (ClusterError, Problem) as error:
        note = str(error)
    return render(
        "sweep",
        live=stream_address(source=found.source, group=found.group) if found.source == "jobs" else "",
        warning=state.problem if found.source == "jobs" else "",
        found=found,
        report=await found_sweeps.report(state, found),
        address=_trials(found),
        events=rows,
        events_note=note,
    )


def _trials(found: Found) -> str:
    """What the name of a trial's job is appended to; empty without a page of it."""
    if found.source == "archive":
        return f"/sweeps/{found.path}/trials/"
    return f"/jobs/{quote(found.group, safe='')}/" if found.source == "jobs" else ""


@pages.get(ITEM + "/trials/{job}")
async def trial(state: StateOf, found: FoundOf, job: str) -> Response:
    """Leads to the job of a trial of a deleted sweep. Its UID is found here, because the sweep does not know it."""
    if found.source != "archive":
        raise Problem(404, "only the trials of a deleted sweep have this address")
    return RedirectResponse(f"/{await found_sweeps.trial_path(state, found, job)}", 303)
