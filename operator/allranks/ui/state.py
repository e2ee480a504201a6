"""The data of a server: jobs of a cluster, runs of this machine, archived jobs, and the viewers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple, ParamSpec, TypeVar

from allranks.core.facts.model import Pod
from allranks.errors import ClusterError
from allranks.shares import Turns
from allranks.ui import logs
from allranks.ui import runs as local_runs
from allranks.ui.archive import AllowedArchive, ArchivedJobs
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.curves import MOST_POINTS, Curves, curves
from allranks.ui.entries import Entry, Manifest, Source
from allranks.ui.logs import FOLLOWED_HERE, LogLine, LogQuery, LogRoom, LogTail, with_replica
from allranks.ui.problems import Problem
from allranks.ui.ranks import Rank, ranks
from allranks.ui.runs import Runs
from allranks.views.report.model import Report, build_report
from allranks.views.report.run_files import RunFiles, read_run_files

P = ParamSpec("P")
T = TypeVar("T")


class SignedIn(NamedTuple):
    """The user of a server in the cluster. `has_session`: signed in on its page, not by a proxy in front of it."""

    name: str
    has_session: bool


USER: ContextVar[SignedIn | None] = ContextVar("user", default=None)
"""The user whose request is answered. None on the user's own machine."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class State:
    """The data of one server, or of one user of a server in the cluster."""

    hub: Hub
    runs: Runs
    jobs: ClusterJobs | None = None
    """None without a cluster."""
    archive: ArchivedJobs | AllowedArchive | None = None
    no_cluster: str = ""
    """Reason why there is none."""
    choices: tuple[str, ...] | None = None
    """Suggested namespaces, where the user may name any; None where the server shows what it was started for."""
    now: Callable[[], datetime] = field(default=_now)
    log_room: LogRoom = field(default_factory=lambda: LogRoom(FOLLOWED_HERE))
    computations: Turns = field(default_factory=Turns)
    account: str = ""
    """The owner of a share of `log_room`, and of turns in `computations`."""

    @property
    def problem(self) -> str:
        """Reason why the list of jobs is stale or missing; empty if it is up to date."""
        return self.jobs.problem if self.jobs else self.no_cluster

    def cluster(self) -> ClusterJobs:
        """Return the jobs of the cluster. Raises Problem without one."""
        if self.jobs is None:
            raise Problem(404, self.no_cluster or "there is no cluster")
        return self.jobs

    def archived(self) -> ArchivedJobs | AllowedArchive:
        """Return the archive. Raises Problem without one."""
        if self.archive is None:
            how = "allranks ui --archive names one" if self.choices is None else "ui.archive of the chart adds one"
            raise Problem(404, f"there is no archive: {how}")
        return self.archive

    async def entries(self, source: Source) -> list[Entry]:
        """Return all jobs, all runs, or deleted jobs of the archive.

        Raises Problem if the cluster has not been read yet, and ArchiveError.
        """
        if source == "runs":
            return await self.runs.all()
        if source == "archive":
            existing = {entry.metadata.get("uid") for entry in await self.entries("jobs")}
            archived = await self.archive.all() if self.archive else []
            return [entry for entry in archived if entry.metadata.get("uid") not in existing]
        if self.jobs is None:
            return []
        try:
            async with asyncio.timeout(20):
                await self.jobs.listed.wait()
        except TimeoutError:
            raise Problem(503, "the API server has not answered yet: try again") from None
        return self.jobs.all()

    async def find(self, source: Source, group: str, name: str) -> Entry:
        """Return a job or a run. Raises Problem if there is none, ArchiveError and ClusterError."""
        if source == "runs":
            return await self.runs.get(group, name)
        if source == "archive":
            return await self.archived().get(group, name)
        jobs = self.cluster()
        await self.entries("jobs")
        return await jobs.whole(jobs.get(group, name))

    async def pods(self, entry: Entry) -> list[Pod]:
        """Return the pods of a job; none for a run and a deleted job. Raises ClusterError."""
        return await self.cluster().pods(entry) if entry.source == "jobs" else []

    async def events(self, entry: Entry) -> list[Manifest]:
        """Return the Events of a job; none for a run. Raises ClusterError and ArchiveError."""
        if entry.source == "archive":
            return await self.archived().events(entry)
        return [] if entry.source == "runs" else await self.cluster().events(entry)

    async def last_lines(self, entry: Entry, query: LogQuery) -> LogTail:
        """Return the end of the logs, from the archive if the pods are deleted.

        Raises Problem, ClusterError and ArchiveError.
        """
        async with self.reads_large():
            return await self._last_lines(entry, with_replica(entry, query))

    def reads_large(self) -> AbstractAsyncContextManager[None]:
        """Wait for the turn to read the logs of a page, or a list of whole objects. The turn ends with the block."""
        return self.log_room.page(self.account)

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns that takes much processor time. It is called in a thread; accounts have turns.

        Only one is called at a time: threads of Python share one processor with all requests.
        """
        async with self.computations.turn(self.account):
            return await asyncio.to_thread(function, *args, **kwargs)

    async def _last_lines(self, entry: Entry, query: LogQuery) -> LogTail:
        if entry.source == "archive":
            return await self.archived().last_lines(entry, query)
        if entry.source == "runs":
            return await local_runs.last_lines(entry, query)
        tail = await logs.last_lines(self.cluster(), entry, query)
        if tail.lines or self.archive is None:
            return tail
        try:
            archived = await self.archive.last_lines(entry, query)
        except Problem as problem:
            return replace(tail, notes=[*tail.notes, str(problem)])
        return replace(archived, notes=["from the archive", *archived.notes]) if archived.lines else tail

    async def follow_lines(self, entry: Entry, query: LogQuery) -> AsyncGenerator[list[LogLine]]:
        """Yield new lines in batches, across restarts unless an attempt is chosen, until the job has finished.

        An empty batch says that nothing has happened for a while. Raises Problem and ClusterError.
        """
        if entry.source == "archive":
            return  # nothing more is written
        query = with_replica(entry, query)
        if entry.source == "runs":
            batches = local_runs.follow(self.runs, entry, query)
        else:
            start = functools.partial(self.log_room.follow, self.account)
            batches = logs.follow(self.cluster(), entry, query, start)
        async with aclosing(batches):
            async for lines in batches:
                yield lines

    async def ranks(self, entry: Entry) -> tuple[list[Rank], str]:
        """Return the ranks, and the reason why their pods are not shown."""
        try:
            return ranks(entry, await self.pods(entry)), ""
        except ClusterError as error:
            return ranks(entry, []), str(error)

    async def report(self, entry: Entry) -> Report:
        """Return the report on a job until now; on a run that has ended and on a deleted job, until its last moment."""
        files = RunFiles()
        if entry.directory is not None:
            files = replace(await asyncio.to_thread(read_run_files, entry.directory), logs=())
        return self._report(entry, files)

    async def curves(self, entries: Sequence[Entry]) -> Curves:
        """Return all stored values of the metrics of jobs and runs."""
        return await self.compute(self._curves, entries)

    def _curves(self, entries: Sequence[Entry]) -> Curves:
        read = [read_run_files(entry.directory, MOST_POINTS) if entry.directory else RunFiles() for entry in entries]
        reports = [self._report(entry, files) for entry, files in zip(entries, read, strict=True)]
        names = [f"{entry.group}/{entry.name}" for entry in entries]
        return curves(names, reports, any(files.thinned for files in read))

    def _report(self, entry: Entry, files: RunFiles) -> Report:
        end = entry.until(entry.status, self.now())
        return build_report(entry.manifest, end, replace(files, active=entry.active))
