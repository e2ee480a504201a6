"""Unpacks archives, of the code of a job and of inputs: files with relative names, and of bounded size."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

MAX_BYTES = 256 * 2**20
"""Largest sum of all files of the code. This limit and the next one are the limits of the client, in allranks/code."""
MAX_FILES = 20_000
_MAX_TAR_BYTES = MAX_BYTES + MAX_FILES * 3 * tarfile.BLOCKSIZE
"""With three blocks for the header, the long name and the padding of each file."""
_CHUNK = 1 << 20
_ZIP = (b"PK\3\4", b"PK\5\6")
"""Beginnings of archives of zip; the second is empty."""
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


class Unusable(Exception):
    """The archive cannot be unpacked. The message is a sentence for the user."""


class Limits(NamedTuple):
    """Bounds of the contents of an archive."""

    bytes: int = MAX_BYTES
    files: int = MAX_FILES


class _Entry(NamedTuple):
    """A file, or a directory, which has no content."""

    name: str
    content: IO[bytes] | None
    executable: bool = False


def unpack(archive: Path, sha256: str, directory: Path) -> None:
    """Unpack a file that was compressed with gzip, for all users of the pod. Raise Unusable."""
    try:
        with gzip.open(archive) as file:
            data = file.read(_MAX_TAR_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Unusable(f"the code in {archive} cannot be read: {error}") from error
    if len(data) > _MAX_TAR_BYTES:
        raise Unusable(f"the code in {archive} has more than {MAX_BYTES} bytes")
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise Unusable(
            f"the code in the ConfigMap is not that of the job: its SHA-256 is {digest}, and spec.code.sha256 is "
            f"{sha256}. Delete the ConfigMap, and submit the job again"
        )
    try:
        extract(io.BytesIO(data), directory, "the code", for_all=True)
    except OSError as error:
        raise Unusable(f"the code cannot be written to {directory}: {error.strerror or error}") from error


def extract(
    archive: IO[bytes], directory: Path, subject: str, limits: Limits | None = None, *, for_all: bool = False
) -> None:
    """Write the files of an archive of tar, also compressed, or of zip. Default limits: those of code.

    `subject` names it in messages. `for_all`: users with any UID may change the files, because the helper's image and
    the program's run as different ones. Raise Unusable, and OSError if a file cannot be written."""
    limits = limits or Limits()
    files = left = 0
    try:
        for entry in _entries(archive, subject):
            path = PurePosixPath(entry.name)
            if path.is_absolute() or ".." in path.parts or "\0" in entry.name:
                raise Unusable(f"{subject} contains {entry.name}, which leads outside its directory")
            files += 1
            if files > limits.files:
                raise Unusable(f"{subject} has more than {limits.files} files")
            folder = _make(directory, path if entry.content is None else path.parent, for_all)
            if entry.content is None:
                continue
            if not path.name:
                raise Unusable(f"{subject} contains a file without a name")
            left += _write(folder / path.name, entry, limits.bytes - left, subject, for_all)
    except _DAMAGED as error:
        raise Unusable(f"{subject} is damaged, or no archive of tar or zip: {error}") from error


def _entries(archive: IO[bytes], subject: str) -> Iterator[_Entry]:
    start = archive.tell()
    zipped = archive.read(4) in _ZIP
    archive.seek(start)
    return _of_zip(archive, subject) if zipped else _of_tar(archive, subject)


def _of_tar(archive: IO[bytes], subject: str) -> Iterator[_Entry]:
    with tarfile.open(fileobj=archive, mode="r|*") as tar:
        for entry in tar:
            if entry.isdir():
                yield _Entry(entry.name, None)
            elif entry.isreg():
                yield _Entry(entry.name, tar.extractfile(entry), bool(entry.mode & 0o100))
            else:
                raise Unusable(f"{subject} contains {entry.name}, which is not a regular file")


def _of_zip(archive: IO[bytes], subject: str) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as zipped:
        for entry in zipped.infolist():
            mode = entry.external_attr >> 16
            if entry.is_dir():
                yield _Entry(entry.filename, None)
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise Unusable(f"{subject} contains {entry.filename}, which is not a regular file")
            try:
                content = zipped.open(entry)
            except (RuntimeError, NotImplementedError) as error:
                raise Unusable(f"{subject} contains {entry.filename}, which cannot be read: {error}") from error
            with content:
                yield _Entry(entry.filename, content, bool(mode & 0o100))


def _make(directory: Path, path: PurePosixPath, for_all: bool) -> Path:
    """Return a folder below the directory, which exists from then on."""
    folder = directory
    folder.mkdir(parents=True, exist_ok=True)
    for part in path.parts:
        folder /= part
        if not folder.is_dir():
            folder.mkdir()
            if for_all:
                folder.chmod(0o777)
    return folder


def _write(path: Path, entry: _Entry, limit: int, subject: str, for_all: bool) -> int:
    """Write a file, and return its size. Raise Unusable if it has more bytes than the limit."""
    assert entry.content is not None
    mode = 0o777 if entry.executable else 0o666
    # An init container that is started again finds the files. It follows no link.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    size = 0
    with open(os.open(path, flags, mode), "wb") as file:
        while data := entry.content.read(_CHUNK):
            size += len(data)
            if size > limit:
                raise Unusable(f"the files in {subject} have too many bytes: {limit} were left for {entry.name}")
            file.write(data)
    if for_all:
        path.chmod(mode)
    return size
