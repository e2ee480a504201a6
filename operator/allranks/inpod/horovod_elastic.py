"""Runs the ranks of a worker with Elastic Horovod, without ssh: `python3 horovod_elastic.py PROGRAM [ARG...]`.

This program is the agent in each worker pod. It polls the driver, which runs in the first worker, starts the ranks that
the driver assigns to it, and reports their exit codes. A pod with a failed rank ends with the exit code of that rank
(128 + n for a signal), so that the operator replaces it. The other ranks continue and add the ranks of the new pod.

Reads HOROVOD_GLOO_RENDEZVOUS_ADDR/PORT HOROVOD_HOSTNAME HOROVOD_LOCAL_SIZE ALLRANKS_INDEX, and in the first worker
ALLRANKS_HOROVOD_MIN/MAX/WORKERS/WAIT_SECONDS. Needs only the standard library and Horovod's
driver.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from typing import Any

from horovod_gloo import host_name_problem, ipv4_address  # type: ignore[import-not-found]  # in the same directory
from rank_processes import limit_threads  # type: ignore[import-not-found]
from rendezvous_secret import headers  # type: ignore[import-not-found]
from watch import write_line, write_signal  # type: ignore[import-not-found]

START_TIMEOUT_SECONDS = float(os.environ.get("HOROVOD_START_TIMEOUT", "inf"))
"""Longest wait for the driver. horovodrun uses the same variable. The first worker may be unscheduled for hours."""
POLL_SECONDS = 0.1
IDLE_SECONDS = 0.3
"""Poll interval while no rank runs here and there is nothing to report."""
BUSY_SECONDS = 1.0
"""Poll interval while ranks run."""
CALL_SECONDS = 2.0
LOST_SECONDS = 10.0
STAY_SECONDS = 600.0
"""Time for which a pod without a driver waits for its deletion. Kubernetes detects a lost node after 90 s; a pod that
ends earlier would look like a failure."""
LOST = 138
"""The exit status when the driver is lost: restart, because the program did not fail. The root cause is the earlier
failure of the driver, which the operator may observe later than this one if a node is lost."""
GLOO_TIMEOUT_SECONDS = "15"
"""When a rank dies, others may wait for each other for all of this time. Horovod's default is 30. Ranks that join
slowly do not need more: the driver makes the others wait for them."""
LEAVE_SECONDS = 10.0
"""Time for which a pod that got SIGTERM waits until the others continue without it (they check at each commit)."""
GRACE_SECONDS = 10.0
"""Longest time in which ranks end."""


def main(program: list[str]) -> int:
    """Run the ranks of this worker until the training ends; return the exit status."""
    if not program:
        print("usage: horovod_elastic.py PROGRAM [ARG...]", file=sys.stderr)
        return 2
    if problem := host_name_problem():
        write_line(problem)
        return 1
    agent = Agent(program)
    signal.signal(signal.SIGTERM, agent.on_signal)
    signal.signal(signal.SIGINT, agent.on_signal)
    if agent.index != 0:
        return agent.run()
    from horovod_elastic_driver import serve  # type: ignore[import-not-found]  # in the same directory

    hosts = serve(agent.port)
    status = agent.run()
    hosts.end(128 + agent.signal if agent.signal else status)
    return status


class Agent:
    """The state of a pod: its ranks, the address of the driver, and the signal that it received."""

    def __init__(self, program: list[str]) -> None:
        self.index = int(os.environ["ALLRANKS_INDEX"])
        self.port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        self.signal = 0
        self._host = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._address = ""
        self._last_answer = 0.0
        self._reported = 0  # number of ended ranks that the driver has acknowledged
        self._program = program
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self._first = 0  # return code of the first failed rank
        self._request: dict[str, Any] = {
            "host": f"{os.environ['HOROVOD_HOSTNAME']}-{secrets.token_hex(4)}",  # Horovod bans failed names
            "index": self.index,
            "slots": int(os.environ["HOROVOD_LOCAL_SIZE"]),
            "leaving": False,
            "bye": False,
        }

    def on_signal(self, number: int, frame: object) -> None:
        self.signal = self.signal or number

    def run(self) -> int:
        if not self._meet():
            if self.signal:
                return 128 + self.signal
            where = f"{self._host}:{self.port} within {START_TIMEOUT_SECONDS:.0f} s (HOROVOD_START_TIMEOUT)"
            return self._exit_with(f"no driver at {where}", 1)
        while True:
            if self.signal:
                return self._leave()
            self._reap()
            if failed := self._failed():
                return self._fail(failed)
            answer = None if self._quiet() else self._call()
            if answer is None and time.monotonic() - self._last_answer > LOST_SECONDS:
                return self._lost()
            if answer is not None:
                if answer["over"] is not None:
                    return self._over(answer["over"])
                if answer["gone"]:
                    self._end()
                    return self._exit_with(
                        "the others continued without this worker, which was silent for too long", LOST
                    )
                if failed := self._start(answer["ranks"]):
                    return self._fail(failed)
            time.sleep(POLL_SECONDS)

    def _quiet(self) -> bool:
        """Return whether to skip this poll: nothing to report and the interval is not over. One driver serves hundreds
        of pods."""
        unreported = len(self._ranks) - len(self._running()) - self._reported
        return not unreported and time.monotonic() - self._last_answer < (
            BUSY_SECONDS if self._running() else IDLE_SECONDS
        )

    def _meet(self) -> bool:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self._call() is None:
            if self.signal or time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _call(self, **changes: bool) -> dict[str, Any] | None:
        """Send the state of this pod to the driver; return its answer, or None without an answer."""
        self._request.update(changes)
        ended = {local: rank.returncode for local, rank in self._ranks.items() if rank.returncode is not None}
        try:
            if not self._address:  # an IP address: Horovod's client does not retry names that do not resolve yet
                self._address = ipv4_address(self._host, self.port)
            connection = http.client.HTTPConnection(self._address, self.port, timeout=CALL_SECONDS)
            with contextlib.closing(connection):
                connection.request("POST", "/allranks", json.dumps(self._request | {"ended": ended}), headers())
                answer: dict[str, Any] = json.load(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError):
            if not self._last_answer:
                self._address = ""  # it may be the address of another pod
            return None
        self._last_answer, self._reported = time.monotonic(), len(ended)
        return answer

    def _start(self, assigned: dict[str, dict[str, str]]) -> int:
        """Start the assigned ranks that do not run yet. Return 0, or the exit status if the program cannot be
        started."""
        shared = dict(os.environ, HOROVOD_GLOO_RENDEZVOUS_ADDR=self._address)
        shared.setdefault("PYTHONUNBUFFERED", "1")  # as horovodrun does
        shared.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", GLOO_TIMEOUT_SECONDS)
        limit_threads(shared)
        if self._address.startswith("127."):
            shared.setdefault("HOROVOD_GLOO_IFACE", "lo0" if sys.platform == "darwin" else "lo")
        for local in sorted(set(map(int, assigned)) - set(self._ranks)):
            try:
                self._ranks[local] = subprocess.Popen(self._program, env=shared | assigned[str(local)])
            except OSError as error:
                return self._exit_with(f"cannot start {self._program[0]}: {error.strerror}", 127)
        return 0

    def _reap(self) -> None:
        """Reap ranks that have ended, not by `Popen.poll`: this process may be PID 1 and must reap orphans."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for rank in self._ranks.values():
                    if rank.pid == ended[0]:
                        rank.returncode = os.waitstatus_to_exitcode(ended[1])
                        self._first = self._first or rank.returncode

    def _failed(self) -> int:
        """Return the exit status of the first failed rank; 0 if none has failed."""
        return self._first if self._first >= 0 else 128 - self._first

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [rank for rank in self._ranks.values() if rank.returncode is None]

    def _fail(self, status: int) -> int:
        """Report the failure of a rank to the driver, so that the others continue, and end the pod."""
        while self.index != 0 and (answer := self._call(bye=True)) is None:
            if time.monotonic() - self._last_answer > LOST_SECONDS:
                return self._lost()  # the rank probably failed because the driver ended
            time.sleep(POLL_SECONDS)
        if self.index != 0 and answer and answer["over"]:
            return self._over(answer["over"])
        self._end()
        if self._first < 0:
            write_signal(-self._first)
        return status

    def _leave(self) -> int:
        """Let the others continue without this pod, which is being deleted (Horovod's notice), then end its ranks."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.index != 0 and self._running() and time.monotonic() < deadline:
            answer = self._call(leaving=True)
            if answer and (answer["out"] or answer["gone"] or answer["over"] is not None):
                break
            time.sleep(POLL_SECONDS)
            self._reap()
        self._end(self.signal, math.inf)  # the pod's grace period is the limit
        if self.index != 0:
            self._call(leaving=True, bye=True)
        succeeded = self._ranks and all(rank.returncode == 0 for rank in self._ranks.values())
        return 0 if succeeded else 128 + self.signal

    def _over(self, status: int) -> int:
        self._end()
        if status and self.index != 0:
            self._exit_with(f"worker 0 has ended the training with status {status}", status)
            self._outlive()
        return status

    def _outlive(self) -> None:
        """End at least a second after the driver: the earliest failure is the root cause, at a resolution of
        seconds."""
        deadline = time.monotonic() + GRACE_SECONDS
        while self._call() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        time.sleep(1)

    def _lost(self) -> int:
        self._end()
        self._exit_with(f"no answer from the driver at {self._host}:{self.port} for {LOST_SECONDS:.0f} s", LOST)
        deadline = time.monotonic() + STAY_SECONDS
        while not self.signal and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return 128 + self.signal if self.signal else LOST

    def _end(self, number: int = signal.SIGTERM, within: float | None = None) -> None:
        """End the running ranks."""
        for rank in self._running():
            os.kill(rank.pid, number)
        deadline = time.monotonic() + (GRACE_SECONDS if within is None else within)
        while self._running() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._reap()
        for rank in self._running():
            os.kill(rank.pid, signal.SIGKILL)
        while self._running():
            time.sleep(POLL_SECONDS)
            self._reap()

    def _exit_with(self, message: str, status: int) -> int:
        write_line(message)
        return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
