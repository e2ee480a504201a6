"""Reports which of mpirun's ranks failed first. It runs in the launcher and as the parent process of every rank.

`mpi_rank.py launch NAME COMMAND...` runs the launcher's command, which calls mpirun, and makes Open MPI start
`mpi_rank.py rank WHERE` before each rank's program (parameter orte_fork_agent). The rank's wrapper forwards stderr and
keeps the end of it. When the rank fails, the wrapper reports to the launcher, at NAME, by TCP. This is needed because
mpirun names the rank that *ended* first, and a rank that raised an exception may take longer to end than the peers
that it brought down. At the end the launcher prints which rank failed first, as the last lines of the log. MPICH and
Intel MPI have no such parameter: for them allranks writes `mpi_rank.py rank env` before the program, if it writes the
mpirun, and WHERE is in ALLRANKS_MPI_REPORT.

The job does not depend on these reports: without one, the log holds what mpirun printed. A report says how long ago the
rank failed, so that only the launcher's clock matters. Standard library only.
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
"""Limits for the end of a rank's stderr. With its heading it is below the 2,048 bytes that a kubelet keeps."""
RAISED = b"Traceback (most recent call last)"
SHUT_DOWN = "Horovod has been shut down"
"""Horovod prints this in the other ranks when one rank ends. A rank that fails with it is not the root cause."""
ENDING_SECONDS = 10.0
"""Python ends soon after it prints a traceback. The program has survived a traceback that is older than this."""
REPORT_SECONDS = 3.0
"""Timeout of a report to the launcher."""
CAUSE_SECONDS = 3.0
"""Delay before other failed ranks end, so that mpirun also observes the root cause first."""
WHERE = "ALLRANKS_MPI_REPORT"
"""Variable of the launcher's command: where ranks report, for `rank env`."""
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals that mpirun sends only to its child process. SIGTERM and SIGKILL go to the process group of the rank."""


def main(argv: list[str]) -> int:
    if len(argv) < 3 or argv[0] not in ("launch", "rank"):
        print("usage: mpi_rank.py launch NAME COMMAND...\n       mpi_rank.py rank WHERE PROGRAM...", file=sys.stderr)
        return 2
    run = launch if argv[0] == "launch" else rank
    return run(argv[1], argv[2:])


# --- in the launcher --------------------------------------------------------------------------------------------------


def launch(name: str, command: list[str]) -> int:
    """Runs the launcher's command. Returns its exit status, 128 + n for signal n, like a shell."""
    failures: list[Failure] = []
    env = dict(os.environ)
    with contextlib.suppress(OSError):  # without a port, no rank can report
        # mpirun splits the value at blanks and passes it to the other hosts. An agent set by the user is kept.
        where = listen(name, failures)
        env[WHERE] = where
        agent = f"/bin/sh {__file__[: -len('.py')]}.sh rank {where}"
        if len(agent.split()) == 4:
            env.setdefault("OMPI_MCA_orte_fork_agent", agent)
    with contextlib.suppress(OSError, ImportError):  # fcntl is not everywhere
        name_interface(env, name)
    wakeup = wake_on(signal.SIGCHLD, signal.SIGTERM, *FORWARDED)
    try:
        process = subprocess.Popen(command, env=env, close_fds=False)
    except OSError as error:
        return cannot_start(command, error)
    while process.poll() is None:
        forward(process, signals(wakeup))
    if process.returncode and failures:
        print(format_report(first_failure(failures)), file=sys.stderr, flush=True)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def name_interface(env: dict[str, str], name: str) -> None:
    """Makes Hydra (MPICH, Intel MPI) tell the workers the IP address of the launcher, by its network interface. It
    tells them the host name otherwise, which they cannot resolve. Raises OSError or ImportError."""
    wanted = [f"{prefix}_IFACE" for prefix in ("HYDRA", "I_MPI_HYDRA") if f"{prefix}_HOST_FILE" in env]
    if wanted:
        interface = interface_of(socket.gethostbyname(name))
        for variable in wanted if interface else []:
            env.setdefault(variable, interface)


