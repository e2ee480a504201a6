"""A container's log file: complete on disk, its end in memory for the termination message."""

from __future__ import annotations

import os
from pathlib import Path

from allranks.local.errors import Broken

MESSAGE_BYTES = 8192
"""More than the 2048 bytes that a kubelet keeps: a launcher's report of its ranks is longer than that."""
MESSAGE_LINES = 80
_TAIL_BYTES = 1 << 16
"""Progress bars redraw one line many times: this much raw output is kept to find the message in."""


class LogFile:
    """Appends what a container writes; a container that is restarted in place goes on in the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail = bytearray()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            raise Broken.from_os(error, f"the log {path} cannot be opened") from error

    def write(self, data: bytes) -> None:
        """Raises Broken where the disk does not take it."""
        self._tail += data
        if len(self._tail) > 2 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise Broken.from_os(error, f"the log {self.path} cannot be written") from error

    def message(self) -> str:
        """The last lines since `mark`, as a kubelet's FallbackToLogsOnError takes them."""
        return last_lines(bytes(self._tail))

    def mark(self) -> None:
        """The container starts anew: what it wrote before is not its message."""
        self._tail.clear()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def last_lines(raw: bytes, lines: int = MESSAGE_LINES, size: int = MESSAGE_BYTES) -> str:
    """At most so many lines and bytes of the end of `raw`, of redrawn lines what was on the screen last."""
    text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\0", "")
    shown = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.rstrip().split("\n")]
    joined = "\n".join(shown[-lines:])
    return joined.encode()[-size:].decode(errors="ignore")
