"""A program of others on nodes, unmodified: an example that Ray's own package has."""

from __future__ import annotations

import re

import pytest

from .jobs import Team, image, training

pytestmark = pytest.mark.nightly


def test_an_example_of_ray_trains_on_the_workers(team: Team) -> None:
    """Ray Train stores results below the home directory, which all pods must share."""
    program = "ray.train.examples.pytorch.torch_linear_example"
    roles = {"head": {}, "worker": {"replicas": 2}}
    resources = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
    documents = training(
        "linear",
        *("python3", "-m", program, "--num-workers=2", "--epochs=5"),
        claim="linear",
        framework="ray",
        image=image("ray"),
        roles=roles,
        resources=resources,
        env=[{"name": "HOME", "value": "/checkpoints"}],
    )
    job = team.start(documents)
    status = team.completes(job)
    assert status["attempt"] == 0
    found = re.search(r"^\{'loss': ([\d.e-]+)", team.kubectl("logs", f"{job}-head-0-0"), re.MULTILINE)
    assert found
    assert float(found[1]) < 1
