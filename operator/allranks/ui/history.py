"""History and cost of jobs, grouped by namespace, pool, week or label. Pure: from jobs with their status, as `-o json`
prints them, wherever they come from: the cluster, runs of this machine, or an archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from allranks.api.status import FINISHED, Status
from allranks.cli.format import cost as costs
from allranks.core import time_accounting
from allranks.kube.job_codec import status_of

By = Literal["namespace", "pool", "week", "team"]
NONE = "(none)"


@dataclass
class Group:
    """The sums of a group of jobs, up to now."""

    name: str
    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    used_seconds: float = 0.0
    """Time in which jobs were not queued."""
    productive_seconds: float = 0.0
    gpu_hours: dict[str, float] = field(default_factory=dict)
    """By kind: productive, starting, waiting, lost."""
    lost_by: dict[str, float] = field(default_factory=dict)
    """Lost GPU-hours by cause, the largest first."""
    spent: dict[str, float] = field(default_factory=dict)
    """Money by currency."""
    spent_lost: dict[str, float] = field(default_factory=dict)
    """The part of it that was lost."""

    @property
    def goodput(self) -> float | None:
        """Productive time divided by all time but queued; None before there is any."""
        return self.productive_seconds / self.used_seconds if self.used_seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        amounts = {
            "gpuHours": self.gpu_hours,
            "lostGpuHoursByReason": self.lost_by,
            "spent": self.spent,
            "spentLost": self.spent_lost,
        }
        rounded = {key: {name: round(value, 6) for name, value in part.items()} for key, part in amounts.items()}
        counts = {"name": self.name, "jobs": self.jobs, "succeeded": self.succeeded, "failed": self.failed}
        return {**counts, "goodput": None if self.goodput is None else round(self.goodput, 4), **rounded}


def groups(jobs: Iterable[Mapping[str, Any]], by: By, now: datetime) -> list[Group]:
    """The groups, those with the most GPU-hours first; weeks by time, the newest first."""
    name_of, found = _NAMES[by], dict[str, Group]()
    for job in jobs:
        status = status_of(dict(job))
        name = name_of(job, status, now)
        _add(found.setdefault(name, Group(name)), status, now)
    for group in found.values():
        group.lost_by = dict(sorted(group.lost_by.items(), key=lambda item: (-item[1], item[0])))
    if by == "week":
        return sorted(found.values(), key=lambda group: group.name, reverse=True)
    return sorted(found.values(), key=lambda group: (-sum(group.gpu_hours.values()), -group.jobs, group.name))


def total(found: Iterable[Group]) -> Group:
    """The sum of all groups."""
    out = Group("all")
    for one in found:
        out.jobs, out.succeeded, out.failed = (
            out.jobs + one.jobs,
            out.succeeded + one.succeeded,
            out.failed + one.failed,
        )
        out.used_seconds += one.used_seconds
        out.productive_seconds += one.productive_seconds
        for name in ("gpu_hours", "lost_by", "spent", "spent_lost"):
            _sum(getattr(out, name), getattr(one, name))
    return out


def _add(group: Group, status: Status, now: datetime) -> None:
    group.jobs += 1
    group.succeeded += status.phase == "Succeeded"
    group.failed += status.phase == "Failed"
    if times := time_accounting.up_to(status, now):
        group.used_seconds += times.starting + times.productive + times.lost
        group.productive_seconds += times.productive
    if cost := costs.of(status, now):
        _sum(group.gpu_hours, cost.gpu_hours)
        _sum(group.lost_by, cost.lost_gpu_hours_by_reason)
        if cost.spent and cost.currency:
            _sum(group.spent, {cost.currency: sum(cost.spent.values())})
            _sum(group.spent_lost, {cost.currency: cost.spent["lost"]})


def _sum(into: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0.0) + value


def _week(_: Mapping[str, Any], status: Status, now: datetime) -> str:
    """The week in which the job ended, or the current one: 2026-W10."""
    ended = (status.completion_time or now) if status.phase in FINISHED else now
    year, week, _day = ended.astimezone(UTC).isocalendar()
    return f"{year}-W{week:02}"


def _metadata(job: Mapping[str, Any], name: str) -> Any:
    return (job.get("metadata") or {}).get(name)


_NAMES: dict[str, Callable[[Mapping[str, Any], Status, datetime], str]] = {
    "namespace": lambda job, _status, _now: str(_metadata(job, "namespace") or NONE),
    "pool": lambda job, _status, _now: str((job.get("spec") or {}).get("pool") or NONE),
    "team": lambda job, _status, _now: str((_metadata(job, "labels") or {}).get("team") or NONE),
    "week": _week,
}
