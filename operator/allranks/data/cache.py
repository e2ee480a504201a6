"""The cache of inputs: one directory for each address and revision, published as a whole.

    KEY/            files/ and entry.json; it appears by one rename
    KEY.partial/    what an unfinished fetch has, for the next one
    KEY.lock        held exclusively by a fetch and by an eviction, shared by runs that read the data

The kernel releases locks when a process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from allranks.cache_key import cache_key
from allranks.data.errors import DiskFullError
from allranks.text import size as text_size

DEFAULT_LIMIT = 100 << 30
"""Bytes that the cache holds before it evicts what was used longest ago."""
RESERVE = 64 << 20
"""Bytes of the disk that stay free."""
_ENTRY = "entry.json"
_FILES = "files"
_PARTIAL = ".partial"
_EVICTED = ".evicted"


@dataclass(frozen=True, slots=True)
class Entry:
    """Data in the cache."""

    uri: str
    pin: str
    """What determines the content, as part of the key (`pin_of`)."""
    revision: str
    sha256: str
    """Checksum of the file, or of the list of files (`tree_sum`), as they were fetched."""
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Keeps an entry in the cache until `close`."""

    entry: Entry
    directory: Path
    lock: IO[bytes]

    def close(self) -> None:
        self.lock.close()


class Cache:
    """One cache directory, which any number of processes use."""

    def __init__(
        self,
        root: Path,
        limit: int = DEFAULT_LIMIT,
        may_evict: Callable[[str, float], bool] = lambda key, used: True,
        cure: str = "make room, or choose another directory with ALLRANKS_CACHE",
    ) -> None:
        """Use the cache at `root`.

        `may_evict` is called with the key of an entry and the time of its last use. It protects data that programs
        without a lock read. `cure`: advice for the user if the disk is full."""
        self.root = root
        self.limit = limit
        self._may_evict = may_evict
        self._cure = cure

    def lease(self, uri: str, pin: str) -> Lease | None:
        """Return a lease of the entry, which nothing evicts until `close`; None if it is not in the cache.

        Wait while the entry is fetched or evicted."""
        key = cache_key(uri, pin)
        if not (self.root / key).is_dir():
            return None
        lock = self._lock(key, fcntl.LOCK_SH)
        entry = self.read(key)
        if entry is None or (entry.uri, entry.pin) != (uri, pin):
            lock.close()
            return None
        with contextlib.suppress(OSError):
            os.utime(self.root / key / _ENTRY)
        return Lease(entry, self.root / key / _FILES, lock)

    @contextlib.contextmanager
    def exclusive(self, uri: str, pin: str) -> Iterator[Staging]:
        """Lock the entry for one fetch, and yield its staging directory. Wait while another fetch holds the lock."""
        key = cache_key(uri, pin)
        lock = self._lock(key, fcntl.LOCK_EX)
        try:
            yield Staging(self.root / (key + _PARTIAL), self.root / key)
        finally:
            lock.close()

    def make_room(self, uri: str, needed: int, staged: int) -> None:
        """Evict entries that no run uses, the one used longest ago first, until `needed` bytes fit into the limit and
        on the disk; `staged` of them are there. Raise DataError if they do not fit on the disk."""
        entries = sorted(self._stored(), key=lambda stored: stored[1])
        total = sum(size for _, _, size in entries) - staged + needed
        for key, used, size in entries:
            free = shutil.disk_usage(self.root).free - RESERVE
            if total <= self.limit and needed - staged <= free:
                return
            if self._may_evict(key.removesuffix(_PARTIAL), used) and self._evict(key):
                total -= size
        free = shutil.disk_usage(self.root).free - RESERVE
        if needed - staged > free:
            missing, available = text_size(needed - staged), text_size(max(0, free))
            raise DiskFullError(
                f"{uri}: the disk is full: {missing} are needed, and {available} are free for {self.root}: {self._cure}"
            )

    def _stored(self) -> Iterator[tuple[str, float, int]]:
        """Yield (name, time of the last use, bytes) of all entries and unfinished fetches."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            with contextlib.suppress(OSError):
                if path.name.endswith(_EVICTED):
                    shutil.rmtree(path, ignore_errors=True)  # of an eviction that was interrupted
                elif path.name.endswith(_PARTIAL):
                    yield path.name, path.stat().st_mtime, _disk_usage(path)
                elif path.is_dir() and (entry := self.read(path.name)):
                    yield path.name, (path / _ENTRY).stat().st_mtime, entry.bytes

    def _evict(self, name: str) -> bool:
        """Evict an entry. Return False if a run or a fetch uses it."""
        key = name.removesuffix(_PARTIAL)
        try:
            lock = self._lock(key, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with lock:
            gone = self.root / (name + _EVICTED)
            try:
                (self.root / name).rename(gone)
            except OSError:
                return False
            shutil.rmtree(gone, ignore_errors=True)
            with contextlib.suppress(OSError):
                (self.root / f"{key}.lock").unlink()
        return True

    def _lock(self, key: str, how: int) -> IO[bytes]:
        """Lock an entry and return the open lock file. Raise BlockingIOError with LOCK_NB if another process holds
        it."""
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / f"{key}.lock"
        while True:
            file = open(path, "ab")  # noqa: SIM115
            try:
                fcntl.flock(file, how)
                # An eviction removes the file that others may have opened before.
                if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    return file
            except FileNotFoundError:
                pass
            except BaseException:
                file.close()
                raise
            file.close()

    def read(self, key: str) -> Entry | None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Entry(**json.loads((self.root / key / _ENTRY).read_text(encoding="utf-8")))
        return None


@dataclass(frozen=True, slots=True)
class Staging:
    """The directory of a fetch, which becomes the entry."""

    directory: Path
    target: Path

    @property
    def files(self) -> Path:
        return self.directory / _FILES

    @property
    def bytes(self) -> int:
        """Bytes that an earlier fetch left."""
        return _disk_usage(self.directory)

    @property
    def published(self) -> bool:
        return (self.target / _ENTRY).is_file()

    def make(self) -> None:
        self.files.mkdir(parents=True, exist_ok=True)

    def discard(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def publish(self, entry: Entry) -> None:
        """Make the entry appear. Files become read-only, because all runs share them."""
        for folder, _, names in os.walk(self.files):
            for name in names:
                (Path(folder) / name).chmod(0o444)
        for path in self.directory.iterdir():
            if path.name != _FILES:
                path.unlink()
        with open(self.directory / _ENTRY, "w", encoding="utf-8") as file:
            json.dump(asdict(entry), file)
            file.flush()
            os.fsync(file.fileno())
        if self.target.exists():  # without a readable entry.json
            shutil.rmtree(self.target)
        self.directory.rename(self.target)
        sync_directory(self.target.parent)


def tree_sum(files: dict[str, str]) -> str:
    """Return the SHA-256 of the data. `files`: name -> sum.

    It is the sum of a single file; of several files, the sum of the output of `sha256sum`, sorted by name."""
    if len(files) == 1:
        return next(iter(files.values()))
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_usage(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).stat().st_size
    return total
