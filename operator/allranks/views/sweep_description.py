"""What `allranks describe` prints of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from allranks.errors import CannotRun, ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import DecodeError
from allranks.kube.paths import core_path
from allranks.views.description import Fact, conditions, facts, of_object, section
from allranks.views.description import events as events_table
from allranks.views.format import cost as costs
from allranks.views.format.duration import elapsed
from allranks.views.format.table import Grid
from allranks.views.report import sweep as sweep_report
from allranks.views.report.sweep import SweepReport
from allranks.views.report.sweep_cost import TrialJobs


async def events_of(cluster: Cluster, sweep: Manifest) -> list[Manifest] | str:
    """The Events of the sweep itself, or why they cannot be read. Raises ClusterError."""
    query = {"fieldSelector": f"involvedObject.uid={sweep['metadata']['uid']}"}
    try:
        found: list[Manifest] = (await cluster.get(core_path(cluster.namespace, "events"), query))["items"]
    except ClusterError as error:
        if error.status != 403:
            raise
        return str(error)
    return found


def data(sweep: Manifest, events: list[Manifest] | str) -> dict[str, Any]:
    """The objects that the description is made of, and why some are missing."""
    readable = [] if isinstance(events, str) else events
    for item in (sweep, *readable):
        item["metadata"].pop("managedFields", None)
    ordered = sorted(readable, key=lambda event: str(event["metadata"].get("creationTimestamp")))
    return {"sweep": sweep, "events": ordered, "errors": [events] if isinstance(events, str) else []}


def described(
    sweep: Manifest, jobs: TrialJobs, events: list[Manifest] | str, note: str, now: datetime
) -> Iterator[str | Grid]:
    """Lines and tables. `note`: where a deleted sweep is shown from. Raises CannotRun if it cannot be read."""
    try:
        report = sweep_report.build(sweep, jobs)
    except DecodeError as error:
        raise CannotRun(f"the sweep {sweep['metadata']['name']} cannot be read: {error}") from error
    yield from facts(_head(sweep, report, now))
    yield from section("Archive", [f"  {note}"] if note else [])
    yield from section("Conditions", conditions(report.status.conditions, now))
    yield from section("Trials", [Grid(report.headers, [cells for _, cells in report.rows])] if report.rows else [])
    yield from section("Events", events_table(events, now))


def _head(sweep: Manifest, report: SweepReport, now: datetime) -> Iterator[Fact]:
    spec, status = report.sweep.spec, report.status
    yield from of_object(sweep["metadata"], now)
    yield "Objective", f"{report.metric}, {spec.objective.goal}"
    for title, value, note in report.facts:
        yield title, f"{value}{f' ({note})' if note else ''}"
    yield "Phase", f"{report.phase}: {report.verdict}"
    yield "Disruptions", status.disruptions or ""
    if status.start_time:
        yield (
            "Time",
            f"{elapsed(((status.completion_time or now) - status.start_time).total_seconds())} since its start",
        )
    yield "GPU time", costs.line(report.cost)
    yield "Missing", report.cost_note
