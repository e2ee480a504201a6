"""Sweeps of a cluster and of this machine: REST and pages."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from allranks.cli.format.duration import age
from allranks.cli.job_report import html
from allranks.cli.job_report import sweep as sweep_report
from allranks.cli.job_report.sweep import SweepReport
from allranks.errors import AllranksError, ClusterError
from allranks.kube import paths
from allranks.kube.job_codec import DecodeError
from allranks.local.sweep_files import SWEEP_FILE, read_sweep, stored_sweeps
from allranks.ui import answers
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Manifest, Source
from allranks.ui.pages import render, stream_address
from allranks.ui.problems import RESPONSES, Problem
from allranks.ui.rest import StateOf
from allranks.ui.state import State

rest = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
ITEM = "/sweeps/{source}/{group}/{name}"
"""`sweeps/jobs/NAMESPACE/NAME`, or `sweeps/runs/SWEEP/TIME` for one of this machine."""


@rest.get("/sweeps", response_model=answers.SweepList, summary="Sweeps of the cluster")
async def sweeps(state: StateOf, namespace: str | None = None) -> Response:
    return answers.listed(await _of_cluster(state.cluster(), namespace))


@rest.get(ITEM, response_model=answers.Sweep, summary="A sweep with its status")
async def one(state: StateOf, source: Source, group: str, name: str) -> Response:
    """The same as `allranks report -o json`: the sweep, with the importance of its parameters."""
    return answers.as_printed((await _find(state, source, group, name)).as_json())


@rest.get(ITEM + "/report.html", response_class=HTMLResponse, summary="The report on a sweep as a page")
async def report_page(state: StateOf, source: Source, group: str, name: str) -> HTMLResponse:
    page = sweep_report.page(await _find(state, source, group, name))
    policy = f"{html.POLICY}; frame-ancestors 'none'; sandbox"
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


@pages.get("/sweeps")
async def overview(state: StateOf, namespace: str = "") -> Response:
    """All sweeps, the newest first."""
    found: list[Manifest] = []
    note = state.no_cluster
    if state.jobs:
        try:
            found = await _of_cluster(state.jobs, namespace or None)
        except ClusterError as error:
            note = str(error)
    found.sort(key=lambda each: str(each["metadata"].get("creationTimestamp")), reverse=True)
    now = state.now()

    def row(each: Manifest, address: str, name: str) -> tuple[str, tuple[str, ...]]:
        status, metadata = each.get("status") or {}, each.get("metadata") or {}
        objective = (each.get("spec") or {}).get("objective") or {}
        created = age(metadata["creationTimestamp"], now) if metadata.get("creationTimestamp") else ""
        best = f"{objective.get('metric', '')} {status['bestSummary']}" if status.get("bestSummary") else ""
        return f"/sweeps/{address}", (name, status.get("phase", "Pending"), status.get("summary", ""), best, created)

    rows = [
        row(each, _path("jobs", each["metadata"]["namespace"], each["metadata"]["name"]), _name(each)) for each in found
    ]
    runs = await asyncio.to_thread(_runs, state)
    rows += [row(each, _path("runs", *directory), "/".join(directory)) for directory, each in runs]
    return render(
        "sweeps",
        live=stream_address(namespace=namespace),
        warning=state.problem if state.jobs else "",
        rows=rows,
        note=note,
    )


@pages.get(ITEM)
async def sweep(state: StateOf, source: Source, group: str, name: str) -> Response:
    """Trials, the best one, the importance of parameters, and parallel coordinates."""
    return render(
        "sweep",
        live=stream_address(source=source, group=group) if source == "jobs" else "",
        warning=state.problem if source == "jobs" else "",
        report=await _find(state, source, group, name),
        address=f"/jobs/{quote(group, safe='')}/" if source == "jobs" else "",
        path=_path(source, group, name),
    )


def _path(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _name(sweep: Manifest) -> str:
    return f"{sweep['metadata']['namespace']}/{sweep['metadata']['name']}"


async def _of_cluster(jobs: ClusterJobs, namespace: str | None) -> list[Manifest]:
    """Raises ClusterError."""
    found: list[Manifest] = await jobs.read_shared(paths.sweeps(namespace or jobs.namespace))
    return found


async def _find(state: State, source: Source, group: str, name: str) -> SweepReport:
    """Raises Problem, ClusterError."""
    try:
        if source == "runs":
            stored = {(path.parent.name, path.name): path for path in await asyncio.to_thread(_directories, state)}
            if (group, name) not in stored:
                raise Problem(404, f"there is no sweep {group}/{name} in {state.runs.root}")
            return sweep_report.build(await asyncio.to_thread(read_sweep, stored[group, name]))
        jobs = state.cluster()
        if jobs.namespace not in (None, group):
            raise Problem(404, f"this server shows namespace {jobs.namespace}: allranks ui -n {group} shows {name}")
        found = {each["metadata"]["name"]: each for each in await _of_cluster(jobs, group)}
        if name not in found:
            raise Problem(404, f"there is no sweep {name} in namespace {group}")
        return sweep_report.build(found[name])
    except DecodeError as error:
        raise Problem(409, f"the sweep {name} cannot be read: {error}") from error


def _directories(state: State) -> list[Any]:
    return stored_sweeps(state.runs.root)


def _runs(state: State) -> list[tuple[tuple[str, str], Manifest]]:
    """((sweep, time), sweep) of this machine, the newest first; without what cannot be read."""
    out = []
    for directory in sorted(_directories(state), key=lambda path: (path / SWEEP_FILE).stat().st_mtime_ns, reverse=True):
        try:
            out.append(((directory.parent.name, directory.name), read_sweep(directory)))
        except AllranksError:
            continue
    return out
