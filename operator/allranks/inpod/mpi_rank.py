"""Tells which of mpirun's ranks failed first: beside the launcher's command, and as the parent of every rank.

`mpi_rank.py launch NAME COMMAND...` runs the launcher's command, in which some mpirun is, and has Open MPI put
`mpi_rank.py rank WHERE` before each rank's program (its parameter orte_fork_agent). That passes the rank's stderr on
and remembers the end of it; when the rank fails, it tells the launcher's, at NAME, by TCP: mpirun itself names whoever
*ended* first, and a rank that raised may need longer to end than its peers, whose errors came of it. When all is over
the launcher's says, as the log's last lines, which rank was first to fail.

Nothing depends on it: where the launcher does not hear of a rank, it adds nothing to what mpirun said. Times are
compared by the launcher's clock alone: what it is told is how long ago a rank failed. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

LINES, BYTES = 20, 1500
"""Of a rank's stderr: with the line above it less than the 2,048 bytes that a kubelet keeps of the launcher's log."""
RAISED = b"Traceback (most recent call last)"
SHUT_DOWN = "Horovod has been shut down"
"""What it tells the others when one rank ends: who fails by this is not the cause."""
ENDING_SECONDS = 10.0
"""Python prints the traceback and then ends, at once or after a while. One from long before was survived."""
TELL_SECONDS = 3.0
"""A rank that failed waits no longer for the launcher to hear of it."""
CAUSE_SECONDS = 3.0
"""Who is not the cause ends so much later, so that mpirun, too, sees the cause first."""
HANDED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What mpirun gives to the one process that it knows. SIGTERM and SIGKILL it sends to the rank's process group."""


def main(argv: list[str]) -> int:
    if len(argv) < 3 or argv[0] not in ("launch", "rank"):
        print("usage: mpi_rank.py launch NAME COMMAND...\n       mpi_rank.py rank WHERE PROGRAM...", file=sys.stderr)
        return 2
    run = launch if argv[0] == "launch" else rank
    return run(argv[1], argv[2:])


# --- beside the launcher's command ------------------------------------------------------------------------------------


def launch(name: str, command: list[str]) -> int:
    """Runs the launcher's command; returns the exit status, 128 + n for a signal: this is the pod's first process."""
    failures: list[Failure] = []
    env = dict(os.environ)
    with contextlib.suppress(OSError):  # without a port nobody can tell us anything
        # mpirun splits it at blanks, and hands it to the other hosts. Who has an agent of their own keeps it.
        agent = f"/bin/sh {__file__[: -len('.py')]}.sh rank {listen(name, failures)}"
        if len(agent.split()) == 4:
            env.setdefault("OMPI_MCA_orte_fork_agent", agent)
    wakeup = wake_on(signal.SIGCHLD, signal.SIGTERM, *HANDED_ON)
    try:
        process = subprocess.Popen(command, env=env, close_fds=False)
    except OSError as error:
        return cannot_start(command, error)
    while process.poll() is None:
        hand_on(process, signals(wakeup))
    if process.returncode and failures:
        print(told(first(failures)), file=sys.stderr, flush=True)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


class Failure(NamedTuple):
    """As a rank's parent told it."""

    job: str
    """Of which mpirun, should there be more than one."""
    rank: int
    code: int
    """Exit code, -n for a signal."""
    time: float
    lines: str


def listen(name: str, failures: list[Failure]) -> str:
    """Hears of failures in a daemon thread; returns where: `name:port:key`. Raises OSError."""
    server = socket.create_server(("", 0), backlog=1024)  # all ranks may call at the same moment
    key = os.urandom(8).hex()

    def serve() -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it may be anybody who calls
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(TELL_SECONDS)
                    failures.append(read_failure(connection, key))
                    connection.sendall(b"heard")

    threading.Thread(target=serve, daemon=True).start()
    return f"{name}:{server.getsockname()[1]}:{key}"


def read_failure(connection: socket.socket, key: str) -> Failure:
    with connection.makefile("rb") as stream:
        said = json.loads(stream.readline(8 * BYTES))
    if said["key"] != key:
        raise ValueError("a stranger")
    moment = time.time() - float(said["ago"])
    return Failure(str(said["job"]), int(said["rank"]), int(said["code"]), moment, str(said["lines"]))


def first(failures: list[Failure]) -> Failure:
    """Of the last mpirun: where the command goes on after one that failed, it is the other that counts. SIGKILL never
    comes of a peer's failure, and a traceback before it was survived."""
    last = [one for one in failures if one.job == failures[-1].job]
    return min(last, key=lambda one: (SHUT_DOWN in one.lines, one.code != -signal.SIGKILL, one.time))


def told(one: Failure) -> str:
    """What `read_mpirun_report` of frameworks/horovod.py reads."""
    how = f"exit code {one.code}" if one.code > 0 else f"signal {-one.code}"
    when = time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(one.time))
    lines = f". Its last lines:\n{one.lines}" if one.lines else ""
    return f"allranks: rank {one.rank} failed first, at {when}, by {how}{lines}"


# --- the parent of a rank ---------------------------------------------------------------------------------------------


