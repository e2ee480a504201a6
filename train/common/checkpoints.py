"""Checkpoints that survive being killed while they are written: a file is either whole or not there.

A checkpoint is one zip archive, which is what `torch.save` and `numpy.savez` both write: its checksums tell a damaged
file without the framework that wrote it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

KEEP = 2


class CheckpointStore:
    """The checkpoints `epoch-00007<suffix>` of one directory. Only rank 0 of a job has one."""

    def __init__(self, directory: Path, suffix: str, say: Callable[[str], None] = print) -> None:
        self.directory = directory
        self._suffix = suffix
        self._say = say
        self._pattern = re.compile(rf"epoch-(\d{{5,}}){re.escape(suffix)}")
        self._unsaved: tuple[int, bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob(f".epoch-*{suffix}.tmp"):  # of a writer that was killed
            left_over.unlink(missing_ok=True)

    def newest(self) -> tuple[int, bytes] | None:
        """Epoch and content of the newest checkpoint that is whole; damaged ones are passed over, each with a line."""
        for epoch, path in reversed(self._all()):
            try:
                content = path.read_bytes()
                check_archive(content)
            except (OSError, ValueError) as error:
                self._say(f"checkpoint {path} is damaged ({error}): trying the one before it")
            else:
                return epoch, content
        return None

    def save(self, epoch: int, content: bytes) -> None:
        """Write the checkpoint of `epoch` so that no reader ever sees a part of it, then drop the old ones."""
        write_atomically(self._path(epoch), content)
        self._unsaved = None
        others = [path for other, path in self._all() if other < epoch]
        # Later ones can only be damaged: the newest whole one is where this run resumed from.
        abandoned = [path for other, path in self._all() if other > epoch]
        for path in others[: -(KEEP - 1)] + abandoned:
            path.unlink(missing_ok=True)

    def hold(self, epoch: int, content: bytes) -> None:
        """Keep a checkpoint that is not due yet in memory, for `flush`."""
        self._unsaved = epoch, content

    def flush(self) -> int | None:
        """Save what is held, and return its epoch; None where there is nothing to save."""
        if self._unsaved is None:
            return None
        epoch, content = self._unsaved
        self.save(epoch, content)
        return epoch

    def _all(self) -> list[tuple[int, Path]]:
        matches = ((self._pattern.fullmatch(path.name), path) for path in self.directory.iterdir())
        return sorted((int(match[1]), path) for match, path in matches if match)

    def _path(self, epoch: int) -> Path:
        return self.directory / f"epoch-{epoch:05d}{self._suffix}"


def check_archive(content: bytes) -> None:
    """Raises ValueError unless `content` is a whole zip archive of which every member has its checksum."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    if damaged is not None:
        raise ValueError(f"wrong checksum of {damaged}")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path`, or leave it as it was: also when the process is killed or the machine stops meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")  # in the same directory: a rename works within one file system
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
