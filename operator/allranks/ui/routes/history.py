"""History and cost of jobs, grouped by namespace, pool, week or label. Pure: from jobs with their status, wherever they
come from: the cluster, runs of this machine, or an archive. The sentences below fields describe them in the OpenAPI
document as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from allranks.api.status import FINISHED, Status
from allranks.cli.format import cost as costs
from allranks.cli.format.json_form import CONFIG
from allranks.core import time_accounting
from allranks.kube.job_codec import status_of
from allranks.ui.entries import Entry

By = Literal["namespace", "pool", "week", "team"]
NONE = "(none)"


@dataclass
class HistoryGroup:
    """GPU-hours, money and goodput of a group of jobs, up to now."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    name: str
    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    used_seconds: Annotated[float, Field(exclude=True)] = 0.0
    """Time in which jobs were not queued."""
    productive_seconds: Annotated[float, Field(exclude=True)] = 0.0
    goodput: float | None = None
    """Productive time divided by all time but queued; null before there is any."""
    gpu_hours: dict[str, float] = field(default_factory=dict)
    """By kind: productive, starting, waiting, lost."""
    lost_gpu_hours_by_reason: dict[str, float] = field(default_factory=dict)
    """The largest first."""
    spent: dict[str, float] = field(default_factory=dict)
    """Money by currency."""
    spent_lost: dict[str, float] = field(default_factory=dict)
    """The part of it that was lost, by currency."""

    def add_seconds(self, productive: float, used: float) -> None:
        self.productive_seconds += productive
        self.used_seconds += used
        if self.used_seconds > 0:
            self.goodput = round(self.productive_seconds / self.used_seconds, 4)


def groups(entries: Iterable[Entry], by: By, now: datetime) -> list[HistoryGroup]:
    """The groups, those with the most GPU-hours first; weeks by time, the newest first."""
    [found] = groupings(entries, (by,), now)
    return found


def groupings(entries: Iterable[Entry], kinds: Sequence[By], now: datetime) -> list[list[HistoryGroup]]:
    """The groups of each kind. Each status is decoded once, and not kept."""
    found: list[dict[str, HistoryGroup]] = [{} for _ in kinds]
    for entry in entries:
        status = status_of(entry.manifest)
        until = entry.until(status, now)
        for by, of_kind in zip(kinds, found, strict=True):
            name = _NAMES[by](entry.manifest, status, until)
            _add(of_kind.setdefault(name, HistoryGroup(name)), status, until)
    return [_in_order(of_kind, by) for by, of_kind in zip(kinds, found, strict=True)]


def _in_order(found: dict[str, HistoryGroup], by: By) -> list[HistoryGroup]:
    for group in found.values():
        by_size = sorted(group.lost_gpu_hours_by_reason.items(), key=lambda item: (-item[1], item[0]))
        group.lost_gpu_hours_by_reason = dict(by_size)
    if by == "week":
        return sorted(found.values(), key=lambda group: group.name, reverse=True)
    return sorted(found.values(), key=lambda group: (-sum(group.gpu_hours.values()), -group.jobs, group.name))


def total(found: Iterable[HistoryGroup]) -> HistoryGroup:
    """The sum of all groups."""
    out = HistoryGroup("all")
    for one in found:
        out.jobs, out.succeeded, out.failed = (
            out.jobs + one.jobs,
            out.succeeded + one.succeeded,
            out.failed + one.failed,
        )
        out.add_seconds(one.productive_seconds, one.used_seconds)
        for name in ("gpu_hours", "lost_gpu_hours_by_reason", "spent", "spent_lost"):
            _sum(getattr(out, name), getattr(one, name))
    return out


def _add(group: HistoryGroup, status: Status, now: datetime) -> None:
    group.jobs += 1
    group.succeeded += status.phase == "Succeeded"
    group.failed += status.phase == "Failed"
    if times := time_accounting.up_to(status, now):
        group.add_seconds(times.productive, times.starting + times.productive + times.lost)
    if cost := costs.of(status, now):
        _sum(group.gpu_hours, cost.gpu_hours)
        _sum(group.lost_gpu_hours_by_reason, cost.lost_gpu_hours_by_reason)
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
