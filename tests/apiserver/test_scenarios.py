"""Every scenario on a real API server, with the real operator, garbage collection and quota."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from support.controlplane import ControlPlane
from support.kubernetes_world import KubernetesWorld
from support.scenario_runner import Scenario, Unsupported, load, run

FILES = sorted((Path(__file__).parents[1] / "model" / "scenarios").glob("*.yaml"))
SCENARIOS = [scenario for path in FILES for scenario in load(path)]


def _id(scenario: Scenario) -> str:
    return f"{scenario.name} {scenario.case}".strip()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=_id)
def test_scenario(scenario: Scenario, control_plane: ControlPlane, namespace: str) -> None:
    if control_plane.has_nodes:
        pytest.skip("this cluster's scheduler and kubelets would run the pods that the scenario plays")
    with contextlib.closing(KubernetesWorld(control_plane, namespace)) as world:
        try:
            run(scenario, world)
        except Unsupported as why:
            pytest.skip(f"this world cannot play it: {why}")
