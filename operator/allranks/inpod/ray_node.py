"""Starts the Ray node of a pod: `python3 ray_node.py head [-- PROGRAM [ARG...]]`, or `python3 ray_node.py worker`.

The head waits for the workers, runs the program, and ends with its exit status, 128 + n for a signal. Without a program
it ends with 0 when nothing has used the cluster for ALLRANKS_RAY_IDLE_SECONDS. A worker belongs to the head's cluster
until its pod is deleted. `ray start --block` runs as a child of this process.

Reads RAY_ADDRESS, ALLRANKS_RAY_CPUS/GPUS/MEMORY (what Ray may use here; Ray itself detects what is missing), and in the
head ALLRANKS_RAY_DASHBOARD_PORT/CLIENT_PORT, ALLRANKS_RAY_WORKERS/MIN_WORKERS/WAIT_SECONDS; on one machine, where each
node has an address of its own, ALLRANKS_RAY_NODE. Needs only the standard library, and the program `ray` in PATH.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ray_output import Output  # type: ignore[import-not-found]  # in the same directory
from watch import (  # type: ignore[import-not-found]  # in the same directory
    DIRECTORY,
    FORWARDED,
    cannot_start,
    parent_of,
    prepend,
    write_line,
    write_signal,
)

POLL_SECONDS = 0.2
RAYLET_SECONDS = 2.0
"""Interval between two checks that the raylet runs."""
REMIND_SECONDS = 60.0
"""Interval of the line that says for how many workers the head waits."""
CONNECT_SECONDS = 5.0
GRACE_SECONDS = 10.0
"""Longest time in which Ray's processes end."""
DRAIN_SECONDS = 25.0
LAST_SECONDS = 2.0
"""Time that Ray's processes have after a node was drained."""
STAY_SECONDS = 600.0
"""Time for which a worker without a head waits for its deletion. Kubernetes detects a lost node after 90 s; a worker
that ends earlier would look like the first failure."""
LOST = 138
"""The exit status of a worker without a head, and of a head without Ray: restart, because the program did not fail."""
LOCAL_HEAD = "127.0.0.2"
"""Address of the head on one machine; workers have the next ones. Ray replaces 127.0.0.1 by the machine's address in
its network."""
TRIES = 10
"""Tries of `ray start`. On a busy machine it fails: Ray gives its agents 15 s to start."""
JOINED = "Ray runtime started"
"""Line that `ray start` prints when the node belongs to the cluster."""
STORE_SHARE = 0.3
"""Share of the memory for the object store, which is in /dev/shm. Ray's own default."""
DRIVER = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
"""Variables of a program that uses the cluster, and of `ray job submit`."""
TOKENS_SINCE = (2, 52)
"""The first version of Ray with tokens. Earlier ones ignore RAY_AUTH_MODE."""
VERSION_SECONDS = 120.0
LINES = 12
"""Lines of Ray's own output that are shown when it fails."""


def main(argv: list[str]) -> int:
    """Run the node until it ends; return the exit status."""
    if argv[:1] == ["worker"]:
        return Node().work()
    if argv[:1] == ["head"] and (not argv[1:] or (argv[1] == "--" and argv[2:])):
        return Node().lead(argv[2:])
    print("usage: ray_node.py head [-- PROGRAM [ARG...]] | ray_node.py worker", file=sys.stderr)
    return 2


