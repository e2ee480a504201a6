"""What ranks report, and what follows from it: how far the job is, whether it hangs, who is slow. Pure.

The newest report of each rank is all that is kept (`drivers/reports` keeps it); everything here is derived from that
and from `status.progress`, so that nothing is lost when the operator starts anew: ranks say what they said again.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from allranks.api.job import Job, Progress
from allranks.api.status import CurvePoint, ProgressStatus, RankProgress, Status, Straggler
from allranks.core import topology
from allranks.core.naming import replica_key

if TYPE_CHECKING:
    from allranks.core.model import Pod


@dataclass(frozen=True, slots=True)
class RankReport:
    """The newest state of one rank. Times are the listener's: ranks say how long ago."""

    role: str
    index: int
    local_rank: int
    rank: int | None
    pod: str
    node: str | None
    received_at: datetime
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float | None = None
    step_seconds: float | None = None
    """Mean of the steps since the report before."""
    busy_seconds: float | None = None
    """Of that, without waiting for the other ranks; None where the program does not measure it."""
    checkpoint_step: int | None = None
    checkpoint_at: datetime | None = None
    stepped_at: datetime | None = None
    """When its step grew last."""
    first_step_at: datetime | None = None
    done: bool = False
    waiting: bool | None = None
    """It has done its own work of the next step, and waits for the others; None where the program does not tell."""


@dataclass(frozen=True, slots=True)
class Reports:
    """Of the present attempt."""

    since: datetime
    """Since when somebody listens: before that, silence means nothing."""
    ranks: tuple[RankReport, ...] = ()


def present(reports: Reports | None, pods: Iterable[Pod]) -> Reports | None:
    """Without the ranks of pods that are gone: nobody waits for them. One whose pod has ended is done."""
    if reports is None:
        return None
    there = {pod.name: pod for pod in pods if pod.owned}
    ranks = tuple(
        replace(rank, done=True) if not rank.done and there[rank.pod].exit else rank
        for rank in reports.ranks
        if rank.done or rank.pod in there
    )
    return replace(reports, ranks=ranks)


def numbered(job: Job, status: Status, reports: Reports | None) -> Reports | None:
    """With the ranks of processes that do not know their own: TensorFlow's have an index within a role."""
    framework = topology.framework_of(job)
    if reports is None or not framework.ranks_are_pods or all(rank.rank is not None for rank in reports.ranks):
        return reports
    places = {(replica.role, replica.index): replica.node_rank for replica in topology.replicas(job, status)}
    ranks = (replace(of, rank=places.get((of.role, of.index))) if of.rank is None else of for of in reports.ranks)
    return replace(reports, ranks=tuple(ranks))


STRAGGLERS = 64
RANKS = 16
POINTS = 64
"""As many of each as status holds."""


def observe(job: Job, status: Status, reports: Reports | None) -> Status:
    """The status with what the ranks say now; the same object when they say nothing new."""
    if reports is None or not reports.ranks or status.attempt_time is None:
        return status
    before = status.progress or ProgressStatus()
    ranks = reports.ranks
    stepped = [rank for rank in ranks if rank.step is not None]
    firsts = [(rank.first_step_at, rank.step or 0) for rank in ranks if rank.first_step_at]
    update: dict[str, Any] = {
        "step": max((rank.step for rank in stepped if rank.step is not None), default=before.step),
        "total_steps": max((rank.total_steps for rank in ranks if rank.total_steps is not None), default=None),
        "epoch": max((rank.epoch for rank in ranks if rank.epoch is not None), default=before.epoch),
        "metrics": _metrics(ranks) or before.metrics,
        "samples_per_second": _sum(rank.samples_per_second for rank in ranks if not rank.done),
        "last_report": max((rank.stepped_at or rank.received_at for rank in stepped), default=before.last_report),
        "stragglers": stragglers(job, before, ranks),
        "ranks": _slowest(ranks),
        "reporting": len(ranks),
    }
    if before.first_step_time is None and firsts:
        update["first_step_time"], update["first_step"] = min(firsts)
    saved = max(((r.checkpoint_at, r.checkpoint_step) for r in ranks if r.checkpoint_at), default=None, key=_first)
    if saved and (before.checkpoint_time is None or saved[0] > before.checkpoint_time + _JITTER):
        update["checkpoint_time"], update["checkpoint_step"] = saved
    if before.last_report and update["last_report"] and abs(update["last_report"] - before.last_report) <= _JITTER:
        update["last_report"] = before.last_report
    after = before.model_copy(update=update)
    left = max(0, after.total_steps - after.step) if after.step is not None and after.total_steps else None
    pace = _median([rank.step_seconds for rank in ranks if rank.step_seconds is not None and not rank.done])
    eta = 0.0 if left == 0 else float(round(left * pace)) if left is not None and pace is not None else None
    after = after.model_copy(
        update={
            "eta_seconds": eta,
            "eta": "" if eta is None else _span(eta),
            "summary": _summary(after),
            **_curve(status, after),
        }
    )
    return status if after == before else status.model_copy(update={"progress": after})


