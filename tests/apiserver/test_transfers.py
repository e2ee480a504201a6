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
from support.controlplane import ControlPlane, free_ports
from support.data_servers import Behaviour, http_server, s3_environment, s3_server
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
                eventually(lambda step=step: (found := job(control_plane, namespace).get("status")) and step(found))
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
        eventually(lambda: job(control_plane, namespace).get("status", {}).get("phase") == "Failed")
        conditions = {each["type"]: each for each in job(control_plane, namespace)["status"]["conditions"]}
        assert conditions["Failed"]["reason"] == "InputFailed"
        assert conditions["Failed"]["message"].startswith(f"spec.inputs[0]: {url}/train.csv: there is no such object")
        eventually(lambda: not control_plane.api.list("Pod", namespace))
    reasons = {event["reason"] for event in control_plane.api.list("Event", namespace)}
    assert "PodsCreated" not in reasons


def names(control_plane: ControlPlane, namespace: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in control_plane.api.list("Pod", namespace)}


SAVES = """
import os, pathlib, sys, time
from allranks.report import report
folder, there = pathlib.Path(os.environ["ALLRANKS_CHECKPOINT_DIR"]), pathlib.Path(sys.argv[1])
first = not (folder / "checkpoint-10").exists()
step = 10 if first else 20
(folder / f"checkpoint-{step}").mkdir()
(folder / f"checkpoint-{step}" / "weights").write_text(str(step))
report(step=step, total_steps=20, checkpoint=True)
while first:
    if (there / "step-10" / "allranks-manifest.json").exists():
        sys.exit("crash")
    time.sleep(0.1)
"""


@pytest.mark.nightly
def test_checkpoints_are_uploaded_while_ranks_run_and_crash(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, pods: Path
) -> None:
    """The rank crashes when its first checkpoint is there, and another operator continues."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
    [port] = free_ports(1)
    there = tmp_path / "results" / "saved"
    (tmp_path / "save.py").write_text(SAVES)
    settings = {"report_url": f"http://127.0.0.1:{port}/v1/report", "report_port": port, "pools": False}
    made = live.job(
        framework="spmd",
        roles={"worker": {"replicas": 1}},
        command=[sys.executable, str(tmp_path / "save.py"), str(there)],
        progress={},
        checkpoint={"claim": "own"},
        restart={"maxRestarts": 1, "backoffSeconds": 1},
        outputs=[{"name": "saved", "path": "/checkpoints", "to": "claim://results/saved", "when": "Checkpoint"}],
    )

    def status() -> Manifest:
        return dict(job(control_plane, namespace).get("status") or {})

    with process_kubelet(control_plane, namespace, pods, environ) as kubelet:
        for claim in ("allranks-data", "results", "own"):
            kubelet.claims[claim] = tmp_path / claim
        control_plane.api.create(made, namespace)
        with live.operator(live.connection(control_plane), namespace, data_claim="allranks-data", **settings):
            eventually(lambda: status().get("attempt") == 1)
        with live.operator(live.connection(control_plane), namespace, data_claim="allranks-data", **settings):
            eventually(lambda: status().get("phase") in ("Succeeded", "Failed"))
            eventually(lambda: "demo-upload-saved" not in names(control_plane, namespace))
        found = status()
        assert found["phase"] == "Succeeded", found["conditions"]
        [output] = found["outputs"]
        assert (output["state"], output["step"], output["uploadedStep"]) == ("Uploaded", 20, 20)
    for step in (10, 20):
        assert (there / f"step-{step}" / f"checkpoint-{step}" / "weights").read_text() == str(step)
        assert (there / f"step-{step}" / "allranks-manifest.json").exists()
    reasons = [event["reason"] for event in control_plane.api.list("Event", namespace)]
    assert reasons.count("CheckpointUploaded") in (1, 2)  # the Event of the first can be lost with its operator


STREAMS = """
import os, fsspec
from pathlib import Path
files, root = fsspec.url_to_fs(os.environ["ALLRANKS_INPUT_DATA"])
rows = b"".join(files.cat_file(name) for name in sorted(files.find(root))).decode()
Path(__file__).with_name("rank-" + os.environ["ALLRANKS_INDEX"]).write_text(os.environ["ALLRANKS_INPUT_DATA"] + rows)
"""


@pytest.mark.nightly
def test_ranks_stream_from_an_s3_server_with_the_credentials_of_the_input_and_without_a_claim(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, pods: Path
) -> None:
    import boto3

    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[2] / "operator"), "HOME": str(tmp_path)}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"  # the image of transfers has s3fs
    (tmp_path / "stream.py").write_text(STREAMS)
    source = {"name": "data", "from": "s3://birds/tables", "mode": "Stream", "secret": "s3"}
    made = live.job(
        framework="spmd",
        roles={"worker": {"replicas": 2}},
        command=[sys.executable, str(tmp_path / "stream.py")],
        restart={"maxRestarts": 0},
        inputs=[source],
    )
    with s3_server() as url:
        variables = s3_environment(url)
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=url, **keys)
        client.create_bucket(Bucket="birds")
        client.put_object(Bucket="birds", Key="tables/0.csv", Body=b"Adelie")
        client.put_object(Bucket="birds", Key="tables/1.csv", Body=b"Gentoo")
        client.close()
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": variables}
        control_plane.api.create(secret, namespace)
        with (
            process_kubelet(control_plane, namespace, pods, environ),
            live.operator(live.connection(control_plane), namespace, data_image="allranks/data:1", pools=False),
        ):
            control_plane.api.create(made, namespace)
            eventually(lambda: job(control_plane, namespace).get("status", {}).get("completionTime"))
            found = job(control_plane, namespace)["status"]
            assert found["phase"] == "Succeeded", found["conditions"]
            created = control_plane.api.list("Pod", namespace)
    [looked_up] = found["inputs"]
    assert (looked_up["state"], looked_up["bytes"]) == ("Ready", 12)
    assert looked_up["revision"].startswith("list:")
    for index in range(2):
        assert (tmp_path / f"rank-{index}").read_text() == "s3://birds/tablesAdelieGentoo"
    ranks = [pod for pod in created if "worker" in pod["metadata"]["name"]]
    assert len(ranks) == 2
    for pod in ranks:
        [container] = pod["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
        assert not any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"])
