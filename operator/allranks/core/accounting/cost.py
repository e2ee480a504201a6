"""GPU time of a job, `status.times` multiplied by the GPUs that pods held, and its price (docs/guides/cost.md).

It is updated in the write of the times, at the price that was persisted before: a new price does not change the past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from allranks.api.cost import CostStatus, GpuTime
from allranks.api.status import FINISHED, WITHOUT_PODS, Status, Times
from allranks.core.accounting import time_accounting
from allranks.core.facts import pod_template, pool_template
from allranks.core.facts.model import Observed, Plan, Pod
from allranks.core.snapshot import Snapshot

KINDS = ("productive", "starting", "waiting", "lost")


def charge(observed: Observed, before: Status, after: Status) -> Status:
    """Return `after` with the GPU time since `before`, the persisted status.

    `after` has its new times. The result is the same object if nothing changes, or if the job has no GPUs.
    """
    if after == before or after.times is None:
        return after
    held = _held(observed, before.cost)
    if not held and before.cost is None:
        return after
    old = before.cost or CostStatus()
    pool = pool_template.pool_of(observed.job, observed.platform)
    price = pool.price if pool and not observed.platform.local else None
    first = replace(old, price=price.gpu_hour, currency=price.currency) if before.cost is None and price else old
    cost = _advanced(first, before.times, after.times, held)
    if price and price.currency != cost.currency:
        cost = replace(cost, spent=None)  # amounts of two currencies do not add up
    cost = replace(
        cost,
        gpus=0 if after.phase in FINISHED else held,
        partial=_partial(after, observed.pods) or None,
        price=price.gpu_hour if price else None,
        currency=price.currency if price else cost.currency if cost.spent else None,
    )
    return replace(after, cost=replace(cost, summary=summary(cost)))


def up_to(status: Status, now: datetime) -> CostStatus | None:
    """Return the cost up to now; None for a job without GPUs."""
    times = time_accounting.up_to(status, now)
    if status.cost is None or status.times is None or times is None:
        return status.cost
    cost = _advanced(status.cost, status.times, times, status.cost.gpus)
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


def _advanced(cost: CostStatus, before: Times | None, after: Times, held: int) -> CostStatus:
    """Add the GPU time that the times gained, and take away what they lost.

    Work that a restart discards moves to lost.
    """
    seconds_by_kind: dict[str, float] = {kind: getattr(cost.gpu_seconds, kind) for kind in KINDS}
    spent = {kind: getattr(cost.spent, kind) for kind in KINDS} if cost.spent else dict.fromkeys(KINDS, 0.0)
    hourly = float(cost.price) if cost.price else 0.0
    for name in ("queued", "starting", "productive", "lost", "uploading"):
        seconds = (getattr(after, name) or 0.0) - ((getattr(before, name) if before else 0.0) or 0.0)
        # The first reconcile of pods that were placed before it: their time began with their assignment.
        gpus = cost.gpus or (held if name in ("starting", "productive") else 0)
        kind = (
            "waiting"
            if name in ("queued", "uploading") or (name == "starting" and cost.partial and seconds > 0)
            else name
        )
        seconds_by_kind[kind] = round(max(0.0, seconds_by_kind[kind] + seconds * gpus), 6)
        spent[kind] = round(max(0.0, spent[kind] + seconds * gpus * hourly / 3600), 6)
    return replace(
        cost,
        gpu_seconds=GpuTime(**seconds_by_kind),
        spent=GpuTime(**spent) if cost.price or cost.spent else None,
    )


def _held(observed: Observed, before: CostStatus | None) -> int:
    """Return the number of GPUs of pods that have a node and have not ended, including pods that terminate."""
    counts = Counter(pod.role for pod in _placed(observed.pods))
    if not counts:
        return 0
    job, platform = observed.job, observed.platform
    if pool_template.unavailable(job, platform):  # it was changed or deleted meanwhile
        return before.gpus if before else 0
    templates = pod_template.role_templates(job, platform)
    return sum(
        pod_template.gpus(job, templates[role], platform) * count for role, count in counts.items() if role in templates
    )


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
