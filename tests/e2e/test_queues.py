"""A real Kueue on nodes: jobs wait in a queue, also those of Argo's workflows and elastic ones.

No other test runs at the same time (tools/e2e.sh): Kueue's webhooks see every pod.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import argo, kueue, three_jobs
from .cluster import Cluster
from .jobs import Team, example
from .nodes import until
from .release import install
from .test_argo import finished, nodes, outputs, submit, the_workflow

pytestmark = pytest.mark.nightly
WORKLOAD = f"workload.{kueue.GROUP}"


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kueue, and an operator that uses it."""
    with kueue.installed(cluster, tmp_path_factory.mktemp("kueue")):
        install(cluster, "--set=queues.enabled=true", "--set=gangs.enabled=true")
        yield
        install(cluster)


def queued(team: Team, name: str) -> None:
    """Waits for Kueue's message that the job has to wait; it has no pods then."""
    team.reports(name, "insufficient unused quota")
    assert team.status(name)["phase"] == "Queued"
    assert three_jobs.pods(team, name) == []


def test_of_three_jobs_in_a_queue_two_run_and_one_waits_without_pods(team: Team) -> None:
    with kueue.queue(team, {three_jobs.GPU: "8"}) as queue:
        three_jobs.two_run_and_one_waits(team, lambda name: queued(team, name), gang="Kueue", queue=queue)


def test_the_job_of_a_workflow_waits_in_its_queue_and_the_workflow_succeeds(
    team: Team, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("argo")
    with argo.installed(cluster, folder), kueue.queue(team, {three_jobs.GPU: "5"}) as queue:
        first = team.start(three_jobs.job("first", queue=queue))
        three_jobs.runs(team, first)
        submit(team, scheduling={"queue": queue}, resources={"limits": {three_jobs.GPU: 1}})
        name = the_workflow(team)
        until(lambda: name in team.kubectl("get", "dt", "-o", "name"), "the job of the workflow")
        queued(team, name)
        assert team.get("workflow", name)["status"]["phase"] == "Running"

        three_jobs.finish(team, first)
        workflow = finished(team, name, "Succeeded")
        [train] = nodes(workflow, "Retry", "train")
        assert outputs(train) == {"phase": "Succeeded", "restarts": "0"}
        assert "test accuracy" in team.kubectl("logs", f"{name}-worker-0-0")
        assert team.status(name)["times"]["queued"] > 0
        team.kubectl("delete", "workflow", name, "--cascade=foreground", timeout=300)


def test_an_elastic_job_runs_with_the_workers_that_its_queue_admits(team: Team) -> None:
    """The other node is full."""
    with kueue.queue(team, {three_jobs.GPU: "7"}) as queue:
        there = {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}
        first = team.start(three_jobs.job("first", pod=there, queue=queue))
        three_jobs.runs(team, first)
        fields = {
            "args": ["--epochs=3"],
            "roles": {"worker": {"replicas": 4}},
            "elastic": {"minReplicas": 2, "maxReplicas": 4},
            "scheduling": {"queue": queue},
            "resources": {"limits": {three_jobs.GPU: 1}},
        }
        job = team.start(example("penguins-pytorch-elastic", **fields))
        team.completes(job)
        log = team.kubectl("logs", f"{job}-worker-0-0")
        assert "rank 0 of 3" in log
        assert team.status(first)["phase"] == "Running"
