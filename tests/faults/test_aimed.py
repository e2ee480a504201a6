"""Faults at chosen requests, which random runs would hit only once in thousands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from support.controlplane import ControlPlane
from support.fault_policy import Fault
from support.fault_proxy import Threads
from support.scenario_runner import Scenario, Step

from .world import play

ROLES = {"worker": {"replicas": 1}}
SCENARIO = Scenario(
    "a job is deleted while the watch is interrupted",
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
    {"framework": "horovod", "horovod": {"controller": "MPI"}, "roles": {"launcher": {"replicas": 1}} | ROLES},
    [],
    [Step([{"run": "all"}], {"status": {"phase": "Running"}, "objects": {"Secret/~demo-ssh-[0-9a-f]{8}": {}}})],
)


HOROVOD = Scenario(
    "a job has a Secret",
    "",
    {"framework": "horovod", "roles": ROLES},
    [],
    [Step([{"run": "all"}], {"status": {"phase": "Running"}, "objects": {"Secret/~demo-rendezvous-[0-9a-f]{8}": {}}})],
)


QUEUED = Scenario(
    "a job of a queue is admitted while the watch of flavors is interrupted",
    "",
    {"framework": "pytorch", "scheduling": {"queue": "team-a"}, "roles": ROLES},
    [{"kueue": "installed"}, {"local_queue": "team-a"}, {"flavor": {"name": "default"}}],
    [Step([{"admit": {}}, {"run": "all"}], {"status": {"phase": "Running"}, "pods": ["demo-worker-0-0"]})],
)


class Aimed:
    """A policy that applies faults, in order, to requests for a resource: `POST pods` -> its faults. None: no fault."""

    seed, met = 0, []

    def __init__(self, faults: Mapping[str, Sequence[Fault | None]]) -> None:
        self._faults = {request: list(of_it) for request, of_it in faults.items()}

    def draw(self, request: str, kinds: tuple[str, ...]) -> Fault | None:
        verb, path, *_ = request.split()
        faults = self._faults.get(f"{verb} {path.rpartition('/')[2]}")
        return faults.pop(0) if faults else None


@pytest.fixture
def meets(control_plane: ControlPlane, proxies: Threads, impatient: None) -> Callable[[Scenario, Aimed], None]:
    if control_plane.has_nodes:
        pytest.skip("this cluster's scheduler and kubelets would run the pods that the scenarios play")

    def run(scenario: Scenario, aimed: Any) -> None:
        play(scenario, control_plane, proxies, aimed)

    return run


@pytest.mark.parametrize("lines", range(1, 8))
def test_a_job_that_was_deleted_during_an_interrupted_watch_is_removed_from_the_cache(
    lines: int, meets: Callable[[Scenario, Aimed], None]
) -> None:
    """The watch becomes silent after `lines` lines, and the next one has to list again: kopf does not report deletions.

    The world waits until the operator's cache is up to date.
    """
    meets(SCENARIO, Aimed({"WATCH distributedtrainings": [Fault("silent", lines=lines), Fault("error 410")]}))


def test_a_conflict_of_a_quota_does_not_mean_that_the_secret_exists(
    meets: Callable[[Scenario, Aimed], None],
) -> None:
    meets(MPI, Aimed({"POST secrets": [Fault("409")]}))


def test_the_world_of_a_scenario_waits_for_pods_that_wait_for_a_secret_that_exists(
    meets: Callable[[Scenario, Aimed], None],
) -> None:
    """An outage interrupts the creation of the pods. At the retry, a quota rejects the Secret that was created before,
    and the pods are created after one more."""
    meets(HOROVOD, Aimed({"POST pods": [Fault("outage")], "POST secrets": [None, Fault("409")]}))


@pytest.mark.nightly
def test_the_world_of_a_scenario_waits_until_the_operator_has_observed_a_new_flavor(
    meets: Callable[[Scenario, Aimed], None],
) -> None:
    """The operator does not begin an admitted job without it, and the next change of a scenario would find no pods."""
    meets(QUEUED, Aimed({"WATCH resourceflavors": [Fault("silent")] * 4}))
