"""The runs of `allranks run` on this machine. Their directories are read again when their job file has changed."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from allranks.local.run_directories import RUN_FILE, StoredRun, stored_runs
from allranks.ui.changes import Hub
from allranks.ui.entries import Entry
from allranks.ui.problems import Problem

FRESH_SECONDS = 1.0
"""How old the answer for a page may be."""
_Mark = tuple[int, int, bool]


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
        await self._refresh()
        return list(self._entries.values())

    async def get(self, job: str, time: str) -> Entry:
        """Raises Problem."""
        await self._refresh()
        found = self._entries.get((job, time))
        if found is None:
            raise Problem(404, f"there is no run {job}/{time} in {self.root}: allranks runs lists them")
        return found

    async def run(self) -> None:
        """Reads the directories while somebody looks, until it is cancelled."""
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
    """(mark, entry) of each run. An entry whose mark is that of before is not read again."""
    made: dict[tuple[str, str], _Mark] = {}
    entries: dict[tuple[str, str], Entry] = {}
    try:
        stored = stored_runs(root)
    except OSError:
        return made, entries
    for run in stored:
        key = (run.job, run.directory.name)
        try:
            info = (run.directory / RUN_FILE).stat()
        except OSError:
            continue
        old = before.get(key)
        same = marks.get(key, ())[:2] == (info.st_mtime_ns, info.st_size)
        # The lock of a run that has ended is not tried again, unless the directory is used once more.
        active = run.running if old is None or old.active or not same else False
        mark = (info.st_mtime_ns, info.st_size, active)
        entry = old if old is not None and marks.get(key) == mark else _entry(run, active)
        if entry is not None:
            made[key], entries[key] = mark, entry
    return made, entries


def _entry(run: StoredRun, active: bool) -> Entry | None:
    """None if the file cannot be read."""
    try:
        job = json.loads((run.directory / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(job, dict) or not all(isinstance(job.get(part) or {}, dict) for part in _PARTS):
        return None
    job["metadata"] = {"name": run.job, "uid": "", **(job.get("metadata") or {})}
    job["spec"] = job.get("spec") or {}
    return Entry("runs", run.job, run.directory.name, job, run.directory.resolve(), active)


_PARTS = ("metadata", "spec", "status")
