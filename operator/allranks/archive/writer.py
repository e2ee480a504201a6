"""Writes jobs, sweeps, Events and logs to a store, masked and within bounds, and deletes what is too old. Blocks; no
network but that of the store."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable
from typing import Any

from allranks.api.sweep import KIND as SWEEP
from allranks.archive.layout import (
    EVENTS_FILE,
    JOB_FILE,
    SWEEP_FILE,
    LogName,
    deletion_order,
    expired,
    folders,
    job_folder,
    log_name,
    superseded,
)
from allranks.archive.store import Store
from allranks.masking import mask_all, mask_messages, masked, masked_as_before, secrets_in

Manifest = dict[str, Any]

MOST_EVENTS = 1000
"""Events of an object that are kept, the newest."""
_LOCKS = 64


class Writer:
    """All methods raise ArchiveError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # A call that hung may go on after its time limit: it must not replace what was written later.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def save(self, one: Manifest, events: Iterable[Manifest] | None, values: Collection[str] = ()) -> bool:
        """Writes the Events, then the job or sweep. Returns whether anything changed.

        `events` None: they cannot be read. Earlier ones stay: Kubernetes deletes them after an hour. `values`: of
        Secrets, which are masked in messages, because programs print them there. In names they may be by chance.
        """
        with self._locks[hash(folder_of(one)) % _LOCKS]:
            return self._save(one, events, values)

    def _save(self, one: Manifest, events: Iterable[Manifest] | None, values: Collection[str]) -> bool:
        folder, secrets = folder_of(one), secrets_in(one)
        changed = False
        if events is not None:
            name = f"{folder}/{EVENTS_FILE}"
            before = self._store.get(name)
            items = _items(before)
            news = [mask_messages(mask_all(masked(event), secrets), values) for event in events]
            merged = _merged(items, masked_as_before(news, items))
            changed = self._put(name, before, {"apiVersion": "v1", "kind": "EventList", "items": merged})
        name = f"{folder}/{file_of(one)}"
        before = self._store.get(name)
        made = masked_as_before(mask_messages(mask_all(masked(one), secrets), values), _parsed(before))
        # The names lead to the files: a secret variable may have the same text as its value.
        made["metadata"] |= {key: one["metadata"][key] for key in ("name", "namespace", "uid")}
        return self._put(name, before, made) or changed

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
        """Deletes folders of jobs and sweeps that are too old or too many. Returns their number, and the bytes of the
        rest."""
        found = folders(self._store.list())
        gone = expired(found, now, max_age=max_age, max_bytes=max_bytes, live=live)
        for folder in gone:
            for name in deletion_order(folder):
                self._store.remove(name)
        return len(gone), sum(folder.size for folder in found) - sum(folder.size for folder in gone)


def folder_of(one: Manifest) -> str:
    metadata = one["metadata"]
    return job_folder(metadata["namespace"], metadata["name"], metadata["uid"])


def file_of(one: Manifest) -> str:
    return SWEEP_FILE if one.get("kind") == SWEEP else JOB_FILE


def _parsed(data: bytes | None) -> Any:
    """None if the file is damaged."""
    try:
        return json.loads(data or b"null")
    except ValueError:
        return None


def _items(data: bytes | None) -> list[Manifest]:
    """Earlier Events; none if the file is damaged."""
    found = _parsed(data)
    items = found.get("items") if isinstance(found, dict) else None
    items = items if isinstance(items, list) else []
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("metadata"), dict)]


def _merged(before: Iterable[Manifest], now: Iterable[Manifest]) -> list[Manifest]:
    """The newer state of each Event, by time, at most MOST_EVENTS."""
    found = {str(event["metadata"].get("uid") or event["metadata"].get("name")): event for event in (*before, *now)}
    ordered = sorted(found.values(), key=lambda event: (_time(event), str(event["metadata"].get("name"))))
    return ordered[-MOST_EVENTS:]


def _time(event: Manifest) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")
