"""Condition `ReportsLost`: ranks that reported are silent.

Each rank sends a message every few seconds, so silence of all ranks is much more often an outage between ranks and
operator (network policy, DNS, Service, RBAC) than a hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from allranks.api.status import Status
from allranks.core.facts.model import Observed
from allranks.core.facts.rank_reports import RankReport, Reports
from allranks.core.facts.status_summary import with_condition

CONDITION: Literal["ReportsLost"] = "ReportsLost"
SILENCE = timedelta(seconds=120)
"""Longer than the longest pause of a sender after failed attempts, which is 80 s."""


def active(reports: Reports) -> list[RankReport]:
    """Return the ranks that send messages also without news."""
    return [rank for rank in reports.ranks if not rank.done and rank.heartbeat]


def heard_at(ranks: Sequence[RankReport], since: datetime) -> datetime:
    """Return the latest time after which half of these ranks have reported; `since` without ranks.

    A single rank proves little: in jobs without collectives, the silent ranks may make progress.
    """
    times = sorted((rank.received_at for rank in ranks), reverse=True)
    return max(times[(len(times) - 1) // 2], since) if times else since


def silent_since(status: Status, reports: Reports | None) -> datetime | None:
    """Return when ranks that reported in this attempt did so last, however recent that is.

    None if no reports are expected: none ever arrived, or all ranks are done.
    """
    if reports is None or status.running_time is None or status.progress is None or not status.progress.reporting:
        return None
    ranks = active(reports)
    if reports.ranks and not ranks:
        return None
    return heard_at(ranks, max(status.running_time, reports.since) if not ranks else status.running_time)


def resumed_at(status: Status, heard_at: datetime) -> datetime | None:
    """Return the time since which reports arrive again after they were lost; None if they never were.

    `heard_at`: the result of `heard_at`. The time is in the status, so that a new operator has it too.
    """
    condition = status.condition(CONDITION)
    if condition is None:
        return None
    return heard_at if condition.status == "True" else condition.last_transition_time


def due_at(status: Status, reports: Reports | None, now: datetime) -> datetime | None:
    """Return when the condition becomes True if no report arrives; None if it is True or no reports are expected."""
    since = silent_since(status, reports)
    return since + SILENCE if since and since + SILENCE > now else None


def observe(status: Status, reports: Reports | None, now: datetime) -> Status:
    """Update the condition; return the same object if nothing changed."""
    before = status.condition(CONDITION)
    if status.phase != "Running":
        return status
    since = silent_since(status, reports)
    was_lost = before is not None and before.status == "True"
    lost = since is not None and (now - since >= SILENCE or (was_lost and _is_new(reports)))
    if lost == was_lost:
        return status
    reason, message = ("RanksSilent", _message(since, reports, now)) if lost and since else ("RanksReport", "")
    return with_condition(status, CONDITION, lost, reason, message, now)


def with_report_loss(o: Observed) -> Observed:
    """Say in the current status whether reports of the ranks are lost."""
    return o.with_current(observe(o.current, o.reports, o.now))


def _is_new(reports: Reports | None) -> bool:
    """Return whether this operator has received no report yet, so that it cannot say that the silence is over."""
    return reports is None or not reports.ranks


def _message(since: datetime, reports: Reports | None, now: datetime) -> str:
    ranks = active(reports) if reports else []
    silent = sum(now - rank.received_at >= SILENCE for rank in ranks)
    who = f"{silent} of {len(ranks)} ranks" if ranks else "any rank"
    return (
        f"no report of {who} since {since:%H:%M:%S} UTC; progress is unknown and hangs are not detected. Check "
        "that pods of this namespace reach the operator's Service (NetworkPolicy, DNS), and the operator's log"
    )
