"""Images that are laid out as public ones run as they are, and images of root are refused where pods are restricted.

tests/e2e/layouts/build.sh builds the images. The program knows nothing of allranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from .cluster import Cluster
from .jobs import PREFIX, TAG, Manifest, Team, namespace, training

pytestmark = pytest.mark.skipif(
    os.environ.get("ALLRANKS_TEST_CLUSTER") == "yes",
    reason="images for clusters of tools/cluster.sh only",
)
USERS = {"root": 0, "user": 1000, "conda": 0, "venv": 1001, "noshell": 0}
"""Layout -> the user of its image."""
DEFAULT_SET = 0xA80425FB
"""The capabilities that containerd gives a container of root."""
MKNOD, NET_RAW = 1 << 27, 1 << 13


@pytest.fixture(scope="module")
def open_team(cluster: Cluster) -> Iterator[Team]:
    """A namespace without a Pod Security Standard."""
    with namespace(cluster, enforce="privileged") as team:
        yield team


def counting(layout: str, **spec: Any) -> list[Manifest]:
    progress = {"logPattern": r"step=(?P<step>\d+) loss=(?P<loss>\S+)"}
    fields = {"image": f"{PREFIX}/layout-{layout}:{TAG}", "progress": progress, **spec}
    return training(layout, "python3", "/opt/train/train.py", claim=layout, **fields)


@pytest.mark.parametrize("layout", USERS)
def test_an_image_runs_as_its_user_with_helper_and_checkpoints(open_team: Team, layout: str) -> None:
    job = open_team.start(counting(layout))
    status = open_team.completes(job)
    assert status["progress"]["step"] == 10
    [pod] = open_team.pods(job)
    log = open_team.kubectl("logs", pod["metadata"]["name"], "-c", "trainer")
    facts = dict(word.split("=") for word in log.splitlines()[0].split())
    assert int(facts["user"]) == USERS[layout]
    assert facts["new"] == "1", "no privilege is added"
    granted = DEFAULT_SET & ~(MKNOD | NET_RAW) if USERS[layout] == 0 else 0
    assert int(facts["capabilities"], 16) == granted
    assert ("chown works" in log) == (USERS[layout] == 0)
    assert pod["metadata"]["annotations"]["allranks.dev/pod-security"].startswith("Baseline: ")


def test_an_image_of_root_is_refused_where_pods_are_restricted_and_one_of_a_user_runs(team: Team) -> None:
    user, root = team.start(counting("user")), team.start(counting("root"))
    team.completes(user)
    team.wait(f"dt/{root}", "--for=condition=Failed")
    [failed] = [condition for condition in team.status(root)["conditions"] if condition["type"] == "Failed"]
    assert "the image runs as root, and the pod may not" in failed["message"]
    [pod] = team.pods(user)
    assert pod["metadata"]["annotations"]["allranks.dev/pod-security"] == (
        f"Restricted: namespace {team.namespace} enforces the Pod Security Standard restricted"
    )
    numbered = counting("root", template={"spec": {"securityContext": {"runAsUser": 1234, "fsGroup": 1234}}})
    numbered[0]["metadata"]["name"] = numbered[1]["spec"]["checkpoint"]["claim"] = "numbered"
    numbered[1]["metadata"]["name"] = "numbered"
    assert team.completes(team.start(numbered))["progress"]["step"] == 10
