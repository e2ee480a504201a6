"""Write jobs, sweeps, Events and logs to a store, masked and within bounds, and delete old ones.

All functions block. The store is the only user of the network.
"""

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
        # A call that hung may continue after its time limit: it must not replace a later state.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def save(self, manifest: Manifest, events: Iterable[Manifest] | None, values: Collection[str] = ()) -> bool:
        """Write the Events, then the job or sweep. Return whether a file changed.

        `events`: the present Events; Events in the archive stay, because Kubernetes deletes them after an hour. None:
        they cannot be read. `values`: values of Secrets. They are masked only in messages, where programs print them:
        a name may contain one by chance.
        """
        with self._locks[hash(folder_of(manifest)) % _LOCKS]:
            return self._save(manifest, events, values)

    def _save(self, manifest: Manifest, events: Iterable[Manifest] | None, values: Collection[str]) -> bool:
        folder, secrets = folder_of(manifest), secrets_in(manifest)
        changed = False
        if events is not None:
            name = f"{folder}/{EVENTS_FILE}"
            before = self._store.get(name)
            items = _items(before)
            news = [mask_messages(mask_all(masked(event), secrets), values) for event in events]
            merged = _merged(items, masked_as_before(news, items))
            changed = self._put(name, before, {"apiVersion": "v1", "kind": "EventList", "items": merged})
        name = f"{folder}/{file_of(manifest)}"
        before = self._store.get(name)
        masked_manifest = masked_as_before(mask_messages(mask_all(masked(manifest), secrets), values), _parsed(before))
        # The names lead to the files: a secret variable may have the same text as its value.
        masked_manifest["metadata"] |= {key: manifest["metadata"][key] for key in ("name", "namespace", "uid")}
        return self._put(name, before, masked_manifest) or changed

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
        """Write a log, unless there is one of this name, and delete the logs of attempts beyond KEPT_ATTEMPTS.

        A log is written when it has ended. So another one of its name is of a pod that took the name later.
        """
        with self._locks[hash(folder) % _LOCKS]:
            if self.has_log(folder, log):
                return
            self._store.put(f"{folder}/{log.path}", packed)
        if log.attempt:
            names = (log_name(entry.name[len(folder) + 1 :]) for entry in self._store.list(folder))
            for old in superseded(name for name in names if name):
                self._store.remove(f"{folder}/{old.path}")

    def clean_up(
        self, now: float, *, max_age: float | None, max_bytes: int | None, live: Collection[str]
    ) -> tuple[int, int]:
        """Delete the folders that `expired` selects. Return their number, and the bytes of all other folders."""
        stored = folders(self._store.list())
        deleted = expired(stored, now, max_age=max_age, max_bytes=max_bytes, live=live)
        for folder in deleted:
            for name in deletion_order(folder):
                self._store.remove(name)
        return len(deleted), sum(folder.size for folder in stored) - sum(folder.size for folder in deleted)


def folder_of(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return job_folder(metadata["namespace"], metadata["name"], metadata["uid"])


def file_of(manifest: Manifest) -> str:
    return SWEEP_FILE if manifest.get("kind") == SWEEP else JOB_FILE


def _parsed(data: bytes | None) -> Any:
    """Return the JSON of a file; None if it is damaged."""
    try:
        return json.loads(data or b"null")
    except ValueError:
        return None


def _items(data: bytes | None) -> list[Manifest]:
    """Return the Events of a file; none if it is damaged."""
    parsed = _parsed(data)
    items = parsed.get("items") if isinstance(parsed, dict) else None
    items = items if isinstance(items, list) else []
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("metadata"), dict)]


def _merged(before: Iterable[Manifest], now: Iterable[Manifest]) -> list[Manifest]:
    """Return the newer state of each Event by time, the newest MOST_EVENTS."""
    newest = {str(event["metadata"].get("uid") or event["metadata"].get("name")): event for event in (*before, *now)}
    ordered = sorted(newest.values(), key=lambda event: (_time(event), str(event["metadata"].get("name"))))
    return ordered[-MOST_EVENTS:]


def _time(event: Manifest) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")
