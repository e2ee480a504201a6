"""Supervisors in pods: they outlive the programs, report what became of them, and do what they are ordered.

They follow the contract in `core/facts/processes.py`, with faults: they answer late or not at all, or claim another
attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, Protocol, get_args

from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import TRAINER
from allranks.core.facts.processes import Order, PodProcess, Processes, ProcessExit

from .store import Change, Key, Store, ended, key_of

PATIENCE_SECONDS = 20.0
"""A supervisor whose program has failed ends like it, if no operator answers for this long. One that waits for others
before its first start does not wait any longer."""
Fault = Literal["", "silent", "late", "lies"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
LATE_SECONDS = 7.0


class Host(Protocol):
    """The part of a cluster that supervisors need."""

    @property
    def now(self) -> datetime: ...
    def after(self, seconds: float, action: Callable[[], None]) -> None: ...


@dataclass
class Supervisor:
    """The supervisor of one pod."""

    pod: Key
    uid: str
    owner: str
    process: PodProcess
    fault: Fault = ""
    stop_seconds: float = 0.0
    """Time from SIGTERM to the end of all its processes."""
    waits_to_begin: bool = False
    """It has not started a program yet."""
    stopping: tuple[int, int] = (-1, 0)
    """The attempt, and the restart in it, before which it ends all processes."""
    env: dict[str, str | None] = field(default_factory=dict)
    """The variables of the last start."""

    @property
    def described(self) -> str:
        """State, attempt and, after restarts alone, their number: `Running 0 1`."""
        attempt, restart = self.process.number
        return f"{self.process.state} {attempt}{f' {restart}' if restart else ''}"


class Supervisors:
    """All supervisors of a cluster."""

    def __init__(self, store: Store, host: Host, end: Callable[[Key, int, str], None]) -> None:
        self._store, self._host, self._end = store, host, end
        self.of_pod: dict[str, Supervisor] = {}
        """By UID of the pod."""
        self.changed: Callable[[str], None] = lambda owner: None
        """Enqueues the job with this UID; the operator sets it, and a killed one receives nothing."""
        self.heard: dict[str, PodProcess] = {}
        """UID of a pod -> what the present operator has heard of it."""
        self.before_start: list[Callable[[Supervisor, int, str | None], None]] = []
        """Called with each start of a program, its attempt, and the hash of its code: invariants."""
        self.reconnect_seconds = 0.0
        """Time until a supervisor finds a new operator."""
        self.answering = False
        store.watchers.append(self._pod_changed)

    # The operator's side

    def connect(self, changed: Callable[[str], None]) -> None:
        """Begin to report to a new operator."""
        self.changed, self.answering, self.heard = changed, True, {}
        for supervisor in list(self.of_pod.values()):
            self._host.after(self.reconnect_seconds, lambda s=supervisor: self._report(s))  # type: ignore[misc]

    def disconnect(self) -> None:
        """The operator is gone."""
        self.changed, self.answering, self.heard = (lambda owner: None), False, {}
        for supervisor in self.of_pod.values():
            self._wait_for_answer(supervisor)

    def observed(self, owner: str, since: datetime) -> Processes:
        """What the operator has heard of the pods of a job."""
        present = {
            uid: replace(process, connected=supervisor.fault != "silent")
            for uid, process in self.heard.items()
            if (supervisor := self.of_pod.get(uid)) and supervisor.owner == owner
        }
        return Processes(since, present)

    def carry_out(self, orders: Iterable[Order]) -> None:
        """Answer the polls of the supervisors with orders."""
        for order in orders:
            supervisor = self.of_pod.get(order.pod_uid)
            if supervisor and supervisor.fault != "silent":
                delay = LATE_SECONDS if supervisor.fault == "late" else 0.0
                self._host.after(delay, lambda s=supervisor, o=order: self._obey(s, o))  # type: ignore[misc]

    def number_of(self, uid: str) -> tuple[int, int] | None:
        """The attempt of the process in a pod, and its restart there; None without a supervisor."""
        supervisor = self.of_pod.get(uid)
        return supervisor.process.number if supervisor else None

    # What happens in pods

    def fail(self, uid: str, code: int, signal: int | None = None, message: str = "") -> None:
        """The program ends with a failure, and the supervisor waits."""
        supervisor = self.of_pod[uid]
        before, now = supervisor.process, self._host.now
        exited = ProcessExit(code, now, signal, message)
        self._set(supervisor, replace(before, state="Ended", last_attempt=before.attempt, last_exit=exited))
        self._wait_for_answer(supervisor)

    def misbehave(self, uid: str, fault: Fault) -> None:
        """Begin with a fault, or behave again."""
        supervisor = self.of_pod[uid]
        supervisor.fault = fault
        self._report(supervisor)
        self._wait_for_answer(supervisor)

    def _obey(self, supervisor: Supervisor, order: Order) -> None:
        if not self._lives(supervisor) or supervisor.fault == "silent":
            return
        process, number = supervisor.process, (order.attempt, order.restart)
        match order.action:
            case "Exit" if process.state != "Running":
                self._exit(supervisor)
            case "Stop" if process.number < number and supervisor.stopping < number:
                supervisor.stopping, supervisor.waits_to_begin = number, False
                wait = min(supervisor.stop_seconds, order.grace_seconds) if process.state == "Running" else 0.0
                self._host.after(wait, lambda: self._stopped(supervisor, number))
            case "Start" if process.number == number and process.state == "Down":
                for check in self.before_start:
                    check(supervisor, order.attempt, order.code or process.code)
                supervisor.env = dict(order.env)
                self._start(supervisor, order.code)

    def _start(self, supervisor: Supervisor, code: str = "") -> None:
        supervisor.waits_to_begin, before = False, supervisor.process
        code_of_pod = code or before.code
        self._set(supervisor, replace(before, state="Running", started_at=self._host.now, code=code_of_pod))

    def _stopped(self, supervisor: Supervisor, number: tuple[int, int]) -> None:
        if not self._lives(supervisor) or supervisor.process.number >= number:
            return
        before = supervisor.process
        if before.state == "Running":
            exited = ProcessExit(143, self._host.now, 15)
            before = replace(before, last_attempt=before.attempt, last_exit=exited)
        attempt, restart = number
        self._set(supervisor, replace(before, attempt=attempt, restart=restart, state="Down", started_at=None))

    def _exit(self, supervisor: Supervisor) -> None:
        last = supervisor.process.last_exit
        self._end(supervisor.pod, last.code if last else 143, last.message if last else "")

    def _wait_for_answer(self, supervisor: Supervisor) -> None:
        """End the pod if it gets no answer for a while after the end of its program, and start its first program."""
        process = supervisor.process

        def give_up() -> None:
            unanswered = not self.answering or supervisor.fault == "silent"
            if self._lives(supervisor) and supervisor.process == process and unanswered:
                (self._start if supervisor.waits_to_begin else self._exit)(supervisor)

        if process.state == "Ended" or supervisor.waits_to_begin:
            self._host.after(PATIENCE_SECONDS, give_up)

    def _set(self, supervisor: Supervisor, process: PodProcess) -> None:
        supervisor.process = process
        self._report(supervisor)

    def _report(self, supervisor: Supervisor) -> None:
        if not self.answering or not self._lives(supervisor):
            return
        if supervisor.fault != "silent":
            self.heard[supervisor.uid] = _claim(supervisor)
        self.changed(supervisor.owner)

    def _lives(self, supervisor: Supervisor) -> bool:
        return self.of_pod.get(supervisor.uid) is supervisor

    def _pod_changed(self, change: Change) -> None:
        if change.key[0] != "Pod":
            return
        pod = change.object
        uid = pod["metadata"]["uid"]
        if change.kind == "DELETED" or ended(pod["status"]):
            self.of_pod.pop(uid, None)
        elif pod["status"].get("phase") == "Running" and uid not in self.of_pod and _is_supervised(pod):
            env = _env(pod)
            process = PodProcess(int(env["ALLRANKS_ATTEMPT"]), "Down", connected=True, code=_code(pod), restart=0)
            [owner] = pod["metadata"]["ownerReferences"]
            self.of_pod[uid] = supervisor = Supervisor(key_of(pod), uid, owner["uid"], process, waits_to_begin=True)
            if env.get("ALLRANKS_START_TOGETHER") == "1":
                self._report(supervisor)
                self._wait_for_answer(supervisor)
            else:
                self._start(supervisor)


def _claim(supervisor: Supervisor) -> PodProcess:
    """What the supervisor says."""
    if supervisor.fault == "lies":
        return replace(supervisor.process, attempt=supervisor.process.attempt + 5)
    return supervisor.process


def _env(pod: Manifest) -> dict[str, str]:
    trainer = next(c for c in pod["spec"]["containers"] if c["name"] == TRAINER)
    return {variable["name"]: variable.get("value", "") for variable in trainer.get("env", ())}


def _code(pod: Manifest) -> str | None:
    """The hash of the code that an init container unpacks."""
    commands = [container.get("command", []) for container in pod["spec"].get("initContainers", ())]
    return next((words[words.index("--sha256") + 1] for words in commands if "--sha256" in words), None)


def _is_supervised(pod: Manifest) -> bool:
    containers = {container["name"] for container in pod["spec"]["containers"]}
    variables = ("ALLRANKS_IN_PLACE", "ALLRANKS_START_TOGETHER")
    return TRAINER in containers and any(_env(pod).get(name) == "1" for name in variables)
