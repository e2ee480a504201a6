"""Unpacks the archives among the files of an input."""

from __future__ import annotations

import shutil
from pathlib import Path

from allranks.errors import DataError
from allranks.inpod.unpack import Limits, Unusable, extract

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
MAX_FILES = 10_000_000
"""Files of one archive: each takes an inode of the disk that jobs share."""


def unpack_archives(files: Path, unpacked: Path, uri: str, limit: int) -> None:
    """Replace each archive below `files` by its contents, in the directory of the archive. Raise DataError and
    OSError.

    `unpacked`: a directory beside `files`, for the contents of archives that are not complete. `limit`: bytes of all
    contents."""
    archives = sorted(path for path in files.rglob("*") if path.is_file() and path.name.lower().endswith(SUFFIXES))
    if not archives:
        raise DataError(f"{uri}: there is no archive to unpack ({', '.join(SUFFIXES)}): remove unpack")
    shutil.rmtree(unpacked, ignore_errors=True)  # of an earlier fetch that was interrupted
    for number, path in enumerate(archives):
        contents = unpacked / str(number)
        contents.mkdir(parents=True)
        try:
            with path.open("rb") as archive:
                extract(archive, contents, path.relative_to(files).as_posix(), Limits(limit, MAX_FILES))
        except Unusable as error:
            raise DataError(f"{uri}: {error}") from error
        limit -= sum(file.stat().st_size for file in contents.rglob("*") if file.is_file())
    for number, path in enumerate(archives):
        path.unlink()
        _merge(unpacked / str(number), path.parent, path.name, uri)
    shutil.rmtree(unpacked)


def _merge(source: Path, target: Path, archive: str, uri: str) -> None:
    """Move the contents of a directory into another one."""
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_dir() and place.is_dir():
            _merge(path, place, archive, uri)
        elif place.exists():
            raise DataError(f"{uri}: {path.name} is in {archive} and beside it: give them different names")
        else:
            path.rename(place)
