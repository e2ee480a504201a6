"""Reads jobs, Events and logs from an archive. Blocks. Files that are damaged are left out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from allranks.archive.layout import EVENTS_FILE, JOB_FILE, LogName, folders, log_name
from allranks.archive.store import Store, open_store
from allranks.archive.writer import folder_of
from allranks.kube.pod_logs import Line, parse_line

Manifest = dict[str, Any]

MOST_LOG_BYTES = 256 << 20
"""Of a log, when it is unpacked."""
_READERS = 16


class Reader:
    """All methods raise ArchiveError."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._store = store

    @classmethod
    def open(cls, url: str) -> Reader:
        return cls(open_store(url))

    def jobs(self, namespace: str | None = None, names: Iterable[str] = ()) -> list[Manifest]:
        """The jobs of a namespace, or of all of them, oldest first. `names` empty: with any name."""
        wanted = set(names)
        found = [
            f"{folder.name}/{JOB_FILE}"
            for folder in folders(self._store.list(namespace or ""))
            if not wanted or any(folder.name.partition("/")[2].startswith(f"{name}-") for name in wanted)
            if f"{folder.name}/{JOB_FILE}" in folder.files
        ]
        with ThreadPoolExecutor(_READERS) as threads:
            read = [_job(data) for data in threads.map(self._store.get, found)]
        jobs = [job for job in read if job and (not wanted or job["metadata"]["name"] in wanted)]
        return sorted(jobs, key=lambda job: (str(job["metadata"].get("creationTimestamp")), folder_of(job)))

    def find(self, namespace: str, name: str) -> Manifest | None:
        """The newest job of that name."""
        return next(reversed(self.jobs(namespace, [name])), None)

    def get(self, folder: str) -> Manifest | None:
        """The job in that folder, `NAMESPACE/NAME-UID`."""
        return _job(self._store.get(f"{folder}/{JOB_FILE}"))

    def events(self, job: Manifest) -> list[Manifest]:
        """Oldest first."""
        try:
            items = json.loads(self._store.get(f"{folder_of(job)}/{EVENTS_FILE}") or b"{}").get("items")
        except (ValueError, AttributeError):
            return []
        return [item for item in items or () if isinstance(item, dict) and isinstance(item.get("metadata"), dict)]

    def logs(self, job: Manifest) -> list[LogName]:
        """The names of all logs, by attempt and replica."""
        folder = folder_of(job)
        found = (log_name(entry.name[len(folder) + 1 :]) for entry in self._store.list(folder))
        return sorted(name for name in found if name)

    def lines(self, job: Manifest, log: LogName) -> list[Line]:
        """The lines of a log; none if it does not exist."""
        data = self._store.get(f"{folder_of(job)}/{log.path}")
        text = _unpacked(data) if data else b""
        return [parse_line(line) for line in text.removesuffix(b"\n").split(b"\n")] if text else []


def _unpacked(data: bytes) -> bytes:
    """At most MOST_LOG_BYTES; of a damaged file, what comes before the damage."""
    unpack, out = zlib.decompressobj(wbits=31), bytearray()
    try:
        while data and len(out) < MOST_LOG_BYTES:
            out += unpack.decompress(data, min(1 << 20, MOST_LOG_BYTES - len(out)))
            data = unpack.unconsumed_tail
    except zlib.error:
        pass
    return bytes(out)


def _job(data: bytes | None) -> Manifest | None:
    try:
        job = json.loads(data or b"null")
    except ValueError:
        return None
    if not isinstance(job, dict) or not all(isinstance(job.get(part) or {}, dict) for part in ("spec", "status")):
        return None
    metadata = job.get("metadata")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in _NAMES):
        return None
    return job


_NAMES = ("name", "namespace", "uid")
