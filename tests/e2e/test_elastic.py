"""Elastic jobs on real nodes: the scheduler limits the number of workers, and `kubectl scale` sets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .cluster import Cluster
from .jobs import Team, example, training

KILL_RANK = """
import glob, os
for file in glob.glob("/proc/[0-9]*/cmdline"):
    if open(file).read().split("\\0")[1:2] == ["train/penguins_horovod_elastic.py"]:
        os.kill(int(file.split("/")[2]), 9)
"""

EPOCHS = 60
"""Steps for Horovod: time for a rank to join, to be killed and to return."""

GPU = "nvidia.com/mig-1g.18gb"
"""A resource that no other test requests."""


@pytest.fixture
def three_gpus(cluster: Cluster) -> Iterator[None]:
    """Node-1 offers the resource."""
    cluster.has("node-1", {GPU: "3"})
    yield
    cluster.has("node-1", {GPU: None})


@pytest.mark.usefixtures("three_gpus")
def test_pytorch_continues_with_the_ranks_that_fit_and_grows_later(team: Team) -> None:
    # What a pod leaves the kubelet knows first. Of a new GPU the scheduler may: the pod that it places is refused then.
    brief = {"spec": {"terminationGracePeriodSeconds": 1}}
    other = team.start(training("other", "sleep", "infinity", resources={"limits": {GPU: 1}}, template=brief))
    team.wait(f"dt/{other}", "--for=condition=Running")
    fields = {
        "args": ["--epochs=60", "--pause=1"],
        "roles": {"worker": {"replicas": 3}},
        "elastic": {"minReplicas": 2, "maxReplicas": 3, "waitSeconds": 5},
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {GPU: 1}},
    }
    job = team.start(example("penguins-pytorch-elastic", **fields))
    team.reports(job, '"waiting":1')
    team.attempt(job, 1)
    assert "rank 0 of 2" in team.says(f"{job}-worker-0-1", "epoch 2/60")
    assert team.get("pod", f"{job}-worker-2-1")["status"]["phase"] == "Pending"

    team.kubectl("delete", "dt", other)
    team.attempt(job, 2)
    log = team.says(f"{job}-worker-0-2", "resumed from epoch")
    assert "rank 0 of 3" in log

    team.says(f"{job}-worker-0-2", "epoch ")
    team.kubectl("scale", "dt", job, "--replicas=2")
    status = team.completes(job)
    assert (status["restarts"]["counted"], status["restarts"]["disruptions"]) == (0, 0)
    assert [past["reason"] for past in status["history"]] == ["Shrunk", "Grown", "Resized", "Completed"]
    log = team.kubectl("logs", f"{job}-worker-0-3")
    assert "rank 0 of 2" in log
    assert "resumed from epoch" in log


def test_horovod_workers_leave_and_join_while_the_others_train(team: Team) -> None:
    # Ranks ask each other every millisecond what there is to do, and spin until they are answered: that took a core. So
    # they ask seldom, and little: one step an epoch.
    seldom = [{"name": "HOROVOD_CYCLE_TIME", "value": "10"}]
    args = [f"--epochs={EPOCHS}", "--pause=2", "--batch-size=256"]
    job = team.start(example("penguins-horovod-elastic", args=args, env=seldom))
    first = f"{job}-worker-0-0"
    team.says(first, f"epoch 2/{EPOCHS}")
    team.kubectl("scale", "dt", job, "--replicas=3")
    team.says(first, "with 3 ranks")

    team.run(f"{job}-worker-2-0", "python3", "-c", KILL_RANK)
    team.wait(f"dt/{job}", "--for=jsonpath={.status.restarts.counted}=1")
    failure = team.status(job)["lastFailure"]
    assert (failure["role"], failure["index"], failure["exitCode"]) == ("worker", 2, 137)
    team.wait(f"pod/{job}-worker-2-0-1", "--for=condition=Ready")

    status = team.completes(job)
    assert (status["attempt"], status["restarts"]["counted"]) == (0, 1)
    log = team.kubectl("logs", first)
    assert f"epoch {EPOCHS}/{EPOCHS}" in log
    assert log.count("rank 0 of ") == 2  # its first and its last line: it was not restarted
