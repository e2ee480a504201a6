"""The exact output of `allranks convert`, with its comments. To write the files again after a change, and review the
difference: `PYTHONPATH=operator:tests .venv/bin/python tests/unit/authoring/convert/test_golden.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.cli.main import cli

HERE = Path(__file__).parent
EXAMPLES = (
    "training-operator/pytorch-elastic-imagenet-imagenet.yaml",
    "training-operator/pytorch-cpu-demo-demo.yaml",
    "training-operator/tensorflow-dist-mnist-tf_job_mnist.yaml",
    "training-operator/mpi-tensorflow-mnist-elastic.yaml",
    "training-operator/jax-cpu-demo-demo.yaml",
    "mpi-operator/v2beta1-horovod-tensorflow-mnist.yaml",
    "mpi-operator/v2beta1-pi-pi-intel.yaml",
    "trainer/yaml-02-runtime-patches.yaml",
    "trainer/yaml-04-volcano-integration.yaml",
    "trainer/yaml-05-multi-step.yaml",
    "kuberay/ray-job.pytorch-mnist.yaml",
    "kuberay/ray-job.resources.yaml",
)


def golden(example: str) -> Path:
    return HERE / "golden" / example.replace("/", "-")


def output(example: str) -> Result:
    return CliRunner().invoke(cli, ["convert", str(HERE / "manifests" / example)])


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_output_has_a_comment_on_each_line_that_means_something_else(example):
    result = output(example)
    assert result.stdout == golden(example).read_text()
    # Comments and the list of what was dropped do not change what the YAML means.
    assert result.exit_code == (1 if "# Dropped: " in result.stdout else 0)
    assert next(yaml.safe_load_all(result.stdout))["kind"] == "DistributedTraining"


if __name__ == "__main__":
    for name in EXAMPLES:
        found = output(name)
        if found.stdout:
            golden(name).write_text(found.stdout)
        else:
            print(found.stderr, end="", file=sys.stderr)