_JITTER = timedelta(seconds=1)
"""Ranks say how long ago something was: on its way the answer changes by a little."""


def anew(progress: ProgressStatus | None) -> ProgressStatus | None:
    """At the beginning of an attempt: what its ranks have yet to say."""
    if progress is None:
        return None
    kept = {name: getattr(progress, name) for name in ("step", "total_steps", "epoch", "metrics", "last_report")}
    return ProgressStatus(**kept, curve_metric=progress.curve_metric, curve=progress.curve, summary=progress.summary)


def ended(progress: ProgressStatus | None) -> ProgressStatus | None:
    """Of a job that is over or suspended: nobody is slow, and nothing is awaited any more."""
    if progress is None:
        return None
    gone: dict[str, Any] = {
        "eta_seconds": None,
        "eta": "",
        "samples_per_second": None,
        "stragglers": [],
        "reporting": 0,
    }
    return progress.model_copy(update=gone)


def stragglers(job: Job, before: ProgressStatus, ranks: Iterable[RankReport]) -> list[Straggler]:
    """Ranks that take longer for their own work than `stragglerFactor` times the median of their peers.

    Ranks that wait for one another in each step have one step time, the slowest's: where the program tells its own
    work apart (`busy`), that alone is compared.
    """
    factor = (job.spec.progress or Progress()).straggler_factor
    known = {(straggler.replica, straggler.rank) for straggler in before.stragglers}
    there = [rank for rank in ranks if not rank.done]
    measured = bool(there) and all(rank.busy_seconds is not None for rank in there)
    pairs = [(rank, rank.busy_seconds if measured else rank.step_seconds) for rank in there]
    times = [(rank, seconds) for rank, seconds in pairs if seconds is not None]
    if len(times) < 2:
        return []
    found = []
    ordered = sorted(seconds for _, seconds in times)
    for rank, seconds in times:
        peers = _median_without(ordered, seconds)
        if peers <= 0 or seconds - peers < _NOTICEABLE_SECONDS:
            continue
        replica = replica_key(rank.role, rank.index)
        # One that is known stays one until it is clearly faster: else it would come and go.
        if seconds > peers * factor * (_RELEASE if (replica, rank.rank) in known else 1.0):
            found.append(Straggler(rank=rank.rank, replica=replica, node=rank.node, slowdown=round(seconds / peers, 1)))
    found.sort(key=lambda straggler: (-straggler.slowdown, straggler.replica, straggler.rank or 0))
    return found[:STRAGGLERS]


_NOTICEABLE_SECONDS = 0.002
"""Of steps of a millisecond, half a one more or less says nothing."""
_RELEASE = 0.85


def name(rank: RankReport) -> str:
    """`rank 3 (worker-1 on node-7)`"""
    where = replica_key(rank.role, rank.index) + (f" on {rank.node}" if rank.node else "")
    return where if rank.rank is None else f"rank {rank.rank} ({where})"


def newly_slow(before: ProgressStatus | None, after: ProgressStatus | None) -> list[str]:
    """A sentence for each straggler that was none: `rank 3 (worker-1 on node-7) takes 2.9 times as long ...`."""
    known = {(one.replica, one.rank) for one in (before.stragglers if before else ())}
    return [_slow(one) for one in (after.stragglers if after else ()) if (one.replica, one.rank) not in known]


