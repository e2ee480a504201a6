"""One run of one container: its shim process, its output, its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from allranks.core.facts.model import Exit
from allranks.local import oom, shim
from allranks.local.errors import LocalRunError
from allranks.local.log_file import LogFile

SHIM = [sys.executable, "-I", "-S", shim.__file__]
_CHUNK = 1 << 16
"""Bytes to read from one rank before the others get their turn."""
_PIPE_READS = 64
"""More than a pipe holds. A process that escaped the shim (macOS) may write forever."""
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute."""

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
        on_error: Callable[[LocalRunError], None],
        on_shim_killed: Callable[[], None],
    ) -> None:
        """`files` is the program's soft limit of open files. `output` receives all output, `on_error` an error of the
        disk. `on_shim_killed` is called first when the shim itself was killed."""
        self.started_at: datetime | None = None
        self._command = command
        self._log = log
        self._output = output
        self._on_error = on_error
        self._on_shim_killed = on_shim_killed
        self._report = b""
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        self._oom_kills = oom.count_kills()
        log.start_container()
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
        """Waits until the program is executing or could not be executed."""
        await asyncio.shield(self._started)

    async def ended(self) -> Exit:
        """Waits for the end. By then no process is left, and all output is in the log."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """SIGTERM to the first process, as a kubelet does."""
        self._send_order(b"T")

    def kill(self) -> None:
        """SIGKILL to all processes."""
        self._send_order(b"K")

    @property
    def shim_pid(self) -> int:
        """The shim's pid."""
        return self._shim.pid

    def _send_order(self, order: bytes) -> None:
        if self._pending:
            self._pending += order
        elif not self._ended.done():
            with contextlib.suppress(OSError):  # the shim is exiting
                self._link.send(order)

    def _write_request(self) -> None:
        """Sends the start request in parts: it may be larger than the socket buffer."""
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
        """Reads one chunk. False if there is no more for now."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
            return False
        try:
            self._log.write(data)
        except LocalRunError as error:
            self._on_error(error)
        self._output(data)
        return True

    def _finish(self) -> None:
        """The shim has exited: the rest of the output is in the pipe."""
        self._loop.remove_reader(self._link)
        self._loop.remove_writer(self._link)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._shim.wait(5)
        if b"exited " not in self._report and b"failed " not in self._report:
            self._on_shim_killed()
        for _ in range(_PIPE_READS):
            if not self._read_output():
                break
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
                case [b"exited", status, time]:
                    ended = os.waitstatus_to_exitcode(int(status))  # -n for signal n
                    number = -ended if ended < 0 else None
                    code = 128 + number if number else ended
                    message = self._log.message() if code else ""
                    return Exit(code, _time(time), self._reason(code, message), message, number)
                case [b"failed", number, time]:
                    return Exit(128, _time(time), "StartError", self._start_error(int(number)))
        # The shim was killed, and the first process with it (PR_SET_PDEATHSIG).
        return Exit(128 + signal.SIGKILL, datetime.now(UTC), "Error", self._log.message(), int(signal.SIGKILL))

    def _reason(self, code: int, message: str) -> str:
        """The kubelet's reason. All pods share one cgroup, so OOMKilled also requires an end by SIGKILL."""
        # A launcher exits with a code of its own and names the signal of its rank.
        killed = code == 128 + signal.SIGKILL or (code and "SIGKILL" in message)
        if killed and oom.count_kills() > self._oom_kills:
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
