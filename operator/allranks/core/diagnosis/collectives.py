"""What NCCL's view of the collectives says about a job that makes no progress. Pure; only information: a job without
collectives may be evaluating, or loading data."""

from __future__ import annotations

from datetime import datetime, timedelta

from allranks.core.facts.rank_reports import Collectives, Reports

RECENT = timedelta(seconds=90)
"""Rank 0 asks every 30 s."""


def stopped_at(collectives: Collectives, timeout: timedelta) -> datetime:
    """When the ranks will have launched no collective for `timeout`."""
    return collectives.moved_at + timeout


def is_recent(collectives: Collectives, now: datetime) -> bool:
    return now - collectives.received_at <= RECENT


def explanation(reports: Reports, since: datetime, now: datetime) -> str:
    """For the message of a hang that began at `since`: `; NCCL: ...`, or nothing."""
    found = reports.collectives
    if found is None or not is_recent(found, now) or found.received_at < since:
        return ""
    return f"; NCCL: {sentence(found)}"


def sentence(collectives: Collectives) -> str:
    """`rank 5 of 8 has not launched AllReduce 6650, which others have`"""
    parts = []
    size = collectives.size
    if collectives.missing_count:
        parts.append(f"{_ranks(collectives.missing, collectives.missing_count, size)} cannot be reached")
    if collectives.operation:
        behind = _ranks(collectives.behind, collectives.behind_count, size)
        verb = "has" if collectives.behind_count == 1 else "have"
        parts.append(f"{behind} {verb} not launched {collectives.operation} {collectives.number}, which others have")
    return ", and ".join(parts) or f"all {size} ranks of its largest group have launched the same collectives"


def _ranks(named: tuple[int, ...], count: int, size: int) -> str:
    """`rank 5 of 8`, `ranks 1, 3 and 7 of 8`, `ranks 0, 1, 2 and 9 more of 64`"""
    numbers = [str(rank) for rank in named]
    if count > len(named):
        numbers.append(f"{count - len(named)} more")
    listed = " and ".join(part for part in (", ".join(numbers[:-1]), numbers[-1]) if part) if numbers else "some"
    return f"{'rank' if count == 1 else 'ranks'} {listed} of {size}"
