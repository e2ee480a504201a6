"""The priority that a queue adds to a running job while its preemption would lose work: `scheduling.preemption`.

Kueue adds the value of the annotation `kueue.x-k8s.io/priority-boost` of a Workload to its priority.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from allranks.api.scheduling import Preemption
from allranks.api.status import Status

ANNOTATION = "kueue.x-k8s.io/priority-boost"
UNSAVED = timedelta(seconds=60)
"""Less work than this since the last checkpoint is not worth a boost."""


@dataclass(frozen=True, slots=True)
class Boost:
    value: int
    changes_at: datetime | None = None
    """When to compute it again if no rank reports a checkpoint until then."""


def priority_boost(preemption: Preemption | None, status: Status, now: datetime) -> Boost:
    """The boost of a job that runs: `boostUntilCheckpoint` for `minRunSeconds` after all its pods run, and after that
    while a preemption would lose more than a minute of work. A job whose ranks store a checkpoint on request loses
    none."""
    if preemption is None or status.running_time is None or status.phase != "Running":
        return Boost(0)
    until_checkpoint = preemption.boost_until_checkpoint
    protected_until = status.running_time + timedelta(seconds=preemption.min_run_seconds)
    unsaved_since = _unsaved_since(status)
    if unsaved_since is not None and now >= unsaved_since + UNSAVED:
        return Boost(until_checkpoint)
    if now < protected_until:
        return Boost(until_checkpoint, protected_until)
    return Boost(0, unsaved_since + UNSAVED if unsaved_since else None)


def _unsaved_since(status: Status) -> datetime | None:
    """Begin of the work that is in no checkpoint; None if there is none, or if the ranks report no steps."""
    progress = status.progress
    if progress is None or progress.first_step_time is None or progress.saves_on_request:
        return None
    if progress.checkpoint_time is not None and progress.checkpoint_step == progress.step:
        return None
    return max(progress.first_step_time, progress.checkpoint_time or progress.first_step_time)
