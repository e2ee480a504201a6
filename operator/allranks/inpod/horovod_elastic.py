"""Runs a worker's ranks of Elastic Horovod, without ssh: `python3 horovod_elastic.py PROGRAM [ARG...]`.

Each worker pod has an agent, this program. It calls the driver, which lives in the first worker's, starts the ranks
that the driver wants there, and says how they end. A pod with a rank that failed ends with that rank's exit code
(128 + n for a signal), so that it is seen and replaced; the ranks of the others go on, and take the new pod's in.

Reads HOROVOD_GLOO_RENDEZVOUS_ADDR/PORT HOROVOD_HOSTNAME HOROVOD_LOCAL_SIZE ALLRANKS_INDEX, and in the first worker
ALLRANKS_HOROVOD_MIN/MAX/WORKERS/WAIT_SECONDS. Standard library only, but for Horovod's driver.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from typing import Any

START_TIMEOUT_SECONDS = float(os.environ.get("HOROVOD_START_TIMEOUT", "inf"))
"""How long to wait for the driver; the name is horovodrun's. The first worker may be without a node for hours."""
POLL_SECONDS = 0.1
IDLE_SECONDS = 0.3
"""How often to call while no rank runs here and nothing is new."""
BUSY_SECONDS = 1.0
"""The same while ranks run."""
CALL_SECONDS = 2.0
LOST_SECONDS = 10.0
STAY_SECONDS = 600.0
"""So long a pod without a driver waits to be taken away: when its node is silent, Kubernetes knows after a minute and a
half, and who ended before would be taken for a failure."""
LOST = 138
"""The exit status when the driver is lost: "try again", as that is no fault of the program. The cause is the earliest
failure, the driver's, which the operator may see later than this one: a lost node is only silent at first."""
GLOO_TIMEOUT_SECONDS = "15"
"""When a rank dies, another often goes on waiting for a third one, which has heard of it, for all of this time; 30 is
Horovod's default. For ranks that join slowly it need not be long: the driver lets the others wait for them."""
LEAVE_SECONDS = 10.0
"""How long a pod that was told to end waits until the others go on without it (they look at each commit)."""
GRACE_SECONDS = 10.0
"""How long ranks may take to end."""


def main(program: list[str]) -> int:
    """Runs the ranks of this worker until all is over; returns the exit status."""
    if not program:
        print("usage: horovod_elastic.py PROGRAM [ARG...]", file=sys.stderr)
        return 2
    agent = Agent(program)
    signal.signal(signal.SIGTERM, agent.signalled)
    signal.signal(signal.SIGINT, agent.signalled)
    if agent.index != 0:
        return agent.run()
    from horovod_elastic_driver import serve  # type: ignore[import-not-found]  # it lies beside this file

    hosts = serve(agent.port)
    status = agent.run()
    hosts.end(128 + agent.signal if agent.signal else status)
    return status


