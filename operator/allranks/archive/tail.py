"""The end of a log while it arrives, in a file of bounded size."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
from collections.abc import Iterable
from pathlib import Path

from allranks.control_sequences import clean, last_state
from allranks.kube.bounded_lines import without_note
from allranks.kube.pod_logs import Line
from allranks.masking import mask_ends, mask_log

_BATCH = 1 << 16


class Tail:
    """The last `limit` bytes of a log, in whole lines. The file has at most twice `limit` and a batch of lines."""

    def __init__(self, path: Path, limit: int) -> None:
        """Raises OSError."""
        self.dropped = 0
        """Number of bytes of earlier lines that were left out."""
        self._path, self._limit = path, limit
        # Logs are not masked yet.
        self._file = open(path, "w+b", opener=_private)  # noqa: SIM115
        self._size = 0

    @property
    def empty(self) -> bool:
        return not self._size and not self.dropped

    def add(self, lines: Iterable[Line]) -> None:
        """Raises OSError."""
        data = b"".join(_stored(line) for line in lines)
        self._file.write(data)
        self._size += len(data)
        if self._size > 2 * self._limit:
            self._cut()

    def _cut(self) -> None:
        kept = self._end()
        self._file.seek(0)
        self._file.write(kept)
        self._file.truncate()
        self._size = len(kept)

    def _end(self) -> bytes:
        """Return the last bytes, from the beginning of a line."""
        self._file.flush()
        self._file.seek(max(0, self._size - self._limit))
        kept = self._file.read()
        if len(kept) < self._size:
            # A single line may be longer: lines have at most LONGEST_LINE bytes, so something stays.
            kept = kept[kept.find(b"\n") + 1 :]
            self.dropped += self._size - len(kept)
        return kept

    def packed(self, secrets: Iterable[str]) -> bytes:
        """Return the end of the log as gzip, masked and without control sequences. Equal lines give equal bytes."""
        self._cut()
        secrets = sorted(secrets)
        out = io.BytesIO()
        with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as zipped:
            if self.dropped:
                zipped.write(f"[{self.dropped} bytes before this are left out]\n".encode())
            self._file.seek(0)
            while lines := self._file.readlines(_BATCH):
                text = "\n".join(clean(line.rstrip(b"\n"), colour=False) for line in lines)
                zipped.write(f"{_masked(text, secrets)}\n".encode())
        return out.getvalue()

    def close(self) -> None:
        """Close and delete the file."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def _masked(text: str, secrets: list[str]) -> str:
    text = mask_log(text, secrets)
    if not secrets:
        return text
    parts = (without_note(line) for line in text.split("\n"))
    return "\n".join(mask_ends(line, secrets) + note for line, note in parts)


def _stored(line: Line) -> bytes:
    text = last_state(line.text)
    return line.time + b" " + text + b"\n" if line.time else text + b"\n"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
