"""A directory of code as one reproducible archive, named by the hash of its content.

The same files give the same bytes on every machine: sorted names, no times, no owners. The hash is taken of the
uncompressed archive, because compressors differ between machines.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from allranks.code import differences, repository
from allranks.code.differences import File
from allranks.code.selection import HOLDS_CREDENTIALS, LeftOut, Selection, secret_by_name, select
from allranks.errors import CannotShip
from allranks.text import size

MAX_SHIPPED_BYTES = 2**20
"""Largest compressed archive: what a ConfigMap holds."""
MAX_BYTES = 256 * 2**20
"""Largest sum of all files. inpod/unpack.py has the same limit."""
_SHOWN = 5
_EXECUTABLE = 0o111


@dataclass(frozen=True)
class Bundle:
    """Files that are shipped together. `files` is sorted by name."""

    files: tuple[File, ...]
    source: str = ""
    """The directory, for messages."""
    commit: str | None = None
    """The commit of the repository; None without one."""
    dirty: bool | None = None
    """True if files differ from the commit; None without a repository."""
    changes: str = ""
    """The files that differ from the commit, in one line: `train.py +3 -1, new: data.py`."""
    left_out: tuple[LeftOut, ...] = ()
    """Files that were not shipped, with the reason."""
    differences: str = ""
    """Differences from the commit, as a unified diff; empty without any. Not a part of the archive."""

    @cached_property
    def tar(self) -> bytes:
        """The uncompressed archive."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for file in self.files:
                entry = tarfile.TarInfo(file.name)
                entry.size = len(file.data)
                entry.mode = 0o755 if file.executable else 0o644
                archive.addfile(entry, io.BytesIO(file.data))
        return out.getvalue()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.tar).hexdigest()

    @cached_property
    def archive(self) -> bytes:
        """The compressed archive, as the ConfigMap holds it."""
        return gzip.compress(self.tar, mtime=0)

    @property
    def config_map(self) -> str:
        """The name of the ConfigMap: the same files have the same name."""
        return f"allranks-code-{self.sha256[:24]}"

    @property
    def spec(self) -> dict[str, Any]:
        """The value of `spec.code`. Raises CannotShip if the archive does not fit into a ConfigMap."""
        self.check_size()
        return self.described

    @property
    def described(self) -> dict[str, Any]:
        """The value of `spec.code`, whatever the size."""
        out: dict[str, Any] = {"configMap": self.config_map, "sha256": self.sha256}
        if self.commit:
            out |= {"commit": self.commit, "dirty": bool(self.dirty)}
        return out | ({"changes": self.changes} if self.changes else {})

    def check_size(self) -> None:
        """Check the size of the archive. Raise CannotShip, with the largest files and advice, if it is too large."""
        if len(self.archive) > MAX_SHIPPED_BYTES:
            largest = _largest((file.name, len(file.data)) for file in self.files)
            raise CannotShip(
                f"{self.source or 'the code'} has {size(len(self.archive))} after compression, and a ConfigMap takes "
                f"{size(MAX_SHIPPED_BYTES)}. {largest}. {_WAYS_OUT}"
            )

    def with_file(self, name: str, data: bytes) -> Bundle:
        """Return the bundle with one more file, or with another content of it. The file need not exist on disk."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{name!r} must be a relative path inside the bundle")
        others = [file for file in self.files if file.name != str(path)]
        return replace(self, files=_sorted([*others, File(str(path), data)]))

    def notes(self) -> list[str]:
        """Return one sentence for each reason why files were left out."""
        reasons: dict[str, list[LeftOut]] = {}
        for item in self.left_out:
            reasons.setdefault(item.reason, []).append(item)
        return [_note(reason, items) for reason, items in reasons.items()]


EMPTY = Bundle(())
"""To begin with when there is no directory, only files of `with_file`."""

_WAYS_OUT = (
    "Leave files out with .allranksignore; or keep the code on a volume claim (code: {claim: NAME}) or in an image "
    "(code: {image: REFERENCE})"
)


def collect(directory: Path | str) -> Bundle:
    """Return the code of a directory. Raise CannotShip if there is none, or far too much.

    With git: tracked files as they are on disk, and new files that are not ignored. Without: all files that no
    .gitignore names. `.allranksignore` leaves out more, and ships with `!NAME` what would be left out.
    """
    folder = Path(directory)
    selection = select(folder)
    sizes = [(name, (folder / name).stat().st_size) for name in selection.files]
    if sum(bytes_ for _, bytes_ in sizes) > MAX_BYTES:
        raise CannotShip(
            f"{directory} has {size(sum(bytes_ for _, bytes_ in sizes))} in {len(sizes)} files, and at most "
            f"{size(MAX_BYTES)} can be shipped. {_largest(sizes)}. {_WAYS_OUT}"
        )
    return _read(folder, selection)


def _read(folder: Path, selection: Selection) -> Bundle:
    files = []
    for name in selection.files:
        path = folder / name
        try:
            executable = bool(path.stat().st_mode & _EXECUTABLE)
            files.append(File(name, path.read_bytes(), executable))
        except OSError as error:
            raise CannotShip(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    if not files:
        raise CannotShip(f"{folder} has no files to ship")
    return Bundle(
        _sorted(files),
        str(folder),
        selection.commit,
        selection.dirty,
        selection.changes,
        selection.left_out,
        _differences(folder, selection, files),
    )


def _differences(folder: Path, selection: Selection, files: Iterable[File]) -> str:
    if not selection.commit or not selection.dirty:
        return ""
    shipped = {file.name: file for file in files}
    new = [shipped[name] for name in selection.new]

    def hidden(name: str) -> str:
        if name in shipped or (folder / name).is_dir():  # a submodule
            return ""
        if secret_by_name(name):
            return HOLDS_CREDENTIALS
        return "it is not shipped" if (folder / name).exists() else ""

    return differences.text_of(selection.commit, repository.patch(folder), new, hidden)


def _sorted(files: Iterable[File]) -> tuple[File, ...]:
    return tuple(sorted(files, key=lambda file: file.name))


def _largest(sizes: Iterable[tuple[str, int]]) -> str:
    largest = sorted(sizes, key=lambda item: (-item[1], item[0]))[:_SHOWN]
    return "The largest files: " + ", ".join(f"{name} ({size(bytes_)})" for name, bytes_ in largest)


def _note(reason: str, items: list[LeftOut]) -> str:
    names = ", ".join(item.name for item in items[:_SHOWN])
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    verb = "is" if len(items) == 1 else "are"
    cure = f"; to ship it, add the line !{items[0].name} to .allranksignore" if items[0].can_be_allowed else ""
    return f"{names}{more} {verb} not shipped: {reason}{cure}"
