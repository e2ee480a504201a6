"""The deleted jobs and sweeps of an archive: read in threads, and again after a while.

An archive knows no users. So in a server in the cluster, `AllowedArchive` asks the API server with the user's own token
before anything of a namespace is read: `get` of jobs for jobs and reports, `get` of sweeps for sweeps, `list` of Events
for Events, `get` of pods/log for logs.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from allranks.api.job import GROUP, PLURAL
from allranks.api.sweep import PLURAL as SWEEPS_PLURAL
from allranks.archive.layout import LogName
from allranks.archive.reader import Reader
from allranks.archive.writer import folder_of
from allranks.client.rank_stacks import MOST_PODS
from allranks.core.facts.attempt_pods import pods_of
from allranks.core.facts.naming import TRAINER, replica_key
from allranks.kube.bounded_lines import LastLines
from allranks.kube.object_text import ObjectText
from allranks.kube.pod_logs import Line
from allranks.local.stored_logs import matches
from allranks.ui.entries import Entry, Manifest
from allranks.ui.logs import LINE_BYTES, MOST_OF_ALL, LogQuery, LogTail, log_line
from allranks.ui.problems import Problem

FRESH_SECONDS = 30.0
"""Maximum age of a list: to read it, all files of an object store are listed."""
MOST_JOBS = 2000
"""Jobs of the archive that are listed: the jobs that were written last. All others have a page by their address."""
MOST_SWEEPS = 200
T = TypeVar("T")


class _Recent(Generic[T]):
    """An answer that is read again after FRESH_SECONDS."""

    def __init__(self) -> None:
        self._answer: list[T] = []
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def get(self, read: Callable[[], T]) -> T:
        """Return the answer of `read`, which is called in a thread. Raises the errors of `read`."""
        async with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                self._answer, self._read_at = [await asyncio.to_thread(read)], time.monotonic()
            return self._answer[0]


class ArchivedJobs:
    """Deleted jobs and sweeps of an archive. All methods raise ArchiveError."""

    def __init__(self, reader: Reader, namespace: str | None = None, most: int | None = None) -> None:
        """`namespace`: only its jobs. `most`: limit of the list; None: MOST_JOBS."""
        self._reader, self._namespace, self._most = reader, namespace, most
        self._entries, self._sweeps = _Recent[list[Entry]](), _Recent[list[ObjectText]]()

    @property
    def url(self) -> str:
        return self._reader.url

    async def all(self) -> list[Entry]:
        """Return the jobs that were written last, whether or not they exist on the cluster."""
        most = MOST_JOBS if self._most is None else self._most
        return await self._entries.get(lambda: list(map(_entry, self._reader.job_list(self._namespace, most=most))))

    async def sweeps(self) -> list[ObjectText]:
        """Return the sweeps that were written last, whether or not they exist on the cluster."""
        return await self._sweeps.get(lambda: self._reader.sweep_list(self._namespace, most=MOST_SWEEPS))

    async def sweep(self, namespace: str, folder: str) -> Manifest:
        """Return the sweep in a folder NAME-UID. Raises Problem."""
        sweep = None
        if self._namespace in (None, namespace):
            sweep = await asyncio.to_thread(self._reader.get_sweep, namespace, folder)
        if sweep is None:
            raise Problem(404, f"the archive {self.url} has no sweep {folder} in namespace {namespace}")
        return sweep

    async def sweep_events(self, sweep: Manifest) -> list[Manifest]:
        return await asyncio.to_thread(self._reader.events, sweep)

    async def trial(self, sweep: Manifest, job: str) -> Entry:
        """Return the job with a name that the sweep owned. Raises Problem."""
        trial = await asyncio.to_thread(self._reader.find_trial, sweep, job)
        if trial is None:
            raise Problem(404, f"the archive {self.url} has no job {job} of the sweep {sweep['metadata']['name']}")
        return _entry(trial)

    async def trials(self, sweep: Manifest, names: Sequence[str]) -> list[Manifest]:
        """Return the jobs of these names that the sweep owned."""
        return await asyncio.to_thread(self._reader.trials, sweep, names)

    async def get(self, namespace: str, folder: str) -> Entry:
        """Return the job in a folder NAME-UID. Raises Problem."""
        job = None
        if self._namespace in (None, namespace):
            job = await asyncio.to_thread(self._reader.get, namespace, folder)
        if job is None:
            raise Problem(404, f"the archive {self.url} has no job {folder} in namespace {namespace}")
        return _entry(job)

    async def events(self, entry: Entry) -> list[Manifest]:
        return await asyncio.to_thread(self._reader.events, entry.manifest)

    async def last_lines(self, entry: Entry, query: LogQuery) -> LogTail:
        """Return the end of the logs of an attempt. Raises Problem."""
        return await asyncio.to_thread(self._last_lines, entry, query)

    def _last_lines(self, entry: Entry, query: LogQuery) -> LogTail:
        attempt = entry.status.attempt if query.attempt is None else query.attempt
        first = pods_of(entry.status, attempt)
        logs = [
            log
            for log in self._reader.logs(entry.manifest)
            if log.attempt == first and query.replica in (None, "", replica_key(log.role, log.index))
        ]
        if not logs or query.container != TRAINER:
            return LogTail([], [f"the archive has no such log of attempt {attempt}"])
        notes = [] if len(logs) <= MOST_PODS else [f"only {MOST_PODS} of {len(logs)} logs are shown: choose a rank"]
        logs, search = logs[:MOST_PODS], query.search.lower().encode()
        ends = []
        for log, lines in zip(logs, self._reader.lines(entry.manifest, logs), strict=True):
            kept = LastLines[Line](query.tail + 1, MOST_OF_ALL // len(logs))
            for line in lines:
                if matches(line.text, search):
                    kept.add(line, len(line.text) + LINE_BYTES)
            ends.append((log, list(kept)))
        last, more = _merged(ends, query.tail)
        if more:
            notes.append("the archive has more lines before these")
        return LogTail([log_line(entry, log, line.text, line.time) for log, line in last], notes)


def _merged(ends: list[tuple[LogName, list[Line]]], tail: int) -> tuple[list[tuple[LogName, Line]], bool]:
    """Return the last lines of all logs in the order of their times, and whether there are more before them."""
    sources = [[(line.time, place, line) for line in lines] for place, (_, lines) in enumerate(ends)]
    merged = LastLines[tuple[LogName, Line]](tail)
    for _, place, line in heapq.merge(*sources, key=lambda item: item[:2]):
        merged.add((ends[place][0], line), len(line.text))
    return list(merged), merged.cut


def _entry(job: Manifest | ObjectText) -> Entry:
    about = {"metadata": job.metadata} if isinstance(job, ObjectText) else job
    namespace, _, folder = folder_of(about).partition("/")
    return Entry("archive", namespace, folder, job, active=False)


# --- what a user may see ----------------------------------------------------------------------------------------------

MOST_NAMESPACES = 16
"""Lists of jobs of single namespaces that are kept in memory."""
MOST_JOBS_OF_NAMESPACE = 500
_AT_ONCE = 16
"""Requests about rights at the same time."""


class Right(NamedTuple):
    """A verb on a resource, as RBAC names them."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource}{f'.{self.group}' if self.group else ''}"