class Node:
    """The processes of this pod, and the signal that it received."""

    def __init__(self) -> None:
        self.host, _, port = os.environ["RAY_ADDRESS"].rpartition(":")
        self.port = int(port)
        self.local = self.host.startswith("127.")
        self._env = dict(os.environ)
        if self.local:
            self.host = LOCAL_HEAD
            self._env["RAY_ADDRESS"] = f"{self.host}:{self.port}"
            if dashboard := self._env.get("RAY_API_SERVER_ADDRESS"):
                self._env["RAY_API_SERVER_ADDRESS"] = f"http://{LOCAL_HEAD}:{dashboard.rpartition(':')[2]}"
        for folder in ("startup", "python"):  # for the processes that Ray starts, as `watch.py` does for its program
            path = DIRECTORY / folder
            if path.is_dir() and str(path) not in self._env.get("PYTHONPATH", "").split(os.pathsep):
                prepend(self._env, path)
        self._ended: dict[int, int] = {}
        """pid -> exit code of the children that have ended, -n for signal n."""
        self._signals: list[int] = []
        self._ray: subprocess.Popen[bytes] | None = None
        self._raylet: int | None = None
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_SHORT if self.local else None))
        self._output = self._folder / "ray-start.log"
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, lambda number, frame: self._signals.append(number))

    # --- the head ----------------------------------------------------------------------------------------------------

    def lead(self, program: list[str]) -> int:
        """Start the cluster, and run the program in it, or without one wait until nothing uses it any more."""
        _remove_stale_folders()
        try:
            status = self._join(self._head_options(dashboard=not (self.local and program)))
            if status is None:
                status = self._await_workers()
            if status is not None:
                return status
            return self._run(program) if program else self._serve()
        finally:
            self._stop_ray()

    def _head_options(self, dashboard: bool) -> list[str]:
        """`dashboard`: it is a dozen processes, which start slowly on a small machine."""
        options = ["--head", f"--port={self.port}"]
        options.append(f"--ray-client-server-port={os.environ['ALLRANKS_RAY_CLIENT_PORT']}")
        if self.local:
            options.append("--no-monitor")
        if not dashboard:
            return [*options, "--include-dashboard=false"]
        host = LOCAL_HEAD if self.local else self._dashboard_host()
        return [*options, f"--dashboard-host={host}", f"--dashboard-port={os.environ['ALLRANKS_RAY_DASHBOARD_PORT']}"]

    def _dashboard_host(self) -> str:
        """Return the loopback address if no token would protect the dashboard, which runs programs of any client."""
        if self._env.get("RAY_AUTH_MODE") != "token":
            return "0.0.0.0"  # the job's own choice
        version = _ray_version()
        if version is not None and version >= TOKENS_SINCE:
            return "0.0.0.0"
        reason = "Ray does not say its version" if version is None else f"this is Ray {version[0]}.{version[1]}"
        write_line(
            f"{reason}, and Ray before 2.52 has no tokens, so its dashboard is only at 127.0.0.1 of this pod, for "
            "kubectl port-forward. Without tokens its other ports admit every pod that reaches them: use a newer Ray, "
            "or network policies. RAY_AUTH_MODE: disabled in env opens the dashboard"
        )
        return "127.0.0.1"

    def _await_workers(self) -> int | None:
        """Wait for all workers; in an elastic job for as many as are needed, and for a while for the others. Return
        an exit status if the node ends meanwhile."""
        expected = int(os.environ.get("ALLRANKS_RAY_WORKERS") or 0)
        if not expected:
            return None
        least = int(os.environ.get("ALLRANKS_RAY_MIN_WORKERS") or expected)
        enough_at = time.monotonic() + float(os.environ.get("ALLRANKS_RAY_WAIT_SECONDS") or 0)
        remind_at = time.monotonic() + REMIND_SECONDS
        workers = 0

        def joined(lines: list[bytes] | None) -> bool:
            nonlocal remind_at, workers
            if lines is None:
                write_line("this Ray does not say which workers have joined: the program starts at once")
                return True
            for line in lines:
                workers = int(line) - 1
            now = time.monotonic()
            if now >= remind_at:
                remind_at = now + REMIND_SECONDS
                write_line(f"{max(0, workers)} of {expected} workers have joined the Ray cluster")
            return workers >= expected or (workers >= least and now >= enough_at)

        return self._await_answer("ray_nodes.py", joined, "Ray ended before the workers joined")

    def _serve(self) -> int:
        """Wait until nothing has used the cluster for the idle time. Return the exit status."""
        longest = int(os.environ["ALLRANKS_RAY_IDLE_SECONDS"])
        variables = " ".join(f"{name}={self._env[name]}" for name in DRIVER if name in self._env)
        write_line(f"the Ray cluster ends when nothing has used it for {longest} s. Its drivers need {variables}")

        def is_idle(lines: list[bytes] | None) -> bool:
            if lines is None:
                write_line("this Ray does not say whether it is used, so it cannot end by itself")
                sys.exit(1)
            return any(int(line) >= longest for line in lines)

        status = self._await_answer("ray_idle.py", is_idle, "Ray ended")
        if status is None:
            write_line(f"nothing has used the Ray cluster for {longest} s: it ends")
        return status or 0

    def _await_answer(self, helper: str, done: Callable[[list[bytes] | None], bool], failure: str) -> int | None:
        """Wait until `done`, which gets the new words of a helper that asks Ray, or None when the helper has ended.

        Return an exit status if a signal arrives or Ray ends first."""
        process = subprocess.Popen([sys.executable, str(DIRECTORY / helper)], env=self._env, stdout=subprocess.PIPE)
        output = process.stdout
        assert output
        os.set_blocking(output.fileno(), False)

        def answered() -> bool:
            return done(None if process.pid in self._ended else (output.read() or b"").split())

        try:
            return self._until(answered, failure)
        finally:
            if process.pid not in self._ended:
                _send(process.pid, signal.SIGKILL)
            output.close()

    def _run(self, program: list[str]) -> int:
        ours, theirs = os.pipe()
        try:
            process = subprocess.Popen(program, env=self._env, stderr=theirs)
        except OSError as error:
            return cannot_start(program, error)  # type: ignore[no-any-return]
        os.close(theirs)
        output = Output(ours)
        reader = threading.Thread(target=output.read_all, daemon=True)
        reader.start()
        forwarded = 0
        lost_at = 0.0
        while process.pid not in self._ended:
            for number in self._signals[forwarded:]:
                _send(process.pid, number)
                forwarded += 1
            if lost_at and time.monotonic() > lost_at + GRACE_SECONDS:
                _send(process.pid, signal.SIGKILL)
            elif not lost_at and self._ray_ended():
                lost_at = time.monotonic()
                self._show_output("Ray ended, and the program cannot continue without it")
                _send(process.pid, signal.SIGTERM)
            self._wait(1.0 if lost_at else RAYLET_SECONDS)
        code = process.returncode = self._ended[process.pid]
        reader.join(LAST_SECONDS)  # not longer: processes that the program left behind may have its stderr
        if lost_at:
            return LOST
        if code < 0:
            write_signal(-code)
            return 128 - code
        if code and not self._signals and (report := output.report(code)):
            print(report, file=sys.stderr, flush=True)
        return code

    # --- a worker ----------------------------------------------------------------------------------------------------

    def work(self) -> int:
        """Belong to the cluster until a signal arrives or Ray ends."""
        try:
            status = self._join([f"--address={self.host}:{self.port}"])
            if status is not None:
                return status
            while not self._ray_ended():
                if self._signals:
                    return self._leave()
                self._wait(RAYLET_SECONDS)
            return self._without_ray()
        finally:
            self._stop_ray()

    def _leave(self) -> int:
        """Let Ray drain the node of this pod, which is being deleted; Ray Train has a budget of its own for that.

        Without the head there is nothing to drain."""
        assert self._ray
        _send(self._ray.pid, signal.SIGTERM)
        drain = float(os.environ.get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S") or DRAIN_SECONDS)
        deadline = time.monotonic() + drain + LAST_SECONDS
        while not self._ray_ended() and self._is_up() and time.monotonic() < deadline:
            self._wait(POLL_SECONDS)
        return 128 + self._signals[0]

    def _without_ray(self) -> int:
        """Handle the end of Ray. It ends a minute after it lost the head; then the head's end is the failure."""
        if self._is_up():
            return self._show_output("Ray ended on this node")
        write_line(f"no answer from the head at {self.host}:{self.port}")
        deadline = time.monotonic() + STAY_SECONDS
        while not self._signals and time.monotonic() < deadline:
            self._wait(deadline - time.monotonic())
        return 128 + self._signals[0] if self._signals else LOST

    # --- both --------------------------------------------------------------------------------------------------------

    def _join(self, options: list[str]) -> int | None:
        """Start Ray's processes, and wait until the node belongs to the cluster. Return an exit status if it cannot.

        Ray also gives up if the GCS is there and the head's own node not yet.
        """
        ray = shutil.which("ray")
        if ray is None:
            return cannot_start(["ray"], FileNotFoundError(2, "not in the image: install ray[default]"))  # type: ignore[no-any-return]
        command = [ray, "start", *options, "--block", "--disable-usage-stats", *_resource_options()]
        # Any free ports: a fixed range may contain one of the others.
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        if self.local:  # all nodes are on this machine
            worker = int(os.environ["ALLRANKS_RAY_NODE"]) - 1
            address = LOCAL_HEAD if "--head" in options else f"127.0.0.{3 + worker % 250}"
            command += [f"--node-ip-address={address}", "--temp-dir", str(self._folder)]
            command += ["--dashboard-agent-listen-port=0", "--metrics-export-port=0"]
        env = {name: value for name, value in self._env.items() if name != "RAY_ADDRESS"}
        for _ in range(TRIES):
            if "--head" not in options:
                status = self._until_head()
                if status is not None:
                    return status
            with self._output.open("wb") as output:
                self._ray = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
            while not self._ray_ended():
                if self._has_joined():
                    self._raylet = _child(self._ray.pid, "raylet")
                    return None
                if self._signals:
                    return self._leave() if "--head" not in options else 128 + self._signals[0]
                self._wait(POLL_SECONDS)
            if self._has_joined():  # and ended within one poll
                return None
        return self._show_output("Ray could not be started")

    def _until_head(self) -> int | None:
        """Wait for the head, which may be unscheduled for hours. Return an exit status if a signal arrives."""
        while not self._is_up():
            if self._signals:
                return 128 + self._signals[0]
            self._wait(POLL_SECONDS)
        return None

    def _has_joined(self) -> bool:
        with contextlib.suppress(OSError):
            return JOINED in self._output.read_text(errors="replace")
        return False

    def _is_up(self) -> bool:
        """Return whether the GCS listens. The name of the head's pod may not resolve yet."""
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), CONNECT_SECONDS):
            return True
        return False

    def _until(self, done: Callable[[], bool], failure: str) -> int | None:
        """Wait for `done`. Return an exit status if a signal arrives or Ray ends first."""
        while not done():
            if self._signals:
                return 128 + self._signals[0]
            if self._ray_ended():
                return self._show_output(failure)
            self._wait(POLL_SECONDS)
        return None

    def _wait(self, seconds: float) -> None:
        """Wait for a signal, which includes SIGCHLD, and reap: this process may be PID 1."""
        if select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, 4096)
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._ended[ended[0]] = os.waitstatus_to_exitcode(ended[1])

    def _ray_ended(self) -> bool:
        """Return whether `ray start` has ended, or its raylet. A raylet that loses an agent ends with 0, which `ray
        start --block` ignores: the pod would stay without belonging to the cluster."""
        if self._ray is None:
            return False
        return self._ray.pid in self._ended or (self._raylet is not None and parent_of(self._raylet) != self._ray.pid)

    def _stop_ray(self) -> None:
        """End `ray start`. Its processes end with the pod. `ray stop` would end processes of other nodes too."""
        if self._ray and self._ray.pid not in self._ended:
            _send(self._ray.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _show_output(self, line: str) -> int:
        """Show why Ray ended; return the exit status."""
        with contextlib.suppress(OSError):
            lines = self._output.read_text(errors="replace").splitlines()
            sys.stderr.write("".join(f"{line}\n" for line in lines[-LINES:]))
            sys.stderr.flush()
        write_line(line)
        code = self._ended.get(self._ray.pid, 1) if self._ray else 1
        return 128 - code if code < 0 else code or 1


_PREFIX = "allranks-ray-"
_SHORT = "/tmp"
"""A socket's path, below Ray's directory, has at most 107 bytes: TMPDIR may be too long."""


def _remove_stale_folders() -> None:
    """Remove the directories of nodes that were killed."""
    for path in Path(_SHORT).glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)


