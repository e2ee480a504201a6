"""Read jobs, sweeps, Events and logs from an archive. All functions block. Damaged files are left out."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from allranks.archive.layout import EVENTS_FILE, JOB_FILE, SWEEP_FILE, Entry, LogName, log_name
from allranks.archive.store import Store, open_store
from allranks.archive.writer import file_of, folder_of
from allranks.kube.bounded_lines import joined
from allranks.kube.object_text import ObjectText, of_manifest, without_large_spec
from allranks.kube.pod_logs import Line, parse_line

Manifest = dict[str, Any]

MOST_LOG_BYTES = 256 << 20
"""Size of an unpacked log; longer logs are cut."""
_CHUNK = 1 << 16
_THREADS = 16
_BATCH = 4 * _THREADS
_CLOCKS = timedelta(hours=1)
"""Difference of the clocks of the store and of the cluster."""
_NAMES = ("name", "namespace", "uid")
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]|\.(?!\.))*")


class Reader:
    """The contents of an archive. All methods raise ArchiveError."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._store = store
        self._read: dict[str, dict[str, tuple[Entry, ObjectText | None]]] = {JOB_FILE: {}, SWEEP_FILE: {}}
        """Name of a file in its folder -> path -> entry and content: unchanged files are not read again."""

    @classmethod
    def open(cls, url: str) -> Reader:
        """Return a reader of a directory, or of an address such as s3://BUCKET/PREFIX. Send no request yet."""
        return cls(open_store(url))

    def jobs(self, namespace: str | None = None, names: Iterable[str] = (), most: int | None = None) -> list[Manifest]:
        """Return the jobs of a namespace, or of all namespaces, the oldest first. `names` empty: with any name.

        `most`: limit; the jobs that were written last are returned.
        """
        return self._manifests(JOB_FILE, namespace, names, most)

    def sweeps(
        self, namespace: str | None = None, names: Iterable[str] = (), most: int | None = None
    ) -> list[Manifest]:
        """Return the sweeps, with the parameters of `jobs`."""
        return self._manifests(SWEEP_FILE, namespace, names, most)

    def job_list(
        self, namespace: str | None = None, names: Iterable[str] = (), most: int | None = None
    ) -> list[ObjectText]:
        """Return the same as `jobs`, without large specs, which `get` reads.

        A file that has not changed since an earlier call is not read again.
        """
        return self._listed(JOB_FILE, namespace, names, most)

    def sweep_list(self, namespace: str | None = None, most: int | None = None) -> list[ObjectText]:
        """Return the sweeps, as `job_list` does."""
        return self._listed(SWEEP_FILE, namespace, (), most)

    def each_job(self, namespace: str | None = None, since: datetime | None = None) -> Iterator[Manifest]:
        """Yield the jobs that were written since then, and keep none in memory. A job is written when it ends."""
        first = (since - _CLOCKS).timestamp() if since else 0.0
        paths = [
            entry.name for entry in self._files(JOB_FILE, namespace, set(), None) if not 0 < entry.modified < first
        ]
        with ThreadPoolExecutor(_THREADS) as threads:
            for start in range(0, len(paths), _BATCH):
                objects = threads.map(self._job, paths[start : start + _BATCH])
                yield from (manifest for manifest in objects if manifest)

    def _job(self, path: str) -> Manifest | None:
        return _object(self._store.get(path), path, JOB_FILE)

    def _manifests(self, file: str, namespace: str | None, names: Iterable[str], most: int | None) -> list[Manifest]:
        selected = set(names)
        paths = [entry.name for entry in self._files(file, namespace, selected, most)]
        with ThreadPoolExecutor(_THREADS) as threads:
            objects = threads.map(lambda path: _object(self._store.get(path), path, file), paths)
            manifests = [manifest for manifest in objects if manifest and _is_selected(manifest, selected)]
        return sorted(manifests, key=_age)

    def _files(self, file: str, namespace: str | None, selected: Set[str], most: int | None) -> list[Entry]:
        beginnings = tuple(f"{name}-" for name in selected)
        files = [
            entry
            for entry in self._store.list(namespace or "")
            if _is_object(entry.name, file)
            if not selected or entry.name.split("/")[1].startswith(beginnings)
        ]
        return files if most is None else sorted(files, key=lambda entry: entry.modified)[-most:]

    def _listed(self, file: str, namespace: str | None, names: Iterable[str], most: int | None) -> list[ObjectText]:
        selected, cached = set(names), self._read[file]
        entries = {entry.name: entry for entry in self._files(file, namespace, selected, most)}
        if not selected:
            others = f"{namespace}/" if namespace else ""
            cached = {name: read for name, read in cached.items() if name in entries or not name.startswith(others)}
        changed = [entry for name, entry in entries.items() if cached.get(name, (None,))[0] != entry]
        if changed:
            with ThreadPoolExecutor(_THREADS) as threads:
                texts = threads.map(lambda entry: _text(self._store.get(entry.name), entry.name, file), changed)
                cached |= {entry.name: (entry, text) for entry, text in zip(changed, texts, strict=True)}
        self._read[file] = cached
        listed = [text for name in entries if (text := cached[name][1])]
        return sorted((text for text in listed if _is_selected({"metadata": text.metadata}, selected)), key=_age_of)

    def find(self, namespace: str, name: str, uid: str | None = None) -> Manifest | None:
        """Return the newest job of a name, or the job with a UID."""
        if uid is not None:
            return self.get(namespace, f"{name}-{uid}")
        return next(reversed(self.jobs(namespace, [name])), None)

    def find_sweep(self, namespace: str, name: str, uid: str | None = None) -> Manifest | None:
        """Return the newest sweep of a name, or the sweep with a UID."""
        if uid is not None:
            return self.get_sweep(namespace, f"{name}-{uid}")
        return next(reversed(self.sweeps(namespace, [name])), None)

    def find_any(self, namespace: str, name: str, uid: str | None = None) -> Manifest | None:
        """Return the newest job or sweep of a name, or the job or sweep with a UID."""
        if uid is not None:
            return self.get(namespace, f"{name}-{uid}") or self.get_sweep(namespace, f"{name}-{uid}")
        return max([*self.jobs(namespace, [name]), *self.sweeps(namespace, [name])], key=_age, default=None)

    def find_trial(self, sweep: Manifest, job: str) -> Manifest | None:
        """Return the newest job of a name that the sweep owned, without its spec."""
        return next(reversed(self.trials(sweep, [job])), None)

    def trials(self, sweep: Manifest, names: Iterable[str]) -> list[Manifest]:
        """Return the jobs of these names that the sweep owned, the oldest first, without their specs."""
        metadata = sweep["metadata"]
        jobs = self.job_list(metadata["namespace"], names)
        owned = (job for job in jobs if metadata["uid"] in _owners({"metadata": job.metadata}))
        return [{"kind": job.kind, "metadata": job.metadata, "status": job.status} for job in owned]

    def get(self, namespace: str, folder: str) -> Manifest | None:
        """Return the job in a folder `NAME-UID` of a namespace."""
        return self._object(namespace, folder, JOB_FILE)

    def get_sweep(self, namespace: str, folder: str) -> Manifest | None:
        """Return the sweep in a folder `NAME-UID` of a namespace."""
        return self._object(namespace, folder, SWEEP_FILE)

    def _object(self, namespace: str, folder: str, file: str) -> Manifest | None:
        if not (_PART.fullmatch(namespace) and _PART.fullmatch(folder)):
            return None  # the path would leave the folder
        path = f"{namespace}/{folder}/{file}"
        return _object(self._store.get(path), path, file)

    def events(self, job: Manifest) -> list[Manifest]:
        """Return the Events of a job and its pods, or of a sweep, the oldest first."""
        try:
            items = json.loads(self._store.get(f"{folder_of(job)}/{EVENTS_FILE}") or b"{}").get("items")
        except (ValueError, AttributeError):
            return []
        return [item for item in items or () if _is_event(item)]

    def logs(self, job: Manifest) -> list[LogName]:
        """Return the names of all logs, by attempt and replica."""
        folder = folder_of(job)
        paths = (log_name(entry.name[len(folder) + 1 :]) for entry in self._store.list(folder))
        return sorted(name for name in paths if name)

    def lines(self, job: Manifest, logs: Sequence[LogName]) -> list[Iterator[Line]]:
        """Return the lines of each log; none if its file is missing. Only the packed files are kept in memory."""
        folder = folder_of(job)
        with ThreadPoolExecutor(_THREADS) as threads:
            packed = list(threads.map(self._store.get, [f"{folder}/{log.path}" for log in logs]))
        return [map(parse_line, joined(_unpacked(data or b""))) for data in packed]


