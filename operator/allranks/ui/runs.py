"""The runs of `allranks run` on this machine and the trials of its sweeps: their jobs, read again when the file has
changed, and logs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path

from allranks.api.sweep_status import ENDED
from allranks.core.facts.naming import replica_key
from allranks.local import stored_logs
from allranks.local.run_directories import RUN_FILE, StoredRun, stored_runs
from allranks.local.stored_logs import StoredLog, matches
from allranks.local.sweep_files import StoredSweep, StoredTrial, stored_sweeps
from allranks.ui.changes import Hub
from allranks.ui.entries import Entry
from allranks.ui.logs import POLL_SECONDS, LogLine, LogQuery, LogTail, log_line
from allranks.ui.problems import Problem

FRESH_SECONDS = 1.0
"""Maximum age of the answer for a page."""
_Mark = tuple[int, int, bool, str]


class Runs:
    """The runs below a directory."""

    def __init__(self, root: Path, hub: Hub) -> None:
        self.root = root
        self._hub = hub
        self._entries: dict[tuple[str, str], Entry] = {}
        self._marks: dict[tuple[str, str], _Mark] = {}
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def all(self) -> list[Entry]:
        """Return the runs without the trials of sweeps."""
        await self._refresh()
        return [entry for entry in self._entries.values() if not entry.sweep]

    async def trials(self, sweep: str = "") -> list[Entry]:
        """Return the trials of the sweep `SWEEP/TIME`, or of all."""
        await self._refresh()
        return [entry for entry in self._entries.values() if entry.sweep and sweep in ("", entry.sweep)]

    def sweeps(self) -> list[StoredSweep]:
        """Return the sweeps, by name. Blocks."""
        return stored_sweeps(self.root)

    async def get(self, job: str, time: str) -> Entry:
        """Return a run. Raises Problem if there is none."""
        await self._refresh()
        entry = self._entries.get((job, time))
        if entry is None:
            raise Problem(404, f"there is no run {job}/{time} in {self.root}: allranks runs lists them")
        return entry

    async def run(self) -> None:
        """Read the directories while there are viewers, until cancelled."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            if self._hub.viewers:
                await self._refresh()

    async def _refresh(self) -> None:
        async with self._lock:
            if time.monotonic() - self._read_at < FRESH_SECONDS:
                return
            before = self._entries
            marks, self._entries = await asyncio.to_thread(_read, self.root, self._marks, before)
            changed = {key for key in self._entries.keys() & before.keys() if marks[key] != self._marks.get(key)}
            self._marks, self._read_at = marks, time.monotonic()
        for key, entry in self._entries.items():
            if key not in before:
                self._hub.publish("added", entry)
            elif key in changed:
                self._hub.publish("changed", entry)
        for key in before.keys() - self._entries.keys():
            self._hub.publish("deleted", before[key])


def _read(
    root: Path, marks: dict[tuple[str, str], _Mark], before: dict[tuple[str, str], Entry]
) -> tuple[dict[tuple[str, str], _Mark], dict[tuple[str, str], Entry]]:
    """Return (mark, entry) of each run and trial. An entry with the same mark as before is not read again.

    A trial has the time of its sweep: `runs/TRIAL/TIME`. A directory ROOT/NAME is `runs/NAME/NAME`, its
    trials are `runs/TRIAL/NAME`.
    """
    new_marks: dict[tuple[str, str], _Mark] = {}
    entries: dict[tuple[str, str], Entry] = {}
    try:
        trials = [trial for sweep in stored_sweeps(root) for trial in sweep.trials]
        stored: list[StoredRun] = [*stored_runs(root), *trials]
    except OSError:
        return new_marks, entries
    for run in stored:
        sweep = run.sweep if isinstance(run, StoredTrial) else None
        decided = run.decided if isinstance(run, StoredTrial) and run.decided in ENDED else ""
        key = (run.job, (sweep or run).directory.name)
        if key in entries:
            continue  # a run with the name of a trial, of the same second
        try:
            info = (run.directory / RUN_FILE).stat()
        except OSError:
            continue
        old = before.get(key)
        same = marks.get(key, ())[:2] == (info.st_mtime_ns, info.st_size)
        # The lock of a run that has ended is not tried again, unless the directory is used once more.
        active = run.running if old is None or old.active or not same else False
        mark = (info.st_mtime_ns, info.st_size, active, decided)
        unchanged = old is not None and marks.get(key) == mark
        entry = (
            old
            if unchanged
            else _entry(run, key, active, f"{sweep.job}/{sweep.directory.name}" if sweep else "", decided)
        )
        if entry is not None:
            new_marks[key], entries[key] = mark, entry
    return new_marks, entries


