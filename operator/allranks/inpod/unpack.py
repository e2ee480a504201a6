"""Unpacks the code of a job, after it has checked the hash: regular files with relative names, and of bounded size."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath

MAX_BYTES = 256 * 2**20
"""Largest sum of all files. This limit and the next one are the limits of the client, in allranks/code."""
MAX_FILES = 20_000
_MAX_TAR_BYTES = MAX_BYTES + MAX_FILES * 3 * tarfile.BLOCKSIZE
"""With three blocks for the header, the long name and the padding of each file."""


class Unusable(Exception):
    """The archive cannot be unpacked. The message is a sentence for the user."""


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
    extract(data, directory, for_all=True)


def extract(data: bytes, directory: Path, *, for_all: bool = False) -> None:
    """Write the files of an uncompressed archive. `for_all`: users with any UID may change them, because the helper's
    image and the program's run as different ones. Raise Unusable."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for entry in tar:
                name = _checked(entry)
                content = tar.extractfile(entry)
                _write(directory, name, content.read() if content else b"", bool(entry.mode & 0o100), for_all)
    except tarfile.TarError as error:
        raise Unusable(f"the code is not a tar archive: {error}") from error
    except OSError as error:
        raise Unusable(f"the code cannot be written to {directory}: {error.strerror or error}") from error


def _checked(entry: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(entry.name)
    if not entry.isreg():
        raise Unusable(f"the code contains {entry.name}, which is not a regular file")
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise Unusable(f"the code contains {entry.name}, which leads outside its directory")
    return path


def _write(directory: Path, name: PurePosixPath, data: bytes, executable: bool, for_all: bool) -> None:
    folder = directory
    folder.mkdir(parents=True, exist_ok=True)
    for part in name.parts[:-1]:
        folder /= part
        if not folder.is_dir():
            folder.mkdir()
            if for_all:
                folder.chmod(0o777)
    path = folder / name.name
    mode = 0o777 if executable else 0o666
    # An init container that is started again finds the files. It follows no link.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags, mode), "wb") as file:
        file.write(data)
    if for_all:
        path.chmod(mode)
