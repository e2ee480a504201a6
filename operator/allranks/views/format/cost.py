"""GPU-hours of jobs and their price, for `describe`, reports and the UI. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from pydantic import ConfigDict

from allranks.api.status import Status
from allranks.core.accounting import cost
from allranks.views.format.json_form import CONFIG

TITLES = {
    "productive": "productive",
    "starting": "starting",
    "waiting": "held while waiting",
    "lost": "lost",
}


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
    """Of a GPU-hour, now."""
    currency: str | None

    @property
    def total_hours(self) -> float:
        return sum(self.gpu_hours.values())

    @property
    def total_money(self) -> float | None:
        return None if self.spent is None else sum(self.spent.values())


def of(status: Status, now: datetime) -> Cost | None:
    """None for a job without GPUs."""
    found = cost.up_to(status, now)
    if found is None:
        return None
    hours = {kind: getattr(found.gpu_seconds, kind) / 3600 for kind in cost.KINDS}
    spent = found.spent
    money = {kind: getattr(spent, kind) for kind in cost.KINDS} if spent else None
    return Cost(
        gpu_hours=hours,
        lost_gpu_hours_by_reason=cost.lost_by(status, hours["lost"], now),
        spent=money,
        lost_by_reason=cost.lost_by(status, money["lost"], now) if money else None,
        gpus=found.gpus,
        price=found.price,
        currency=found.currency,
    )


def total(found: Iterable[Cost]) -> Cost | None:
    """The sum for several jobs; None without any. Money of different currencies does not add up, so there is none."""
    every = list(found)
    if not every:
        return None
    currencies = {one.currency for one in every if one.spent is not None}
    money = len(currencies) == 1
    prices = {(one.price, one.currency) for one in every}
    price, currency = prices.pop() if len(prices) == 1 else (None, None)
    return Cost(
        gpu_hours=_sum(one.gpu_hours for one in every),
        lost_gpu_hours_by_reason=_largest_first(_sum(one.lost_gpu_hours_by_reason for one in every)),
        spent=_sum(one.spent or {} for one in every) if money else None,
        lost_by_reason=_largest_first(_sum(one.lost_by_reason or {} for one in every)) if money else None,
        gpus=sum(one.gpus for one in every),
        price=price,
        currency=next(iter(currencies)) if money else currency,
    )


def _sum(amounts: Iterable[dict[str, float]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for one in amounts:
        for name, value in one.items():
            out[name] = out.get(name, 0.0) + value
    return out


def _largest_first(amounts: dict[str, float]) -> dict[str, float]:
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))


def amount(money: float | None, currency: str | None) -> str:
    """`38.40 USD`; empty without a price."""
    return "" if money is None else f"{money:,.2f} {currency}"


def hours(gpu_hours: float) -> str:
    """`12.5 GPUh`; small amounts with more digits."""
    return f"{gpu_hours:,.1f} GPUh" if gpu_hours >= 10 or gpu_hours == 0 else f"{gpu_hours:.3g} GPUh"


def summary(found: Cost | None) -> str:
    """`12.5 GPUh, 30.00 USD`; empty for a job without GPUs."""
    if found is None:
        return ""
    return ", ".join(filter(None, (hours(found.total_hours), amount(found.total_money, found.currency))))


def line(found: Cost | None) -> str:
    """The total, the kinds and the lost hours by cause, in one line."""
    if found is None:
        return ""
    kinds = [f"{TITLES[kind]} {hours(value)}" for kind, value in found.gpu_hours.items() if value]
    lost = [f"{reason} {hours(value)}" for reason, value in found.lost_gpu_hours_by_reason.items()]
    price = f" at {found.price} {found.currency} per GPU-hour" if found.price else ""
    parts = [summary(found) + price, ", ".join(kinds), "lost by " + ", ".join(lost) if lost else ""]
    return "; ".join(filter(None, parts))


def rows(found: Cost) -> Iterator[tuple[str, str, str]]:
    """(kind or cause, GPU-hours, money) for a table."""
    for kind, value in found.gpu_hours.items():
        yield TITLES[kind], hours(value), amount((found.spent or {}).get(kind), found.currency)
    for reason, value in found.lost_gpu_hours_by_reason.items():
        yield f"lost by {reason}", hours(value), amount((found.lost_by_reason or {}).get(reason), found.currency)
    yield "all", hours(found.total_hours), amount(found.total_money, found.currency)
