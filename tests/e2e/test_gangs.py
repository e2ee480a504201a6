"""Gangs on nodes: of three jobs two run, and one waits whole. No other test runs at the same time (tools/e2e.sh)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import scheduler

from . import three_jobs
from .cluster import Cluster
from .jobs import Team
from .nodes import until
from .release import install

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module", autouse=True)
def operator(cluster: Cluster) -> Iterator[None]:
    """It uses gang schedulers."""
    install(cluster, "--set=gangs.enabled=true", f"--set=gangs.coschedulingScheduler={scheduler.COSCHEDULING_NAME}")
    yield
    install(cluster)


@pytest.fixture
def coscheduling(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """A second scheduler with the plugin coscheduling, as a process of this machine, and its CRDs."""
    definitions = str(scheduler.build("coscheduling") / "crds")
    cluster.kubectl("apply", "--server-side", "-f", definitions)
    second = scheduler.coscheduling(SimpleNamespace(folder=tmp_path, kubeconfig=cluster.kubeconfig))
    second.start()
    try:
        yield
    finally:
        second.stop()
        cluster.kubectl("delete", "-f", definitions, timeout=300)


def gang(team: Team, name: str) -> str:
    """Status, reason and message of the condition GangScheduling."""
    conditions = team.status(name).get("conditions", ())
    found = [f"{each['status']} {each['reason']}: {each['message']}" for each in conditions]
    return next((text for each, text in zip(conditions, found, strict=True) if each["type"] == "GangScheduling"), "")


def unschedulable(team: Team, name: str) -> int:
    """Pods of the job that the scheduler could not place."""
    conditions = [each for pod in three_jobs.pods(team, name) for each in pod["status"].get("conditions", ())]
    return sum((each["type"], each["status"]) == ("PodScheduled", "False") for each in conditions)


def test_of_three_native_gangs_two_run_and_one_waits_whole(team: Team) -> None:
    if not team.cluster.ask("api-resources", "--api-group=scheduling.k8s.io", "-o=name").stdout.count("podgroups"):
        pytest.skip("needs an API server that serves PodGroups: tools/cluster.sh up --gangs")

    def waits_well(waits: str) -> None:
        until(lambda: gang(team, waits).startswith("False Unschedulable: PodGroup"), "the scheduler's words")
        assert team.status(waits)["gang"]["backend"] == "Native"

    three_jobs.two_run_and_one_waits(team, waits_well, gang="Native")


def test_of_three_gangs_of_coscheduling_two_run_and_one_waits_whole(team: Team, coscheduling: None) -> None:
    def waits_well(waits: str) -> None:
        until(lambda: unschedulable(team, waits) == three_jobs.PODS, "the scheduler to reject the gang")
        assert gang(team, waits).startswith("True Coscheduling"), gang(team, waits)

    three_jobs.two_run_and_one_waits(team, waits_well, gang="Coscheduling", gangTimeoutSeconds=10)


GPU = "nvidia.com/mig-2g.20gb"
"""A resource that no other test requests."""


@pytest.fixture
def half_of_the_gpus(cluster: Cluster) -> Iterator[None]:
    """Node-1 has four, and node-2 none yet."""
    cluster.has("node-1", {GPU: "4"})
    yield
    cluster.has("node-1", {GPU: None})
    cluster.has("node-2", {GPU: None})


def test_without_a_gang_scheduler_half_placed_jobs_make_room_for_each_other(team: Team, half_of_the_gpus: None) -> None:
    """Each job is spread over both nodes. So each gets one pod on the first one, and none of them all."""
    for name in three_jobs.NAMES:
        spread = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"allranks.dev/job-name": name}},
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",
        }
        fields = {"topologySpreadConstraints": [spread]}
        team.start(three_jobs.job(name, GPU, fields, gang="None", gangTimeoutSeconds=30))
    until(lambda: [len(three_jobs.placed(team, name)) for name in three_jobs.NAMES] == [1, 1, 1], "half-placed jobs")
    team.cluster.has("node-2", {GPU: "4"})

    waits, others = three_jobs.when_two_run(team)
    team.wait(f"dt/{waits}", "--for=jsonpath={.status.attempt}=1")
    [given_up] = team.status(waits)["history"]
    assert given_up["reason"] == "GangTimeout", given_up
    until(lambda: unschedulable(team, waits) == three_jobs.PODS, "the pods of its second attempt")
    assert three_jobs.placed(team, waits) == []
    three_jobs.finish(team, others[0])
    three_jobs.runs(team, waits)
    for name in (others[1], waits):
        three_jobs.finish(team, name)
    assert {team.status(name)["restarts"]["counted"] for name in three_jobs.NAMES} == {0}
