"""Writes the archive: the same content gives the same bytes, and logs are cut to a bounded size."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections import deque
from datetime import datetime
from pathlib import Path

from allranks.client.rank_stacks import lines_of_dumps
from allranks.control_sequences import clean, clean_text
from allranks.errors import AllranksError
from allranks.masking import mask_text

LOG_BYTES = 5 << 20
"""Of each log, the end."""
ALL_LOGS_BYTES = 256 << 20
"""Of all logs together: with more than 51 of them, each gets an equal part."""


class DebugError(AllranksError):
    """The archive cannot be written."""


class Archive:
    """Files of an archive, in a temporary folder until `write`. Everything that is added is masked and cleaned."""

    def __init__(self, job: str, secrets: set[str]) -> None:
        self.job, self._secrets = job, secrets
        self._folder = tempfile.TemporaryDirectory(prefix="allranks-debug-")
        self.missing: list[str] = []
        """Sentences about what could not be read."""

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def add(self, name: str, text: str) -> None:
        path = Path(self._folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(clean_text(mask_text(text, self._secrets), colour=False), encoding="utf-8")

    def add_log(self, name: str, log: Log) -> None:
        """Add a log, and its stack dumps a second time in a file of their own."""
        if not log.lines:
            return
        lines = [mask_text(line, self._secrets) for line in log.lines]
        cut = [f"[{log.dropped} bytes before this are left out]"] if log.dropped else []
        self.add(f"logs/{name}.log", "\n".join([*cut, *lines, ""]))
        if stacks := list(lines_of_dumps(lines)):
            self.add(f"stacks/{name}.txt", "\n".join([*stacks, ""]))

    def names(self) -> list[str]:
        folder = Path(self._folder.name)
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def write(self, file: Path, at: datetime) -> None:
        """Raise DebugError if the file cannot be written."""
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            # Logs may hold what the masks do not know: no other user may read the file.
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
                self._write(raw, int(at.timestamp()))
            unfinished.replace(file)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise DebugError(f"cannot write {file}: {(error.strerror or str(error)).lower()}") from error

    def _write(self, raw: io.BufferedWriter, at: int) -> None:
        with (
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=at) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name in self.names():
                path = Path(self._folder.name, name)
                entry = tarfile.TarInfo(f"{self.job}-debug/{name}")
                entry.size, entry.mtime, entry.mode = path.stat().st_size, at, 0o644
                with path.open("rb") as content:
                    tar.addfile(entry, content)


class Log:
    """The last lines of a log, at most `limit` bytes, without control sequences."""

    def __init__(self, limit: int) -> None:
        self.lines: deque[str] = deque()
        self.dropped = 0
        self._limit, self._size = limit, 0

    def add(self, raw: bytes) -> None:
        if len(raw) > self._limit:
            self.dropped += len(raw) - self._limit
            raw = raw[-self._limit :]
        # A progress bar redraws its line after \r: only the last state is kept.
        line = clean(raw.rstrip(b"\r").rpartition(b"\r")[2], colour=False)
        self.lines.append(line)
        self._size += len(line) + 1
        while self._size > self._limit and len(self.lines) > 1:
            gone = len(self.lines.popleft()) + 1
            self._size -= gone
            self.dropped += gone


def log_limit(logs: int) -> int:
    """Return the limit in bytes of each log."""
    return min(LOG_BYTES, ALL_LOGS_BYTES // max(1, logs))
