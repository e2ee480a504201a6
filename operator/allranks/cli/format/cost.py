"""GPU-hours of a job and their price, for `describe`, reports and the UI. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allranks.api.status import Status
from allranks.core import cost

TITLES = {
    "productive": "productive",
    "starting": "starting",
    "waiting": "held while waiting",
    "lost": "lost",
}


@dataclass(frozen=True, slots=True)
class JobCost:
    """GPU-hours and money, up to the time of the report."""

    gpu_hours: dict[str, float]
    """By kind: productive, starting, waiting, lost."""
    lost_by: dict[str, float]
    """Lost GPU-hours by cause, the largest first."""
    money: dict[str, float] | None
    """By kind; None without a price."""
    lost_money_by: dict[str, float] | None
    gpus: int
    """GPUs that pods hold now."""
    price: str | None
    """Of a GPU-hour, now."""
    currency: str | None

    def as_json(self) -> dict[str, Any]:
        """Rounded, with camel-case keys. `gpuHours` and `spent` are by kind, the others by cause."""
        rounded = [
            {key: round(value, 6) for key, value in part.items()} if part is not None else None
            for part in (self.gpu_hours, self.lost_by, self.money, self.lost_money_by)
        ]
        named = dict(zip(("gpuHours", "lostGpuHoursByReason", "spent", "lostByReason"), rounded, strict=True))
        return {**named, "gpus": self.gpus, "price": self.price, "currency": self.currency}

    @property
    def total_hours(self) -> float:
        return sum(self.gpu_hours.values())

    @property
    def total_money(self) -> float | None:
        return None if self.money is None else sum(self.money.values())


def of(status: Status, now: datetime) -> JobCost | None:
    """None for a job without GPUs."""
    found = cost.up_to(status, now)
    if found is None:
        return None
    hours = {kind: getattr(found.gpu_seconds, kind) / 3600 for kind in cost.KINDS}
    spent = found.spent
    money = {kind: getattr(spent, kind) for kind in cost.KINDS} if spent else None
    return JobCost(
        gpu_hours=hours,
        lost_by=cost.lost_by(status, hours["lost"], now),
        money=money,
        lost_money_by=cost.lost_by(status, money["lost"], now) if money else None,
        gpus=found.gpus,
        price=found.price,
        currency=found.currency,
    )


def amount(money: float | None, currency: str | None) -> str:
    """`38.40 USD`; empty without a price."""
    return "" if money is None else f"{money:,.2f} {currency}"


def hours(gpu_hours: float) -> str:
    """`12.5 GPUh`; small amounts with more digits."""
    return f"{gpu_hours:,.1f} GPUh" if gpu_hours >= 10 or gpu_hours == 0 else f"{gpu_hours:.3g} GPUh"


def summary(found: JobCost | None) -> str:
    """`12.5 GPUh, 30.00 USD`; empty for a job without GPUs."""
    if found is None:
        return ""
    return ", ".join(filter(None, (hours(found.total_hours), amount(found.total_money, found.currency))))


def line(found: JobCost | None) -> str:
    """The total, the kinds and the lost hours by cause, in one line."""
    if found is None:
        return ""
    kinds = [f"{TITLES[kind]} {hours(value)}" for kind, value in found.gpu_hours.items() if value]
    lost = [f"{reason} {hours(value)}" for reason, value in found.lost_by.items()]
    price = f" at {found.price} {found.currency} per GPU-hour" if found.price else ""
    parts = [summary(found) + price, ", ".join(kinds), "lost by " + ", ".join(lost) if lost else ""]
    return "; ".join(filter(None, parts))


def rows(found: JobCost) -> Iterator[tuple[str, str, str]]:
    """(kind or cause, GPU-hours, money) for a table."""
    for kind, value in found.gpu_hours.items():
        yield TITLES[kind], hours(value), amount((found.money or {}).get(kind), found.currency)
    for reason, value in found.lost_by.items():
        yield f"lost by {reason}", hours(value), amount((found.lost_money_by or {}).get(reason), found.currency)
    yield "all", hours(found.total_hours), amount(found.total_money, found.currency)
