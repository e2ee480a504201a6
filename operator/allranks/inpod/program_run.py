"""One run of a program by its parent: it forwards the output, keeps the last lines, and hands all lines to a matcher.

Needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from typing import IO

from log_progress_matcher import Lines, Matcher  # type: ignore[import-not-found]  # in the same directory

CHUNK = 65536
DRAIN_SECONDS = 0.2
"""Longest wait for more output when the program has ended but its descendants hold the output open."""
LAST_OUTPUT_SECONDS = 10.0
TAIL_BYTES = 2048
"""Of the last output, as a kubelet keeps of a container's log."""
STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 7
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals after which the pod ends with its program."""
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


class ProgramRun:
    """A program that was started: now, or as `process`. Its constructor raises OSError."""

    def __init__(
        self,
        program: list[str],
        env: dict[str, str],
        matcher: Matcher | None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._matcher, self._last, self._lock = matcher, b"", threading.Lock()
        if process is None:
            output, errors = pipes(matcher is not None)
            process = subprocess.Popen(program, env=env, bufsize=0, stdout=output, stderr=errors)
        self.process = process
        self._ended, self._over = os.pipe()
        self._pumps = [
            threading.Thread(target=self._pump, args=(source, target), daemon=True)
            for source, target in ((self.process.stdout, 1), (self.process.stderr, 2))
            if source is not None
        ]
        for thread in self._pumps:
            thread.start()

    @property
    def matcher_pid(self) -> int | None:
        return self._matcher.pid if self._matcher is not None else None

    def finish(self) -> None:
        """Forward the rest of the output of a program that has ended."""
        os.close(self._over)
        deadline = time.monotonic() + LAST_OUTPUT_SECONDS
        for thread in self._pumps:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._pumps):
            os.close(self._ended)
        if self._matcher is not None:
            self._matcher.finish()

    def last_output(self) -> str:
        return self._last[-TAIL_BYTES:].decode("utf-8", "replace")

    def _pump(self, stream: IO[bytes], target: int) -> None:
        """Forward a stream without delay, then keep its end and give its lines to the matcher."""
        lines, source, ended, matcher = Lines(), stream.fileno(), self._ended, self._matcher
        while True:
            ready, _, _ = select.select([source, ended], [], [])
            if source not in ready and not select.select([source], [], [], DRAIN_SECONDS)[0]:
                break
            chunk = os.read(source, CHUNK)
            if not chunk or not write_all(target, chunk):
                break
            with self._lock:
                self._last = chunk if len(chunk) >= TAIL_BYTES else (self._last + chunk)[-2 * TAIL_BYTES :]
            if matcher is not None:
                matcher.match(lines.completed_by(chunk))
        if matcher is not None:
            matcher.match(lines.rest())
        stream.close()  # the program gets SIGPIPE if this process's output is closed


def pipes(has_matcher: bool) -> tuple[int | None, int | None]:
    """Return stdout and stderr of a program, as `Popen` knows them."""
    if not has_matcher and os.isatty(1):  # a program on a terminal behaves differently
        return None, None
    return subprocess.PIPE, subprocess.STDOUT if same(1, 2) else subprocess.PIPE


def same(first: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(first, other)
    except OSError:
        return False


def write_all(target: int, data: bytes) -> bool:
    """Return False if the reader has closed the output."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            select.select([], [target], [])
        except OSError:
            return False
    return True


def cannot_start(program: list[str], error: OSError) -> int:
    """Exit status as in a shell: 127 not found, 126 not executable."""
    write_line(f"cannot start {program[0]}: {error.strerror}")
    return 127 if isinstance(error, FileNotFoundError) else 126


def write_line(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"allranks: {line}\n".encode("utf-8", "replace"))


def write_signal(number: int) -> str:
    """Say which signal ended the program, and return the sentence. The operator reads it: an exit code of 137 may be
    the program's own."""
    line = f"the program was ended by signal {number} ({name_of(number)})"
    write_line(line)
    return line


def name_of(number: int) -> str:
    """Return `SIGKILL`. The name is for readers of the log, the number for the operator
    (core/diagnosis/root_cause.py)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