class Agent:
    """What a pod knows: its ranks, the driver's address, and the signal it got."""

    def __init__(self, program: list[str]) -> None:
        self.index = int(os.environ["ALLRANKS_INDEX"])
        self.port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        self.signal = 0
        self._host = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._address = ""
        self._heard = 0.0
        self._told = 0  # how many ranks the driver knows to have ended
        self._program = program
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self._first = 0  # how the first rank that failed ended
        self._said: dict[str, Any] = {
            "host": f"{os.environ['HOROVOD_HOSTNAME']}-{secrets.token_hex(4)}",  # Horovod bans a host that failed
            "index": self.index,
            "slots": int(os.environ["HOROVOD_LOCAL_SIZE"]),
            "leaving": False,
            "bye": False,
        }

    def signalled(self, number: int, frame: object) -> None:
        self.signal = self.signal or number

    def run(self) -> int:
        if not self._meet():
            if self.signal:
                return 128 + self.signal
            where = f"{self._host}:{self.port} within {START_TIMEOUT_SECONDS:.0f} s (HOROVOD_START_TIMEOUT)"
            return self._tell(f"no driver at {where}", 1)
        while True:
            if self.signal:
                return self._leave()
            self._reap()
            if failed := self._failed():
                return self._fail(failed)
            answer = None if self._quiet() else self._call()
            if answer is None and time.monotonic() - self._heard > LOST_SECONDS:
                return self._lost()
            if answer is not None:
                if answer["over"] is not None:
                    return self._over(answer["over"])
                if answer["gone"]:
                    self._end()
                    return self._tell("the others went on without this worker, which was silent for too long", LOST)
                if failed := self._start(answer["ranks"]):
                    return self._fail(failed)
            time.sleep(POLL_SECONDS)

    def _quiet(self) -> bool:
        """Whether there is nothing to tell yet: the driver is one, its pods may be hundreds."""
        news = len(self._ranks) - len(self._running()) - self._told
        return not news and time.monotonic() - self._heard < (BUSY_SECONDS if self._running() else IDLE_SECONDS)

    def _meet(self) -> bool:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self._call() is None:
            if self.signal or time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _call(self, **news: bool) -> dict[str, Any] | None:
        """Tells the driver all there is to tell; returns its answer, None when it does not answer."""
        self._said.update(news)
        ended = {local: rank.returncode for local, rank in self._ranks.items() if rank.returncode is not None}
        try:
            if not self._address:  # a number: Horovod's own client does not retry names DNS has not heard of yet
                found = socket.getaddrinfo(self._host, self.port, socket.AF_INET, socket.SOCK_STREAM)
                self._address = str(found[0][4][0])
            connection = http.client.HTTPConnection(self._address, self.port, timeout=CALL_SECONDS)
            with contextlib.closing(connection):
                connection.request("POST", "/allranks", json.dumps(self._said | {"ended": ended}))
                answer: dict[str, Any] = json.load(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError):
            if not self._heard:
                self._address = ""  # it may have been another's
            return None
        self._heard, self._told = time.monotonic(), len(ended)
        return answer

    def _start(self, wanted: dict[str, dict[str, str]]) -> int:
        """Starts the ranks that are not there yet; returns the exit status of what cannot be started, else 0."""
        shared = dict(os.environ, HOROVOD_GLOO_RENDEZVOUS_ADDR=self._address)
        shared.setdefault("PYTHONUNBUFFERED", "1")  # as horovodrun does
        shared.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", GLOO_TIMEOUT_SECONDS)
        if self._address.startswith("127."):
            shared.setdefault("HOROVOD_GLOO_IFACE", "lo0" if sys.platform == "darwin" else "lo")
        for local in sorted(set(map(int, wanted)) - set(self._ranks)):
            try:
                self._ranks[local] = subprocess.Popen(self._program, env=shared | wanted[str(local)])
            except OSError as error:
                return self._tell(f"cannot start {self._program[0]}: {error.strerror}", 127)
        return 0

    def _reap(self) -> None:
        """Notes which ranks have ended. Not `Popen.poll`: orphans come to us, as to any init."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for rank in self._ranks.values():
                    if rank.pid == ended[0]:
                        rank.returncode = os.waitstatus_to_exitcode(ended[1])
                        self._first = self._first or rank.returncode

    def _failed(self) -> int:
        """The exit status for the first rank that failed, 0 when none has."""
        return self._first if self._first >= 0 else 128 - self._first

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [rank for rank in self._ranks.values() if rank.returncode is None]

    def _fail(self, status: int) -> int:
        """A rank has failed: the driver is told, so that the others go on; the pod ends."""
        while self.index != 0 and (answer := self._call(bye=True)) is None:
            if time.monotonic() - self._heard > LOST_SECONDS:
                return self._lost()  # the driver's end may well be why it failed
            time.sleep(POLL_SECONDS)
        if self.index != 0 and answer and answer["over"]:
            return self._over(answer["over"])
        self._end()
        return status

    def _leave(self) -> int:
        """The pod is to end: first the others go on without it, by Horovod's notice, then its ranks end."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.index != 0 and self._running() and time.monotonic() < deadline:
            answer = self._call(leaving=True)
            if answer and (answer["out"] or answer["gone"] or answer["over"] is not None):
                break
            time.sleep(POLL_SECONDS)
            self._reap()
        self._end(self.signal, math.inf)  # how long they may take, the pod's grace period says
        if self.index != 0:
            self._call(leaving=True, bye=True)
        well = self._ranks and all(rank.returncode == 0 for rank in self._ranks.values())
        return 0 if well else 128 + self.signal

    def _over(self, status: int) -> int:
        self._end()
        if status and self.index != 0:
            self._tell(f"worker 0 has ended the training with status {status}", status)
            self._outlive()
        return status

    def _outlive(self) -> None:
        """The earliest failure is the cause, by seconds: the driver's has to be the earlier."""
        deadline = time.monotonic() + GRACE_SECONDS
        while self._call() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        time.sleep(1)

    def _lost(self) -> int:
        self._end()
        self._tell(f"no word from the driver at {self._host}:{self.port} for {LOST_SECONDS:.0f} s", LOST)
        deadline = time.monotonic() + STAY_SECONDS
        while not self.signal and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return 128 + self.signal if self.signal else LOST

    def _end(self, number: int = signal.SIGTERM, within: float | None = None) -> None:
        """Ends the ranks that still run."""
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

    def _tell(self, what: str, status: int) -> int:
        print(f"allranks: {what}", file=sys.stderr, flush=True)
        return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
