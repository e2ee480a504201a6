"""The data of a server: jobs of a cluster, runs of this machine, archived jobs, and the viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from allranks.cli.job_report.model import Report, build_report
from allranks.cli.job_report.run_files import RunFiles, read_run_files
from allranks.errors import ClusterError
from allranks.ui.allowed_archive import AllowedArchive
from allranks.ui.archive import ArchivedJobs
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry, Manifest, Source
from allranks.ui.logs import Found, Wanted, last_lines
from allranks.ui.problems import Problem
from allranks.ui.ranks import Rank, ranks
from allranks.ui.runs import Runs


class SignedIn(NamedTuple):
    """The user of a server in the cluster. `here`: signed in on its page, not by a proxy in front of it."""

    name: str
    here: bool


USER: ContextVar[SignedIn | None] = ContextVar("user", default=None)
"""Whose request is answered. None on the user's own machine."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class State:
    """One for each server."""

    hub: Hub
    runs: Runs
    jobs: ClusterJobs | None = None
    """None without a cluster."""
    archive: ArchivedJobs | AllowedArchive | None = None
    no_cluster: str = ""
    """Why there is none."""
    choices: tuple[str, ...] | None = None
    """Suggested namespaces, where the user may name any; None where the server shows what it was started for."""
    now: Callable[[], datetime] = field(default=_now)

    @property
    def problem(self) -> str:
        """Why the jobs are not current or not there; empty if they are."""
        return self.jobs.problem if self.jobs else self.no_cluster

    def cluster(self) -> ClusterJobs:
        """Raises Problem without a cluster."""
        if self.jobs is None:
            raise Problem(404, self.no_cluster or "there is no cluster")
        return self.jobs

    def archived(self) -> ArchivedJobs | AllowedArchive:
        """Raises Problem without an archive."""
        if self.archive is None:
            how = "allranks ui --archive names one" if self.choices is None else "ui.archive of the chart adds one"
            raise Problem(404, f"there is no archive: {how}")
        return self.archive

    async def entries(self, source: Source) -> list[Entry]:
        """All jobs, all runs, or deleted jobs of the archive. Raises Problem if the cluster has not been read yet, and
        ArchiveError."""
        if source == "runs":
            return await self.runs.all()
        if source == "archive":
            there = {entry.metadata.get("uid") for entry in await self.entries("jobs")}
            found = await self.archive.all() if self.archive else []
            return [entry for entry in found if entry.metadata.get("uid") not in there]
        if self.jobs is None:
            return []
        try:
            async with asyncio.timeout(20):
                await self.jobs.listed.wait()
        except TimeoutError:
            raise Problem(503, "the API server has not answered yet: try again") from None
        return self.jobs.all()

    async def find(self, source: Source, group: str, name: str) -> Entry:
        """Raises Problem."""
        if source == "runs":
            return await self.runs.get(group, name)
        if source == "archive":
            return await self.archived().get(group, name)
        jobs = self.cluster()
        await self.entries("jobs")
        return jobs.get(group, name)

    async def pods(self, entry: Entry) -> list[Manifest]:
        """None for a run and a deleted job. Raises ClusterError."""
        return await self.cluster().pods(entry) if entry.source == "jobs" else []

    async def events(self, entry: Entry) -> list[Manifest]:
        """None for a run. Raises ClusterError and ArchiveError."""
        if entry.source == "archive":
            return await self.archived().events(entry)
        return [] if entry.source == "runs" else await self.cluster().events(entry)

    async def last_lines(self, entry: Entry, wanted: Wanted) -> Found:
        """The end of the logs, of an archive if the pods are deleted. Raises Problem, ClusterError and ArchiveError."""
        if entry.source == "archive":
            return await self.archived().last_lines(entry, wanted)
        found = await last_lines(self.jobs, entry, wanted)
        if entry.source == "runs" or found.lines or self.archive is None:
            return found
        try:
            kept = await self.archive.last_lines(entry, wanted)
        except Problem as problem:
            return replace(found, notes=[*found.notes, str(problem)])
        return replace(kept, notes=["from the archive", *kept.notes]) if kept.lines else found

    async def ranks(self, entry: Entry) -> tuple[list[Rank], str]:
        """The ranks, and why their pods are not shown."""
        try:
            return ranks(entry, await self.pods(entry)), ""
        except ClusterError as error:
            return ranks(entry, []), str(error)

    async def report(self, entry: Entry) -> Report:
        """The report on a job until now; on a run that has ended and on a deleted job, until its last moment."""
        files = RunFiles()
        if entry.directory is not None:
            files = replace(await asyncio.to_thread(read_run_files, entry.directory), logs=())
        end = entry.until(entry.status, self.now())
        return build_report(entry.manifest, end, replace(files, active=entry.active))
