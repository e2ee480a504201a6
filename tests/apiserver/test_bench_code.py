"""The benchmark of code on a cluster works: on a real API server, with ranks that are real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.controlplane import ControlPlane

from .test_python_interface import World

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.nightly
def test_both_ways_are_measured_and_leave_no_job(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    image = tmp_path / "image"  # the node has no images: this folder is where the pods find the code
    node = tmp_path / "node"
    node.mkdir()
    command = [sys.executable, "-m", "bench.code_on_cluster", "--image", "example.org/python:3", "--times", "1"]
    build = f"test VERSION && rm -rf {image} && cp -r . {image}"
    options = ["--files", "5", "--built", "example.org/code:VERSION", "--build", build, "--path", str(image)]
    with World(control_plane, namespace, node).running():
        done = subprocess.run(
            [*command, *options],
            cwd=REPOSITORY,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    row = r"\| {} \| \d+\.\d\d s \| \d+\.\d\d s \| \d+\.\d\d s \|\n"
    assert re.search(row.format(r"submit --code \."), done.stdout), done.stdout
    assert re.search(row.format("image build and push, then submit"), done.stdout), done.stdout
    assert control_plane.api.list("DistributedTraining", namespace) == []