def _is_event(item: Any) -> bool:
    return isinstance(item, dict) and all(isinstance(item.get(part), dict) for part in ("metadata", "involvedObject"))


def _is_object(name: str, file: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[2] == file


def _age(manifest: Manifest) -> tuple[str, str]:
    return str(manifest["metadata"].get("creationTimestamp")), folder_of(manifest)


def _age_of(text: ObjectText) -> tuple[str, str]:
    return _age({"metadata": text.metadata})


def _is_selected(manifest: Manifest, names: Set[str]) -> bool:
    return not names or manifest["metadata"]["name"] in names


def _owners(job: Manifest) -> list[Any]:
    """Return the UIDs of the owners of a job."""
    owners = job["metadata"].get("ownerReferences")
    return [owner.get("uid") for owner in (owners if isinstance(owners, list) else ()) if isinstance(owner, dict)]


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Yield at most about MOST_LOG_BYTES; of a damaged file, the bytes before the damage."""
    unpack, size = zlib.decompressobj(wbits=31), 0
    try:
        while data and size < MOST_LOG_BYTES:
            chunk = unpack.decompress(data, _CHUNK)
            data = unpack.unconsumed_tail
            size += len(chunk)
            yield chunk
    except zlib.error:
        return


def _text(data: bytes | None, path: str, file: str) -> ObjectText | None:
    manifest = _object(data, path, file)
    return without_large_spec(of_manifest(manifest), "a list has no large ones") if manifest else None


def _object(data: bytes | None, path: str, file: str) -> Manifest | None:
    """Return the job or sweep in a file; None if it is none, or its names belong to another folder.

    The names are checked because they lead to the other files of the folder.
    """
    try:
        manifest = json.loads(data or b"null")
    except ValueError:
        return None
    if not isinstance(manifest, dict):
        return None
    if not all(isinstance(manifest.get(part) or {}, dict) for part in ("spec", "status")):
        return None
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in _NAMES):
        return None
    return manifest if f"{folder_of(manifest)}/{file}" == path and file_of(manifest) == file else None
