"""Ranks that report, as the listener of a real driver would have them: they say all they know again and again, so that
an operator that begins anew knows it at once. One rank in each pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from allranks.core.model import Manifest, Pod, RankReport, Reports


@dataclass
class Ranks:
    """By UID of the pod."""

    now: Callable[[], datetime]
    said: dict[str, RankReport] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Questions for stacks, each once."""

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
    ) -> None:
        """What is left out stays as it was."""
        metadata, now = pod["metadata"], self.now()
        labels = metadata["labels"]
        before = self.said.get(metadata["uid"]) or RankReport(
            role=labels["allranks.dev/role"],
            index=int(labels["allranks.dev/index"]),
            local_rank=0,
            rank=rank,
            pod=metadata["name"],
            node=pod["spec"].get("nodeName"),
            received_at=now,
        )
        grew = step is not None and step != before.step
        self.said[metadata["uid"]] = replace(
            before,
            step=before.step if step is None else step,
            total_steps=total_steps or before.total_steps,
            metrics=metrics or before.metrics,
            step_seconds=step_seconds or before.step_seconds,
            busy_seconds=busy_seconds or before.busy_seconds,
            checkpoint_step=(step or before.step) if checkpoint else before.checkpoint_step,
            checkpoint_at=now if checkpoint else before.checkpoint_at,
            stepped_at=now if grew else before.stepped_at,
            first_step_at=before.first_step_at or (now if grew else None),
            received_at=now,
            done=done,
            waiting=waiting,
        )

    def of(self, pods: Iterable[Pod], attempt: int, since: datetime) -> Reports:
        """Of those that are there; ranks that have ended have said what they said."""
        present = [self.said[pod.uid] for pod in pods if pod.attempt == attempt and pod.uid in self.said]
        return Reports(since, tuple(present))

    def ask(self, question: str) -> None:
        if question not in self.asked:
            self.asked.append(question)
