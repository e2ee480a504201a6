"""The segments of a report add up to the times in the status, in every scenario."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.views.report.html import page
from allranks.views.report.model import build_report
from allranks.views.report.text import lines
from model.scenarios.test_memory import SCENARIOS, MemoryWorld
from support import scenario_runner
from support.scenario_runner import Scenario


def _case(number: int, scenario: Scenario) -> Any:
    """Each fourth scenario runs in `make test`."""
    marks = [pytest.mark.nightly] if number % 4 else []
    return pytest.param(scenario, id=f"{scenario.name} {scenario.case}", marks=marks)


@pytest.mark.parametrize("scenario", [_case(number, scenario) for number, scenario in enumerate(SCENARIOS)])
def test_the_report_on_a_scenario_adds_up(scenario):
    world, refusals = MemoryWorld(), []
    for change in [*scenario.before, {"create": scenario.manifest(world)}]:
        scenario_runner._change(world, change, refusals)
    for step in scenario.steps:
        for change in step.change:
            wanted = {"create": scenario.manifest(world)} if "create_job" in change else change
            scenario_runner._change(world, wanted, refusals)
            world.cluster.settle()
            check(world)


def check(world: MemoryWorld) -> None:
    job, now = world.job(), world.cluster.now
    if job is None or not (job.get("status") or {}).get("times"):
        return
    report = build_report(job, now)
    parts = [*report.between, *(part for attempt in report.attempts for part in attempt.segments)]
    found = {kind: sum(part.seconds for part in parts if part.kind == kind) for kind in report.times}
    assert found == pytest.approx(report.times, abs=0.01)
    assert page(report)
    assert list(lines(report))
