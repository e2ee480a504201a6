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
    """Return the log at a path in the folder of its job; None for other files."""
    match = _LOG.fullmatch(path)
    if not match:
        return None
    return LogName(int(match["attempt"]), match["role"], int(match["index"]), int(match["restart"] or 0))


def folders(entries: Iterable[Entry]) -> list[Folder]:
    """Return the folders of jobs and sweeps, with all files in them. Other files of the store are left out."""
    grouped: dict[str, list[Entry]] = {}
    for entry in entries:
        parts = entry.name.split("/")
        if len(parts) > 2:
            grouped.setdefault("/".join(parts[:2]), []).append(entry)
    return [
        Folder(
            name,
            sum(file.size for file in files),
            max(file.modified for file in files),
            tuple(sorted(file.name for file in files)),
        )
        for name, files in grouped.items()
    ]


def expired(
    folders: Iterable[Folder], now: float, *, max_age: float | None, max_bytes: int | None, live: Collection[str]
) -> list[Folder]:
    """Return the folders to delete, the oldest first.

    A folder is deleted if it has not changed for `max_age` seconds, or until the others fit into `max_bytes`. Folders
    of objects that exist (`live`) stay; their size counts.
    """
    ordered = sorted(folders, key=lambda folder: (folder.modified, folder.name))
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
    """Return the files of a folder, the job or sweep first: without it a folder is not shown.

    If the deletion is interrupted, the next clean-up deletes the other files.
    """
    objects = {f"{folder.name}/{file}" for file in (JOB_FILE, SWEEP_FILE)}
    return sorted(folder.files, key=lambda name: (name not in objects, name))


def superseded(logs: Iterable[LogName], kept: int = KEPT_ATTEMPTS) -> list[LogName]:
    """Return the logs to delete: of all attempts but `kept`, which are the first and the newest attempts."""
    logs = list(logs)
    attempts = sorted({log.attempt for log in logs})
    stay = {*attempts[:1], *attempts[max(1, len(attempts) - kept + 1) :]} if kept > 1 else set(attempts[-1:])
    return sorted(log for log in logs if log.attempt not in stay)
