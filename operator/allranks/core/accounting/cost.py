"""GPU time of a job, `status.times` multiplied by the GPUs that pods held, and its price (docs/guides/cost.md).

It is updated in the write of the times, at the price that was persisted before: a new price does not change the past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from allranks.api.cost import CostStatus, GpuTime, Price, RoleCost
from allranks.api.status import FINISHED, WITHOUT_PODS, Status, Times
from allranks.core.accounting import time_accounting
from allranks.core.facts import pod_template, pool_template
from allranks.core.facts.model import Observed, Plan, Pod
from allranks.core.snapshot import Snapshot

KINDS = ("productive", "starting", "waiting", "lost")


def charge(observed: Observed, before: Status, after: Status) -> Status:
    """Return `after` with the GPU time since `before`, the persisted status.

    `after` has its new times. The result is the same object if nothing changes, or if the job has no GPUs. If roles
    have different pools, each role with GPUs has a part of its own.
    """
    if after == before or after.times is None:
        return after
    held = _held(observed, before.cost)
    if not held and before.cost is None:
        return after
    old, prices = parts(before.cost), _prices(observed)
    holds_none = not any(part.gpus for part in old.values())
    partial = bool(before.cost and before.cost.partial)
    new: dict[str, RoleCost] = {}
    for name in filter({*old, *held}.__contains__, (_WHOLE, *observed.job.spec.roles)):
        price, gpus = prices.get(name), held.get(name, 0)
        part = old.get(name) or RoleCost(pool=observed.job.spec.pool_of(name) if name else None, price=price)
        part = _advanced(part, before.times, after.times, gpus if holds_none else 0, partial)
        new[name] = replace(part, gpus=0 if after.phase in FINISHED else gpus, price=price)
    cost = _in_one_currency(before.cost, whole(before.cost or CostStatus(), new), _currencies(observed))
    cost = replace(cost, partial=_partial(after, observed.pods) or None)
    return replace(after, cost=replace(cost, summary=summary(cost)))


_WHOLE = ""
"""Name of the only part of a job with one pool."""


def parts(cost: CostStatus | None) -> dict[str, RoleCost]:
    """Return role -> its part of the cost; with one pool, the cost as a whole below an empty name."""
    if cost is None:
        return {}
    if cost.roles:
        return cost.roles
    return {_WHOLE: RoleCost(gpus=cost.gpus, price=cost.price, gpu_seconds=cost.gpu_seconds, spent=cost.spent)}


def _part_of(role: str, observed: Observed) -> str:
    """Return the name of the part to which the pods of a role belong."""
    spec = observed.job.spec
    several = len({spec.pool_of(name) for name in spec.roles}) > 1 and not observed.platform.local
    return role if several else _WHOLE


def _priced(observed: Observed) -> dict[str, Price]:
    """Return name of a part -> what its pool says about prices."""
    job, platform = observed.job, observed.platform
    pools = {_part_of(role, observed): pool_template.pool_of(job, role, platform) for role in job.spec.roles}
    return {name: pool.price for name, pool in pools.items() if pool and pool.price and not platform.local}


def _currencies(observed: Observed) -> set[str]:
    return {price.currency for price in _priced(observed).values()}


def _prices(observed: Observed) -> dict[str, str]:
    """Return name of a part -> price of a GPU-hour; nothing if the pools have several currencies."""
    several = len(_currencies(observed)) > 1
    return {} if several else {name: price.gpu_hour for name, price in _priced(observed).items()}


def _in_one_currency(before: CostStatus | None, cost: CostStatus, currencies: set[str]) -> CostStatus:
    """Return the cost without money of another currency than before, or of several: their amounts do not add up."""
    if len(currencies) > 1 or (before and currencies and currencies != {before.currency}):
        roles = {role: replace(part, spent=None) for role, part in (cost.roles or {}).items()}
        cost = replace(cost, spent=None, roles=roles or None)
    if len(currencies) == 1:
        return replace(cost, currency=next(iter(currencies)))
    return cost if cost.spent else replace(cost, currency=None)


def whole(cost: CostStatus, by_name: dict[str, RoleCost]) -> CostStatus:
    """Return the cost as the sum of its parts. Without the price of one of them, it has no price."""
    prices = {part.price for part in by_name.values()}
    spent = [part.spent for part in by_name.values()]
    return replace(
        cost,
        gpus=sum(part.gpus for part in by_name.values()),
        price=prices.pop() if len(prices) == 1 else None,
        gpu_seconds=_sum([part.gpu_seconds for part in by_name.values()]),
        spent=None if None in spent else _sum([amount for amount in spent if amount]),
        roles=None if _WHOLE in by_name else by_name,
    )


def _sum(amounts: list[GpuTime]) -> GpuTime:
    return GpuTime(**{kind: round(sum(getattr(amount, kind) for amount in amounts), 6) for kind in KINDS})


def up_to(status: Status, now: datetime) -> CostStatus | None:
    """Return the cost up to now; None for a job without GPUs."""
    times = time_accounting.up_to(status, now)
    if status.cost is None or status.times is None or times is None:
        return status.cost
    before, partial = status.times, bool(status.cost.partial)
    new = {name: _advanced(part, before, times, 0, partial) for name, part in parts(status.cost).items()}
    cost = whole(status.cost, new)
    return replace(cost, summary=summary(cost))


def total(time: GpuTime) -> float:
    return float(sum(getattr(time, kind) for kind in KINDS))


def lost_by(status: Status, lost: float, now: datetime) -> dict[str, float]:
    """Divide a lost amount among its causes in proportion to the time that each cost; return the largest first."""
    times = time_accounting.up_to(status, now)
    seconds = sum(times.by_reason.values()) if times else 0.0
    if times is None or not seconds or not lost:
        return {}
    shares = sorted(times.by_reason.items(), key=lambda item: (-item[1], item[0]))
    return {reason: lost * share / seconds for reason, share in shares}


def summary(cost: CostStatus) -> str:
    """Return the cost as text: `12.5 GPUh, 30.00 USD`."""
    hours = f"{total(cost.gpu_seconds) / 3600:.1f} GPUh"
    money = f", {total(cost.spent):.2f} {cost.currency}" if cost.spent else ""
    return (hours + money)[:48]


def _advanced(part: RoleCost, before: Times | None, after: Times, held: int, partial: bool) -> RoleCost:
    """Add the GPU time that the times gained, and take away what they lost.

    Work that a restart discards moves to lost. `held`: GPUs, if none were held before. `partial`: other pods had no
    node.
    """
    seconds_by_kind: dict[str, float] = {kind: getattr(part.gpu_seconds, kind) for kind in KINDS}
    spent = {kind: getattr(part.spent, kind) for kind in KINDS} if part.spent else dict.fromkeys(KINDS, 0.0)
    hourly = float(part.price) if part.price else 0.0
    for name in ("queued", "starting", "productive", "lost", "uploading"):
        seconds = (getattr(after, name) or 0.0) - ((getattr(before, name) if before else 0.0) or 0.0)
        # The first reconcile of pods that were placed before it: their time began with their assignment.
        gpus = part.gpus or (held if name in ("starting", "productive") else 0)
        kind = (
            "waiting" if name in ("queued", "uploading") or (name == "starting" and partial and seconds > 0) else name
        )
        seconds_by_kind[kind] = round(max(0.0, seconds_by_kind[kind] + seconds * gpus), 6)
        spent[kind] = round(max(0.0, spent[kind] + seconds * gpus * hourly / 3600), 6)
    return replace(
        part,
        gpu_seconds=GpuTime(**seconds_by_kind),
        spent=GpuTime(**spent) if part.price or part.spent else None,
    )


def _held(observed: Observed, before: CostStatus | None) -> Mapping[str, int]:
    """Return name of a part -> GPUs of its pods that have a node and have not ended, including pods that terminate."""
    counts = Counter(pod.role for pod in _placed(observed.pods))
    if not counts:
        return {}
    job, platform = observed.job, observed.platform
    if pool_template.unavailable(job, platform):  # it was changed or deleted meanwhile
        return {name: part.gpus for name, part in parts(before).items()}
    templates = pod_template.role_templates(job, platform)
    held = Counter[str]()
    for role, count in counts.items():
        if role in templates and (gpus := pod_template.gpus(job, role, templates[role], platform)):
            held[_part_of(role, observed)] += gpus * count
    return held


def _placed(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.owned and pod.node and not pod.ended]


def _partial(status: Status, pods: Iterable[Pod]) -> bool:
    """Return whether some pods of the attempt have a node and wait for others."""
    if status.phase in FINISHED | WITHOUT_PODS or status.running_time:
        return False
    placed = sum(pod.attempt == status.attempt for pod in _placed(pods))
    return 0 < placed < sum(counts.desired for counts in status.roles.values())


def with_cost(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add the GPU time to the status that the plan writes, which has its times."""
    return replace(plan, next=charge(snapshot.observed, snapshot.persisted, plan.next)) if plan.next else plan