JOBS = Right("get", GROUP, PLURAL)
SWEEPS = Right("get", GROUP, SWEEPS_PLURAL)
EVENTS = Right("list", "", "events")
LOGS = Right("get", "", "pods", "log")
May = Callable[[Right, str | None], Awaitable[bool]]
"""(right, namespace or None for all of them) -> whether the user has it. Raises ClusterError."""


class SharedArchive:
    """The lists of archived jobs, which all users share."""

    def __init__(self, url: str) -> None:
        """Raises ArchiveError if this cannot be the address of an archive."""
        self._url = url
        self._all = ArchivedJobs(Reader.open(url))
        self._by_namespace: dict[str, ArchivedJobs] = {}

    def in_namespace(self, namespace: str | None) -> ArchivedJobs:
        """Return the jobs of a namespace, with a limit of its own; None: of all namespaces."""
        if namespace is None:
            return self._all
        jobs = self._by_namespace.pop(namespace, None)
        if jobs is None:
            jobs = ArchivedJobs(Reader.open(self._url), namespace, MOST_JOBS_OF_NAMESPACE)
        self._by_namespace[namespace] = jobs  # the most recently used is last
        while len(self._by_namespace) > MOST_NAMESPACES:
            del self._by_namespace[next(iter(self._by_namespace))]
        return jobs


