"""Reads jobs, Events and logs from an archive. Blocks. Files that are damaged are left out."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from allranks.archive.layout import EVENTS_FILE, JOB_FILE, Entry, LogName, log_name
from allranks.archive.store import Store, open_store
from allranks.archive.writer import folder_of
from allranks.kube.bounded_logs import joined
from allranks.kube.pod_logs import Line, parse_line

Manifest = dict[str, Any]

MOST_LOG_BYTES = 256 << 20
"""Of a log, when it is unpacked."""
_CHUNK = 1 << 16
_THREADS = 16
_NAMES = ("name", "namespace", "uid")
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]|\.(?!\.))*")


class Reader:
    """All methods raise ArchiveError."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._store = store
        self._read: dict[str, tuple[Entry, Manifest | None]] = {}

    @classmethod
    def open(cls, url: str) -> Reader:
        """`url`: a directory, or an address such as s3://BUCKET/PREFIX. Sends nothing yet."""
        return cls(open_store(url))

    def jobs(self, namespace: str | None = None, names: Iterable[str] = (), most: int | None = None) -> list[Manifest]:
        """The jobs of a namespace, or of all of them, oldest first. `names` empty: with any name.

        `most`: only so many, those that were written last. A file that has not changed since an earlier call is not
        read again.
        """
        wanted = set(names)
        files = [
            entry
            for entry in self._store.list(namespace or "")
            if _is_job_file(entry.name)
            if not wanted or any(entry.name.split("/")[1].startswith(f"{name}-") for name in wanted)
        ]
        if most is not None:
            files = sorted(files, key=lambda entry: entry.modified)[-most:]
        found = {entry.name: entry for entry in files}
        if not wanted:
            others = f"{namespace}/" if namespace else ""
            self._read = {
                name: read for name, read in self._read.items() if name in found or not name.startswith(others)
            }
        news = [entry for name, entry in found.items() if self._read.get(name, (None,))[0] != entry]
        if news:
            with ThreadPoolExecutor(_THREADS) as threads:
                for entry, data in zip(news, threads.map(self._store.get, [entry.name for entry in news]), strict=True):
                    self._read[entry.name] = (entry, _job(data, entry.name))
        read = [self._read[name][1] for name in found]
        jobs = [job for job in read if job and (not wanted or job["metadata"]["name"] in wanted)]
        return sorted(jobs, key=lambda job: (str(job["metadata"].get("creationTimestamp")), folder_of(job)))

    def find(self, namespace: str, name: str, uid: str | None = None) -> Manifest | None:
        """The newest job of that name, or the one with that UID."""
        if uid is not None:
            return self.get(namespace, f"{name}-{uid}")
        return next(reversed(self.jobs(namespace, [name])), None)

    def get(self, namespace: str, folder: str) -> Manifest | None:
        """The job in a folder `NAME-UID` of a namespace."""
        if not (_PART.fullmatch(namespace) and _PART.fullmatch(folder)):
            return None  # it would lead elsewhere
        file = f"{namespace}/{folder}/{JOB_FILE}"
        return _job(self._store.get(file), file)

    def events(self, job: Manifest) -> list[Manifest]:
        """Those of the job and its pods, oldest first."""
        try:
            items = json.loads(self._store.get(f"{folder_of(job)}/{EVENTS_FILE}") or b"{}").get("items")
        except (ValueError, AttributeError):
            return []
        return [item for item in items or () if _is_event(item)]

    def logs(self, job: Manifest) -> list[LogName]:
        """The names of all logs, by attempt and replica."""
        folder = folder_of(job)
        found = (log_name(entry.name[len(folder) + 1 :]) for entry in self._store.list(folder))
        return sorted(name for name in found if name)

    def lines(self, job: Manifest, logs: Sequence[LogName]) -> list[Iterator[Line]]:
        """The lines of each log, of which only the packed files are in memory; none if there is no such file."""
        folder = folder_of(job)
        with ThreadPoolExecutor(_THREADS) as threads:
            packed = list(threads.map(self._store.get, [f"{folder}/{log.path}" for log in logs]))
        return [_lines(data or b"") for data in packed]


def _is_event(item: Any) -> bool:
    return isinstance(item, dict) and all(isinstance(item.get(part), dict) for part in ("metadata", "involvedObject"))


def _is_job_file(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[2] == JOB_FILE


def _lines(data: bytes) -> Iterator[Line]:
    return map(parse_line, joined(_unpacked(data)))


def _unpacked(data: bytes) -> Iterator[bytes]:
    """MOST_LOG_BYTES at most; of a damaged file, what comes before the damage."""
    unpack, size = zlib.decompressobj(wbits=31), 0
    try:
        while data and size < MOST_LOG_BYTES:
            chunk = unpack.decompress(data, _CHUNK)
            data = unpack.unconsumed_tail
            size += len(chunk)
            yield chunk
    except zlib.error:
        return


def _job(data: bytes | None, file: str) -> Manifest | None:
    """None for what is no job, or not that of this file: the names in it lead to its other files."""
    try:
        job = json.loads(data or b"null")
    except ValueError:
        return None
    if not isinstance(job, dict) or not all(isinstance(job.get(part) or {}, dict) for part in ("spec", "status")):
        return None
    metadata = job.get("metadata")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in _NAMES):
        return None
    return job if f"{folder_of(job)}/{JOB_FILE}" == file else None