def _ray_version() -> tuple[int, int] | None:
    """Return (major, minor); None if Ray does not say it."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [shutil.which("ray") or "ray", "--version"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECONDS, check=False).stdout
        if match := re.search(r"(\d+)\.(\d+)\.", output):
            return int(match[1]), int(match[2])
    return None


def _resource_options() -> list[str]:
    options = []
    for option, name in (("--num-cpus", "ALLRANKS_RAY_CPUS"), ("--num-gpus", "ALLRANKS_RAY_GPUS")):
        if amount := os.environ.get(name):
            options.append(f"{option}={amount}")
    if memory := int(os.environ.get("ALLRANKS_RAY_MEMORY") or 0):
        store = int(min(memory * STORE_SHARE, _shared_memory()))
        options += [f"--memory={memory - store}", f"--object-store-memory={store}"]
    return options


def _shared_memory() -> float:
    """Free bytes in /dev/shm; infinite without it."""
    try:
        memory = os.statvfs("/dev/shm")
    except OSError:
        return float("inf")
    return 0.9 * memory.f_bavail * memory.f_frsize


def _child(parent: int, name: str) -> int | None:
    """Return the child with this name; None also without /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if parent_of(int(folder.name)) == parent and (folder / "comm").read_text().strip() == name:
                return int(folder.name)
    return None


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
