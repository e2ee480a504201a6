"""Reports of ranks, as a report server holds them, with one rank per pod. Real ranks repeat their whole state, so these
reports survive a restart of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from allranks.core.diagnosis.report_loss import SILENCE
from allranks.core.facts.model import Manifest, Pod
from allranks.core.facts.rank_reports import WINDOWS, RankReport, Reports


@dataclass
class Ranks:
    """The latest report of each rank."""

    now: Callable[[], datetime]
    latest: dict[str, RankReport] = field(default_factory=dict)
    """By UID of the pod."""
    arrived: tuple[datetime, dict[str, RankReport]] | None = None
    """During an outage between the ranks and the operator: its begin, and the reports that had arrived by then."""
    outage_over: tuple[datetime, datetime] | None = None
    """Begin and end of the last outage that was longer than `SILENCE`."""
    stack_requests: list[str] = field(default_factory=list)
    """Ids of requested stack dumps, each once."""
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Attempt of the latest report, and restart in its pod, by UID of the pod, for pods with a supervisor: their label
    has the first one."""
    number_of: Callable[[str], tuple[int, int] | None] = lambda uid: None
    checkpoint_request: int = 0
    """Number of the checkpoint that the operator asks for; 0 for none."""

    def report(
        self,
        pod: Manifest,
        step: int | None = None,
        total_steps: int | None = None,
        checkpoint: bool = False,
        rank: int | None = None,
        step_seconds: float | None = None,
        busy_seconds: float | None = None,
        waiting: bool | None = None,
        done: bool = False,
        metrics: dict[str, float] | None = None,
        not_finite: dict[str, int] | None = None,
        saves_on_request: bool | None = None,
        handled: bool = False,
    ) -> None:
        """Updates the report of the pod's rank. Omitted values do not change. It repeats its messages from then on."""
        metadata, now = pod["metadata"], self.now()
        labels = metadata["labels"]
        if (number := self.number_of(metadata["uid"])) is not None and self.numbers.get(metadata["uid"]) != number:
            self.numbers[metadata["uid"]] = number
            self.latest.pop(metadata["uid"], None)  # another process
        before = self.latest.get(metadata["uid"]) or RankReport(
            role=labels["allranks.dev/role"],
            index=int(labels["allranks.dev/index"]),
            local_rank=0,
            rank=rank,
            pod=metadata["name"],
            node=pod["spec"].get("nodeName"),
            received_at=now,
        )
        grew = step is not None and step != before.step
        seconds = step_seconds or before.step_seconds
        busy = busy_seconds or before.busy_seconds
        windows = before.windows or ()
        if seconds is not None and grew:
            windows = (*windows, (seconds, busy))[-WINDOWS:]
        self.latest[metadata["uid"]] = replace(
            before,
            step=before.step if step is None else step,
            total_steps=total_steps or before.total_steps,
            metrics=metrics or before.metrics,
            not_finite=not_finite or before.not_finite,
            step_seconds=seconds,
            busy_seconds=busy,
            windows=windows,
            checkpoint_step=(step or before.step) if checkpoint else before.checkpoint_step,
            checkpoint_at=now if checkpoint else before.checkpoint_at,
            saves_on_request=before.saves_on_request if saves_on_request is None else saves_on_request,
            handled_request=self.checkpoint_request if handled else before.handled_request,
            stepped_at=now if grew else before.stepped_at,
            first_step_at=before.first_step_at or (now if grew else None),
            received_at=now,
            done=done,
            waiting=waiting,
        )

    def repeats(self, uid: str) -> bool:
        """Whether the process that runs in a pod has reported: the reports of an earlier one are not its own."""
        return uid in self.latest and self.numbers.get(uid) in (None, self.number_of(uid))

    def of(self, pods: Iterable[Pod], attempt: int, since: datetime) -> Reports:
        """The reports of these pods. Those of terminated ranks are kept."""
        heard_at, latest = self.arrived or (self.now(), self.latest)
        present = [
            latest[pod.uid]
            for pod in pods
            if pod.uid in latest and self.numbers.get(pod.uid, (pod.attempt, 0))[0] == attempt
        ]
        if heard_at < since:
            present = []  # a new operator
        repeated = (rank if rank.done else replace(rank, received_at=heard_at) for rank in present)
        if self.outage_over and since <= self.outage_over[0]:  # a new operator did not observe the silence
            since = max(since, self.outage_over[1])
        return Reports(since, tuple(repeated), heard_at)

    def outage(self, begins: bool) -> None:
        """No message arrives from now on, or all do again."""
        if begins:
            self.arrived = self.now(), dict(self.latest)
        elif self.arrived:
            if self.now() - self.arrived[0] > SILENCE:
                self.outage_over = self.arrived[0], self.now()
            self.arrived = None

    def request_stacks(self, dump_id: str) -> None:
        if dump_id not in self.stack_requests:
            self.stack_requests.append(dump_id)
