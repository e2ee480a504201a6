"""Writes jobs, Events and logs to a store, masked and within bounds, and deletes what is too old. Blocks; no network
but that of the store."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable
from typing import Any

from allranks.archive.layout import (
    EVENTS_FILE,
    JOB_FILE,
    LogName,
    deletion_order,
    expired,
    folders,
    job_folder,
    log_name,
    superseded,
)
from allranks.archive.store import Store
from allranks.masking import mask_all, masked, secrets_in

Manifest = dict[str, Any]

MOST_EVENTS = 1000
"""Events of a job that are kept, the newest."""
_LOCKS = 64


class Writer:
    """All methods raise ArchiveError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # A call that hung may go on after its time limit: it must not replace what was written later.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def save_job(self, job: Manifest, events: Iterable[Manifest] | None) -> bool:
        """Writes the Events, then the job. Returns whether anything changed. `events` None: they cannot be read.

        Earlier Events stay: Kubernetes deletes them after an hour.
        """
        with self._locks[hash(folder_of(job)) % _LOCKS]:
            return self._save_job(job, events)

    def _save_job(self, job: Manifest, events: Iterable[Manifest] | None) -> bool:
        folder, secrets = folder_of(job), secrets_in(job)
        changed = False
        if events is not None:
            name = f"{folder}/{EVENTS_FILE}"
            before = self._store.get(name)
            merged = _merged(_items(before), [mask_all(masked(event), secrets) for event in events])
            changed = self._put(name, before, {"apiVersion": "v1", "kind": "EventList", "items": merged})
        name = f"{folder}/{JOB_FILE}"
        return self._put(name, self._store.get(name), mask_all(masked(job), secrets)) or changed

    def _put(self, name: str, before: bytes | None, value: Manifest) -> bool:
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if data == before:
            return False
        self._store.put(name, data)
        return True

    def has_log(self, folder: str, log: LogName) -> bool:
        return any(
            entry.name == f"{folder}/{log.path}" for entry in self._store.list(f"{folder}/attempts/{log.attempt}")
        )

    def save_log(self, folder: str, log: LogName, packed: bytes) -> None:
        """Writes a log, and deletes those of attempts that are too many."""
        self._store.put(f"{folder}/{log.path}", packed)
        if log.attempt:
            names = (log_name(entry.name[len(folder) + 1 :]) for entry in self._store.list(folder))
            for old in superseded(name for name in names if name):
                self._store.remove(f"{folder}/{old.path}")

    def clean_up(
        self, now: float, *, max_age: float | None, max_bytes: int | None, live: Collection[str]
    ) -> tuple[int, int]:
        """Deletes folders of jobs that are too old or too many. Returns their number, and the bytes of the rest."""
        found = folders(self._store.list())
        gone = expired(found, now, max_age=max_age, max_bytes=max_bytes, live=live)
        for folder in gone:
            for name in deletion_order(folder):
                self._store.remove(name)
        return len(gone), sum(folder.size for folder in found) - sum(folder.size for folder in gone)


def folder_of(job: Manifest) -> str:
    metadata = job["metadata"]
    return job_folder(metadata["namespace"], metadata["name"], metadata["uid"])


def _items(data: bytes | None) -> list[Manifest]:
    """Earlier Events; none if the file is damaged."""
    try:
        found = json.loads(data or b"{}").get("items", [])
    except (ValueError, AttributeError):
        return []
    return [item for item in found if isinstance(item, dict) and isinstance(item.get("metadata"), dict)]


def _merged(before: Iterable[Manifest], now: Iterable[Manifest]) -> list[Manifest]:
    """The newer state of each Event, by time, at most MOST_EVENTS."""
    found = {str(event["metadata"].get("uid") or event["metadata"].get("name")): event for event in (*before, *now)}
    ordered = sorted(found.values(), key=lambda event: (_time(event), str(event["metadata"].get("name"))))
    return ordered[-MOST_EVENTS:]


def _time(event: Manifest) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")
