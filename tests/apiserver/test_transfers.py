"""Inputs and outputs on a real API server: the pods run as real processes, and the operator dies between its steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import live
from support.api import Manifest
from support.controlplane import ControlPlane
from support.data_servers import Behaviour, http_server
from support.live import eventually
from support.process_kubelet import process_kubelet

PROGRAM = """
import os, pathlib
text = (pathlib.Path(os.environ["ALLRANKS_INPUT_DATA"]) / "train.csv").read_text()
(pathlib.Path(os.environ["ALLRANKS_OUTPUT_MODEL"]) / ("rank-" + os.environ["ALLRANKS_INDEX"])).write_text(text.upper())
"""


@pytest.fixture
def web() -> Behaviour:
    return Behaviour(files={"/train.csv": b"penguins"})


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    """Where the kubelet keeps the files of pods."""
    (tmp_path / "pods").mkdir()
    return tmp_path / "pods"


@pytest.fixture
def url(web: Behaviour) -> Iterator[str]:
    with http_server(web) as found:
        yield found


def create(control_plane: ControlPlane, namespace: str, url: str, folder: Path, **spec: Any) -> None:
    (folder / "train.py").write_text(PROGRAM)
    job = live.job(
        framework="spmd",
        roles={"worker": {"replicas": 2}},
        command=[sys.executable, str(folder / "train.py")],
        restart={"maxRestarts": 0},
        **{"inputs": [{"name": "data", "from": f"{url}/train.csv", "path": "/data"}], **spec},
    )
    control_plane.api.create(job, namespace)


def job(control_plane: ControlPlane, namespace: str) -> Manifest:
    return control_plane.api.get("DistributedTraining", namespace, "demo")


def test_a_job_reads_its_input_and_succeeds_with_its_output(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, pods: Path, web: Behaviour, url: str
) -> None:
    """Another operator continues after each step."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
    steps = [
        lambda status: status["inputs"][0]["state"] == "Ready",
        lambda status: status["outputs"][0]["state"] != "Pending",
        lambda status: status["phase"] == "Succeeded",
    ]
    with process_kubelet(control_plane, namespace, pods, environ) as kubelet:
        outputs = [{"name": "model", "path": "/out", "to": "claim://results/models"}]
        kubelet.claims["allranks-data"], kubelet.claims["results"] = tmp_path / "data", tmp_path / "results"
        create(control_plane, namespace, url, tmp_path, outputs=outputs)
        for step in steps:
            with live.operator(live.connection(control_plane), namespace, data_claim="allranks-data", pools=False):
                eventually(
                    lambda step=step: (found := job(control_plane, namespace).get("status")) and step(found), 240
                )
    found = job(control_plane, namespace)
    [fetched], [uploaded] = found["status"]["inputs"], found["status"]["outputs"]
    assert (fetched["state"], fetched["bytes"], uploaded["state"], uploaded["files"]) == ("Ready", 8, "Uploaded", 2)
    assert (tmp_path / "results" / "models" / "rank-1").read_text() == "PENGUINS"
    assert list((tmp_path / "data" / "outputs" / found["metadata"]["uid"] / "model").iterdir()) == []
    assert sum(path == "/train.csv" and wanted != "bytes=0-0" for path, wanted in web.requests) == 1


def test_a_missing_file_fails_the_job_and_no_rank_runs(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, pods: Path, web: Behaviour, url: str
) -> None:
    web.files.clear()
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
    with (
        process_kubelet(control_plane, namespace, pods, environ),
        live.operator(live.connection(control_plane), namespace, data_claim="allranks-data", pools=False),
    ):
        create(control_plane, namespace, url, tmp_path)
        eventually(lambda: job(control_plane, namespace).get("status", {}).get("phase") == "Failed", 240)
        conditions = {each["type"]: each for each in job(control_plane, namespace)["status"]["conditions"]}
        assert conditions["Failed"]["reason"] == "InputFailed"
        assert conditions["Failed"]["message"].startswith(f"spec.inputs[0]: {url}/train.csv: there is no such object")
        eventually(lambda: not control_plane.api.list("Pod", namespace))
    reasons = {event["reason"] for event in control_plane.api.list("Event", namespace)}
    assert "PodsCreated" not in reasons