def interface_of(address: str) -> str:
    """The network interface with this IPv4 address; empty if there is none. Raises OSError or ImportError."""
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR of Linux
    for _, interface in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            found = fcntl.ioctl(any_socket, get_address, interface.encode().ljust(40, b"\0"))
            if socket.inet_ntoa(found[20:24]) == address:
                return interface
    return ""


class Failure(NamedTuple):
    """One report of a rank's wrapper."""

    job: str
    """Identifies the mpirun, because a command may run several."""
    rank: int
    code: int
    """Exit code, -n for a signal."""
    time: float
    lines: str


def listen(name: str, failures: list[Failure]) -> str:
    """Receives reports in a daemon thread. Returns its address as `name:port:key`. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024)  # all ranks at once
    key = os.urandom(8).hex()

    def serve() -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # any client may connect
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(REPORT_SECONDS)
                    failures.append(read_failure(connection, key))
                    connection.sendall(b"ok")

    threading.Thread(target=serve, daemon=True).start()
    return f"{name}:{server.getsockname()[1]}:{key}"


def read_failure(connection: socket.socket, key: str) -> Failure:
    with connection.makefile("rb") as stream:
        message = json.loads(stream.readline(8 * BYTES))
    if message["key"] != key:
        raise ValueError("wrong key")
    moment = time.time() - float(message["ago"])
    return Failure(str(message["job"]), int(message["rank"]), int(message["code"]), moment, str(message["lines"]))


def first_failure(failures: list[Failure]) -> Failure:
    """The first failure of the last mpirun: where a command runs another one after a failure, that one counts. SIGKILL
    is never the consequence of a peer's failure, and a process that gets it has survived any traceback."""
    last = [one for one in failures if one.job == failures[-1].job]
    return min(last, key=lambda one: (SHUT_DOWN in one.lines, one.code != -signal.SIGKILL, one.time))


def format_report(one: Failure) -> str:
    """The text that `read_rank_report` in frameworks/rank_report.py parses."""
    how = f"exit code {one.code}" if one.code > 0 else f"signal {-one.code}"
    when = time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(one.time))
    lines = f". Its last lines:\n{one.lines}" if one.lines else ""
    return f"allranks: rank {one.rank} failed first, at {when}, by {how}{lines}"


# --- the parent of a rank ---------------------------------------------------------------------------------------------


def rank(where: str, program: list[str]) -> int:
    """Runs the rank's program, and ends with the same exit code or signal. `where`: the launcher, or `env`."""
    where = os.environ.get(WHERE, "") if where == "env" else where
    ours, theirs = os.pipe()
    wakeup = wake_on(signal.SIGCHLD, signal.SIGTERM, *FORWARDED)
    try:
        process = subprocess.Popen(program, stderr=theirs, close_fds=False, env=with_whole_lines())
    except OSError as error:
        return cannot_start(program, error)
    os.close(theirs)
    stderr = Stderr(ours)
    stopped = follow(process, stderr, wakeup)
    if process.returncode == -signal.SIGTERM and not stopped:
        stopped = sigterm_within(0.1, wakeup)  # the program got it as well, and ended faster
    stderr.read_rest()
    if process.returncode and not stopped:
        report_failure(where, process.returncode, stderr)
        if SHUT_DOWN in stderr.lines():
            sigterm_within(CAUSE_SECONDS, wakeup)
    elif stopped and stderr.raised() and process.returncode != 0:
        report_failure(
            where, max(process.returncode or 1, 1), stderr
        )  # its peers ended faster, so mpirun terminates it as well
    while process.poll() is None:
        follow(process, stderr, wakeup)
    stderr.read_rest()
    if process.returncode < 0:
        end_by_signal(-process.returncode)
    return process.returncode


def with_whole_lines() -> dict[str, str]:
    """Returns the environment of the program. Without a buffer, `print` writes a line in parts, and mpirun mixes the
    parts of several ranks. On the terminal that Open MPI gives to each rank, Python writes whole lines at once."""
    env = dict(os.environ)
    if os.isatty(1):
        env.pop("PYTHONUNBUFFERED", None)
    return env