def _slow(straggler: Straggler) -> str:
    where = straggler.replica + (f" on {straggler.node}" if straggler.node else "")
    who = where if straggler.rank is None else f"rank {straggler.rank} ({where})"
    return f"{who} takes {straggler.slowdown} times as long as its peers"


def _metrics(ranks: Iterable[RankReport]) -> dict[str, float]:
    """Those of the first rank that has any: mostly it is rank 0 that knows the mean over all."""
    having = [rank for rank in ranks if rank.metrics]
    first = min(having, key=lambda r: (r.rank is None, r.rank or 0, r.role, r.index, r.local_rank), default=None)
    return {key: _digits(value) for key, value in sorted(first.metrics.items())[:32]} if first else {}


def _slowest(ranks: Iterable[RankReport]) -> list[RankProgress]:
    """Those that lag most first, then those with the longest steps."""
    there = list(ranks)
    furthest = max((rank.step or 0 for rank in there), default=0)

    def order(rank: RankReport) -> tuple[float, float, int, str, int, int]:
        slow = -(rank.busy_seconds or rank.step_seconds or 0.0) if len(there) > RANKS else 0.0
        lag = (rank.step or 0) - furthest if len(there) > RANKS else 0
        return lag, slow, rank.rank or 0, rank.role, rank.index, rank.local_rank

    return [
        RankProgress(
            rank=rank.rank,
            replica=replica_key(rank.role, rank.index),
            step=rank.step,
            lag=furthest - (rank.step or 0),
            step_seconds=None if rank.step_seconds is None else _digits(rank.step_seconds),
            busy_seconds=None if rank.busy_seconds is None else _digits(rank.busy_seconds),
        )
        for rank in sorted(there, key=order)[:RANKS]
    ]


def _curve(status: Status, after: ProgressStatus) -> dict[str, Any]:
    """One point more, or the last one moved; every second one goes when there are too many. None that is older than the
    last: an operator that begins anew hears of the rank that is furthest after others."""
    metric = after.curve_metric or ("loss" if "loss" in after.metrics else next(iter(after.metrics), ""))
    if after.step is None or after.last_report is None:
        return {"curve_metric": metric}
    point = CurvePoint(
        time=after.last_report,
        attempt=status.attempt,
        step=after.step,
        value=after.metrics.get(metric),
        samples_per_second=after.samples_per_second,
    )
    curve = list(after.curve)
    if curve and point.time < curve[-1].time:
        return {"curve_metric": metric}
    if curve and (curve[-1].attempt, curve[-1].step) == (point.attempt, point.step):
        return {"curve_metric": metric, "curve": [*curve[:-1], point]}
    apart = (point.time - curve[0].time) / (POINTS * 3 // 4) if curve else timedelta(0)
    close = len(curve) > 1 and curve[-1].attempt == curve[-2].attempt == point.attempt
    if close and curve[-1].time - curve[-2].time < apart:
        curve[-1] = point
    else:
        curve = [*(curve[::2] if len(curve) >= POINTS else curve), point]
    return {"curve_metric": metric, "curve": curve}


def _summary(progress: ProgressStatus) -> str:
    if progress.step is not None and progress.total_steps:
        return f"{progress.step}/{progress.total_steps} {100 * progress.step // progress.total_steps}%"
    if progress.step is not None:
        return f"step {progress.step}"
    return f"epoch {progress.epoch}" if progress.epoch is not None else ""


def _span(seconds: float) -> str:
    """`45s`, `12m`, `2h10m`, `3d4h`"""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours < 48:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{hours // 24}d{hours % 24}h" if hours % 24 else f"{hours // 24}d"


def _digits(value: float) -> float:
    """Four of them: the rest is noise, and bytes."""
    rounded = float(f"{value:.4g}")
    return rounded if math.isfinite(rounded) else value  # the largest numbers there are become infinite


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _digits(sum(known)) if known else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Of all the others: `ordered` without one occurrence of `value`."""
    at = bisect.bisect_left(ordered, value)

    def without(index: int) -> float:
        return ordered[index + (index >= at)]

    count = len(ordered) - 1
    return without(count // 2) if count % 2 else (without(count // 2 - 1) + without(count // 2)) / 2


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]
