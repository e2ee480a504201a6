"""Every manifest of examples/ by `kubectl apply`, unchanged but for the image's name, in restricted pods."""

from __future__ import annotations

import json
import re

import pytest

from .cluster import REPOSITORY
from .jobs import Team, example

JOBS = sorted(
    path.stem for path in (REPOSITORY / "examples").glob("*.yaml") if "kind: DistributedTraining" in path.read_text()
)
RANK_0 = {"penguins-tensorflow-ps": "chief", "penguins-horovod-mpi": "launcher"}


@pytest.mark.parametrize("name", JOBS)
def test_an_example_trains_to_its_end(team: Team, name: str) -> None:
    [*_, document] = documents = example(name)
    if document["spec"].get("horovod", {}).get("controller") == "mpi":
        relax(team)
    job = team.start(documents)
    status = team.completes(job)
    assert status["attempt"] == 0
    first = RANK_0.get(name, "master" if document["spec"]["framework"] == "pytorch" else "worker")
    log = team.kubectl("logs", f"{job}-{first}-0-0")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", log)]
    assert losses[-1] < losses[0], log
    assert "test accuracy" in log
    team.kubectl("delete", "dt", job, "--cascade=foreground", timeout=120)
    assert team.left_of(job) == ""


def relax(team: Team) -> None:
    """sshd of an MPI worker: see docs/install.md for what it needs beyond the restricted standard."""


def test_the_ranks_addresses_are_names_that_dns_knows(team: Team) -> None:
    job = team.start(example("penguins-tensorflow", args=["--epochs=1"], roles={"worker": {"replicas": 2}}))
    team.wait(f"dt/{job}", "--for=condition=Running", seconds=120)
    resolve = "import json, os, socket; print(json.dumps([socket.gethostbyname(a.rpartition(':')[0]) for a in "
    resolve += "json.loads(os.environ['TF_CONFIG'])['cluster']['worker']]))"
    pods = [team.get("pod", f"{job}-worker-{index}-0") for index in (0, 1)]
    found = json.loads(team.run(pods[1]["metadata"]["name"], "python3", "-c", resolve))
    assert found == [pod["status"]["podIP"] for pod in pods]
    team.completes(job)
