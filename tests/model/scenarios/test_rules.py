"""The scenarios that run on an API server for each change (key `rules`) represent the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from allranks.core import reconcile
from support.scenario_runner import Scenario, load

SCENARIOS = [scenario for path in sorted(Path(__file__).parent.glob("*.yaml")) for scenario in load(path)]
CHOSEN = [scenario for scenario in SCENARIOS if scenario.rules is not None]
WITHOUT_SCENARIO = {
    "gang.choose_backend": "needs a scheduler with gangs: tests/queueing",
    "resize.reject_resize": "the API server rejects the change first: tests/unit/core",
}


def rule_names() -> set[str]:
    """Return the rules of all stages, as `module.function`."""
    return {
        f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}" for rules in reconcile.RULES.values() for rule in rules
    }


def test_each_rule_decides_in_a_scenario_that_runs_for_each_change():
    rules = rule_names()
    assert len(rules) > 20
    assert {rule for scenario in CHOSEN for rule in scenario.rules or ()} == rules - WITHOUT_SCENARIO.keys()


def reasons(scenario: Scenario) -> Iterator[str]:
    """Yield the reasons of Events and the conditions with their reasons that a scenario expects."""
    for step in scenario.steps:
        yield from step.expect.get("events", [])
        conditions = (step.expect.get("status") or {}).get("conditions") or {}
        yield from (f"{kind}={value['reason']}" for kind, value in conditions.items() if value and "reason" in value)


def test_each_reason_is_expected_in_a_scenario_that_runs_for_each_change():
    missing = {reason for scenario in SCENARIOS for reason in reasons(scenario)}
    missing -= {reason for scenario in CHOSEN for reason in reasons(scenario)}
    assert missing == set()


def test_about_a_quarter_of_the_scenarios_runs_for_each_change():
    assert 0.2 < len(CHOSEN) / len(SCENARIOS) < 0.35
