"""Finds stragglers: ranks whose own work takes much longer than the work of their peers."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from allranks.api.job import Job, Progress
from allranks.api.status import ProgressStatus, Straggler
from allranks.core.facts.naming import rank_name, replica_key
from allranks.core.facts.rank_reports import WINDOWS, RankReport

LEAST_RANKS = 3
STRAGGLERS = 64
"""Limit of status.progress.stragglers."""
_NOTICEABLE_SECONDS = 0.002
"""Smaller differences are noise: for steps of 1 ms, half a millisecond means nothing."""
_RELEASE = 0.85
"""Hysteresis: a straggler stays one until it is clearly faster than the threshold."""


def stragglers(job: Job, before: ProgressStatus, ranks: Iterable[RankReport]) -> list[Straggler]:
    """Return the ranks whose step takes longer than `stragglerPercent` percent of the median of their peers.

    Ranks that synchronize in each step all have the step time of the slowest one. If every program measures its own
    work (`busy_seconds`), only that is compared. Of each rank the shortest of several reports counts. Of two ranks none
    is a straggler: nothing says which of them is as fast as it should be. A recorded straggler remains until there are
    enough reports.
    """
    factor = (job.spec.progress or Progress()).straggler_percent / 100
    previous = {(straggler.replica, straggler.rank): straggler for straggler in before.stragglers}
    active = [rank for rank in ranks if not rank.done]
    measured = bool(active) and all(rank.busy_seconds is not None for rank in active)
    pairs = [(rank, _steady(rank, measured)) for rank in active]
    times = [(rank, seconds) for rank, seconds in pairs if seconds is not None]
    if len(times) < LEAST_RANKS:
        times = []
    slow = []
    if any(rank.windows is not None and len(rank.windows) < WINDOWS for rank in active):  # a new operator, for example
        judged = {id(rank) for rank, _ in times}
        recorded = [(rank, previous.get(_key(rank))) for rank in active if id(rank) not in judged]
        slow = [straggler for rank, straggler in recorded if straggler and straggler.node == rank.node]
    loads = sorted(rank.load_seconds for rank in active if rank.load_seconds is not None)
    ordered = sorted(seconds for _, seconds in times)
    for rank, seconds in times:
        peers = _median_without(ordered, seconds)
        if peers <= 0 or seconds - peers < _NOTICEABLE_SECONDS:
            continue
        if seconds > peers * factor * (_RELEASE if _key(rank) in previous else 1.0):
            loading = _waits_for_data(rank, loads, seconds - peers) or None
            slowdown = round(seconds / peers, 1)
            replica = replica_key(rank.role, rank.index)
            slow.append(Straggler(rank=rank.rank, replica=replica, node=rank.node, slowdown=slowdown, loading=loading))
    slow.sort(key=lambda straggler: (-straggler.slowdown, straggler.replica, straggler.rank or 0))
    return slow[:STRAGGLERS]


def _key(rank: RankReport) -> tuple[str, int | None]:
    return replica_key(rank.role, rank.index), rank.rank


def _steady(rank: RankReport, measured: bool) -> float | None:
    """Return the shortest step time of the last reports, or busy time if it is measured; None if there are too few."""
    if rank.windows is None:
        return rank.busy_seconds if measured else rank.step_seconds
    times = [busy if measured else seconds for seconds, busy in rank.windows]
    steady = [time for time in times if time is not None]
    return min(steady) if len(steady) == WINDOWS else None


def _waits_for_data(rank: RankReport, loads: Sequence[float], excess: float) -> bool:
    """Return whether a longer wait for data is at least half of the excess over the peers."""
    if rank.load_seconds is None or len(loads) < 2:
        return False
    return rank.load_seconds - _median_without(loads, rank.load_seconds) >= excess / 2


def newly_slow(before: ProgressStatus | None, after: ProgressStatus | None) -> list[str]:
    """Return a sentence for each new straggler: `rank 3 (worker-1 on node-7) takes 2.9 times as long as its peers`."""
    previous = {(straggler.replica, straggler.rank) for straggler in (before.stragglers if before else ())}
    return [
        _sentence(straggler)
        for straggler in (after.stragglers if after else ())
        if (straggler.replica, straggler.rank) not in previous
    ]


def _sentence(straggler: Straggler) -> str:
    who = rank_name(straggler.rank, straggler.replica, straggler.node)
    reason = ", because it waits for data" if straggler.loading else ""
    return f"{who} takes {straggler.slowdown} times as long as its peers{reason}"


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of `ordered` without one occurrence of `value`."""
    at = bisect.bisect_left(ordered, value)

    def without(index: int) -> float:
        return ordered[index + (index >= at)]

    count = len(ordered) - 1
    return without(count // 2) if count % 2 else (without(count // 2 - 1) + without(count // 2)) / 2
