"""Harm that is aimed, where chance would need thousands of runs to hit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.controlplane import ControlPlane
from support.fault_policy import Fault
from support.fault_proxy import Threads
from support.scenario_runner import Scenario, Step

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


MPI = Scenario(
    "an MPI job's key is made while its namespace's quota is counted",
    "",
    {"framework": "horovod", "horovod": {"controller": "mpi"}, "roles": {"launcher": {"replicas": 1}} | ROLES},
    [],
    [Step([{"run": "all"}], {"status": {"phase": "Running"}, "objects": {"Secret/~demo-ssh-[0-9a-f]{8}": {}}})],
)


class Aimed:
    """A policy: requests of that verb for that resource meet these faults, one after another."""

    seed, met = 0, []

    def __init__(self, verb: str, resource: str, *faults: Fault) -> None:
        self._verb, self._resource, self._faults = verb, resource, list(faults)

    def draw(self, request: str, kinds: tuple[str, ...]) -> Fault | None:
        verb, path, *_ = request.split()
        of_it = verb == self._verb and path.endswith(f"/{self._resource}")
        return self._faults.pop(0) if of_it and self._faults else None


@pytest.fixture
def meets(control_plane: ControlPlane, proxies: Threads, impatient: None) -> Callable[[Scenario, Aimed], None]:
    if control_plane.has_nodes:
        pytest.skip("this cluster's scheduler and kubelets would run the pods that the scenarios play")

    def run(scenario: Scenario, aimed: Any) -> None:
        play(scenario, control_plane, proxies, aimed)

    return run


@pytest.mark.parametrize("lines", range(1, 8))
def test_a_job_that_was_deleted_while_the_watch_had_lost_track_is_forgotten(
    lines: int, meets: Callable[[Scenario, Aimed], None]
) -> None:
    """The watch falls silent after so many lines, and the next has to list anew: kopf does not tell what is no more.

    The world waits until the operator knows.
    """
    meets(SCENARIO, Aimed("WATCH", "distributedtrainings", Fault("silent", lines=lines), Fault("error 410")))


def test_a_conflict_of_a_quota_does_not_mean_that_the_secret_is_there(
    meets: Callable[[Scenario, Aimed], None],
) -> None:
    meets(MPI, Aimed("POST", "secrets", Fault("409")))
