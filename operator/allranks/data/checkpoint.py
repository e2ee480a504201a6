"""Copies one checkpoint of a program that still runs, so that what the program does next does not disturb its upload.

What belongs to the checkpoint of a step are the files and folders with that number in their names, as programs name
checkpoints. If there are none, the whole directory is the checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from allranks.data.cache import sync_directory
from allranks.data.errors import ChangedError, explain
from allranks.data.upload import is_data, open_data
from allranks.errors import DataError
from allranks.report.checkpoints import steps_in

TRIES = 5
QUIET_SECONDS = 3.0
"""Time without changes that is required if the names do not say which files belong together. NFS shows the changes of
other machines after up to three seconds."""
_OTHERS = (".allranks-", "lost+found")
"""Beginnings of names that belong to no checkpoint."""
Stat = dict[str, tuple[int, int, int]]
"""Relative path of a file -> size, time of its change, inode."""


def copy_checkpoint(
    source: Path, step: int, mark: int, target: Path, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Copy the checkpoint of `step` into `target`, in which nothing else is left. Raise DataError.

    `mark` tells two checkpoints of the same step apart. A copy that is complete is not made again.
    """
    note = target.with_name(f"{target.name}.copied.json")
    expected = {"step": step, "mark": mark}
    try:
        if note.is_file() and json.loads(note.read_text(encoding="utf-8")) == expected:
            return
        note.unlink(missing_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for _ in range(TRIES):
            clear(target)
            if _copy(source, step, target, sleep):
                write_json(note, expected)
                return
    except ValueError:
        note.unlink(missing_ok=True)  # half a note, of a machine that crashed
        raise ChangedError(f"{note} is damaged: the checkpoint is copied again") from None
    except PermissionError as error:
        raise DataError(f"{source}: {error.filename} cannot be read or copied: {error.strerror}") from error
    except OSError as error:
        raise explain(error, str(source)) from error
    raise ChangedError(f"{source}: the checkpoint of step {step} was changed while it was copied")


def _copy(source: Path, step: int, target: Path, sleep: Callable[[float], None]) -> bool:
    """Copy the files. Return False if one was changed meanwhile. Raise DataError and OSError."""
    chosen, exact = choose(source, step)
    before = _stat(source, chosen)
    if not before:
        raise DataError(f"{source}: there is no file of a checkpoint of step {step}")
    began = time.monotonic()
    try:
        for name in before:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with open_data(source / name) as read, open(target / name, "wb") as written:
                shutil.copyfileobj(read, written, 1 << 20)
                written.flush()
                os.fsync(written.fileno())
    except FileNotFoundError:
        return False
    if not exact:
        sleep(max(0.0, QUIET_SECONDS - (time.monotonic() - began)))
    return choose(source, step) == (chosen, exact) and _stat(source, chosen) == before


def choose(source: Path, step: int) -> tuple[list[str], bool]:
    """Return (names of the files and folders of the checkpoint, whether their names have its step). Raise DataError."""
    numbers = {path.name: steps_in(path) for path in sorted(source.iterdir()) if not path.name.startswith(_OTHERS)}
    if named := [name for name, steps in numbers.items() if step in steps]:
        return named, True
    if newer := [name for name, steps in numbers.items() if steps and max(steps) > step]:
        newest = ", ".join(newer[:3])
        raise DataError(
            f"{source}: no name has step {step}, which was reported, but there is {newest}: another checkpoint"
        )
    return list(numbers), False


def _stat(source: Path, names: list[str]) -> Stat:
    out: Stat = {}
    for path in (file for name in names for file in _files(source / name)):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        out[path.relative_to(source).as_posix()] = stat.st_size, stat.st_mtime_ns, stat.st_ino
    return out


def _files(path: Path) -> Iterator[Path]:
    """Yield regular files. Links to files count as files; links to directories are not followed."""
    if is_data(path):
        yield path
    elif not path.is_symlink():
        for folder, _, names in os.walk(path, onerror=_refuse):
            yield from (file for name in names if is_data(file := Path(folder) / name))


def _refuse(error: OSError) -> None:
    """Raise an error of a folder that is closed to this user: its files would be left out. The program may remove
    folders."""
    if isinstance(error, PermissionError):
        raise error


def clear(directory: Path) -> None:
    """Remove what is in a directory, as far as that is allowed."""
    for path in directory.iterdir():  # the directory itself may be a mount of pods that still exist
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            try:
                path.unlink()
            except OSError:
                continue


def write_json(path: Path, content: object) -> None:
    """Write a file, which appears as a whole and survives a crash of the machine. Raise OSError."""
    temporary = path.with_name(f"{path.name}.partial")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
