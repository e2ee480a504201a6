"""Compares ranks that make no progress, and says which of them differs: where it is, or that it is gone.

If nothing distinguishes a rank, none is named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from allranks.core.diagnosis.patterns import is_lost_peer
from allranks.core.diagnosis.report_loss import SILENCE
from allranks.core.facts import naming
from allranks.core.facts.rank_reports import Position, RankReport
from allranks.text import joined

NAMED = 8


@dataclass(frozen=True, slots=True)
class Suspects:
    """The ranks that differ from the others, and a sentence about them; no ranks if nothing distinguishes any."""

    ranks: tuple[RankReport, ...]
    sentence: str = ""
    awaited: bool = False
    """At least one other rank waits for them."""


def suspects(ranks: Sequence[RankReport]) -> Suspects:
    """Return the ranks for which the others wait, by the first rule that finds some, but not all."""
    active = [rank for rank in ranks if not rank.done]
    for rule in (_raising, _behind, _ended, _completed, _silent, _outside, _elsewhere):
        if result := rule(ranks, active):
            awaited = result.awaited or any(_waits(rank) for rank in active if rank not in result.ranks)
            return Suspects(_sorted(result.ranks), result.sentence, awaited)
    return Suspects((), _all_at(active))


def _raising(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that wait while they handle an exception of their own, if others do not."""
    raising = [rank for rank in active if rank.position and rank.position.raising]
    raising = [rank for rank in raising if rank.position and not is_lost_peer(rank.position.raising)]
    if not raising or len(raising) == len(active):
        return None
    first = _position(_sorted(raising)[0])
    if first.call == "ended":
        doing = f"{_main_threads(raising)} ended with {first.raising}"
    else:
        verb, place = _verb(raising, "handles"), _doing(raising)
        doing = f"{named(raising)} {verb} {first.raising}{f', and {place}' if place else ''}"
    return Suspects(tuple(raising), f"{doing}{_others(active, raising)}")


