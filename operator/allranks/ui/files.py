"""The files of a run of this machine: listed folder by folder, and sent in parts. Links are not followed.

Each part of a path is opened below the one before it, so neither `..` nor a link leads out of the run directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from allranks.ui.entries import Entry
from allranks.ui.http_server import close
from allranks.ui.problems import Problem

MOST_LISTED, MOST_READ = 500, 10_000
"""Entries of a folder that are shown, and that are read."""
MOST_PARTS = 64
"""Of a path."""
READ_BYTES = 256 * 1024
PICTURES = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
"""Suffix -> type of files that a page shows. Not SVG, which can hold scripts."""
_SANDBOX = "default-src 'none'; sandbox"


class RunFile(BaseModel):
    """An entry of a folder."""

    name: str
    path: str = Field(description="Path below the run directory, for the address of the file.")
    kind: Literal["folder", "file", "other"] = Field(
        description="other: a link, a device or a name that is not UTF-8, which is neither opened nor sent."
    )
    bytes: int | None = Field(description="Of a file.")
    modified: datetime


class Folder(BaseModel):
    """A folder of a run directory: first its folders, then its files."""

    path: str
    files: list[RunFile]
    more: bool = Field(description="Whether entries are left out, because there are too many.")


def list_folder(entry: Entry, path: str) -> Folder:
    """Return the entries of a folder of a run. Blocks. Raises Problem."""
    with _opened(entry, path, os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as entries:
        read = list(islice(entries, MOST_READ + 1))
        files = list(_files(read[:MOST_READ], path))
    files.sort(key=lambda file: (file.kind != "folder", file.name))
    return Folder(path=path, files=files[:MOST_LISTED], more=len(read) > MOST_LISTED)


def _files(read: list[os.DirEntry[str]], path: str) -> Iterator[RunFile]:
    for item in read:
        with contextlib.suppress(OSError):  # removed meanwhile
            info = item.stat(follow_symlinks=False)
            name = item.name.encode(errors="replace").decode()
            is_file, is_folder = stat.S_ISREG(info.st_mode), stat.S_ISDIR(info.st_mode)
            yield RunFile(
                name=name,
                path=f"{path}/{name}" if path else name,
                kind="other" if name != item.name else "folder" if is_folder else "file" if is_file else "other",
                bytes=info.st_size if is_file else None,
                modified=datetime.fromtimestamp(info.st_mtime, UTC),
            )


@contextlib.contextmanager
def _opened(entry: Entry, path: str, flags: int) -> Iterator[int]:
    descriptor = _open(entry, path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(entry: Entry, path: str, flags: int) -> int:
    """Return the descriptor of a path below the run directory. Raises Problem."""
    if entry.directory is None:
        raise Problem(404, f"{entry.job} is no run of this machine: only these have files here")
    parts = path.split("/") if path else []
    if len(parts) > MOST_PARTS or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Problem(404, f"{path!r} is no path below the directory of the run")
    # Without O_NONBLOCK, a named pipe would wait for a writer.
    always = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = -1
    try:
        descriptor = os.open(entry.directory, always | os.O_DIRECTORY)
        for place, part in enumerate(parts):
            is_last = place == len(parts) - 1
            child = os.open(part, always | (flags if is_last else os.O_DIRECTORY), dir_fd=descriptor)
            os.close(descriptor)
            descriptor = child
    except (OSError, UnicodeError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise _problem(entry, path, error) from error
    return descriptor


def _problem(entry: Entry, path: str, error: Exception) -> Problem:
    place = f"{entry.group}/{entry.name}/{path}".rstrip("/")
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EACCES:
        return Problem(403, f"{place} cannot be read: permission denied")
    if number == errno.ELOOP:
        return Problem(404, f"{place} is a link, which is not followed")
    return Problem(404, f"there is no {place}, or a link leads there")


# --- one file --------------------------------------------------------------------------------------------------------


def open_file(entry: Entry, path: str) -> SentFile:
    """Return the answer with a file of a run. Blocks. Raises Problem."""
    descriptor = _open(entry, path, 0)
    info = os.fstat(descriptor)
    if not path or not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise Problem(404, f"{path or '.'} is not a file")
    return SentFile(os.fdopen(descriptor, "rb", buffering=0), info.st_size, Path(path).name)


def picture_type(name: str) -> str:
    """Return the type of a picture that a page may show; empty for other files."""
    return PICTURES.get(name.rpartition(".")[2].lower(), "")


class SentFile(Response):
    """A file as it was when it was opened: never more bytes than it had, and a part of it in memory."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        headers = {
            "content-length": str(size),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "content-security-policy": _SANDBOX,
        }
        super().__init__(headers=headers, media_type=picture_type(name) or "application/octet-stream")
        self._file, self._size = file, size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            left = self._size
            while left and not gone.done():
                part = await asyncio.to_thread(self._file.read, min(left, READ_BYTES))
                if not part:  # the file was cut: an answer that ends here would look whole
                    close(scope)
                    return
                left -= len(part)
                await send({"type": "http.response.body", "body": part, "more_body": left > 0})
            if not self._size:
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._file.close()


async def _until_gone(receive: Receive) -> None:
    """Wait until the client has gone, or another answer was sent."""
    while (await receive())["type"] != "http.disconnect":
        pass
