"""Harm that is aimed, where chance would need thousands of runs to hit."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.controlplane import ControlPlane
from scenarios.runner import Scenario, Step

from .policy import Fault
from .proxy import Threads
from .world import play

ROLES = {"worker": {"replicas": 1}}
SCENARIO = Scenario(
    "a job is deleted while nobody watches",
    "",
    {"framework": "pytorch", "roles": ROLES},
    [],
    [
        Step([{"run": "all"}], {"status": {"phase": "Running"}}),
        Step([{"delete_job": "background"}, {"advance": 5}], {"job": "absent", "pods": []}),
        Step([{"create_job": "again"}, {"run": "all"}], {"status": {"phase": "Running"}, "pods": ["demo-worker-0-0"]}),
    ],
)


class Aimed:
    """A policy: the first watch of jobs falls silent after so many lines, the next has to list anew."""

    seed, met = 0, []

    def __init__(self, lines: int) -> None:
        self._faults = [Fault("silent", lines=lines), Fault("error 410")]

    def draw(self, request: str, kinds: tuple[str, ...]) -> Fault | None:
        of_jobs = request.startswith("WATCH") and request.endswith("distributedtrainings")
        return self._faults.pop(0) if of_jobs and self._faults else None


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lines", range(1, 8))
def test_a_job_that_was_deleted_while_the_watch_had_lost_track_is_forgotten(
    lines: int, control_plane: ControlPlane, proxies: Threads
) -> None:
    """kopf lists anew, and does not tell what is no more. (The world waits until the operator knows.)"""
    if control_plane.has_nodes:
        pytest.skip("this cluster's scheduler and kubelets would run the pods that the scenarios play")
    policy: Any = Aimed(lines)
    play(SCENARIO, control_plane, proxies, policy)
