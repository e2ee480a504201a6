"""The supervisors of the pods of a real API server: they poll the operator's store of processes, and obey its answers.

What happens in pods is simulated (`support.simulator.supervisors`), by a clock that the scenario controls. The operator
hears of it as of real supervisors: their messages and its orders pass its store.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from allranks.core.facts.processes import Order, PodProcess
from allranks.operator.session import Session
from allranks.telemetry.messages import Answer, ReportSource

from .operators import RunningOperator
from .simulator.store import Change, Key, Manifest, key_of
from .simulator.supervisors import Supervisors

AGAIN_SECONDS = 2.0
"""A supervisor that carries out an order polls at this interval, in real time."""


@dataclass
class Poll:
    """The last poll of one supervisor, and what it said."""

    said: PodProcess
    at: float
    answer: Future[Answer | None]
    order: dict[str, Any] | None = None
    """The last order, which a supervisor that carries it out receives again."""


class PodChanges:
    """The part of a store that supervisors need: it tells them what became of pods."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[Change], None]] = []
        self.pods: dict[str, Manifest] = {}
        """The pods by UID, as the last list of the API server contained them."""

    def listed(self, pods: list[Manifest]) -> None:
        present = {pod["metadata"]["uid"]: pod for pod in pods}
        gone = [pod for uid, pod in self.pods.items() if uid not in present]
        self.pods = present
        for kind, changed in (("DELETED", gone), ("MODIFIED", pods)):
            for pod in changed:
                for watcher in self.watchers:
                    watcher(Change(kind, key_of(pod), pod, 0))  # type: ignore[arg-type]


class PollingSupervisors:
    """All supervisors of a namespace. Its methods are called from the test's thread."""

    def __init__(self, now: Callable[[], datetime], end: Callable[[Key, int, str], None]) -> None:
        self._now = now
        self._pods = PodChanges()
        self._due: list[tuple[datetime, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._session: Session | None = None
        self._polls: dict[str, Poll] = {}
        """By UID of the pod."""
        self._number = 0
        """Of the last message: it grows."""
        self.simulated = Supervisors(self._pods, self, end)  # type: ignore[arg-type]

    @property
    def now(self) -> datetime:
        return self._now()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._due, (self.now + timedelta(seconds=seconds), self._scheduled, action))

    def next_due(self) -> datetime | None:
        """When the next of them does something by itself."""
        return self._due[0][0] if self._due else None

    def disconnect(self) -> None:
        """The operator is killed."""
        if self._session is not None:
            self._session = None
            self._polls.clear()
            self.simulated.disconnect()

    def continue_(self, pods: list[Manifest], operator: RunningOperator | None, alive: Callable[[], bool]) -> bool:
        """Do what is due, and exchange messages with the operator. Return whether anything happened.

        `alive`: whether it still receives and sends anything.
        """
        self._pods.listed(pods)
        happened = self._connect(operator.operator.session if operator and alive() else None)
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
            happened = True
        if operator and self._session:
            happened |= self._receive(operator, alive)
            happened |= self._send(operator)
        return happened

    def _connect(self, session: Session | None) -> bool:
        if session is self._session:
            return False
        self.disconnect()
        if session is not None:
            self._session = session
            self.simulated.connect(lambda owner: None)
        return True

    def _receive(self, operator: RunningOperator, alive: Callable[[], bool]) -> bool:
        """Obey the answers that have arrived."""
        answered = [(uid, poll) for uid, poll in self._polls.items() if poll.answer.done()]
        if not alive():
            return False  # a dead operator has sent nothing since
        happened = False
        for uid, poll in answered:
            supervisor = self.simulated.of_pod.get(uid)
            answer = None if poll.answer.cancelled() else poll.answer.result()
            order = answer.body if answer and answer.status == 200 and answer.body.get("order") else None
            if supervisor is not None and order is not None and order != poll.order:
                poll.order, happened = dict(order), True
                self.simulated.carry_out([_order(uid, order)])
        return happened

    def _send(self, operator: RunningOperator) -> bool:
        """Poll with each new state, and again after each answer."""
        session, happened = self._session, False
        assert session
        for uid in self._polls.keys() - self.simulated.of_pod.keys():
            del self._polls[uid]
        for uid, supervisor in self.simulated.of_pod.items():
            poll, said = self._polls.get(uid), self.simulated.heard.get(uid)
            if supervisor.fault == "silent":
                operator.cut_off((supervisor.pod[1], self._job_of(uid)), uid)
                self._polls.pop(uid, None)
            elif said is not None and (poll is None or poll.said != said):
                self._polls[uid] = self._poll(operator, session, uid, said)
                happened = True
            elif poll and poll.answer.done() and time.monotonic() - poll.at > AGAIN_SECONDS:
                self._polls[uid] = self._poll(operator, session, uid, poll.said, poll.order)
        return happened

    def _poll(
        self,
        operator: RunningOperator,
        session: Session,
        uid: str,
        said: PodProcess,
        order: dict[str, Any] | None = None,
    ) -> Poll:
        self._number += 1
        answer = operator.poll(session, self.sender(self._pods.pods[uid]), self._message(said))
        return Poll(said, time.monotonic(), answer, order)

    def sender(self, pod: Manifest) -> ReportSource:
        """The identity of a pod's messages, as the operator finds it by the token."""
        metadata, labels = pod["metadata"], pod["metadata"]["labels"]
        numbers = {number: int(labels.get(f"allranks.dev/{number}", 0)) for number in ("attempt", "restart")}
        if (running := self.simulated.number_of(metadata["uid"])) is not None:
            numbers = {"attempt": running[0], "restart": running[1] or numbers["restart"]}
        owner = metadata["ownerReferences"][0]
        return ReportSource(
            job=(metadata["namespace"], owner["name"]),
            job_uid=owner["uid"],
            pod=metadata["name"],
            pod_uid=metadata["uid"],
            role=labels["allranks.dev/role"],
            index=int(labels.get("allranks.dev/index", 0)),
            node=pod["spec"].get("nodeName"),
            **numbers,
        )

    def _job_of(self, uid: str) -> str:
        return str(self._pods.pods[uid]["metadata"]["ownerReferences"][0]["name"])

    def _message(self, said: PodProcess) -> bytes:
        def ago(moment: datetime) -> float:
            return (self.now - moment).total_seconds()

        last = said.last_exit
        message = {
            "attempt": said.attempt,
            "state": said.state,
            "number": self._number,
            "restart": said.restart,
            "code": said.code,
            "started": None if said.started_at is None else ago(said.started_at),
            "last": last
            and {
                "attempt": said.last_attempt,
                "code": last.code,
                "signal": last.signal,
                "ago": ago(last.finished_at),
                "message": last.message,
            },
        }
        return json.dumps(message).encode()


def _order(uid: str, body: dict[str, Any]) -> Order:
    """The order in an answer, for the pod with this UID."""
    return Order(
        uid,
        body["order"],
        body.get("attempt", 0),
        grace_seconds=body.get("grace", 0),
        env=body.get("env", {}),
        code=body.get("code", ""),
        restart=body.get("restart", 0),
    )
