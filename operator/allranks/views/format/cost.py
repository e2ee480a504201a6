"""GPU-hours of jobs and their price, for `describe`, reports and the UI. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from pydantic import ConfigDict

from allranks.api.cost import RoleCost
from allranks.api.status import Status
from allranks.core.accounting import cost as accounting
from allranks.views.format.json_form import CONFIG

TITLES = {
    "productive": "productive",
    "starting": "starting",
    "waiting": "held while waiting",
    "lost": "lost",
}


@dataclass(frozen=True, slots=True)
class RolePart:
    """The part of a role in the cost of a job with several pools."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    pool: str | None
    gpu_hours: float
    spent: float | None
    """Money; null without a price."""


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-hours and money of a job, or of all trials of a sweep, up to the time of the report."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    gpu_hours: dict[str, float]
    """By kind: productive, starting, waiting, lost."""
    lost_gpu_hours_by_reason: dict[str, float]
    """The largest first."""
    spent: dict[str, float] | None
    """Money by kind; null without a price."""
    lost_by_reason: dict[str, float] | None
    """Lost money by cause."""
    gpus: int
    """GPUs that pods hold now."""
    price: str | None
    """Of a GPU-hour, now; null if roles have different ones."""
    currency: str | None
    roles: dict[str, RolePart] = field(default_factory=dict)
    """Role -> its part; empty unless roles have different pools."""

    @property
    def total_hours(self) -> float:
        return sum(self.gpu_hours.values())

    @property
    def total_money(self) -> float | None:
        return None if self.spent is None else sum(self.spent.values())


def cost_of(status: Status, now: datetime) -> Cost | None:
    """Compute the cost of a job up to now; None for a job without GPUs."""
    spending = accounting.up_to(status, now)
    if spending is None:
        return None
    hours = {kind: getattr(spending.gpu_seconds, kind) / 3600 for kind in accounting.KINDS}
    spent = spending.spent
    money = {kind: getattr(spent, kind) for kind in accounting.KINDS} if spent else None
    return Cost(
        gpu_hours=hours,
        lost_gpu_hours_by_reason=accounting.lost_by(status, hours["lost"], now),
        spent=money,
        lost_by_reason=accounting.lost_by(status, money["lost"], now) if money else None,
        gpus=spending.gpus,
        price=spending.price,
        currency=spending.currency,
        roles={role: _part(part) for role, part in (spending.roles or {}).items()},
    )


def _part(part: RoleCost) -> RolePart:
    money = accounting.total(part.spent) if part.spent else None
    return RolePart(part.pool, accounting.total(part.gpu_seconds) / 3600, money)


def total(costs: Iterable[Cost]) -> Cost | None:
    """Add up the costs of several jobs; None without any.

    The sum has no money if the currencies differ.
    """
    jobs = list(costs)
    if not jobs:
        return None
    currencies = {job.currency for job in jobs if job.spent is not None}
    money = len(currencies) == 1
    prices = {(job.price, job.currency) for job in jobs}
    price, currency = prices.pop() if len(prices) == 1 else (None, None)
    return Cost(
        gpu_hours=_sum(job.gpu_hours for job in jobs),
        lost_gpu_hours_by_reason=_largest_first(_sum(job.lost_gpu_hours_by_reason for job in jobs)),
        spent=_sum(job.spent or {} for job in jobs) if money else None,
        lost_by_reason=_largest_first(_sum(job.lost_by_reason or {} for job in jobs)) if money else None,
        gpus=sum(job.gpus for job in jobs),
        price=price,
        currency=next(iter(currencies)) if money else currency,
    )


def _sum(amounts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for by_name in amounts:
        for name, value in by_name.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _largest_first(amounts: dict[str, float]) -> dict[str, float]:
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))


def amount(money: float | None, currency: str | None) -> str:
    """Write an amount of money: `38.40 USD`; empty without a price."""
    return "" if money is None else f"{money:,.2f} {currency}"


def hours(gpu_hours: float) -> str:
    """Write GPU-hours: `12.5 GPUh`; small amounts with more digits."""
    return f"{gpu_hours:,.1f} GPUh" if gpu_hours >= 10 or gpu_hours == 0 else f"{gpu_hours:.3g} GPUh"


def summary(cost: Cost | None) -> str:
    """Write the total: `12.5 GPUh, 30.00 USD`; empty for a job without GPUs."""
    if cost is None:
        return ""
    return ", ".join(filter(None, (hours(cost.total_hours), amount(cost.total_money, cost.currency))))


def line(cost: Cost | None) -> str:
    """Write the total, the kinds and the lost hours by cause in one line; empty for a job without GPUs."""
    if cost is None:
        return ""
    kinds = [f"{TITLES[kind]} {hours(value)}" for kind, value in cost.gpu_hours.items() if value]
    lost = [f"{reason} {hours(value)}" for reason, value in cost.lost_gpu_hours_by_reason.items()]
    price = f" at {cost.price} {cost.currency} per GPU-hour" if cost.price else ""
    roles = [_role_text(role, part, cost.currency) for role, part in cost.roles.items()]
    parts = [summary(cost) + price, ", ".join(kinds), "lost by " + ", ".join(lost) if lost else "", *roles]
    return "; ".join(filter(None, parts))


def _role_text(role: str, part: RolePart, currency: str | None) -> str:
    """Write `worker 12.5 GPUh, 30.00 USD (pool h200)`."""
    text = ", ".join(filter(None, (hours(part.gpu_hours), amount(part.spent, currency))))
    return f"{role} {text}" + (f" (pool {part.pool})" if part.pool else "")


def rows(cost: Cost) -> Iterator[tuple[str, str, str]]:
    """Yield (kind or cause, GPU-hours, money) for a table."""
    for kind, value in cost.gpu_hours.items():
        yield TITLES[kind], hours(value), amount((cost.spent or {}).get(kind), cost.currency)
    for reason, value in cost.lost_gpu_hours_by_reason.items():
        yield f"lost by {reason}", hours(value), amount((cost.lost_by_reason or {}).get(reason), cost.currency)
    for role, part in cost.roles.items():
        yield f"of {role}", hours(part.gpu_hours), amount(part.spent, cost.currency)
    yield "all", hours(cost.total_hours), amount(cost.total_money, cost.currency)