def _entry(run: StoredRun, key: tuple[str, str], active: bool, sweep: str, decided: str) -> Entry | None:
    """Return None if the file cannot be read."""
    try:
        job = json.loads((run.directory / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(job, dict) or not all(isinstance(job.get(part) or {}, dict) for part in _PARTS):
        return None
    job["metadata"] = {"name": run.job_name, "uid": "", **(job.get("metadata") or {})}
    job["spec"] = job.get("spec") or {}
    return Entry("runs", *key, job, active, run.directory.resolve(), sweep, decided)


_PARTS = ("metadata", "spec", "status")


# --- logs ------------------------------------------------------------------------------------------------------------


def log_file(entry: Entry, query: LogQuery) -> StoredLog | None:
    """Return the log of the chosen replica and attempt.

    Without a choice it is the log of the first failure, or of rank 0, in the newest attempt.
    """
    files = stored_logs.stored_logs(entry.directory, entry.job) if entry.directory else []
    if query.replica:
        files = [log for log in files if log.replica == query.replica]
    else:
        first = next(iter(entry.ranks), "")
        failure = entry.status.last_failure
        if failure and failure.attempt == entry.status.attempt:
            first = replica_key(failure.role, failure.index)
        files = [log for log in files if log.replica == first] or files
    attempt = max((log.attempt for log in files), default=0) if query.attempt is None else query.attempt
    return next((log for log in reversed(files) if log.attempt == attempt), None)


async def last_lines(entry: Entry, query: LogQuery) -> LogTail:
    log = log_file(entry, query)
    if log is None:
        return LogTail([], [_no_file(entry, query)])
    try:
        lines, end, more = await asyncio.to_thread(stored_logs.last_lines, log.path, query.tail, query.search)
    except OSError as error:
        return LogTail([], [f"{log.path.name} cannot be read: {error.strerror}"])
    notes = [f"the log has more lines before these: {log.path}"] if more else []
    return LogTail([log_line(entry, log, line) for line in lines], notes, str(end))


async def follow(runs: Runs, entry: Entry, query: LogQuery) -> AsyncGenerator[list[LogLine]]:
    """Yield new lines, of one replica at a time, until the run has ended; an empty list after a while without lines."""
    place, search = int(query.after) if query.after.isdigit() else 0, query.search.lower().encode()
    last: StoredLog | None = None
    while True:
        current = await _current_entry(runs, entry)
        log = await asyncio.to_thread(log_file, current, query)
        if log is not None and log != last:
            last = log
            async for batch in stored_logs.appended(log.path, place, _EndOfLog(runs, entry, query, log)):
                yield [log_line(current, log, line) for line in batch if matches(line, search)]
            place = 0
        elif not current.active:
            return
        else:
            yield []
            await asyncio.sleep(POLL_SECONDS)


async def _current_entry(runs: Runs, entry: Entry) -> Entry:
    try:
        return await runs.get(entry.group, entry.name)
    except Problem:
        return replace(entry, active=False)  # the run was removed


@dataclass(frozen=True)
class _EndOfLog:
    """A call returns whether a log is complete: the run has ended, or a later attempt has a log."""

    runs: Runs
    entry: Entry
    query: LogQuery
    log: StoredLog

    async def __call__(self) -> bool:
        current = await _current_entry(self.runs, self.entry)
        return not current.active or await asyncio.to_thread(log_file, current, self.query) != self.log


def _no_file(entry: Entry, query: LogQuery) -> str:
    replica = f" of {query.replica}" if query.replica else ""
    attempt = "" if query.attempt is None else f" in attempt {query.attempt}"
    return f"the run {entry.job}/{entry.name} has no log{replica}{attempt}"
