"""Runs a pod's command and reports progress that it finds in its output: `python3 watch.py -- PROGRAM [ARG...]`.

It makes the report library importable for the program, and adds the start-up code of `startup/`. With a pattern
(ALLRANKS_LOG_PATTERN, a regular expression with named groups) it stays the parent of the program: it forwards output,
signals and exit code, and reports what the pattern finds. A separate process (`log_progress_matcher.py`) matches the
lines, because a slow pattern must not delay output and Python's regular expressions hold the GIL. When the operator
requests stacks, it signals all Python descendants. Needs the standard library and `allranks.report`, which is in the
same directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from log_progress_matcher import Lines, Matcher  # type: ignore[import-not-found]  # in the same directory

DIRECTORY = Path(__file__).resolve().parent
CHUNK = 65536
DRAIN_SECONDS = 0.2
"""Longest wait for more output when the program has ended but its descendants hold the output open."""
LAST_OUTPUT_SECONDS = 10.0
STACK_SECONDS = 0.3
"""Time for one process to write its stacks before the next one is signaled."""
STACKS_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 7
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)


def main(argv: list[str]) -> int:
    """Run the program; return its exit status, 128 + n for a signal."""
    if len(argv) < 2 or argv[0] != "--":
        print("usage: watch.py -- PROGRAM [ARG...]", file=sys.stderr)
        return 2
    program, env = argv[1:], dict(os.environ)
    if str(DIRECTORY / "call_function.py") in program:
        from call_function import without_launcher  # type: ignore[import-not-found]  # in the same directory

        program = without_launcher(program)
    library = DIRECTORY / "python"
    if library.is_dir():
        sys.path.insert(0, str(library))
        prepend(env, library)
        prepend(env, DIRECTORY / "startup")
    pattern = env.get("ALLRANKS_LOG_PATTERN", "")
    if not pattern or not env.get("ALLRANKS_REPORT_URL") or not env.get("ALLRANKS_REPORT_TOKEN_FILE"):
        return become(program, env)
    if (reason := unusable(pattern)) is not None:
        write_line(f"the output is not parsed: {reason}")
        return become(program, env)
    env["ALLRANKS_STACKS_SIGNAL"] = str(STACKS_SIGNAL)
    return Watch(pattern).run(program, env)


def prepend(env: dict[str, str], path: Path) -> None:
    """Add a directory to PYTHONPATH."""
    env["PYTHONPATH"] = os.pathsep.join(folder for folder in (str(path), env.get("PYTHONPATH")) if folder)


def unusable(pattern: str) -> str | None:
    if sys.version_info < (3, 9):  # noqa: UP036 (the Python of the image)
        return "the image's python3 is older than 3.9"
    try:
        re.compile(pattern)
        import allranks.report  # noqa: F401 (only tests the import)
    except re.error as error:
        return f"ALLRANKS_LOG_PATTERN is not a regular expression: {error}"
    except ImportError as error:
        return str(error)
    return None


def become(program: list[str], env: dict[str, str]) -> int:
    """Replace this process by the program."""
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
        signal.signal(ignored, signal.SIG_DFL)
    sys.stderr.flush()
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        return cannot_start(program, error)


def cannot_start(program: list[str], error: OSError) -> int:
    """Exit status as in a shell: 127 not found, 126 not executable."""
    write_line(f"cannot start {program[0]}: {error.strerror}")
    return 127 if isinstance(error, FileNotFoundError) else 126


def write_line(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"allranks: {line}\n".encode("utf-8", "replace"))


def write_signal(number: int) -> None:
    """Say which signal ended the program. The operator reads it: an exit code of 137 may be the program's own."""
    write_line(f"the program was ended by signal {number} ({name_of(number)})")


