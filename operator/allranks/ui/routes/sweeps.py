"""Sweeps of a cluster, of this machine and of an archive: their places, rows and reports, in REST and on pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.api.sweep import KIND as SWEEP
from allranks.archive.writer import folder_of
from allranks.client.sweeps import deleted_trial, missing_jobs, trials_of_run
from allranks.errors import AllranksError, ClusterError
from allranks.kube import paths
from allranks.kube.decoding import ObjectMeta, decoder
from allranks.kube.job_codec import DecodeError
from allranks.kube.object_text import ObjectText, of_manifest
from allranks.local.sweep_files import StoredSweep, read_sweep
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry, Item, Manifest, Source, newest_first, owner_sweep
from allranks.ui.openapi import ObjectList, Sweep, SweepList
from allranks.ui.problems import RESPONSES, Problem
from allranks.ui.rendering import render, stream_address
from allranks.ui.routes.pages import event_rows
from allranks.ui.routes.rest import Namespace, StateOf, as_printed, object_list
from allranks.ui.state import State
from allranks.views.format.duration import age
from allranks.views.report import html
from allranks.views.report import sweep as sweep_report
from allranks.views.report.sweep import SweepReport
from allranks.views.report.sweep_cost import TrialJob, TrialJobs


@dataclass(frozen=True)
class SweepEntry(Item):
    """A sweep, or a run of one."""

    directory: Path | None = None
    """Directory of a run; None for others."""


def row(sweep: SweepEntry, now: datetime) -> tuple[str, tuple[str, ...]]:
    """Return (address, cells) for a table of sweeps."""
    status, metadata = sweep.manifest.get("status") or {}, sweep.metadata
    objective = (sweep.manifest.get("spec") or {}).get("objective") or {}
    began = metadata.get("creationTimestamp") or status.get("startTime")
    created = age(began, now) if began else ""
    best = f"{objective.get('metric', '')} {status['bestSummary']}" if status.get("bestSummary") else ""
    name = f"{sweep.group}/{sweep.name if sweep.source == 'runs' else metadata.get('name')}"
    return f"/sweeps/{sweep.path}", (name, sweep.phase, str(status.get("summary", "")), best, created)


# --- lists -----------------------------------------------------------------------------------------------------------


async def of_cluster(jobs: ClusterJobs, namespace: str | None) -> list[SweepEntry]:
    """Return the sweeps of a namespace, or of all. Raises ClusterError."""
    return list(map(_entry, await jobs.texts(paths.sweeps(namespace or jobs.namespace), None, SWEEP)))


class _Object(msgspec.Struct):
    metadata: ObjectMeta


_object = decoder(_Object)


def _entry(sweep: ObjectText) -> SweepEntry:
    return SweepEntry("jobs", sweep.metadata["namespace"], sweep.metadata["name"], sweep)


async def deleted(state: State, namespace: str | None = None) -> list[SweepEntry]:
    """Return the sweeps of the archive that the cluster does not have. Raises ArchiveError and ClusterError."""
    if state.archive is None:
        return []
    archived = list(map(_archived, await state.archive.sweeps()))
    existing: set[str] = set()
    if state.jobs:
        with contextlib.suppress(ClusterError):
            path = paths.sweeps(state.jobs.namespace)
            existing = set(await state.jobs.shared_items(path, None, lambda data: _object(data).metadata.uid))
    return [
        sweep
        for sweep in newest_first(archived)
        if sweep.metadata["uid"] not in existing and namespace in (None, "", sweep.group)
    ]


async def of_machine(state: State) -> list[SweepEntry]:
    """Return the sweeps of this machine, the newest first, without files that cannot be read."""
    return await asyncio.to_thread(_runs, state)


def _archived(sweep: Manifest | ObjectText) -> SweepEntry:
    about = {"metadata": sweep.metadata} if isinstance(sweep, ObjectText) else sweep
    namespace, _, folder = folder_of(about).partition("/")
    return SweepEntry("archive", namespace, folder, sweep, active=False)


def _runs(state: State) -> list[SweepEntry]:
    out = []
    for sweep in sorted(state.runs.sweeps(), key=lambda sweep: sweep.age_key, reverse=True):
        with contextlib.suppress(AllranksError):
            out.append(_run(sweep))
    return out


def _run(sweep: StoredSweep) -> SweepEntry:
    """Return a sweep of this machine. Raises RunsError."""
    directory = sweep.directory
    return SweepEntry("runs", sweep.job, directory.name, read_sweep(directory), sweep.running, directory)


# --- one sweep -------------------------------------------------------------------------------------------------------


async def find(state: StateOf, source: Source, group: str, name: str) -> SweepEntry:
    """Return a sweep. Raises Problem, ClusterError and ArchiveError."""
    if source == "archive":
        return _archived(await state.archived().sweep(group, name))
    if source == "runs":
        sweeps = await asyncio.to_thread(state.runs.sweeps)
        stored = {(sweep.job, sweep.directory.name): sweep for sweep in sweeps}
        if (group, name) not in stored:
            raise Problem(404, f"there is no sweep {group}/{name} in {state.runs.root}")
        try:
            return await asyncio.to_thread(_run, stored[group, name])
        except DecodeError as error:
            raise Problem(409, f"the sweep {name} cannot be read: {error}") from error
    jobs = state.cluster()
    if jobs.namespace not in (None, group):
        raise Problem(404, f"this server shows namespace {jobs.namespace}: allranks ui -n {group} shows {name}")
    try:
        return _entry(of_manifest(await jobs.cluster.get(paths.sweeps(group, name))))
    except ClusterError as error:
        if error.status == 404:
            raise Problem(404, f"there is no sweep {name} in namespace {group}") from error
        raise


async def report(state: State, sweep: SweepEntry) -> SweepReport:
    """Return the report, which has the GPU time of the trials. Raises Problem."""
    jobs = await _trial_jobs(state, sweep)
    try:
        return await state.compute(_build_report, sweep, jobs)
    except DecodeError as error:
        raise Problem(409, f"the sweep {sweep.name} cannot be read: {error}") from error


def _build_report(sweep: SweepEntry, jobs: Callable[[], TrialJobs]) -> SweepReport:
    report = sweep_report.build(sweep.manifest, jobs())
    _ = report.cost  # cached, so that it is computed in this thread
    return report


async def _trial_jobs(state: State, sweep: SweepEntry) -> Callable[[], TrialJobs]:
    """Return a function that decodes the jobs of the trials: existing jobs until now, deleted jobs until their end."""
    if directory := sweep.directory:
        return lambda: trials_of_run(directory)
    existing: list[Entry] = []
    deleted: list[Manifest] = []
    problem = ""
    try:
        uid = sweep.metadata.get("uid")
        entries = await state.entries("jobs")
        existing = [entry for entry in entries if entry.group == sweep.group and _is_trial(entry, uid)]
        names = missing_jobs(sweep.manifest, {entry.name for entry in existing})
        if names and state.archive:
            deleted = await state.archive.trials(sweep.manifest, names)
    except (AllranksError, Problem) as error:
        problem = str(error)
    now = state.now()

    def decoded() -> TrialJobs:
        jobs = [TrialJob(entry.name, entry.status, now) for entry in existing]
        return TrialJobs([*jobs, *map(deleted_trial, deleted)], problem)

    return decoded


def _is_trial(entry: Entry, uid: str | None) -> bool:
    owner = owner_sweep(entry)
    return owner is not None and owner["uid"] == uid


async def events_of(state: State, sweep: SweepEntry) -> list[Manifest]:
    """Return the Events of the sweep itself; none for a run. Raises Problem, ClusterError and ArchiveError."""
    if sweep.source == "archive":
        return await state.archived().sweep_events(sweep.manifest)
    if sweep.source == "runs":
        return []
    return await state.cluster().events_of(sweep.group, str(sweep.metadata.get("uid")))


async def trial_path(state: State, sweep: SweepEntry, job: str) -> str:
    """Return the address of the job of a trial of an archived sweep: on the cluster if it exists, else in the archive.

    Raises Problem and ArchiveError.
    """
    uid = sweep.metadata["uid"]
    for entry in await state.entries("jobs") if state.jobs else ():
        if (entry.group, entry.name) == (sweep.group, job) and _is_trial(entry, uid):
            return entry.path
    entry = await state.archived().trial(sweep.manifest, job)
    return entry.path


# --- routes ----------------------------------------------------------------------------------------------------------


api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
ITEM = "/sweeps/{source}/{group}/{name}"
"""`sweeps/jobs/NAMESPACE/NAME`, `sweeps/runs/SWEEP/TIME`, or `sweeps/archive/NAMESPACE/NAME-UID` for a deleted one."""


SweepOf = Annotated[SweepEntry, Depends(find)]


@api.get("/sweeps", response_model=SweepList, summary="Sweeps of the cluster")
async def list_sweeps(state: StateOf, namespace: str | None = None) -> Response:
    async with state.reads_large():
        return object_list([sweep.content for sweep in await of_cluster(state.cluster(), namespace)])


@api.get("/sweeps/archive", response_model=SweepList, summary="Deleted sweeps, from the archive")
async def archive(state: StateOf, namespace: Namespace = None) -> Response:
    state.archived()
    return object_list([sweep.content for sweep in await deleted(state, namespace)])


@api.get(ITEM, response_model=Sweep, summary="A sweep with its status")
async def get_sweep(state: StateOf, sweep: SweepOf) -> Response:
    """The same as `allranks report -o json`: the sweep, with the importance of its parameters and its GPU time."""
    shown = (await report(state, sweep)).as_json()
    if sweep.source == "runs":
        shown["status"] = {**shown["status"], "phase": sweep.phase}
    return as_printed(shown)


@api.get(ITEM + "/events", response_model=ObjectList, summary="The Events of a sweep")
async def events(state: StateOf, sweep: SweepOf) -> Response:
    return object_list(await events_of(state, sweep))


@api.get(ITEM + "/report.html", response_class=HTMLResponse, summary="The report on a sweep as a page")
async def report_page(state: StateOf, sweep: SweepOf) -> HTMLResponse:
    policy = f"{html.POLICY}; frame-ancestors 'none'; sandbox"
    page = sweep_report.page(await report(state, sweep))
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


@pages.get("/sweeps")
async def overview(state: StateOf, namespace: str = "") -> Response:
    """Show all sweeps, the newest first."""
    now = state.now()
    existing = []
    note = ""
    if state.jobs:
        try:
            async with state.reads_large():
                existing = [row(sweep, now) for sweep in newest_first(await of_cluster(state.jobs, namespace or None))]
        except ClusterError as error:
            note = str(error)
    return render(
        "sweeps",
        live=stream_address(namespace=namespace),
        warning=state.problem if state.jobs else "",
        rows=[*existing, *(row(sweep, now) for sweep in await of_machine(state))],
        archive=state.archive,
        note=note,
        no_cluster=state.no_cluster,
        root=str(state.runs.root),
    )


@pages.get(ITEM)
async def show_sweep(state: StateOf, sweep: SweepOf) -> Response:
    """Show the trials, the best trial, the importance of parameters, parallel coordinates, and Events."""
    rows, note = [], ""
    try:
        rows = event_rows(await events_of(state, sweep), state.now())
    except (ClusterError, Problem) as error:
        note = str(error)
    return render(
        "sweep",
        live=_changes(sweep),
        warning=state.problem if sweep.source == "jobs" else "",
        sweep=sweep,
        report=await report(state, sweep),
        address=await _trial_address(state, sweep),
        events=rows,
        events_note=note,
    )


def _changes(sweep: SweepEntry) -> str:
    """Return the address of the changes of the jobs of the trials; empty if nothing changes any more."""
    if sweep.source == "jobs":
        return stream_address(source=sweep.source, group=sweep.group)
    return stream_address(source=sweep.source) if sweep.active else ""


async def _trial_address(state: State, sweep: SweepEntry) -> Callable[[str], str]:
    """Return a function that makes the address of the job of a trial; empty if it has no page."""
    if sweep.source == "archive":
        return lambda job: f"/sweeps/{sweep.path}/trials/{quote(job, safe='')}"
    if sweep.source == "jobs":
        return lambda job: f"/jobs/{quote(sweep.group, safe='')}/{quote(job, safe='')}" if job else ""
    paths = {entry.group: f"/{entry.path}" for entry in await state.runs.trials(f"{sweep.group}/{sweep.name}")}
    return lambda job: paths.get(job, "")


@pages.get(ITEM + "/trials/{job}")
async def trial(state: StateOf, sweep: SweepOf, job: str) -> Response:
    """Lead to the job of a trial of a deleted sweep, whose UID the status of the sweep does not have."""
    if sweep.source != "archive":
        raise Problem(404, "only the trials of a deleted sweep have this address")
    return RedirectResponse(f"/{await trial_path(state, sweep, job)}", 303)
