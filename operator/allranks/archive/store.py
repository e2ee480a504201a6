"""The store of an archive: a directory, which may be a mounted volume, or an object store (`s3://BUCKET/PREFIX`).

A file appears as a whole: a directory gets it under a temporary name, which is then renamed, and an object store shows
an object when it is complete. All methods block, and raise ArchiveError.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from allranks.archive.layout import Entry
from allranks.data.errors import explain
from allranks.data.object_source import PACKAGES, filesystem
from allranks.errors import AllranksError, DataError

LEFTOVER_SECONDS = 3600.0
"""A temporary file of this age belongs to a process that was killed."""
_TEMPORARY = ".partial"


class ArchiveError(AllranksError):
    """The archive cannot be read or written. The message is a sentence with its address."""


class Store(Protocol):
    """Files with relative names, in folders."""

    url: str

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        ...

    def list(self, folder: str = "") -> list[Entry]:
        """Return all files below a folder; none if it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        ...


def open_store(url: str) -> Store:
    """Return the store at a directory, or at an address that fsspec supports. Send no request yet."""
    if url.partition("://")[0] in PACKAGES and "://" in url:
        return ObjectStore(url)
    if re.match(r"[A-Za-z][A-Za-z0-9+]*:/", url):
        schemes = ", ".join(f"{scheme}://" for scheme in PACKAGES)
        raise ArchiveError(f"{url}: an archive is a directory, or an address that begins with one of {schemes}")
    return DirectoryStore(Path(url))


class DirectoryStore:
    """Files below a directory. Links are not followed."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root

    def put(self, name: str, data: bytes) -> None:
        path = self._root / name
        temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
        with self._errors():
            # Created only inside the archive: a volume that is not mounted is an error, not a new directory.
            if not self._root.is_dir():
                raise ArchiveError(f"{self.url}: there is no such directory: is the volume mounted?")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(temporary, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def get(self, name: str) -> bytes | None:
        with self._errors():
            try:
                return (self._root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, folder: str = "") -> list[Entry]:
        with self._errors():
            if not self._root.is_dir():
                raise ArchiveError(f"{self.url}: there is no such directory")
            return sorted(self._walk(self._root / folder))

    def _walk(self, folder: Path) -> Iterator[Entry]:
        for place, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = Path(place, name)
                try:
                    stat = path.lstat()
                except FileNotFoundError:
                    continue  # deleted meanwhile
                if name.endswith(_TEMPORARY):
                    if time.time() - stat.st_mtime > LEFTOVER_SECONDS:
                        with contextlib.suppress(OSError):  # readers may have no right to delete
                            path.unlink(missing_ok=True)
                elif path.is_file() and not path.is_symlink():
                    yield Entry(path.relative_to(self._root).as_posix(), stat.st_size, stat.st_mtime)

    def remove(self, name: str) -> None:
        with self._errors():
            path = self._root / name
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # folders that are not empty stay
                for parent in path.parents:
                    if parent == self._root:
                        break
                    parent.rmdir()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ArchiveError(f"{error.filename or self.url}: {reason}") from error


class ObjectStore:
    """Objects below a prefix, by fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._root = self.url.partition("://")[2]
        self._opened: Any = None

    @property
    def _fs(self) -> Any:
        if self._opened is None:
            self._opened = filesystem(self.url)
        return self._opened

    def put(self, name: str, data: bytes) -> None:
        with self._errors():
            self._fs.pipe_file(f"{self._root}/{name}", data)

    def get(self, name: str) -> bytes | None:
        with self._errors():
            try:
                return bytes(self._fs.cat_file(f"{self._root}/{name}"))
            except FileNotFoundError:
                return None

    def list(self, folder: str = "") -> list[Entry]:
        with self._errors():
            place = f"{self._root}/{folder}".rstrip("/")
            files: dict[str, dict[str, Any]] = self._fs.find(place, detail=True)
            inside = f"{self._root}/"
            entries = []
            for path, info in sorted(files.items()):
                name = path.lstrip("/")
                if name.startswith(inside):
                    entries.append(Entry(name[len(inside) :], int(info["size"] or 0), _modified(info)))
            return entries

    def remove(self, name: str) -> None:
        with self._errors(), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            raise ArchiveError(str(error)) from error
        except Exception as error:  # the libraries of object stores have no common class of errors
            raise ArchiveError(str(explain(error, self.url))) from error


def _modified(info: dict[str, Any]) -> float:
    """Return the time of the last change, in seconds since the epoch; 0 if the object store does not report it."""
    for key in ("LastModified", "last_modified", "updated", "mtime"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return datetime.fromisoformat(value).timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0