class Watch:
    """One run of the program."""

    def __init__(self, pattern: str) -> None:
        from allranks import report

        self._library = report
        report.answer_stacks(self._dump)
        self._matcher = Matcher(pattern, self._report_match, write_line)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._early: list[int] = []

    def run(self, program: list[str], env: dict[str, str]) -> int:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, self._forward)
        streams = 1 if same(1, 2) else 2  # one pipe keeps their order
        error_to = subprocess.STDOUT if streams == 1 else subprocess.PIPE
        try:
            self._process = subprocess.Popen(program, env=env, bufsize=0, stdout=subprocess.PIPE, stderr=error_to)
        except OSError as error:
            return cannot_start(program, error)
        for early in self._early:
            self._forward(early, None)
        ended, over = os.pipe()
        pumps = [
            threading.Thread(target=self._pump, args=(source, target, ended), daemon=True)
            for source, target in ((self._process.stdout, 1), (self._process.stderr, 2))
            if source is not None
        ]
        for thread in pumps:
            thread.start()
        status = self._wait()
        os.close(over)
        deadline = time.monotonic() + LAST_OUTPUT_SECONDS
        for thread in pumps:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._matcher.finish()
        self._library.finish()
        if status < 0:
            write_signal(-status)
            return 128 - status
        return status

    def _forward(self, number: int, frame: object) -> None:
        if self._process is None:
            self._early.append(number)
        elif not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _wait(self) -> int:
        """Wait for the program; return its exit code, -n for signal n. Reap orphans: this process may be PID 1.
        Signals, including SIGCHLD, wake it through a pipe: a signal right before a blocking waitpid would be forwarded
        too late."""
        assert self._process is not None
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while True:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if pid == self._process.pid:
                self._ended = True
                self._process.returncode = code = os.waitstatus_to_exitcode(raw)
                return code
            if pid == 0:
                select.select([woken], [], [])
                os.read(woken, 4096)

    def _pump(self, stream: IO[bytes], target: int, ended: int) -> None:
        """Forward one stream without delay, then give its lines to the matcher."""
        lines, source = Lines(), stream.fileno()
        while True:
            ready, _, _ = select.select([source, ended], [], [])
            if source not in ready and not select.select([source], [], [], DRAIN_SECONDS)[0]:
                break
            chunk = os.read(source, CHUNK)
            if not chunk or not write_all(target, chunk):
                break
            self._matcher.match(lines.completed_by(chunk))
        self._matcher.match(lines.rest())
        stream.close()  # the program gets SIGPIPE if this process's output is closed

    def _report_match(self, values: dict[str, Any]) -> None:
        metrics = values.pop("metrics", {})
        self._library.report(**{**metrics, **values})

    def _dump(self, stack_dump_id: str) -> None:
        """Signal all Python descendants to dump their stacks, one after another."""
        from allranks.report.client import reason_for
        from allranks.report.stacks import pod

        any_signaled = False
        for pid, command in pythons_below(os.getpid()):
            write_line(f"process {pid} ({command}, {pod()}): stacks, asked for because {reason_for(stack_dump_id)}")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, STACKS_SIGNAL)
                any_signaled = True
            time.sleep(STACK_SECONDS)
        if not any_signaled:
            write_line(f"no process of {pod()} can show its stacks, asked for because {reason_for(stack_dump_id)}")


def name_of(number: int) -> str:
    """Return `SIGKILL`. The name is for readers of the log, the number for the operator
    (core/diagnosis/root_cause.py)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"


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


def pythons_below(ancestor: int) -> list[tuple[int, str]]:
    """Return (pid, command) of all descendants that have a handler for STACKS_SIGNAL."""
    parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    below, size = {ancestor}, 0
    while len(below) > size:
        size = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return [(pid, command_of(pid)) for pid in sorted(below - {ancestor}) if catches(pid, STACKS_SIGNAL)]


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if the process has ended, and without /proc."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return None if state == "Z" else int(parent)
    return None


def catches(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return "".join(letter if letter.isprintable() else "?" for letter in " ".join(words).strip()[:100])
    return "?"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