def _behind(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks with fewer steps than others. If others have more than one step, a rank without any does not report
    them."""
    furthest = max((_step(rank) for rank in ranks), default=0)
    counting = [rank for rank in active if rank.step is not None or furthest <= 1]
    least = min((_step(rank) for rank in counting), default=furthest)
    if least == furthest:
        return None
    behind = [rank for rank in counting if _step(rank) == least]
    doing = _doing(behind)
    place = f": {_pronoun(behind)} {doing}" if doing else ""
    sentence = f"{named(behind)} at step {least}, the others at {furthest}{place}"
    return Suspects(tuple(behind), f"{sentence}{_others(active, behind) if place else ''}")


def _ended(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks whose main thread has ended, while another thread keeps the process."""
    ended = [rank for rank in active if _position(rank).call == "ended"]
    if not ended or len(ended) == len(ranks):
        return None
    sentence = f"{_main_threads(ended)} ended, and another thread keeps the process{_others(active, ended)}"
    return Suspects(tuple(ended), sentence)


def _completed(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that completed, and made no more steps than the ranks that still run."""
    furthest = max((_step(rank) for rank in active), default=0)
    done = [rank for rank in ranks if rank.done and rank.rank is not None and _step(rank) <= furthest]
    if not done or not active:
        return None
    first = _sorted(done)[0]
    total = f" of {first.total_steps}" if first.total_steps else ""
    at = f" at step {first.step}{total}" if first.step is not None else ""
    early = any(rank.total_steps and _step(rank) < rank.total_steps for rank in done)
    others = _others(active, done, wait=early) or f"; {numbered(active)} still {_verb(active, 'runs')}"
    return Suspects(tuple(done), f"{named(done)} completed{at}{others}", awaited=early)


def _silent(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that send nothing, while all others wait in a collective."""
    newest = max((rank.received_at for rank in active), default=None)
    silent = [rank for rank in active if newest and newest - rank.received_at > SILENCE and rank.heartbeat]
    others = [rank for rank in active if rank not in silent]
    if not silent or not others or not all(_waits(rank) for rank in others):
        return None
    since = max(rank.received_at for rank in silent)
    explanation = "the process is stopped, or native code holds the interpreter lock"
    sentence = f"{named(silent)} {_verb(silent, 'has')} sent nothing since {since:%H:%M:%S} UTC ({explanation})"
    return Suspects(tuple(silent), f"{sentence}{_others(active, silent)}")


def _outside(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that do not wait for others, if others do."""
    waits = {id(rank): _waits(rank) for rank in active}
    if None in waits.values():
        return None  # a rank that does not answer would look like one that differs
    outside = [rank for rank in active if not waits[id(rank)]]
    if not outside or len(outside) == len(active):
        return None
    doing = _doing(outside) or ("" if all(rank.waiting is False for rank in outside) else _UNLIKE[len(outside) > 1])
    if all(rank.waiting is False for rank in outside):
        incomplete = f"did not complete step {_step(outside[0]) + 1}"
        doing = f"{incomplete}: {_pronoun(outside)} {doing}" if doing else incomplete
    return Suspects(tuple(outside), f"{named(outside)} {doing}{_others(active, outside)}")


_UNLIKE = {False: "does not wait for others", True: "do not wait for others"}


def _elsewhere(ranks: Sequence[RankReport], active: list[RankReport]) -> Suspects | None:
    """Ranks that are at another place of the program than most others."""
    if any(rank.position is None for rank in active):
        return None
    groups = _grouped(active)
    largest = max(groups, key=len, default=[])
    if len(groups) < 2 or 2 * len(largest) <= len(active):
        return None
    odd = [rank for rank in active if rank not in largest]
    doing = _doing(odd, apart_from=largest) or f"{_verb(odd, 'is')} elsewhere"
    return Suspects(tuple(odd), f"{named(odd)} {doing}{_others(active, odd)}")


def places(ranks: Sequence[RankReport]) -> str:
    """Return where ranks are, without a word on which of them waits for which."""
    groups = _grouped([rank for rank in ranks if rank.position])[:NAMED]
    return "; ".join(f"{numbered(group)} {_doing(group) or _verb(group, 'is') + ' elsewhere'}" for group in groups)


def _all_at(active: list[RankReport]) -> str:
    """Return a sentence about ranks of which nothing distinguishes one."""
    steps = {rank.step for rank in active}
    at = f" at step {max(_step(rank) for rank in active)}" if steps - {None} else ""
    start = f"all {len(active)} ranks" if len(active) > 1 else numbered(active)
    if any(rank.position is None for rank in active) or not active:
        return f"{start} {_verb(active, 'is')}{at}; their stack dumps show where they wait" if at else ""
    groups = _grouped(active)
    if len(groups) == 1:
        doing = _doing(active) or f"{_verb(active, 'is')} at the same place"
        return f"{start} {_verb(active, 'is')}{at}: {_pronoun(active)} {doing}" if at else f"{start} {doing}"
    where = places(active)
    return f"{start} {_verb(active, 'is')}{at}, in different places: {where}" if at else f"{start} differ: {where}"


# --- what a rank does -------------------------------------------------------------------------------------------------

_COLLECTIVE = re.compile(
    r"(?i)^_?(?:i?all_?reduce\w*|i?all_?gather\w*|reduce_scatter\w*|broadcast\w*|i?bcast|monitored_barrier|i?barrier|gather\w*"
    r"|scatter\w*|reduce|all_?to_?all\w*|i?send\w*|i?recv\w*|wait|wait_\w+|synchronize|join|sync_global_devices|poll"
    r"|grouped_all\w*|batch_all_reduce)$"
)
_OF_A_DEVICE = re.compile(
    r"^(?:backward|block_until_ready|item|tolist|cpu|numpy|quick_execute|_value|__(?:array|float|int|bool|index)__)$"
)
"""Calls that wait for a device, which may wait for other ranks."""


def is_collective(position: Position) -> bool:
    """Return whether the main thread waits for other ranks, or for a device that may."""
    if position.collective:
        return True
    if position.activity:
        return False
    return _COLLECTIVE.match(position.call) is not None or _OF_A_DEVICE.match(position.call) is not None


def all_idle(ranks: Sequence[RankReport]) -> bool:
    """Return whether each rank waits for data, for input or in a debugger."""
    active = [rank for rank in ranks if not rank.done]
    return bool(active) and all(_position(rank).activity in _IDLE for rank in active)


_IDLE = ("data", "input", "debugger")


def _waits(rank: RankReport) -> bool | None:
    """Return whether a rank waits for others; None if nothing says it. A program that measures says it best."""
    if rank.waiting:
        return True
    position = rank.position
    if position is None:
        return rank.waiting
    if rank.waiting is False and not position.collective and _OF_A_DEVICE.match(position.call):
        return False
    return is_collective(position)


def _doing(ranks: Sequence[RankReport], apart_from: Sequence[RankReport] = ()) -> str:
    """Return what these ranks do, such as `waits in all_reduce, train.py:88`; empty if they are in several places.

    `apart_from`: ranks from which a caller may distinguish them.
    """
    positions = {_place_key(_position(rank)) for rank in ranks}
    first = _position(ranks[0]) if ranks else Position()
    if len(positions) != 1 or first == Position() or first.call == "ended":
        return ""
    text = f"{_activity(ranks, first)}{', state D: the kernel waits for a device' if first.stuck else ''}"
    others = [_position(rank) for rank in apart_from]
    if any(_place_key(other) == _place_key(first) for other in others):
        theirs = {caller for other in others for caller in other.callers}
        caller = next((caller for caller in first.callers if caller not in theirs), "")
        text += f", called by {caller.replace(' ', '(), ')}" if caller else ""
    return text


def _activity(ranks: Sequence[RankReport], position: Position) -> str:
    function = f"{position.function}()" if position.function else ""
    at = ", ".join(part for part in (function, position.where) if part)
    within = f"{' in' if function else ' at'} {at}"
    if position.activity == "debugger":
        return f"{_verb(ranks, 'is')} stopped in a debugger{within}"
    if position.activity == "input":
        return f"{_verb(ranks, 'waits')} for input{within}"
    if position.activity == "data":
        return f"{_verb(ranks, 'waits')} for data{f' ({position.file})' if position.file else ''}{within}"
    if position.activity and position.file:
        return f"{_verb(ranks, f'{position.activity}s')} {position.file}{within}"
    if _waits(ranks[0]):
        return f"{_verb(ranks, 'waits')} in {', '.join(part for part in (position.call, position.where) if part)}"
    call = f" ({position.call})" if position.call else ""
    return f"{_verb(ranks, 'is')}{within}{call}"


def _others(active: list[RankReport], odd: Sequence[RankReport], *, wait: bool = False) -> str:
    """Return `; ranks 0 and 1 wait for it in all_reduce, train.py:88`. `wait`: they do, wherever they are."""
    others = [rank for rank in active if rank not in odd]
    if not others:
        return ""
    it, doing = "it" if len(odd) == 1 else "them", _doing(others)
    if wait or all(_waits(rank) for rank in others):
        place = doing.partition(" in ")[2]
        return f"; {numbered(others)} {_verb(others, 'waits')} for {it}{f' in {place}' if place else ''}"
    return f"; {numbered(others)} {doing}" if doing else ""


def _main_threads(ranks: Sequence[RankReport]) -> str:
    threads = "the main thread of" if len(ranks) == 1 else "the main threads of"
    return f"{threads} {named(ranks)} {_verb(ranks, 'has')}"


_PLURAL = {"is": "are", "has": "have"}


def _verb(ranks: Sequence[RankReport], verb: str) -> str:
    """Return the form of a verb for one rank or several."""
    return verb if len(ranks) == 1 else _PLURAL.get(verb, verb.removesuffix("s"))


def _pronoun(ranks: Sequence[RankReport]) -> str:
    return "it" if len(ranks) == 1 else "they"


# --- groups and names -------------------------------------------------------------------------------------------------


def _grouped(ranks: Sequence[RankReport]) -> list[list[RankReport]]:
    """Return the ranks by their places, in the order of their numbers."""
    groups: defaultdict[object, list[RankReport]] = defaultdict(list)
    for rank in _sorted(ranks):
        position = _position(rank)
        groups[(*_place_key(position), position.callers)].append(rank)
    return list(groups.values())


def _place_key(position: Position) -> tuple[str, ...]:
    return position.where, position.call, position.activity, position.file


def _position(rank: RankReport) -> Position:
    return rank.position or Position()


def numbered(ranks: Sequence[RankReport]) -> str:
    """Return the numbers of ranks: `rank 3`, `ranks 0 and 2`, `ranks 0 to 62`; their names if some have no number."""
    numbers = sorted(rank.rank for rank in ranks if rank.rank is not None)
    if len(numbers) < len(ranks) or not numbers:
        return named(ranks)
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    texts = [str(number) for number in numbers[:NAMED]]
    if len(numbers) > NAMED:
        texts.append(f"{len(numbers) - NAMED} more")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {joined(texts, 'and')}"


def named(ranks: Sequence[RankReport]) -> str:
    """Return the names of ranks: `rank 3 (worker-1 on node-7), rank 4 (worker-2)`, at most NAMED of them."""
    text = ", ".join(label(rank) for rank in _sorted(ranks)[:NAMED])
    return f"{text} and {len(ranks) - NAMED} more" if len(ranks) > NAMED else text


def label(rank: RankReport) -> str:
    """Return the name of a rank: `rank 3 (worker-1 on node-7)`."""
    return naming.rank_name(rank.rank, naming.replica_key(rank.role, rank.index), rank.node)


def _sorted(ranks: Sequence[RankReport]) -> tuple[RankReport, ...]:
    return tuple(sorted(ranks, key=lambda r: (r.rank is None, r.rank or 0, r.role, r.index, r.local_rank)))


def _step(rank: RankReport) -> int:
    return rank.step or 0
