"""Shipped code in real pods: other images and UIDs unpack and run it, and it disappears with its last job."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from . import image_archive
from .cluster import PATIENCE, REPOSITORY
from .jobs import Team, image, of_tests, training

pytestmark = pytest.mark.nightly
EXAMPLE = REPOSITORY / "examples" / "code"
CODE_IMAGE = "registry.example.com/me/code:7"
IMAGE_VOLUMES = {"containerd": (2, 1), "cri-o": (1, 31)}
"""The first versions of container runtimes that mount images."""


def submit(team: Team, manifest: Path, *options: str) -> str:
    where = ["--kubeconfig", str(team.cluster.kubeconfig), "-n", team.namespace]
    command = [sys.executable, "-m", "allranks", "submit", str(manifest), *where, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stored(team: Team) -> list[str]:
    return team.kubectl("get", "configmaps", "-l", "allranks.dev/code", "-o", "name").split()


def test_the_example_runs_its_own_code_after_a_restart_too_and_leaves_none(team: Team, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(of_tests((EXAMPLE / "job.yaml").read_text()))
    submit(team, job, "--code", str(EXAMPLE), "--set", "args=[--steps=100000]", "--set", "restart.backoffSeconds=0")
    team.says("code-worker-0-0", "rank 0 of 2 runs /workspace/train.py")
    assert "step 50 loss" in team.says("code-worker-0-0", "step 50 loss")
    written = "import os; open('here', 'w').write('x'); open('net/here', 'w').write('x'); print(os.getcwd())"
    assert team.run("code-worker-1-0", "python3", "-c", written).strip() == "/workspace"
    team.kubectl("delete", "pod", "code-worker-1-0", "--wait=false")
    team.says("code-worker-1-1", "rank 1 of 2 runs /workspace/train.py")
    assert len(team.status("code")["code"]["sha256"]) == 64
    [name] = stored(team)
    assert name.startswith("configmap/allranks-code-")
    team.kubectl("delete", "dt", "code")
    deadline = time.monotonic() + PATIENCE
    while stored(team):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_code_that_was_exchanged_does_not_run(team: Team, tmp_path: Path) -> None:
    """Somebody else has stored other code under the name."""
    document = yaml.safe_load(of_tests((EXAMPLE / "job.yaml").read_text()))
    name = "allranks-code-x"
    team.kubectl("create", "configmap", name, f"--from-file=code.tar.gz={EXAMPLE / 'train.py'}")
    document["spec"]["code"] = {"configMap": name, "sha256": "0" * 64}
    document["spec"]["restart"] = {"maxRestarts": 0}
    job = team.start([document])
    team.wait(f"dt/{job}", "--for=jsonpath={.status.completionTime}")
    status = team.status(job)
    assert status["phase"] == "Failed"
    assert "the code in /etc/allranks-code/code.tar.gz cannot be read" in status["lastFailure"]["message"]


def test_code_of_a_claim_is_mounted_read_only(team: Team) -> None:
    write = "mkdir -p /checkpoints/me && echo 'print(\"from the claim\")' > /checkpoints/me/train.py"
    team.completes(team.start(training("fill", "sh", "-c", write, claim="projects")))
    run = "python3 train.py && ! touch here"
    [job] = training("claimed", "sh", "-c", run, code={"claim": "projects", "subPath": "me"}, image=image("pytorch"))
    team.completes(team.start([job]))
    assert "from the claim" in team.kubectl("logs", "claimed-master-0-0")


def test_code_of_an_image_is_mounted_read_only(team: Team, tmp_path: Path) -> None:
    """Needs a container runtime that mounts images, which Debian 12 does not have."""
    runtimes = team.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.containerRuntimeVersion}")
    if old := [runtime for runtime in runtimes.split() if not mounts_images(runtime)]:
        pytest.skip(f"the nodes have {', '.join(old)}, which cannot mount images")
    (tmp_path / "train.py").write_text('print("from the image")\n')
    image_archive.load_files(team.cluster, tmp_path, CODE_IMAGE, {"train.py": tmp_path / "train.py"})
    run = "python3 train.py && ! touch here"
    [job] = training("pulled", "sh", "-c", run, code={"image": CODE_IMAGE}, image=image("pytorch"))
    team.completes(team.start([job]))
    assert "from the image" in team.kubectl("logs", "pulled-master-0-0")


def mounts_images(runtime: str) -> bool:
    """`runtime`: as the node reports it, for example `containerd://1.6.20~ds1`."""
    name, _, version = runtime.partition("://")
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    return bool(numbers) and (int(numbers[1]), int(numbers[2])) >= IMAGE_VOLUMES.get(name, (99, 0))
