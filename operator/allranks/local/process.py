"""One run of one container: its shim process, its output (the whole log on disk, its end in memory for the
termination message), its exit status, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from allranks.core.facts.model import Exit
from allranks.inpod import process_tree
from allranks.local import shim
from allranks.local.errors import LocalRunError
from allranks.text import last_lines

# --- the log ----------------------------------------------------------------------------------------------------------

MESSAGE_CHARACTERS = 8192
"""A kubelet keeps 2048 bytes. A launcher's report of its ranks can be longer than that."""
MESSAGE_LINES = 80
_TAIL_BYTES = 1 << 16
"""Size of the raw output that the message is taken from. Progress bars redraw one line many times."""


class LogFile:
    """Appends the output of a container. A container that restarts in place appends to the same file."""

    def __init__(self, path: Path) -> None:
        self._tail = bytearray()
        self._open(path)

    def _open(self, path: Path) -> None:
        self.path, self._fd = path, -1
        self._missing = 0
        """Bytes of output since the disk refused the last write."""
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            raise LocalRunError.from_os(error, f"the log {path} cannot be opened") from error

    def write(self, data: bytes) -> str:
        """Append output. Return a sentence when the disk begins to refuse it: the program continues without its log."""
        self._tail += data
        if len(self._tail) > 2 * _TAIL_BYTES:
            del self._tail[:-_TAIL_BYTES]
        gap = f"\nallranks: {self._missing:,} bytes of output are missing here: the disk refused them\n".encode()
        view = memoryview(gap + data if self._missing else data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            begins, self._missing = not self._missing, self._missing + min(len(view), len(data))
            reason = (error.strerror or str(error)).lower()
            return f"the log {self.path} cannot be written ({reason}): it misses output until it can" if begins else ""
        self._missing = 0
        return ""

    def message(self) -> str:
        """Return the last lines since `start_program`, as with a kubelet's FallbackToLogsOnError."""
        return last_lines(as_displayed(bytes(self._tail)), MESSAGE_LINES, MESSAGE_CHARACTERS)

    def start_program(self) -> None:
        """Mark a start of the program. The message never includes output of an earlier start."""
        self._tail.clear()

    def continue_in(self, path: Path) -> None:
        """Append to another file from now on."""
        self.close()
        self._open(path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def as_displayed(raw: bytes) -> str:
    """Return the text as a terminal displays it: of a line that was redrawn with carriage returns, only its last
    state."""
    text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\0", "")
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.rstrip().split("\n"))


# --- the process ------------------------------------------------------------------------------------------------------

SHIM = [sys.executable, "-I", "-S", shim.__file__]
_CHUNK = 1 << 16
"""Bytes to read from a rank before the others get their turn."""
_PIPE_READS = 64
"""More than a pipe holds. A process that escaped the shim (macOS) may write forever."""
_REAP_TIMEOUT_SECONDS = 1.0
_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    env: dict[str, str]
    directory: Path


class Process:
    """The processes of a container, from start to end. All methods run on the event loop's thread."""

    def __init__(
        self,
        command: Command,
        log: LogFile,
        *,
        files: int,
        output: Callable[[bytes], None],
        on_shim_killed: Callable[[], None],
    ) -> None:
        """Keep what is needed to start. `files`: the program's soft limit of open files.

        `output` receives all output. `on_shim_killed` is called first when the shim itself was killed."""
        self.started_at: datetime | None = None
        self._command = command
        self._log = log
        self._output = output
        self._on_shim_killed = on_shim_killed
        self._report = b""
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        self._oom_kills = count_oom_kills()
        log.start_program()
        try:
            self._start(files)
        except OSError as error:
            raise LocalRunError.from_os(error, f"{command.argv[0]} cannot be started") from error

    def _start(self, files: int) -> None:
        self._shim: subprocess.Popen[bytes]
        link, far_link = socket.socketpair()
        with far_link:
            self._pipe, far_pipe = os.pipe()
            try:
                self._shim = subprocess.Popen(
                    SHIM,
                    stdin=far_link.fileno(),
                    stdout=far_pipe,
                    stderr=far_pipe,
                    # A Python built with shared libraries may need these variables to start.
                    env={name: os.environ[name] for name in _LIBRARY_PATHS if name in os.environ},
                    # Ctrl-C on the terminal goes to `allranks run` alone, which then sends SIGTERM to the ranks.
                    start_new_session=True,
                )
            except OSError:
                link.close()
                os.close(self._pipe)
                raise
            finally:
                os.close(far_pipe)
        self._link = link
        self._pending = shim.encode(str(self._command.directory), files, list(self._command.argv), self._command.env)
        link.setblocking(False)
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(link, self._read_report)
        self._loop.add_reader(self._pipe, self._read_output)
        self._write_request()

    async def started(self) -> None:
        """Wait until the program is executing or could not be executed."""
        await asyncio.shield(self._started)

    async def ended(self) -> Exit:
        """Wait for the end. By then no process is left, and all output is in the log."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Send SIGTERM to the first process, as a kubelet does."""
        self._send_order(b"T")

    def kill(self) -> None:
        """Send SIGKILL to all processes."""
        self._send_order(b"K")

    def begin_program(self, log: Path | None) -> None:
        """Note that its supervisor starts the program again. The output goes to `log` from now on, if it is set."""
        self._read_written()
        self._oom_kills = count_oom_kills()
        self._log.start_program()
        if log:
            self._log.continue_in(log)

    def last_lines(self) -> str:
        """Return the last lines that its program has written."""
        self._read_written()
        return self._log.message()

    @property
    def shim_pid(self) -> int:
        return self._shim.pid

    def _send_order(self, order: bytes) -> None:
        if self._pending:
            self._pending += order
        elif not self._ended.done():
            with contextlib.suppress(OSError):  # the shim is exiting
                self._link.send(order)

    def _write_request(self) -> None:
        """Send the start request in parts: it may be larger than the socket buffer."""
        try:
            sent = self._link.send(self._pending)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._pending = b""
            return
        self._pending = self._pending[sent:]
        if self._pending:
            self._loop.add_writer(self._link, self._write_request)
        else:
            self._loop.remove_writer(self._link)

    def _read_report(self) -> None:
        try:
            data = self._link.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._report += data
        if b"started " in self._report and self.started_at is None and self._report.count(b"\n"):
            self.started_at = _time(self._report.split(b"\n", 1)[0].split()[1])
            self._started.set_result(None)
        if not data:
            self._finish()

    def _read_output(self) -> bool:
        """Read one chunk. Return False if there is no more for now."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
            return False
        if problem := self._log.write(data):
            self._output(f"\nallranks: {problem}\n".encode())
        self._output(data)
        return True

    def _read_written(self) -> None:
        for _ in range(_PIPE_READS):
            if not self._read_output():
                break

    def _finish(self) -> None:
        """Read the rest of the output from the pipe: the shim has exited."""
        self._loop.remove_reader(self._link)
        self._loop.remove_writer(self._link)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._shim.wait(5)
        if b"exited " not in self._report and b"failed " not in self._report:
            self._on_shim_killed()
        self._read_written()
        self._loop.remove_reader(self._pipe)
        self._output(b"")
        self._link.close()
        os.close(self._pipe)
        if not self._started.done():
            self._started.set_result(None)
        self._ended.set_result(self._read_exit())

    def _read_exit(self) -> Exit:
        for line in self._report.splitlines():
            match line.split():
                case [b"exited", status, seconds]:
                    ended = os.waitstatus_to_exitcode(int(status))  # -n for signal n
                    number = -ended if ended < 0 else None
                    code = 128 + number if number else ended
                    message = self._log.message() if code else ""
                    return Exit(code, _time(seconds), self.reason(code, message), message, number)
                case [b"failed", number, seconds]:
                    return Exit(128, _time(seconds), "StartError", self._start_error(int(number)))
        # The shim was killed, and the first process with it (PR_SET_PDEATHSIG).
        return Exit(128 + signal.SIGKILL, datetime.now(UTC), "Error", self._log.message(), int(signal.SIGKILL))

    def reason(self, code: int, message: str) -> str:
        """Return the reason as the kubelet says it. All pods share one cgroup, so OOMKilled also requires SIGKILL."""
        # A launcher exits with a code of its own and names the signal of its rank.
        killed = code == 128 + signal.SIGKILL or (code and "SIGKILL" in message)
        if killed and count_oom_kills() > self._oom_kills:
            return "OOMKilled"
        return "Error" if code else "Completed"

    def _start_error(self, number: int) -> str:
        program, directory = self._command.argv[0], self._command.directory
        if not directory.is_dir():
            return f"the working directory {directory} does not exist"
        if number in (errno.ENOENT, errno.ENOTDIR):
            where = "not found" if "/" in program else "not found in $PATH"
            return f'exec: "{program}": executable file {where}'
        return f'exec: "{program}": {os.strerror(number).lower()}'


def _time(seconds: bytes) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)


def count_oom_kills(membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> int:
    """Count the OOM kills so far in this process's cgroup, which all pods share; 0 if the kernel provides no counter.

    Both versions of cgroups have one (cgroup-v1/memory.rst, cgroup-v2.rst of the kernel's documentation).
    """
    with contextlib.suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                return _oom_kills(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
            if controllers == "":
                return _oom_kills(cgroups / path.lstrip("/") / "memory.events")
    return 0


def _oom_kills(file: Path) -> int:
    counts = dict(line.split() for line in file.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


class Reaper:
    """Makes this process a subreaper inside a `with`: processes of a killed shim become its children."""

    def __enter__(self) -> Reaper:
        self._before = set(_children())
        if sys.platform == "linux":
            process_tree.adopt_orphans()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_orphans(())
        if sys.platform == "linux":
            process_tree.adopt_orphans(False)

    def kill_orphans(self, shims: Iterable[int]) -> None:
        """Kill all children except `shims` and those from before the context, with all their descendants."""
        kept = self._before | set(shims)
        while orphans := set(_children()) - kept:
            parents = process_tree.parents()
            for pid in orphans.union(*(process_tree.below(orphan, parents) for orphan in orphans)):
                process_tree.send(pid, signal.SIGKILL)
            if not _reap(orphans):
                return


def _reap(orphans: Iterable[int]) -> bool:
    """Return False if a killed process does not exit in time: it is in uninterruptible I/O."""
    deadline = time.monotonic() + _REAP_TIMEOUT_SECONDS
    for orphan in orphans:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(orphan, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.002)
    return True


def _children() -> list[int]:
    parent_pid = os.getpid()
    parents = process_tree.parents() if sys.platform == "linux" else {}
    return [pid for pid, parent in parents.items() if parent == parent_pid]
