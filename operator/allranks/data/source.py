"""The interface of a source of data: a list of files at a revision, and their bytes from any position."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from allranks.errors import DataError

UNKNOWN = "fetched:"
"""Begins the revision of data whose server sends none."""
CHUNK = 1 << 20
"""Bytes that are read at once."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a source."""

    name: str
    """Relative path with `/`."""
    size: int | None
    """Bytes; None if the server does not say."""
    tag: str = ""
    """Changes with the content: an ETag or a generation."""
    sha256: str | None = None
    """SHA-256 of the content, if the source knows it."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source at one revision."""

    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files whose size the server says."""
        return sum(file.size or 0 for file in self.files)


class Source(Protocol):
    """A place from which data is fetched."""

    uri: str
    branches: bool
    """True if revisions have names, such as branches, that `resolve` turns into commits."""

    def resolve(self, revision: str | None) -> Listing:
        """Return the files at `revision`, or the current ones. Raise DataError, or errors that `explain`
        understands."""
        ...

    def read(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Return the bytes of a file from position `start`."""
        ...


class TreeSource(Protocol):
    """A source whose files come all at once."""

    uri: str
    branches: bool

    def resolve(self, revision: str | None) -> Listing: ...

    def fetch_all(self, listing: Listing, directory: Path) -> None:
        """Write all files into an empty directory."""
        ...


def listing_revision(files: Iterable[RemoteFile]) -> str:
    """Return the revision of a store without revisions: a hash of the names, sizes and tags."""
    lines = sorted(f"{file.name}\0{file.size}\0{file.tag}" for file in files)
    return "list:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def checked(uri: str, files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """Return the files, sorted by name. Raise DataError for names that a directory cannot have."""
    out = sorted(files, key=lambda file: file.name)
    names = {file.name for file in out}
    for file in out:
        parts = file.name.split("/")
        if file.name.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in file.name:
            raise DataError(f"{uri}: the name {file.name!r} cannot be a file: rename the object")
        for parent in PurePosixPath(file.name).parents:
            if str(parent) in names:
                raise DataError(f"{uri}: {parent} is an object, and also the directory of {file.name}: rename one")
    if len(names) != len(out):
        raise DataError(f"{uri}: two objects have the same name")
    return tuple(out)
