"""Runs a command of allranks in a process of its own, shows its output, and hands Ctrl-C on to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from allranks.text import last_lines

_LAST_LINES = 5
_LONGEST_LAST = 2000
"""Characters."""


class Done(NamedTuple):
    """The end of a command."""

    status: int
    errors: str
    """What it printed on its standard error."""
    last: str = ""
    """The last lines that it printed; of its standard output only if that is not the terminal."""


class Stop:
    """Stops a command from another thread, as Ctrl-C does: the first call asks it to end, the second to end at once."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __call__(self) -> None:
        with self._lock:
            self.asked += 1
            if self._process is not None:
                self._process.send_signal(signal.SIGINT)

    def of(self, process: subprocess.Popen[str]) -> None:
        """`process` is the command, which may have been asked to end before it was started."""
        with self._lock:
            self._process = process
            if self.asked:
                process.send_signal(signal.SIGINT)


class Command:
    """One command. `wait` starts it."""

    def __init__(self, words: Sequence[str], given: str, environ: Mapping[str, str], stop: Stop | None = None) -> None:
        """`given` is the command's standard input. `stop` is what stops it if `wait` runs in another thread than the
        main one, in which Ctrl-C does not arrive."""
        self._words, self._given, self._environ, self._stop = words, given, environ, stop
        self._printed = deque[str](maxlen=_LAST_LINES)

    def wait(self, show: bool, confirm: Callable[[], bool] = lambda: True) -> Done:
        """Waits for the end of the command.

        Ctrl-C asks the command to end, a second one to end at once; KeyboardInterrupt is raised when it has ended. The
        first one has no effect unless `confirm()` returns True; in a terminal it is not called.
        """
        # In a terminal the command draws its live view itself, and gets Ctrl-C from the terminal. Elsewhere, such as in
        # a notebook, sys.stdout is not a file of this process.
        terminal = sys.__stdout__ is not None and sys.stdout is sys.__stdout__ and sys.__stdout__.isatty()
        terminal = terminal and self._stop is None  # several may run at once
        # In the background of a script, where Ctrl-C is ignored, `Stop` must still reach the command.
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as given:
            given.write(self._given)
            given.seek(0)
            with subprocess.Popen(
                self._words,
                env=self._environ,
                stdin=given,
                stdout=None if terminal else subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                preexec_fn=_accept_interrupts if self._stop and ignored else None,
                start_new_session=not terminal,
            ) as process:
                if self._stop:
                    self._stop.of(process)
                interrupted = self._follow(process, show, None if terminal else confirm)
            errors.seek(0)
            text = errors.read().strip()
        if interrupted or (self._stop and self._stop.asked):
            raise KeyboardInterrupt
        last = last_lines(text or "".join(self._printed), _LAST_LINES, _LONGEST_LAST)
        if process.returncode < 0:
            return Done(128 - process.returncode, text, last)
        if text and process.returncode != 2:
            print(text, file=sys.stderr)
        return Done(process.returncode, text, last)

    def _follow(self, process: subprocess.Popen[str], show: bool, confirm: Callable[[], bool] | None) -> bool:
        """Prints the output until the process has ended. Whether it was interrupted. `confirm`: None if the process
        gets Ctrl-C from the terminal."""
        interrupted = False
        while True:
            try:
                if process.stdout is not None:
                    self._copy(process.stdout, show)
                process.wait()
            except KeyboardInterrupt:
                if confirm is None or interrupted or confirm():
                    interrupted = True
                    if confirm is not None:
                        process.send_signal(signal.SIGINT)
                continue
            except BaseException:
                process.terminate()
                process.wait()
                raise
            return interrupted

    def _copy(self, output: IO[str], show: bool) -> None:
        for line in output:
            self._printed.append(line)
            if show:
                print(line, end="", flush=True)


def _accept_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
