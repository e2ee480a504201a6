"""Names of the files of an archive, and which of them are too old or too many. Pure.

    NAMESPACE/NAME-UID/job.json, or sweep.json
    NAMESPACE/NAME-UID/events.json
    NAMESPACE/NAME-UID/attempts/ATTEMPT/ROLE-INDEX[.RESTART].log.gz

Names are computed from the objects, so that writing a file twice gives one file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

JOB_FILE = "job.json"
SWEEP_FILE = "sweep.json"
EVENTS_FILE = "events.json"
KEPT_ATTEMPTS = 20
"""Attempts of a job whose logs are kept: the first one, and the newest."""

_LOG = re.compile(r"attempts/(?P<attempt>\d+)/(?P<role>[a-z0-9]+)-(?P<index>\d+)(?:\.(?P<restart>\d+))?\.log\.gz")


class Entry(NamedTuple):
    """A file of a store."""

    name: str
    """Relative path with `/`."""
    size: int
    modified: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one job or sweep."""

    name: str
    size: int
    modified: float
    """Time of the newest file, in seconds since the epoch."""
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class LogName:
    """The log of one pod, in the folder of its job."""

    attempt: int
    role: str
    index: int
    restart: int = 0
    """Number of restarts of this replica alone, before this pod."""

    @property
    def path(self) -> str:
        restart = f".{self.restart}" if self.restart else ""
        return f"attempts/{self.attempt}/{self.role}-{self.index}{restart}.log.gz"


def job_folder(namespace: str, name: str, uid: str) -> str:
    return f"{namespace}/{name}-{uid}"


def log_name(path: str) -> LogName | None:
    """The log with that path in the folder of its job; None for other files."""
    found = _LOG.fullmatch(path)
    if not found:
        return None
    return LogName(int(found["attempt"]), found["role"], int(found["index"]), int(found["restart"] or 0))


def folders(entries: Iterable[Entry]) -> list[Folder]:
    """The folders of jobs and sweeps, with all files in them. Other files of the store are left out."""
    grouped: dict[str, list[Entry]] = {}
    for entry in entries:
        parts = entry.name.split("/")
        if len(parts) > 2:
            grouped.setdefault("/".join(parts[:2]), []).append(entry)
    return [
        Folder(
            name,
            sum(entry.size for entry in found),
            max(entry.modified for entry in found),
            tuple(sorted(entry.name for entry in found)),
        )
        for name, found in grouped.items()
    ]


def expired(
    found: Iterable[Folder], now: float, *, max_age: float | None, max_bytes: int | None, live: Collection[str]
) -> list[Folder]:
    """The folders to delete, oldest first: those unchanged for `max_age` seconds, then until the rest fits into
    `max_bytes`. Folders of objects that still exist (`live`) stay, although their size counts."""
    ordered = sorted(found, key=lambda folder: (folder.modified, folder.name))
    size = sum(folder.size for folder in ordered)
    out = []
    for folder in ordered:
        if folder.name in live:
            continue
        too_old = max_age is not None and now - folder.modified > max_age
        too_much = max_bytes is not None and size > max_bytes
        if too_old or too_much:
            out.append(folder)
            size -= folder.size
    return out


def deletion_order(folder: Folder) -> list[str]:
    """The files of a folder, the object first: without it a folder is not shown. The next clean-up deletes the rest."""
    objects = {f"{folder.name}/{file}" for file in (JOB_FILE, SWEEP_FILE)}
    return sorted(folder.files, key=lambda name: (name not in objects, name))


def superseded(logs: Iterable[LogName], kept: int = KEPT_ATTEMPTS) -> list[LogName]:
    """The logs of attempts that are more than `kept`. Those of the first attempt and of the newest ones stay."""
    logs = list(logs)
    attempts = sorted({log.attempt for log in logs})
    stay = {*attempts[:1], *attempts[max(1, len(attempts) - kept + 1) :]} if kept > 1 else set(attempts[-1:])
    return sorted(log for log in logs if log.attempt not in stay)
