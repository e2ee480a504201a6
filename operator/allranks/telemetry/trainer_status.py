"""Reads the status that `transformers` sends to Kubeflow Trainer (`{"trainerStatus": ...}`) as a message of rank 0.

Its `KubeflowCallback` runs in the process with global rank 0 and sends a status at the start and the end of a training,
and after a step if the last status is five seconds old. Kubeflow's SDK sends the same form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from allranks.core.facts.rank_reports import RankReport
from allranks.telemetry.messages import METRICS, Message, TrainerStatus

KEY = -1
"""The place of this status among the ranks of a pod, by their local rank."""

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,63}")
_COUNTERS = ("current_step", "total_steps", "current_epoch")
_OMITTED = frozenset({*_COUNTERS, "epoch"})
_VALUE_CHARACTERS = 40
_LARGEST_COUNT = 2**53


def as_message(status: TrainerStatus, before: RankReport | None) -> Message:
    """Return the status as a message. `before` is the last report of the same pod.

    The status at the end of a training has no step, and the one at its start has only the number of steps.
    """
    metrics = dict(_numbers(status))
    counts = {name: _count(metrics.get(name)) for name in _COUNTERS}
    step, total, epoch = counts.values()
    percent = status.progress_percentage
    starts = percent == 0 and step is None
    if before is not None and not starts:
        total = before.total_steps if total is None else total
        epoch = before.epoch if epoch is None else epoch
    if step is None and not starts:
        if percent is not None:
            total = total or 100  # the program reports percent only
            step = int(total * percent / 100)
        elif before is not None:
            step = before.step
    kept = [(name, value) for name, value in metrics.items() if name not in _OMITTED]
    return Message(rank=0, step=step, total_steps=total, epoch=epoch, metrics=dict(kept[:METRICS]), done=percent == 100)


def with_step_time(after: RankReport, before: RankReport | None) -> RankReport:
    """Add the mean duration of the steps between two messages, and that the sender is silent between its steps."""
    seconds = before.step_seconds if before is not None else None
    if before is not None and before.step is not None and after.step is not None and after.step > before.step:
        assert before.stepped_at
        seconds = (after.received_at - before.stepped_at).total_seconds() / (after.step - before.step)
    return replace(after, step_seconds=seconds, heartbeat=False)


def effective(ranks: dict[int, RankReport]) -> Iterable[RankReport]:
    """Return the reports of a pod, each rank once.

    If the report library reports steps there, the status is not used. If it reports, but no steps, its first rank gets
    the steps of the status.
    """
    status = ranks.get(KEY)
    if status is None:
        return ranks.values()
    reported = [rank for key, rank in ranks.items() if key != KEY]
    if not reported:
        return (status,)
    if any(rank.step is not None for rank in reported):
        return reported
    first = min(reported, key=lambda rank: rank.local_rank)
    combined = replace(
        status,
        local_rank=first.local_rank,
        rank=status.rank if first.rank is None else first.rank,
        received_at=max(first.received_at, status.received_at),
        epoch=status.epoch if first.epoch is None else first.epoch,
        metrics={**status.metrics, **first.metrics},
        samples_per_second=first.samples_per_second,
        checkpoint_step=first.checkpoint_step,
        checkpoint_at=first.checkpoint_at,
        save_seconds=first.save_seconds,
        due_step=first.due_step,
        done=first.done,
        waiting=first.waiting,
        heartbeat=True,
    )
    return [combined if rank is first else rank for rank in reported]


def _numbers(status: TrainerStatus) -> Iterator[tuple[str, float]]:
    for metric in status.metrics or ():
        value = _number(metric.value)
        if value is not None and _NAME.fullmatch(metric.name):
            yield metric.name, value


def _number(value: Any) -> float | None:
    if not isinstance(value, str | int | float) or (isinstance(value, str) and len(value) > _VALUE_CHARACTERS):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value <= _LARGEST_COUNT else None
