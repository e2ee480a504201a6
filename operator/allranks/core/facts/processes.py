"""The processes that run in pods: what their supervisors report, and what they are ordered to do.

A supervisor (`inpod/watch.py`) is the parent of the program in a pod. It survives the program, so that the next attempt
can begin in the same pod. Its state is never stored: it repeats it with each message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

ProcessState = Literal["Running", "Ended", "Down"]
"""`Running`: the program of `attempt` runs. `Ended`: it failed, and the supervisor waits for an order. `Down`: no
process of an earlier attempt is left, and the program of `attempt` can start. A pod that waits for others begins with
it."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a program ended, as the kernel reported it to its parent."""

    code: int
    """Exit code, 128 + n for signal n, as a kubelet reports it."""
    finished_at: datetime
    signal: int | None = None
    message: str = ""
    """The last lines of its output."""
    reason: str = "Error"
    """OOMKilled if the kernel killed it for memory and the machine knows that, as on one machine."""


@dataclass(frozen=True, slots=True)
class PodProcess:
    """What the supervisor of one pod reported last. Times are converted to the clock of the server."""

    attempt: int
    state: ProcessState
    connected: bool
    """Its supervisor waits for an order now, or reported a moment ago."""
    started_at: datetime | None = None
    """When the program of `attempt` started; None if it is Down."""
    last_attempt: int = 0
    """The attempt of `last_exit`."""
    last_exit: ProcessExit | None = None
    """How the program ended last in this pod: of `attempt` if it is Ended, else of an earlier one."""
    code: str | None = None
    """SHA-256 of the job's code in this pod; None if the supervisor cannot replace it."""
    restart: int | None = None
    """How often the program was restarted alone in this pod in `attempt`; None if the supervisor cannot do that."""

    @property
    def number(self) -> tuple[int, int]:
        """Return the attempt and the restart in the pod. Supervisors carry out orders with a larger one."""
        return self.attempt, self.restart or 0


@dataclass(frozen=True, slots=True)
class Processes:
    """What the supervisors of a job report."""

    since: datetime
    """Start of listening. A supervisor that has not reported since then may still do so."""
    by_pod: Mapping[str, PodProcess] = field(default_factory=dict)
    """UID of a pod -> its process. Pods without a supervisor are left out."""


Action = Literal["Stop", "Start", "Exit"]


@dataclass(frozen=True, slots=True)
class Order:
    """What the supervisor of a pod has to do. It follows from the persisted status, and may be repeated."""

    pod_uid: str
    action: Action
    """`Stop`: end every process of attempts before `attempt`, and of restarts before `restart`. `Start`: run the
    program of `attempt`. `Exit`: end with the exit code of the program, and so the pod."""
    attempt: int = 0
    grace_seconds: int = 30
    """Of `Stop`: time between SIGTERM and SIGKILL."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Of `Start`: variables that differ from the variables of the pod; None removes one."""
    code: str = ""
    """Of `Start`: SHA-256 of the code that the pod has to fetch first; empty if it has the code of the attempt."""
    restart: int = 0
    """How often the program was restarted alone in this pod in `attempt`, including this time."""


BEGINS = "allranks: attempt {} begins in this pod"
"""Line that a supervisor writes to stderr before it starts the program of a further attempt. `allranks logs` reads
it."""