class AllowedArchive:
    """The part of an archive that one user may see. All methods raise ArchiveError, ClusterError and Problem."""

    def __init__(self, shared: SharedArchive, namespace: str | None, may: May, user: str) -> None:
        """`namespace`: show only its jobs; None: the jobs of all namespaces that the user may read."""
        self._shared, self._namespace, self._may, self._user = shared, namespace, may, user

    @property
    def url(self) -> str:
        return self._shared.in_namespace(None).url

    async def all(self) -> list[Entry]:
        """Return the jobs of the namespaces in which the user may read jobs."""
        return await self._visible(JOBS, ArchivedJobs.all, lambda entry: entry.group)

    async def sweeps(self) -> list[ObjectText]:
        """Return the sweeps of the namespaces in which the user may read sweeps."""
        return await self._visible(SWEEPS, ArchivedJobs.sweeps, lambda sweep: str(sweep.metadata["namespace"]))

    async def _visible(
        self, right: Right, read: Callable[[ArchivedJobs], Awaitable[list[T]]], namespace_of: Callable[[T], str]
    ) -> list[T]:
        if self._namespace is not None:
            allowed = await self._may(right, self._namespace)
            return await read(self._shared.in_namespace(self._namespace)) if allowed else []
        items = await read(self._shared.in_namespace(None))
        if await self._may(right, None):
            return items
        namespaces = await self._allowed(right, set(map(namespace_of, items)))
        return [item for item in items if namespace_of(item) in namespaces]

    async def _allowed(self, right: Right, namespaces: Iterable[str]) -> set[str]:
        free = asyncio.Semaphore(_AT_ONCE)

        async def ask(namespace: str) -> tuple[str, bool]:
            async with free:
                return namespace, await self._may(right, namespace)

        return {namespace for namespace, allowed in await asyncio.gather(*map(ask, namespaces)) if allowed}

    async def get(self, namespace: str, folder: str) -> Entry:
        await self._check([JOBS], namespace)
        return await self._shared.in_namespace(namespace).get(namespace, folder)

    async def events(self, entry: Entry) -> list[Manifest]:
        await self._check([JOBS, EVENTS], entry.group)
        return await self._shared.in_namespace(entry.group).events(entry)

    async def last_lines(self, entry: Entry, query: LogQuery) -> LogTail:
        await self._check([JOBS, LOGS], entry.group)
        return await self._shared.in_namespace(entry.group).last_lines(entry, query)

    async def sweep(self, namespace: str, folder: str) -> Manifest:
        await self._check([SWEEPS], namespace)
        return await self._shared.in_namespace(namespace).sweep(namespace, folder)

    async def sweep_events(self, sweep: Manifest) -> list[Manifest]:
        namespace = sweep["metadata"]["namespace"]
        await self._check([SWEEPS, EVENTS], namespace)
        return await self._shared.in_namespace(namespace).sweep_events(sweep)

    async def trial(self, sweep: Manifest, job: str) -> Entry:
        namespace = sweep["metadata"]["namespace"]
        await self._check([SWEEPS, JOBS], namespace)
        return await self._shared.in_namespace(namespace).trial(sweep, job)

    async def trials(self, sweep: Manifest, names: Sequence[str]) -> list[Manifest]:
        namespace = sweep["metadata"]["namespace"]
        await self._check([SWEEPS, JOBS], namespace)
        return await self._shared.in_namespace(namespace).trials(sweep, names)

    async def _check(self, rights: Sequence[Right], namespace: str) -> None:
        """Check rights before anything is read, so that unauthorized users cannot probe for names."""
        if self._namespace not in (None, namespace):
            raise Problem(404, f"this page shows namespace {self._namespace}, not {namespace}")
        for right in rights:
            if not await self._may(right, namespace):
                raise Problem(
                    403,
                    f"{self._user} cannot {right} in namespace {namespace}. The archive requires this permission: ask "
                    "a namespace admin for the role view",
                )
