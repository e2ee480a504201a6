"""Scenarios on a real API server, with the real operator, garbage collection and quota: those with the key `rules` for
each change, all of them at night and in the part `scenarios`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from support.controlplane import ControlPlane
from support.kubernetes_world import KubernetesWorld
from support.scenario_runner import Scenario, Unsupported, load, run

FILES = sorted((Path(__file__).parents[1] / "model" / "scenarios").glob("*.yaml"))
SCENARIOS = [scenario for path in FILES for scenario in load(path)]


def _id(scenario: Scenario) -> str:
    return f"{scenario.name} {scenario.case}".strip()


def _case(scenario: Scenario) -> Any:
    marks = [pytest.mark.scenario]
    if scenario.rules is None:
        marks.append(pytest.mark.nightly)
    if any("kueue" in change for change in scenario.before) and scenario is not _FIRST_WITH_KUEUE:
        marks.append(pytest.mark.kueue)
    return pytest.param(scenario, id=_id(scenario), marks=marks)


_FIRST_WITH_KUEUE = next(each for each in SCENARIOS if {"kueue": "installed"} in each.before)


@pytest.mark.parametrize("scenario", [_case(scenario) for scenario in SCENARIOS])
def test_scenario(scenario: Scenario, control_plane: ControlPlane, namespace: str) -> None:
    if control_plane.has_nodes:
        pytest.skip("this cluster's scheduler and kubelets would run the pods that the scenario plays")
    with contextlib.closing(KubernetesWorld(control_plane, namespace)) as world:
        try:
            run(scenario, world)
        except Unsupported as why:
            pytest.skip(f"this world cannot play it: {why}")
