"""Compares ranks that make no progress, and says which of them differs: where it waits, or that it is gone.

If nothing distinguishes a rank, none is named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allranks.core.facts import naming
from allranks.core.facts.rank_reports import Position, RankReport

NAMED = 8


@dataclass(frozen=True, slots=True)
class Suspects:
    """The ranks that differ from the others, and a sentence about them; no ranks if nothing distinguishes any."""

    ranks: tuple[RankReport, ...]
    sentence: str = ""


def suspects(ranks: Sequence[RankReport]) -> Suspects:
    """Return the ranks for which the others wait, by the first rule that finds some, but not all."""
    active = [rank for rank in ranks if not rank.done]
    for rule in (_behind, _raising, _completed, _ended, _not_waiting, _elsewhere):
        if result := rule(ranks, active):
            return Suspects(_sorted(result.ranks), result.sentence)
    return Suspects((), _all_at(active))


def _behind(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks with fewer steps than others."""
    least, furthest = min(_step(rank) for rank in active), max(_step(rank) for rank in ranks)
    if least == furthest:
        return None
    behind = [rank for rank in active if _step(rank) == least]
    return Suspects(tuple(behind), f"{named(behind)} at step {least}, the others at {furthest}{_where(behind)}")


def _raising(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that wait while they handle an exception, if others do not."""
    raising = [rank for rank in active if rank.position and rank.position.raising]
    if not raising or len(raising) == len(active):
        return None
    first = _sorted(raising)[0].position
    assert first
    doing = "its main thread has ended with" if first.call == "ended" else "handles"
    return Suspects(
        tuple(raising), f"{named(raising)} {doing} {first.raising}{_where(raising)}{_others(active, raising)}"
    )


def _completed(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that completed, and made no more steps than the ranks that still run."""
    furthest = max(_step(rank) for rank in active)
    done = [rank for rank in ranks if rank.done and rank.rank is not None and _step(rank) <= furthest]
    if not done:
        return None
    first = _sorted(done)[0]
    total = f" of {first.total_steps}" if first.total_steps else ""
    at = f" at step {first.step}{total}" if first.step is not None else ""
    return Suspects(tuple(done), f"{named(done)} completed{at}; the others wait for {_it(done)}{_where_all(active)}")


def _ended(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks whose main thread has ended, while another thread keeps the process."""
    ended = [rank for rank in active if rank.position and rank.position.call == "ended"]
    if not ended or len(ended) == len(active):
        return None
    return Suspects(tuple(ended), f"the main thread of {named(ended)} has ended; another thread keeps the process")


def _not_waiting(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that have not finished their own work of the step, if programs report that."""
    if not any(rank.waiting for rank in active):
        return None
    busy = [rank for rank in active if not rank.waiting]
    if not busy or len(busy) == len(active):
        return None
    step = _step(busy[0]) + 1
    sentence = f"{named(busy)} did not complete step {step}, and the other ranks wait for {_it(busy)}{_where(busy)}"
    return Suspects(tuple(busy), sentence)


def _elsewhere(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that are at another place of the program than most others, or the only ones outside of a collective."""
    if any(rank.position is None for rank in active):
        return None  # a rank that does not answer would look like one that differs
    groups = _grouped(active, lambda position: (position.where, position.call))
    if len(groups) < 2:
        return None
    outside = [rank for rank in active if rank.position and not is_collective(rank.position)]
    if outside and len(outside) < len(active):
        return Suspects(
            tuple(outside), f"{named(outside)} is not in a collective{_where(outside)}{_others(active, outside)}"
        )
    largest = max(groups, key=len)
    if 2 * len(largest) <= len(active):
        return None
    odd = [rank for rank in active if rank not in largest]
    return Suspects(tuple(odd), f"{named(odd)} waits elsewhere{_where(odd)}{_others(active, odd)}")


def _all_at(active: list[RankReport]) -> str:
    """Return a sentence about ranks of which nothing distinguishes one."""
    step = max((_step(rank) for rank in active), default=0)
    start = f"all {len(active)} ranks are at step {step}"
    if any(rank.position is None for rank in active):
        return f"{start}; their stack dumps show where they wait"
    groups = _grouped(active, lambda position: (position.where, position.call))
    if len(groups) == 1:
        return f"{start}{_where_all(active)}"
    places = "; ".join(f"{named(group)}{_where(group)}" for group in groups[:NAMED])
    return f"{start}, and wait in different places: {places}"


_COLLECTIVE = re.compile(
    r"(?i)^_?(?:i?all_?reduce\w*|i?all_?gather\w*|reduce_scatter\w*|broadcast\w*|i?bcast|monitored_barrier|i?barrier|gather\w*"
    r"|scatter\w*|reduce|all_?to_?all\w*|i?send\w*|i?recv\w*|wait|wait_\w+|synchronize|join|block_until_ready|backward"
    r"|batch_all_reduce|sync_global_devices|poll|grouped_all\w*)$"
)


def is_collective(position: Position) -> bool:
    """Return whether the call waits for other ranks. `backward` does in data-parallel programs."""
    return _COLLECTIVE.match(position.call) is not None


def _grouped(ranks: list[RankReport], key: Callable[[Position], tuple[str, str]]) -> list[list[RankReport]]:
    groups: defaultdict[tuple[str, str], list[RankReport]] = defaultdict(list)
    for rank in ranks:
        groups[key(rank.position or Position())].append(rank)
    return list(groups.values())


def _where(ranks: Sequence[RankReport]) -> str:
    """Return ` (all_gather at train.py:9)`, if all of these ranks are there."""
    places = {(rank.position.call, rank.position.where) for rank in ranks if rank.position}
    if len(places) != 1:
        return ""
    [(call, where)] = places
    if call == "ended" or not (call or where):
        return ""
    return f" ({' at '.join(part for part in (call, where) if part)})"


def _where_all(active: list[RankReport]) -> str:
    return _where(active) if all(rank.position for rank in active) else ""


def _others(active: list[RankReport], odd: Sequence[RankReport]) -> str:
    others = [rank for rank in active if rank not in odd]
    return f"; the others wait{_where_all(others)}"


def _it(ranks: Sequence[RankReport]) -> str:
    return "it" if len(ranks) == 1 else "them"


def named(ranks: Sequence[RankReport]) -> str:
    """Return the names of ranks: `rank 3 (worker-1 on node-7), rank 4 (worker-2)`, at most NAMED of them."""
    text = ", ".join(label(rank) for rank in _sorted(ranks)[:NAMED])
    return f"{text} and {len(ranks) - NAMED} more" if len(ranks) > NAMED else text


def label(rank: RankReport) -> str:
    """Return the name of a rank: `rank 3 (worker-1 on node-7)`."""
    where = naming.replica_key(rank.role, rank.index) + (f" on {rank.node}" if rank.node else "")
    return where if rank.rank is None else f"rank {rank.rank} ({where})"


def _sorted(ranks: Sequence[RankReport]) -> tuple[RankReport, ...]:
    return tuple(sorted(ranks, key=lambda r: (r.rank is None, r.rank or 0, r.role, r.index, r.local_rank)))


def _step(rank: RankReport) -> int:
    return rank.step or 0
