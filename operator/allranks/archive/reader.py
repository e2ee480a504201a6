"""Reads jobs, sweeps, Events and logs from an archive. Blocks. Files that are damaged are left out."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from allranks.archive.layout import EVENTS_FILE, JOB_FILE, SWEEP_FILE, Entry, LogName, log_name
from allranks.archive.store import Store, open_store
from allranks.archive.writer import file_of, folder_of
from allranks.kube.bounded_lines import joined
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
        self._read: dict[str, dict[str, tuple[Entry, Manifest | None]]] = {JOB_FILE: {}, SWEEP_FILE: {}}
        """What was read, by the name of the file in its folder, then by path."""

    @classmethod
    def open(cls, url: str) -> Reader:
        """`url`: a directory, or an address such as s3://BUCKET/PREFIX. Sends nothing yet."""
        return cls(open_store(url))

    def jobs(self, namespace: str | None = None, names: Iterable[str] = (), most: int | None = None) -> list[Manifest]:
        """The jobs of a namespace, or of all of them, oldest first. `names` empty: with any name.

        `most`: only so many, those that were written last. A file that has not changed since an earlier call is not
        read again.
        """
        return self._objects(JOB_FILE, namespace, names, most)

    def sweeps(
        self, namespace: str | None = None, names: Iterable[str] = (), most: int | None = None
    ) -> list[Manifest]:
        """The sweeps, in the same way."""
        return self._objects(SWEEP_FILE, namespace, names, most)

    def _objects(self, file: str, namespace: str | None, names: Iterable[str], most: int | None) -> list[Manifest]:
        wanted, cached = set(names), self._read[file]
        beginnings = tuple(f"{name}-" for name in wanted)
        files = [
            entry
            for entry in self._store.list(namespace or "")
            if _is_object(entry.name, file)
            if not wanted or entry.name.split("/")[1].startswith(beginnings)
        ]
        if most is not None:
            files = sorted(files, key=lambda entry: entry.modified)[-most:]
        found = {entry.name: entry for entry in files}
        if not wanted:
            others = f"{namespace}/" if namespace else ""
            cached = {name: read for name, read in cached.items() if name in found or not name.startswith(others)}
        news = [entry for name, entry in found.items() if cached.get(name, (None,))[0] != entry]
        if news:
            with ThreadPoolExecutor(_THREADS) as threads:
                for entry, data in zip(news, threads.map(self._store.get, [entry.name for entry in news]), strict=True):
                    cached[entry.name] = (entry, _object(data, entry.name, file))
        self._read[file] = cached
        read = [cached[name][1] for name in found]
        objects = [one for one in read if one and (not wanted or one["metadata"]["name"] in wanted)]
        return sorted(objects, key=_age)

    def find(self, namespace: str, name: str, uid: str | None = None) -> Manifest | None:
        """The newest job of that name, or the one with that UID."""
        if uid is not None:
            return self.get(namespace, f"{name}-{uid}")
        return next(reversed(self.jobs(namespace, [name])), None)

    def find_sweep(self, namespace: str, name: str, uid: str | None = None) -> Manifest | None:
        """The newest sweep of that name, or the one with that UID."""
        if uid is not None:
            return self.get_sweep(namespace, f"{name}-{uid}")
        return next(reversed(self.sweeps(namespace, [name])), None)

    def find_any(self, namespace: str, name: str, uid: str | None = None) -> Manifest | None:
        """The newest job or sweep of that name, or the one with that UID."""
        if uid is not None:
            return self.get(namespace, f"{name}-{uid}") or self.get_sweep(namespace, f"{name}-{uid}")
        return max([*self.jobs(namespace, [name]), *self.sweeps(namespace, [name])], key=_age, default=None)

    def find_trial(self, sweep: Manifest, job: str) -> Manifest | None:
        """The newest job of that name that the sweep owned."""
        return next(reversed(self.trials(sweep, [job])), None)

    def trials(self, sweep: Manifest, names: Iterable[str]) -> list[Manifest]:
        """The jobs of these names that the sweep owned, oldest first."""
        metadata = sweep["metadata"]
        return [one for one in self.jobs(metadata["namespace"], names) if metadata["uid"] in _owners(one)]

    def get(self, namespace: str, folder: str) -> Manifest | None:
        """The job in a folder `NAME-UID` of a namespace."""
        return self._object(namespace, folder, JOB_FILE)

    def get_sweep(self, namespace: str, folder: str) -> Manifest | None:
        """The sweep in a folder `NAME-UID` of a namespace."""
        return self._object(namespace, folder, SWEEP_FILE)

    def _object(self, namespace: str, folder: str, file: str) -> Manifest | None:
        if not (_PART.fullmatch(namespace) and _PART.fullmatch(folder)):
            return None  # it would lead elsewhere
        path = f"{namespace}/{folder}/{file}"
        return _object(self._store.get(path), path, file)

    def events(self, job: Manifest) -> list[Manifest]:
        """Those of the job and its pods, or of the sweep, oldest first."""
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


def _is_object(name: str, file: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[2] == file


def _age(one: Manifest) -> tuple[str, str]:
    return str(one["metadata"].get("creationTimestamp")), folder_of(one)


def _owners(job: Manifest) -> list[Any]:
    """The UIDs of its owners."""
    found = job["metadata"].get("ownerReferences")
    return [owner.get("uid") for owner in (found if isinstance(found, list) else ()) if isinstance(owner, dict)]


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


def _object(data: bytes | None, path: str, file: str) -> Manifest | None:
    """None for what is no job or sweep, or not that of this file: the names in it lead to its other files."""
    try:
        one = json.loads(data or b"null")
    except ValueError:
        return None
    if not isinstance(one, dict) or not all(isinstance(one.get(part) or {}, dict) for part in ("spec", "status")):
        return None
    metadata = one.get("metadata")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in _NAMES):
        return None
    return one if f"{folder_of(one)}/{file}" == path and file_of(one) == file else None
