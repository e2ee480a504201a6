"""Atomic replacement of files: a kill at any point leaves the old file or the new one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, mark: str = "") -> None:
    """Replace `path` completely or not at all, even if the process is killed or the machine stops. Two processes that
    write the same file at the same time need different `mark`s."""
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
    """Sync the directory: without this a crash of the machine can lose the new name of a file."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not supported by some network file systems
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
