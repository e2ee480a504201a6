"""What jobs used and lost, in groups: GPU-hours, money, goodput and time in queues. Pure.

A job counts as a whole in the group of the time at which it ended: its status has totals, and no course of them.

The sentences below fields describe them in the OpenAPI document as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import ConfigDict, Field

from allranks.api.cost import RoleCost
from allranks.api.status import FINISHED, Status
from allranks.core.accounting import cost as accounting
from allranks.core.accounting import time_accounting
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import human
from allranks.views.format.json_form import CONFIG

USER = "allranks.dev/user"
"""Annotation: the user that created a job. An admission policy of the cluster sets it (docs/guides/cost.md)."""
NONE = "(none)"
UNKNOWN = "(unknown)"
KEY_PATTERN = r"(?:namespace|pool|user|team|week|job|label:[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?)"
KEYS = ("namespace", "pool", "user", "team", "week", "job", "label:KEY")


class UsedBy(NamedTuple):
    """A job with the time up to which it counts: now, or its last moment if it does not run any more."""

    manifest: Mapping[str, Any]
    status: Status
    until: datetime
    pool: str | None = None
    """The pool whose part of the cost this is, of a job with several; None for the job as a whole."""
    is_part: bool = False
    """Another part counts the job, and its time."""

    @property
    def end(self) -> datetime:
        """When the job ended; `until` for a job that has not finished."""
        return (self.status.completion_time or self.until) if self.status.phase in FINISHED else self.until


@dataclass
class UsageGroup:
    """GPU-hours, money, goodput and time in queues of a group of jobs, up to now."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    name: str
    """The values of the keys, separated by commas."""
    keys: dict[str, str] = field(default_factory=dict)
    """Key -> its value in this group."""
    jobs: int = 0
    succeeded: int = 0
    failed: int = 0
    queued_seconds: float = 0.0
    """Time in which jobs were queued, suspended, or waited for nodes."""
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

    def add(self, job: UsedBy) -> None:
        status, until = job.status, job.until
        if not job.is_part:
            self.jobs += 1
            self.succeeded += status.phase == "Succeeded"
            self.failed += status.phase == "Failed"
            if times := time_accounting.up_to(status, until):
                self.queued_seconds += times.queued
                self._add_used(times.productive, times.starting + times.productive + times.lost)
        if cost := costs.cost_of(status, until):
            _sum(self.gpu_hours, cost.gpu_hours)
            _sum(self.lost_gpu_hours_by_reason, cost.lost_gpu_hours_by_reason)
            if cost.spent and cost.currency:
                _sum(self.spent, {cost.currency: sum(cost.spent.values())})
                _sum(self.spent_lost, {cost.currency: cost.spent["lost"]})

    def merge(self, group: UsageGroup) -> None:
        """Add the jobs of another group."""
        for name in ("jobs", "succeeded", "failed", "queued_seconds"):
            setattr(self, name, getattr(self, name) + getattr(group, name))
        self._add_used(group.productive_seconds, group.used_seconds)
        for name in ("gpu_hours", "lost_gpu_hours_by_reason", "spent", "spent_lost"):
            _sum(getattr(self, name), getattr(group, name))

    def _add_used(self, productive: float, used: float) -> None:
        self.productive_seconds += productive
        self.used_seconds += used
        if self.used_seconds > 0:
            self.goodput = round(self.productive_seconds / self.used_seconds, 4)


def parse_keys(text: str) -> tuple[str, ...]:
    """Return the keys of a list such as `namespace,week`. Raises ValueError with a sentence for users."""
    keys = tuple(part.strip() for part in text.split(","))
    for key in keys:
        if not re.fullmatch(KEY_PATTERN, key):
            raise ValueError(f"{key or text!r} is not a group: use {', '.join(KEYS)}, or several with commas")
    if len(set(keys)) < len(keys):
        raise ValueError(f"{text}: a group is named twice")
    return keys


def selection(since: datetime | None, until: datetime | None) -> Callable[[UsedBy], bool]:
    """Return whether a job ended within the time. A job that has not finished ended at its last moment, or now."""

    def selects(job: UsedBy) -> bool:
        return (since is None or job.end >= since) and (until is None or job.end < until)

    return selects


def groupings(jobs: Iterable[UsedBy], kinds: Sequence[Sequence[str]]) -> list[list[UsageGroup]]:
    """Return the groups of each list of keys. The jobs are read once, and not kept.

    The groups with the most GPU-hours are first. If `week` is a key, they are sorted by week, the newest first.
    """
    by_kind: list[dict[tuple[str, ...], UsageGroup]] = [{} for _ in kinds]
    for job in jobs:
        for keys, groups in zip(kinds, by_kind, strict=True):
            for part in _by_pool(job) if "pool" in keys else [job]:
                values = tuple(_value(key, part) for key in keys)
                group = groups.get(values)
                if group is None:
                    groups[values] = group = UsageGroup(", ".join(values), dict(zip(keys, values, strict=True)))
                group.add(part)
    return [_in_order(groups.values(), "week" in keys) for keys, groups in zip(kinds, by_kind, strict=True)]


