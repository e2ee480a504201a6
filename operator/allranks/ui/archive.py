"""The deleted jobs and sweeps of an archive, as the server shows them: read in threads, and again after a while."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from allranks.archive.layout import LogName
from allranks.archive.reader import Reader
from allranks.archive.writer import folder_of
from allranks.cli.live.recent_lines import MOST_PODS
from allranks.core.naming import TRAINER, replica_key
from allranks.kube.bounded_logs import LastLines
from allranks.kube.pod_logs import Line
from allranks.local.stored_logs import matches
from allranks.ui.entries import Entry, Manifest
from allranks.ui.log_lines import LogLine, shown
from allranks.ui.logs import Found, Wanted, chosen
from allranks.ui.pod_logs import MOST_OF_ALL
from allranks.ui.problems import Problem

FRESH_SECONDS = 30.0
"""How old the list may be. An object store is asked for all its files."""
MOST_JOBS = 2000
"""Jobs of the archive that are listed, those that were written last. Each is found by its address."""


MOST_SWEEPS = 200
T = TypeVar("T")


class _Recent(Generic[T]):
    """An answer that is read again after FRESH_SECONDS."""

    def __init__(self) -> None:
        self._answer: list[T] = []
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def get(self, read: Callable[[], T]) -> T:
        """Calls `read` in a thread, and raises what it raises."""
        async with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                self._answer, self._read_at = [await asyncio.to_thread(read)], time.monotonic()
            return self._answer[0]


class ArchivedJobs:
    """All methods raise ArchiveError."""

    def __init__(self, reader: Reader, namespace: str | None = None, most: int | None = None) -> None:
        """`namespace`: only its jobs. `most`: so many are listed; None: MOST_JOBS."""
        self._reader, self._namespace, self._most = reader, namespace, most
        self._entries, self._sweeps = _Recent[list[Entry]](), _Recent[list[Manifest]]()

    @property
    def url(self) -> str:
        return self._reader.url

    async def all(self) -> list[Entry]:
        """Those that were written last, whether or not they exist on the cluster."""
        most = MOST_JOBS if self._most is None else self._most
        return await self._entries.get(lambda: list(map(_entry, self._reader.jobs(self._namespace, most=most))))

    async def sweeps(self) -> list[Manifest]:
        """Those that were written last, whether or not they exist on the cluster."""
        return await self._sweeps.get(lambda: self._reader.sweeps(self._namespace, most=MOST_SWEEPS))

    async def sweep(self, namespace: str, folder: str) -> Manifest:
        """`folder`: NAME-UID. Raises Problem."""
        found = None
        if self._namespace in (None, namespace):
            found = await asyncio.to_thread(self._reader.get_sweep, namespace, folder)
        if found is None:
            raise Problem(404, f"the archive {self.url} has no sweep {folder} in namespace {namespace}")
        return found

    async def sweep_events(self, sweep: Manifest) -> list[Manifest]:
        return await asyncio.to_thread(self._reader.events, sweep)

    async def trial(self, sweep: Manifest, job: str) -> Entry:
        """The job of that name that the sweep owned. Raises Problem."""
        found = await asyncio.to_thread(self._reader.find_trial, sweep, job)
        if found is None:
            raise Problem(404, f"the archive {self.url} has no job {job} of the sweep {sweep['metadata']['name']}")
        return _entry(found)

    async def trials(self, sweep: Manifest, names: Sequence[str]) -> list[Manifest]:
        """The jobs of these names that the sweep owned."""
        return await asyncio.to_thread(self._reader.trials, sweep, names)

    async def get(self, namespace: str, folder: str) -> Entry:
        """`folder`: NAME-UID. Raises Problem."""
        job = None
        if self._namespace in (None, namespace):
            job = await asyncio.to_thread(self._reader.get, namespace, folder)
        if job is None:
            raise Problem(404, f"the archive {self.url} has no job {folder} in namespace {namespace}")
        return _entry(job)

    async def events(self, entry: Entry) -> list[Manifest]:
        return await asyncio.to_thread(self._reader.events, entry.manifest)

    async def last_lines(self, entry: Entry, wanted: Wanted) -> Found:
        """The end of the logs of an attempt. Raises Problem."""
        return await asyncio.to_thread(self._last_lines, entry, chosen(entry, wanted))

    def _last_lines(self, entry: Entry, wanted: Wanted) -> Found:
        attempt = entry.status.attempt if wanted.attempt is None else wanted.attempt
        logs = [
            log
            for log in self._reader.logs(entry.manifest)
            if log.attempt == attempt and wanted.replica in (None, "", replica_key(log.role, log.index))
        ]
        if not logs or wanted.container != TRAINER:
            return Found([], [f"the archive has no such log of attempt {attempt}"])
        notes = [] if len(logs) <= MOST_PODS else [f"only {MOST_PODS} of {len(logs)} logs are shown: choose a rank"]
        logs, search = logs[:MOST_PODS], wanted.search.lower().encode()
        ends = []
        for log, lines in zip(logs, self._reader.lines(entry.manifest, logs), strict=True):
            kept = LastLines[Line](wanted.tail + 1, MOST_OF_ALL // len(logs))
            for line in lines:
                if matches(line.text, search):
                    kept.add(line, len(line.text))
            ends.append((log, list(kept)))
        found, more = _merged(ends, wanted.tail)
        if more:
            notes.append("the archive has more lines before these")
        return Found([_log_line(entry, log, line) for log, line in found], notes)


def _merged(ends: list[tuple[LogName, list[Line]]], tail: int) -> tuple[list[tuple[LogName, Line]], bool]:
    """The last lines of all logs in the order of their times, and whether there are more before them."""
    sources = [[(line.time, place, line) for line in lines] for place, (_, lines) in enumerate(ends)]
    merged = LastLines[tuple[LogName, Line]](tail)
    for _, place, line in heapq.merge(*sources, key=lambda item: item[:2]):
        merged.add((ends[place][0], line), len(line.text))
    return list(merged), merged.cut


def _entry(job: Manifest) -> Entry:
    namespace, _, folder = folder_of(job).partition("/")
    return Entry("archive", namespace, folder, job, active=False)


def _log_line(entry: Entry, log: LogName, line: Line) -> LogLine:
    return LogLine(
        time=line.time.decode() or None,
        role=log.role,
        index=log.index,
        rank=entry.ranks.get(replica_key(log.role, log.index)) if log.attempt == entry.status.attempt else None,
        attempt=log.attempt,
        line=shown(line.text),
    )
