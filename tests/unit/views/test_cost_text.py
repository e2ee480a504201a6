"""How the CLI, reports and rows of the UI say what a job costs."""

from __future__ import annotations

from typing import Any

from allranks.api.cost import CostStatus, GpuTime, RoleCost
from allranks.api.status import Status, Times
from allranks.kube import job_codec
from allranks.ui.entries import Entry
from allranks.ui.job_rows import job_row
from allranks.views.format import cost as costs
from allranks.views.report import html, text
from allranks.views.report.model import build_report
from support.builders import NOW, UID, at, manifest

TIMES = Times(
    productive=3600, lost=400, by_reason={"OOMKilled": 300.0, "NodeLost": 100.0}, category="Finished", since=NOW
)
PRICED = CostStatus(
    price="2.40",
    currency="EUR",
    gpu_seconds=GpuTime(productive=57_600, waiting=3600, lost=6400),
    spent=GpuTime(productive=38.4, waiting=2.4, lost=4.26),
)


def job_with(status: Status) -> dict[str, Any]:
    made = manifest()
    made["metadata"] |= {"creationTimestamp": NOW.isoformat(), "uid": UID}
    return {**made, "status": job_codec.encode(status)}


def test_describe_says_gpu_hours_money_and_what_was_lost_by_cause() -> None:
    found = costs.cost_of(Status(times=TIMES, cost=PRICED), at(50))
    assert costs.line(found) == (
        "18.8 GPUh, 45.06 EUR at 2.40 EUR per GPU-hour; productive 16.0 GPUh, held while waiting 1 GPUh, "
        "lost 1.78 GPUh; lost by OOMKilled 1.33 GPUh, NodeLost 0.444 GPUh"
    )


def test_without_a_price_there_are_hours_only_and_without_gpus_nothing() -> None:
    unpriced = CostStatus(gpu_seconds=GpuTime(productive=57_600))
    assert costs.line(costs.cost_of(Status(times=TIMES, cost=unpriced), NOW)) == "16.0 GPUh; productive 16.0 GPUh"
    assert costs.line(costs.cost_of(Status(times=TIMES), NOW)) == ""


def test_the_report_has_a_table_a_tile_and_json() -> None:
    report = build_report(
        job_with(Status(phase="Succeeded", start_time=NOW, completion_time=NOW, times=TIMES, cost=PRICED)), at(9)
    )
    [grid] = [grid for title, grid in text.tables(report) if title == "GPU time"]
    lines = list(grid.plain())
    assert any("lost by OOMKilled" in line and "3.19 EUR" in line for line in lines)
    assert ("Cost", "45.06 EUR", "18.8 GPUh") in list(html.tiles(report))
    assert "45.06 EUR" in html.page(report)
    found = report.as_json()["cost"]
    assert found["spent"]["productive"] == 38.4
    assert found["lostByReason"] == {"OOMKilled": 3.195, "NodeLost": 1.065}


def test_the_table_of_jobs_shows_money_with_gpu_hours() -> None:
    row = job_row(Entry("jobs", "team", "job", job_with(Status(times=TIMES, cost=PRICED))), NOW)
    assert (row.view.money, row.view.gpu_hours) == ("45.06 EUR", "18.8 GPUh")


def test_the_parts_of_roles_with_pools_of_their_own_are_listed() -> None:
    parts = {
        "trainer": RoleCost(pool="h200", gpu_seconds=GpuTime(productive=36_000), spent=GpuTime(productive=24)),
        "rollout": RoleCost(gpu_seconds=GpuTime(productive=3600)),
    }
    whole = CostStatus(currency="EUR", gpu_seconds=GpuTime(productive=39_600), roles=parts)
    found = costs.cost_of(Status(times=TIMES, cost=whole), NOW)
    assert found is not None
    assert costs.line(found).endswith("; trainer 10.0 GPUh, 24.00 EUR (pool h200); rollout 1 GPUh")
    assert [row for row in costs.rows(found) if row[0].startswith("of ")] == [
        ("of trainer", "10.0 GPUh", "24.00 EUR"),
        ("of rollout", "1 GPUh", ""),
    ]