def _by_pool(job: UsedBy) -> list[UsedBy]:
    """Return the job once for each of its pools with GPUs, with the GPU time there. The first counts the job."""
    cost = job.status.cost
    if cost is None or not cost.roles:
        return [job]
    by_pool: dict[str, dict[str, RoleCost]] = {}
    for role, part in cost.roles.items():
        by_pool.setdefault(part.pool or NONE, {})[role] = part
    return [
        job._replace(status=replace(job.status, cost=accounting.whole(cost, roles)), pool=pool, is_part=number > 0)
        for number, (pool, roles) in enumerate(by_pool.items())
    ]


def total(groups: Iterable[UsageGroup]) -> UsageGroup:
    """Return the sum of all groups."""
    whole = UsageGroup("all")
    for group in groups:
        whole.merge(group)
    _sort_reasons(whole)
    return whole


def label_keys(jobs: Iterable[Mapping[str, Any]], most: int) -> list[str]:
    """Return the keys of labels that people chose, as groups. `jobs`: metadata. `most`: limit; the first by name."""
    keys = {
        str(key)
        for metadata in jobs
        for key in (metadata.get("labels") if isinstance(metadata.get("labels"), dict) else None) or ()
        if "allranks.dev/" not in str(key) and "kubernetes.io/" not in str(key) and key != "team"
    }
    groups = (f"label:{key}" for key in sorted(keys))
    return [group for group in groups if re.fullmatch(KEY_PATTERN, group)][:most]


def _in_order(groups: Iterable[UsageGroup], by_week: bool) -> list[UsageGroup]:
    ordered = sorted(groups, key=lambda group: (-sum(group.gpu_hours.values()), -group.jobs, group.name))
    for group in ordered:
        _sort_reasons(group)
    return sorted(ordered, key=lambda group: group.keys["week"], reverse=True) if by_week else ordered


def _sort_reasons(group: UsageGroup) -> None:
    by_size = sorted(group.lost_gpu_hours_by_reason.items(), key=lambda item: (-item[1], item[0]))
    group.lost_gpu_hours_by_reason = dict(by_size)


def _sum(into: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0.0) + value


def _value(key: str, job: UsedBy) -> str:
    metadata = job.manifest.get("metadata") or {}
    match key:
        case "namespace":
            return str(metadata.get("namespace") or NONE)
        case "job":
            return str(metadata.get("name") or NONE)
        case "pool":
            return job.pool or _pool_of(job.manifest.get("spec") or {})
        case "user":
            return _text(metadata, "annotations", USER) or UNKNOWN
        case "week":
            year, week, _day = job.end.astimezone(UTC).isocalendar()
            return f"{year}-W{week:02}"
        case _:
            return _text(metadata, "labels", key.removeprefix("label:")) or NONE


def _pool_of(spec: Mapping[str, Any]) -> str:
    """Return the pool of the job, or else the first that a role names."""
    roles = spec.get("roles")
    of_roles = (
        [role.get("pool") for role in roles.values() if isinstance(role, dict)] if isinstance(roles, dict) else []
    )
    return str(next(filter(None, (spec.get("pool"), *of_roles)), NONE))


def _text(metadata: Mapping[str, Any], part: str, key: str) -> str:
    texts = metadata.get(part)
    return str(texts.get(key) or "") if isinstance(texts, dict) else ""


# --- tables ----------------------------------------------------------------------------------------------------------

TITLES = (*("Jobs", "Ended", "Queue time", "Goodput", "GPU-hours", "Productive", "Held", "Lost", "Cost", "Of it lost"),)
"""Titles of `cells`."""


def cells(group: UsageGroup) -> tuple[str, ...]:
    """Return the cells of a group. The time in queues is the average of its jobs."""
    hours = group.gpu_hours
    ended = (("succeeded", group.succeeded), ("failed", group.failed))
    return (
        str(group.jobs),
        ", ".join(f"{number} {word}" for word, number in ended if number),
        human(group.queued_seconds / group.jobs) if group.jobs else "",
        progress_text.percent(group.goodput),
        costs.hours(sum(hours.values())) if hours else "",
        costs.hours(hours["productive"]) if hours else "",
        costs.hours(hours["waiting"] + hours["starting"]) if hours else "",
        costs.hours(hours["lost"]) if hours else "",
        _money(group.spent),
        _money(group.spent_lost),
    )


def _money(by_currency: Mapping[str, float]) -> str:
    return ", ".join(costs.amount(value, currency) for currency, value in by_currency.items())


def csv_rows(groups: Sequence[UsageGroup], keys: Sequence[str]) -> list[list[Any]]:
    """Return rows of numbers below their titles, for spreadsheets: hours and money without units."""
    currencies = sorted({currency for group in groups for currency in group.spent})
    kinds = ("productive", "starting", "waiting", "lost")
    money = [f"{title}_{currency}" for currency in currencies for title in ("spent", "spent_lost")]
    numbers = ["jobs", "succeeded", "failed", "queued_seconds", "goodput", "gpu_hours"]
    rows: list[list[Any]] = [[*keys, *numbers, *(f"gpu_hours_{kind}" for kind in kinds), *money]]
    for group in groups:
        row: list[Any] = [group.keys[key] for key in keys]
        row += [group.jobs, group.succeeded, group.failed, round(group.queued_seconds, 3), group.goodput]
        row += [round(sum(group.gpu_hours.values()), 6), *(round(group.gpu_hours.get(kind, 0.0), 6) for kind in kinds)]
        for currency in currencies:
            row += [round(part.get(currency, 0.0), 6) for part in (group.spent, group.spent_lost)]
        rows.append(row)
    return rows
