"""A container's log: the whole log on disk, its end in memory for the termination message."""

from __future__ import annotations

import os
from pathlib import Path

from allranks.local.errors import LocalRunError
from allranks.text import last_lines

MESSAGE_CHARACTERS = 8192
"""A kubelet keeps 2048 bytes. A launcher's report of its ranks can be longer than that."""
MESSAGE_LINES = 80
_TAIL_BYTES = 1 << 16
"""Size of the raw output that the message is taken from. Progress bars redraw one line many times."""


class LogFile:
    """Appends the output of a container. A container that restarts in place appends to the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail = bytearray()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            raise LocalRunError.from_os(error, f"the log {path} cannot be opened") from error

    def write(self, data: bytes) -> None:
        """Raise LocalRunError if the disk is full or fails."""
        self._tail += data
        if len(self._tail) > 2 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise LocalRunError.from_os(error, f"the log {self.path} cannot be written") from error

    def message(self) -> str:
        """Return the last lines since `start_container`, as with a kubelet's FallbackToLogsOnError."""
        return last_lines(as_displayed(bytes(self._tail)), MESSAGE_LINES, MESSAGE_CHARACTERS)

    def start_container(self) -> None:
        """Mark a start of the container. The message never includes output of an earlier start."""
        self._tail.clear()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def as_displayed(raw: bytes) -> str:
    """Return the text as a terminal displays it: of a line that was redrawn with carriage returns, only its last
    state."""
    text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\0", "")
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.rstrip().split("\n"))
