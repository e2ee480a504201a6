"""Sweeps of the cluster, of this machine, and deleted ones of the archive: where they are, what lists show, and their
reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from allranks.archive.writer import folder_of
from allranks.cli import sweep_jobs
from allranks.cli.format.duration import age
from allranks.cli.job_report import sweep as sweep_report
from allranks.cli.job_report.sweep import SweepReport
from allranks.cli.job_report.sweep_cost import FoundJob, TrialJobs
from allranks.errors import AllranksError, ClusterError
from allranks.kube import paths
from allranks.kube.job_codec import DecodeError
from allranks.local.run_directories import phase_of
from allranks.local.sweep_files import SWEEP_FILE, StoredSweep, read_sweep, stored_sweeps
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry, Manifest, Source, owner_sweep
from allranks.ui.problems import Problem
from allranks.ui.state import State


class Found(NamedTuple):
    """A sweep, and where it is: `jobs/NAMESPACE/NAME`, `runs/SWEEP/TIME` or `archive/NAMESPACE/NAME-UID`."""

    source: Source
    group: str
    name: str
    manifest: Manifest
    active: bool = True
    """Whether something runs it, if it has not finished."""

    @property
    def path(self) -> str:
        return "/".join(quote(part, safe="") for part in (self.source, self.group, self.name))

    @property
    def phase(self) -> str:
        """`Interrupted` for a sweep that was deleted, or whose process ended, before its end."""
        return phase_of(str((self.manifest.get("status") or {}).get("phase") or "Pending"), active=self.active)


def row(found: Found, now: datetime) -> tuple[str, tuple[str, ...]]:
    """(address, cells) for a table of sweeps."""
    status, metadata = found.manifest.get("status") or {}, found.manifest.get("metadata") or {}
    objective = (found.manifest.get("spec") or {}).get("objective") or {}
    created = age(metadata["creationTimestamp"], now) if metadata.get("creationTimestamp") else ""
    best = f"{objective.get('metric', '')} {status['bestSummary']}" if status.get("bestSummary") else ""
    name = f"{found.group}/{found.name if found.source == 'runs' else metadata.get('name')}"
    return f"/sweeps/{found.path}", (name, found.phase, str(status.get("summary", "")), best, created)


def newest_first(found: Iterable[Found]) -> list[Found]:
    def created(one: Found) -> str:
        return str((one.manifest.get("metadata") or {}).get("creationTimestamp"))

    return sorted(found, key=created, reverse=True)


# --- lists -----------------------------------------------------------------------------------------------------------


async def of_cluster(jobs: ClusterJobs, namespace: str | None) -> list[Found]:
    """Raises ClusterError."""
    found = await jobs.read_shared(paths.sweeps(namespace or jobs.namespace))
    return [Found("jobs", one["metadata"]["namespace"], one["metadata"]["name"], one) for one in found]


async def deleted(state: State, namespace: str | None = None) -> list[Found]:
    """Those of the archive that do not exist, as far as the cluster says. Raises ArchiveError, ClusterError."""
    if state.archive is None:
        return []
    found = [_archived(one) for one in await state.archive.sweeps()]
    there: set[str] = set()
    if state.jobs:
        with contextlib.suppress(ClusterError):
            there = {one.manifest["metadata"]["uid"] for one in await of_cluster(state.jobs, None)}
    return [
        one
        for one in newest_first(found)
        if one.manifest["metadata"]["uid"] not in there and namespace in (None, "", one.group)
    ]


async def of_machine(state: State) -> list[Found]:
    """The newest first, without what cannot be read."""
    return await asyncio.to_thread(_runs, state)


def _archived(manifest: Manifest) -> Found:
    namespace, _, folder = folder_of(manifest).partition("/")
    return Found("archive", namespace, folder, manifest, active=False)


def _directories(state: State) -> list[Path]:
    return list(stored_sweeps(state.runs.root))


def _runs(state: State) -> list[Found]:
    out = []
    for directory in sorted(_directories(state), key=lambda path: (path / SWEEP_FILE).stat().st_mtime_ns, reverse=True):
        with contextlib.suppress(AllranksError):
            out.append(_run(directory))
    return out


def _run(directory: Path) -> Found:
    """Raises RunsError."""
    active = StoredSweep(directory).running
    return Found("runs", directory.parent.name, directory.name, read_sweep(directory), active)


# --- one sweep -------------------------------------------------------------------------------------------------------


async def find(state: State, source: Source, group: str, name: str) -> Found:
    """Raises Problem, ClusterError and ArchiveError."""
    if source == "archive":
        return _archived(await state.archived().sweep(group, name))
    if source == "runs":
        stored = {(path.parent.name, path.name): path for path in await asyncio.to_thread(_directories, state)}
        if (group, name) not in stored:
            raise Problem(404, f"there is no sweep {group}/{name} in {state.runs.root}")
        try:
            return await asyncio.to_thread(_run, stored[group, name])
        except DecodeError as error:
            raise Problem(409, f"the sweep {name} cannot be read: {error}") from error
    jobs = state.cluster()
    if jobs.namespace not in (None, group):
        raise Problem(404, f"this server shows namespace {jobs.namespace}: allranks ui -n {group} shows {name}")
    found = next((one for one in await of_cluster(jobs, group) if one.name == name), None)
    if found is None:
        raise Problem(404, f"there is no sweep {name} in namespace {group}")
    return found


async def report(state: State, found: Found) -> SweepReport:
    """The report, which has the GPU time of the trials. Raises Problem."""
    jobs = await _trial_jobs(state, found)
    try:
        # Hundreds of statuses are decoded: other requests must not wait for it.
        return await asyncio.to_thread(_built, found, jobs)
    except DecodeError as error:
        raise Problem(409, f"the sweep {found.name} cannot be read: {error}") from error


def _built(found: Found, jobs: Callable[[], TrialJobs]) -> SweepReport:
    made = sweep_report.build(found.manifest, jobs())
    _ = made.cost
    return made


async def _trial_jobs(state: State, found: Found) -> Callable[[], TrialJobs]:
    """What decodes the jobs of the trials: those that exist until now, and deleted ones until their last moment."""
    if found.source == "runs":
        return lambda: sweep_jobs.of_run(state.runs.root / found.group / found.name)
    own: list[Entry] = []
    deleted: list[Manifest] = []
    problem = ""
    try:
        uid = found.manifest["metadata"].get("uid")
        entries = await state.entries("jobs")
        own = [one for one in entries if one.group == found.group and _is_trial(one, uid)]
        names = sweep_jobs.missing(found.manifest, {entry.name for entry in own})
        if names and state.archive:
            deleted = await state.archive.trials(found.manifest, names)
    except (AllranksError, Problem) as error:
        problem = str(error)
    now = state.now()

    def decoded() -> TrialJobs:
        there = [FoundJob(entry.name, entry.status, now) for entry in own]
        return TrialJobs([*there, *map(sweep_jobs.ended, deleted)], problem)

    return decoded


def _is_trial(entry: Entry, uid: str | None) -> bool:
    owner = owner_sweep(entry.manifest)
    return owner is not None and owner["uid"] == uid


async def events(state: State, found: Found) -> list[Manifest]:
    """Those of the sweep itself, none of a run. Raises Problem, ClusterError and ArchiveError."""
    if found.source == "archive":
        return await state.archived().sweep_events(found.manifest)
    if found.source == "runs":
        return []
    return await state.cluster().events_of(found.group, str(found.manifest["metadata"].get("uid")))


async def trial_path(state: State, found: Found, job: str) -> str:
    """The address of the job of a trial of an archived sweep: of the cluster, if it is still there. Raises Problem,
    ArchiveError."""
    uid = found.manifest["metadata"]["uid"]
    for entry in await state.entries("jobs") if state.jobs else ():
        owner = owner_sweep(entry.manifest)
        if (entry.group, entry.name) == (found.group, job) and owner and owner["uid"] == uid:
            return entry.path
    entry = await state.archived().trial(found.manifest, job)
    return entry.path
