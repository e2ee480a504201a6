"""`allranks nodes` and `nodes forgive`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from allranks.core.facts.forgiveness import FORGIVEN_ANNOTATION, forgiven_nodes
from support.job_api import JobApi
from support.ui_samples import a_job, failure

PAST = {"attempt": 0, "endTime": "2026-03-04T10:00:00Z", "reason": "Error", "lostSeconds": 7200.0}


def job(name: str, **status: Any) -> dict[str, Any]:
    bad = failure() | {"because": "DeviceError", "node": "gpu-7", "message": "CUDA error: uncorrectable ECC"}
    return a_job(name, "Running", attempt=1, history=[PAST | {"failure": bad}], avoidedNodes=["gpu-7"], **status)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    with JobApi(tmp_path, job("penguins"), a_job("healthy", "Running")) as served:
        yield served


def allranks(api: JobApi, *words: str) -> Result:
    return CliRunner().invoke(cli, ["nodes", *words, "--kubeconfig", str(api.kubeconfig), "-n", "team"])


def test_the_table_has_failures_losses_and_who_avoids_the_node(api: JobApi) -> None:
    result = allranks(api)
    header, line = result.stdout.splitlines()
    assert header.split("   ")[0] == "NODE"
    assert line.startswith("gpu-7")
    assert "DeviceError 1" in line
    assert "uncorrectable ECC" in line
    assert line.endswith("team/penguins (excluded)")
    assert result.exit_code == 0


def test_json_has_the_same_for_programs(api: JobApi) -> None:
    [node] = json.loads(allranks(api, "-o", "json").stdout)
    assert (node["name"], node["failures"], node["lostSeconds"]) == ("gpu-7", {"DeviceError": 1}, 7200.0)
    assert node["avoidances"] == [{"job": "team/penguins", "kind": "DeviceError", "excluded": True}]


def test_forgive_annotates_the_jobs_that_avoid_the_node_and_no_others(api: JobApi) -> None:
    result = allranks(api, "forgive", "gpu-7", "gpu-8")
    assert result.stdout == "team/penguins may run on gpu-7 again\n"
    annotation = api.jobs["penguins"]["metadata"]["annotations"][FORGIVEN_ANNOTATION]
    assert list(forgiven_nodes(annotation)) == ["gpu-7"]
    assert FORGIVEN_ANNOTATION not in (api.jobs["healthy"]["metadata"].get("annotations") or {})


def test_forgive_says_that_no_job_avoids_a_node(api: JobApi) -> None:
    result = allranks(api, "forgive", "gpu-8")
    assert (result.exit_code, result.stderr) == (0, "no job of namespace team avoids gpu-8\n")


def test_without_the_right_to_change_jobs_forgive_fails_and_says_why(api: JobApi) -> None:
    api.forbidden = {"distributedtrainings"}
    result = allranks(api, "forgive", "gpu-7")
    assert result.exit_code == 1
    assert "may not list distributedtrainings" in result.stderr
