"""Runs a command of allranks in a process of its own, shows its output, and hands Ctrl-C on to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
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


class Command:
    """A command that `wait` starts."""

    def __init__(self, arguments: Sequence[str], text: str, environ: Mapping[str, str]) -> None:
        """`text` is the command's standard input."""
        self._arguments, self._text, self._environ = arguments, text, environ
        self._printed = deque[str](maxlen=_LAST_LINES)

    def wait(self, show: bool, confirm: Callable[[], bool] = lambda: True) -> Done:
        """Start the command, and wait for its end.

        Ctrl-C asks the command to end, a second one to end at once; KeyboardInterrupt is raised when it has ended. The
        first one has no effect unless `confirm()` returns True; in a terminal it is not called.
        """
        # In a terminal the command draws its live view itself, and gets Ctrl-C from the terminal. Elsewhere, such as in
        # a notebook, sys.stdout is not a file of this process.
        terminal = sys.__stdout__ is not None and sys.stdout is sys.__stdout__ and sys.__stdout__.isatty()
        with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as stdin:
            stdin.write(self._text)
            stdin.seek(0)
            with subprocess.Popen(
                self._arguments,
                env=self._environ,
                stdin=stdin,
                stdout=None if terminal else subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                start_new_session=not terminal,
            ) as process:
                interrupted = self._follow(process, show, None if terminal else confirm)
            errors.seek(0)
            text = errors.read().strip()
        if interrupted:
            raise KeyboardInterrupt
        last = last_lines(text or "".join(self._printed), _LAST_LINES, _LONGEST_LAST)
        if process.returncode < 0:
            return Done(128 - process.returncode, text, last)
        if text and process.returncode != 2:
            print(text, file=sys.stderr)
        return Done(process.returncode, text, last)

    def _follow(self, process: subprocess.Popen[str], show: bool, confirm: Callable[[], bool] | None) -> bool:
        """Print the output until the process has ended, and return whether it was interrupted.

        `confirm`: None if the process gets Ctrl-C from the terminal.
        """
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