def follow(process: subprocess.Popen[bytes], stderr: Stderr, wakeup: int) -> bool:
    """Waits until mpirun terminates the rank (True), or the rank has ended and, after success, closed its stderr."""
    while process.poll() is None or (process.returncode == 0 and stderr.open):
        ready, _, _ = select.select([wakeup, *([stderr.pipe] if stderr.open else [])], [], [])
        if stderr.pipe in ready:
            stderr.read()
        if wakeup in ready:
            arrived = signals(wakeup)
            forward(process, arrived - {signal.SIGTERM})  # mpirun has sent it that already
            if signal.SIGTERM in arrived:
                return True
    return False


class Stderr:
    """A rank's stderr: forwarded, with the end of it kept."""

    def __init__(self, pipe: int) -> None:
        self.open = True
        self.pipe = pipe
        self._end = b""
        self._raised: float | None = None

    def read(self) -> None:
        """Forwards what the pipe holds, or waits for the next output."""
        data = os.read(self.pipe, 1 << 16)
        self.open = bool(data)
        self.keep(data)
        while data:
            try:
                data = data[os.write(2, data) :]
            except BlockingIOError:
                select.select([], [2], [])
            except OSError:
                return  # our own stderr is closed; the program continues

    def keep(self, data: bytes) -> None:
        kept = self._end
        self._end = (kept + data)[-BYTES - 1 :]
        if RAISED in kept[-len(RAISED) + 1 :] + data:
            self._raised = time.monotonic()

    def read_rest(self) -> None:
        """Reads the rest. Does not wait for processes that the program may have left behind."""
        while self.open and select.select([self.pipe], [], [], 0)[0]:
            self.read()

    def raised(self) -> float | None:
        """The time of a recent traceback, by which the program may be ending; None without one."""
        recently = self._raised is not None and time.monotonic() - self._raised < ENDING_SECONDS
        return self._raised if recently else None

    def lines(self) -> str:
        return end_of(self._end)


def end_of(output: bytes) -> str:
    """The last lines. A line is cut only if it alone exceeds the limit."""
    end = output[-BYTES:]
    if len(output) > BYTES:
        last = output[-BYTES - 1 :]
        end = last[last.find(b"\n", 0, -1) + 1 :][-BYTES:]
    return "\n".join(end.decode(errors="ignore").rstrip().splitlines()[-LINES:])


def report_failure(where: str, code: int, stderr: Stderr) -> None:
    """Returns when the launcher has the report, or after REPORT_SECONDS, because a name lookup may take longer."""
    moment = stderr.raised() if code > 0 else None
    sender = threading.Thread(
        target=_send_report, args=(where, code, moment or time.monotonic(), stderr.lines()), daemon=True
    )
    sender.start()
    sender.join(REPORT_SECONDS)


def _send_report(where: str, code: int, moment: float, lines: str) -> None:
    if not where:
        return  # the launcher could not listen
    name, port, key = where.rsplit(":", 2)
    number = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or "-1")
    job = os.environ.get("PMIX_NAMESPACE", "")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((name, int(port)), timeout=REPORT_SECONDS) as connection,
    ):
        report = {"key": key, "job": job, "rank": number, "code": code, "lines": lines}
        connection.sendall(json.dumps({**report, "ago": time.monotonic() - moment}).encode() + b"\n")
        connection.recv(16)


def sigterm_within(seconds: float, wakeup: int) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and select.select([wakeup], [], [], left)[0]:
        if signal.SIGTERM in signals(wakeup):
            return True
    return False


def end_by_signal(number: int) -> None:
    """Ends by the same signal as the program, so that mpirun reports it. The core dump of the program is enough."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# --- both -------------------------------------------------------------------------------------------------------------


def wake_on(*numbers: int) -> int:
    """A pipe that becomes readable when one of these signals arrives. Child processes do not inherit it."""
    wakeup, end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return wakeup


def signals(wakeup: int) -> set[int]:
    """Waits for a signal. Returns all that have arrived."""
    select.select([wakeup], [], [])
    return set(os.read(wakeup, 4096))


def forward(process: subprocess.Popen[bytes], numbers: set[int]) -> None:
    """Sends signals to the process. `Popen.send_signal` is not used, because it may reap the process first."""
    for number in numbers - {signal.SIGCHLD}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def cannot_start(command: list[str], error: OSError) -> int:
    print(f"allranks: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
