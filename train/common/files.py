"""Files that are replaced in one step, so that being killed at any point leaves the old one or the new one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, mark: str = "") -> None:
    """Replace `path`, or leave it as it was: also when the process is killed or the machine stops meanwhile. Of two
    processes that do this to one file at the same time, each has to have another `mark`."""
    temporary = path.with_name(f".{path.name}{mark}.tmp")  # in the same directory: a rename is within one file system
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Without this a crash of the machine can forget the new name of a file whose content is on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