def rank(where: str, program: list[str]) -> int:
    """Runs the rank's program, and ends as it does."""
    ours, theirs = os.pipe()
    wakeup = wake_on(signal.SIGCHLD, signal.SIGTERM, *HANDED_ON)
    try:
        process = subprocess.Popen(program, stderr=theirs, close_fds=False)
    except OSError as error:
        return cannot_start(program, error)
    os.close(theirs)
    stderr = Stderr(ours)
    stopped = follow(process, stderr, wakeup)
    if process.returncode == -signal.SIGTERM and not stopped:
        stopped = sigterm_within(0.1, wakeup)  # the program, which got it as well, was faster
    stderr.read_rest()
    if process.returncode and not stopped:
        tell(where, process.returncode, stderr)
        if SHUT_DOWN in stderr.lines():
            sigterm_within(CAUSE_SECONDS, wakeup)
    elif stopped and stderr.raised() and process.returncode != 0:
        tell(where, max(process.returncode or 1, 1), stderr)  # its peers were faster to end, so mpirun ends it too
    while process.poll() is None:
        follow(process, stderr, wakeup)
    stderr.read_rest()
    if process.returncode < 0:
        end_by(-process.returncode)
    return process.returncode


def follow(process: subprocess.Popen[bytes], stderr: Stderr, wakeup: int) -> bool:
    """Until mpirun ends the rank (True), or it has ended, and what it left behind if it ended well."""
    while process.poll() is None or (process.returncode == 0 and stderr.open):
        ready, _, _ = select.select([wakeup, *([stderr.pipe] if stderr.open else [])], [], [])
        if stderr.pipe in ready:
            stderr.read()
        if wakeup in ready:
            came = signals(wakeup)
            hand_on(process, came - {signal.SIGTERM})  # it has that already
            if signal.SIGTERM in came:
                return True
    return False


class Stderr:
    """Of a rank: passed on, and the end of it remembered."""

    def __init__(self, pipe: int) -> None:
        self.open = True
        self.pipe = pipe
        self._end = b""
        self._raised: float | None = None

    def read(self) -> None:
        """What is there, or what comes next."""
        data = os.read(self.pipe, 1 << 16)
        self.open = bool(data)
        known = self._end
        self._end = (known + data)[-BYTES - 1 :]
        if RAISED in known[-len(RAISED) + 1 :] + data:
            self._raised = time.monotonic()
        while data:
            try:
                data = data[os.write(2, data) :]
            except BlockingIOError:
                select.select([], [2], [])
            except OSError:
                return  # nobody listens any more; the program need not know

    def read_rest(self) -> None:
        """Without waiting for processes that the program may have left behind."""
        while self.open and select.select([self.pipe], [], [], 0)[0]:
            self.read()

    def raised(self) -> float | None:
        """When it printed a traceback by which it may be ending now; None where there was none."""
        recently = self._raised is not None and time.monotonic() - self._raised < ENDING_SECONDS
        return self._raised if recently else None

    def lines(self) -> str:
        """Whole ones, unless one alone is too long."""
        end = self._end[-BYTES:]
        if len(self._end) > BYTES:
            end = self._end[self._end.find(b"\n", 0, -1) + 1 :][-BYTES:]
        return "\n".join(end.decode(errors="ignore").rstrip().splitlines()[-LINES:])


def tell(where: str, code: int, stderr: Stderr) -> None:
    """Returns when the launcher has heard it, or after TELL_SECONDS: to look a name up may take longer."""
    moment = stderr.raised() if code > 0 else None
    teller = threading.Thread(target=_tell, args=(where, code, moment or time.monotonic(), stderr.lines()), daemon=True)
    teller.start()
    teller.join(TELL_SECONDS)


def _tell(where: str, code: int, moment: float, lines: str) -> None:
    name, port, key = where.rsplit(":", 2)
    job, number = os.environ.get("PMIX_NAMESPACE", ""), int(os.environ.get("OMPI_COMM_WORLD_RANK", "-1"))
    with contextlib.suppress(OSError), socket.create_connection((name, int(port)), timeout=TELL_SECONDS) as connection:
        known = {"key": key, "job": job, "rank": number, "code": code, "lines": lines}
        connection.sendall(json.dumps({**known, "ago": time.monotonic() - moment}).encode() + b"\n")
        connection.recv(16)


def sigterm_within(seconds: float, wakeup: int) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and select.select([wakeup], [], [], left)[0]:
        if signal.SIGTERM in signals(wakeup):
            return True
    return False


def end_by(number: int) -> None:
    """As the program did, so that mpirun says what it would have said; the program's core is enough."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# --- both -------------------------------------------------------------------------------------------------------------


def wake_on(*numbers: int) -> int:
    """A pipe that becomes readable when one of these signals comes; programs do not inherit that."""
    wakeup, end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return wakeup


def signals(wakeup: int) -> set[int]:
    """Those that came, waiting for one."""
    select.select([wakeup], [], [])
    return set(os.read(wakeup, 4096))


def hand_on(process: subprocess.Popen[bytes], numbers: set[int]) -> None:
    """Not `Popen.send_signal`: that may reap the process first."""
    for number in numbers - {signal.SIGCHLD}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def cannot_start(command: list[str], error: OSError) -> int:
    print(f"allranks: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
