"""Inputs and outputs: what pods get, what a cluster refuses, and when a job with outputs ends."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.data import InputStatus, OutputStatus
from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.facts.uploads import Upload
from allranks.core.objects import pods
from allranks.core.transfers import manifests
from support.builders import CLUSTER, at, failed, job, started, succeeded
from unit.core.test_code_in_pods import mount, pod, trainer, variables, volume

LOCAL = Platform("allranks", local=True)
CLAIM = {"name": "data", "from": "claim://birds/2026/penguins", "path": "/data"}
STORE = {"name": "big-data", "from": "s3://birds/penguins", "path": "/big"}
MODEL = {"name": "model", "path": "/out", "to": "s3://models/penguins"}


def test_a_claim_and_an_image_are_mounted_read_only() -> None:
    made = pod(inputs=[CLAIM, {"name": "weights", "from": "image://r/weights:1", "path": "/weights"}])
    assert volume(made, "allranks-input-data") == {
        "name": "allranks-input-data",
        "persistentVolumeClaim": {"claimName": "birds"},
    }
    assert mount(trainer(made), "allranks-input-data") == {
        "name": "allranks-input-data",
        "mountPath": "/data",
        "readOnly": True,
        "subPath": "2026/penguins",
    }
    assert volume(made, "allranks-input-weights") == {
        "name": "allranks-input-weights",
        "image": {"reference": "r/weights:1"},
    }


def test_programs_find_the_paths_in_variables() -> None:
    env = variables(trainer(pod(inputs=[CLAIM, STORE], outputs=[MODEL])))
    wanted = {"ALLRANKS_INPUT_DATA": "/data", "ALLRANKS_INPUT_BIG_DATA": "/big", "ALLRANKS_OUTPUT_MODEL": "/out"}
    assert {name: env[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("s3://birds/penguins", "s3://birds/penguins"),
        ("https://h/birds.csv", "https://h/birds.csv"),
        ("hf://datasets/a/b", "hf://datasets/a/b@c0ffee"),
        ("hf://datasets/a/b/train/", "hf://datasets/a/b@c0ffee/train"),
        ("hf://models/a/b", "hf://a/b@c0ffee"),
        ("hf://a/b/onnx", "hf://a/b@c0ffee/onnx"),
    ],
)
def test_a_program_that_streams_gets_the_address_at_the_revision(source: str, address: str) -> None:
    of = job(inputs=[{"name": "big-data", "from": source, "mode": "Stream"}])
    status = Status(inputs=[InputStatus(name="big-data", state="Ready", revision="c0ffee")])
    for platform in (LOCAL, CLUSTER):
        made = pods.objects(of, status, platform).pods[0]
        env = variables(trainer(made))
        assert env["ALLRANKS_INPUT_BIG_DATA"] == address
        assert [volume["name"] for volume in made["spec"]["volumes"]] == ["dshm"]


def test_ranks_that_stream_have_the_credentials_of_the_input_and_those_of_the_user_come_last() -> None:
    own = {"secretRef": {"name": "mine"}}
    containers = [{"name": "trainer", "envFrom": [own]}, {"name": "proxy", "image": "p"}]
    inputs = [
        {"name": "a", "from": "s3://b/a", "mode": "Stream", "secret": "aws"},
        {"name": "b", "from": "s3://b/b", "mode": "Stream", "secret": "aws"},
        {"name": "c", "from": "s3://b/c", "path": "/c", "secret": "other"},
    ]
    of = job(inputs=inputs, template={"spec": {"containers": containers}})
    made = pods.objects(of, Status(), CLUSTER).pods[0]
    assert trainer(made)["envFrom"] == [{"secretRef": {"name": "aws"}}, own]
    assert "envFrom" not in made["spec"]["containers"][1]
    made = pods.objects(of, Status(), LOCAL).pods[0]
    assert trainer(made)["envFrom"] == [own]  # a local run uses the credentials of its machine


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"inputs": [CLAIM, {**STORE, "path": "/data/"}]},
            ("spec.inputs[1].path", "/data is also the directory of spec.inputs[0]: choose another one"),
        ),
        (
            {"inputs": [CLAIM], "outputs": [{**MODEL, "path": "/data/out"}]},
            ("spec.outputs[0].path", "/data/out is inside the directory of spec.inputs[0]: choose another one"),
        ),
        (
            {"inputs": [CLAIM], "checkpoint": {"claim": "a", "path": "/data"}},
            ("spec.inputs[0].path", "/data is also the directory of spec.checkpoint: choose another one"),
        ),
        (
            {"inputs": [CLAIM], "outputs": [{**MODEL, "name": "data"}]},
            ("spec.outputs[0].name", "an input has the name data as well: choose another one"),
        ),
    ],
)
def test_a_directory_or_a_name_that_is_taken_is_refused(fields: dict[str, Any], problem: tuple[str, str]) -> None:
    assert pods.problems(job(**fields)) == [problem]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"inputs": [CLAIM, STORE]},
            "spec.inputs[1].from: a pod fetches s3:// before the ranks start, and this cluster has no image for it",
        ),
        (
            {"inputs": [{"name": "data", "from": "s3://b/p", "mode": "Stream"}]},
            "spec.inputs[0].mode: a pod looks up the revision of the data before the ranks start, and this cluster has",
        ),
        ({"outputs": [MODEL]}, "spec.outputs[0].path: outputs are kept in a claim, and this cluster has none for them"),
    ],
)
def test_a_cluster_without_an_image_or_a_claim_for_data_refuses_what_needs_it(
    fields: dict[str, Any], message: str
) -> None:
    life = started(job(**fields))
    condition = life.status.condition("Failed")
    assert condition
    assert condition.reason == "InvalidSpec"
    assert condition.message.startswith(message)
    assert life.pods == {}


def test_a_cluster_runs_a_job_with_a_mounted_input() -> None:
    life = started(job(inputs=[CLAIM]))
    assert life.status.phase == "Running"
    assert life.status.inputs == [InputStatus(name="data", state="Ready")]


def test_a_job_succeeds_when_its_outputs_are_uploaded() -> None:
    life = started(job(outputs=[MODEL]), platform=LOCAL)
    assert life.status.outputs == [OutputStatus(name="model")]
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    running = life.status.condition("Running")
    assert running
    assert (life.status.phase, running.reason) == ("Running", "UploadingOutputs")
    assert life.status.outputs == [OutputStatus(name="model", state="Uploading", start_time=at(100))]
    life.uploads = {"model": Upload("Uploaded", bytes=10, files=2)}
    life.settle(200)
    assert life.status.phase == "Succeeded"
    assert life.status.completion_time == at(200)
    assert [(output.state, output.bytes, output.files) for output in life.status.outputs] == [("Uploaded", 10, 2)]
    assert life.events[-2:] == ["UploadingOutputs", "Succeeded"]


def test_a_pod_that_fails_after_the_program_has_completed_restarts_nothing() -> None:
    life = started(job(outputs=[MODEL], success="All"), platform=LOCAL)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    life.put(failed(index=1))
    life.settle(101)
    assert (life.status.attempt, life.status.restarts.counted) == (0, 0)
    assert life.status.outputs[0].state == "Uploading"


def test_peers_that_still_run_end_before_the_upload() -> None:
    """They could still write files."""
    roles = {"master": {"replicas": 1}, "worker": {"replicas": 1}}
    life = started(job(roles=roles, outputs=[MODEL]), platform=LOCAL)
    life.put(succeeded("master"))
    plan = life.settle(100)
    assert len(life.pods) == 2
    assert plan.wake_at == at(110)
    life.settle(110)
    assert [name for name, left in life.pods.items() if not left.ended] == []


def test_an_output_that_cannot_be_uploaded_fails_the_job() -> None:
    life = started(job(outputs=[MODEL, {**MODEL, "name": "log", "path": "/log"}]), platform=LOCAL)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    life.uploads = {"model": Upload("Failed", message="access is denied"), "log": Upload("Uploading")}
    life.settle(101)
    assert life.status.phase == "Running"  # the other one is still uploaded
    life.uploads["log"] = Upload("Uploaded", bytes=1, files=1)
    life.settle(102)
    condition = life.status.condition("Failed")
    assert condition
    assert condition.reason == "OutputFailed"
    assert condition.message == "the program completed, but output model is not uploaded: access is denied"
    assert [output.state for output in life.status.outputs] == ["Failed", "Uploaded"]


def test_an_upload_that_takes_longer_than_its_deadline_fails() -> None:
    life = started(job(outputs=[{**MODEL, "deadlineSeconds": 60}]), platform=LOCAL)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    life.uploads = {"model": Upload("Uploading", message="no route", where="/runs/1/outputs/model")}
    assert life.settle(159).wake_at == at(160)
    assert life.status.phase == "Running"
    life.settle(160)
    condition = life.status.condition("Failed")
    assert condition
    assert (condition.reason, condition.message) == (
        "OutputFailed",
        "the program completed, but output model is not uploaded: not within deadlineSeconds (60): no route; "
        "the files are in /runs/1/outputs/model",
    )


def test_an_upload_that_ended_in_time_has_succeeded_whenever_it_is_observed() -> None:
    life = started(job(outputs=[{**MODEL, "deadlineSeconds": 60}]), platform=LOCAL)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    life.uploads = {"model": Upload("Uploaded", bytes=1, files=1)}
    life.settle(1000)
    assert life.status.phase == "Succeeded"


@pytest.mark.parametrize(("when", "state"), [("Always", "Uploading"), ("Success", "Pending")])
def test_the_outputs_of_a_failed_job(when: str, state: str) -> None:
    output = {**MODEL, "when": when}
    life = started(job(outputs=[output], restart={"maxRestarts": 0}, ttlSecondsAfterFinished=60), platform=LOCAL)
    life.put(failed(index=0))
    life.settle(100)
    assert (life.status.phase, life.status.outputs[0].state) == ("Failed", state)
    if when == "Always":
        life.settle(500)
        assert not life.deleted  # the TTL waits for the upload
        life.uploads = {"model": Upload("Failed", message="no route")}
        life.step(501)
        assert life.status.outputs[0].message == "no route"
        assert life.events.count("OutputFailed") == 1
    life.step(600)
    assert life.deleted


def test_the_provenance_has_code_data_and_parameters_but_no_other_variables() -> None:
    env = [{"name": "TOKEN", "value": "secret"}]
    life = started(job(outputs=[MODEL], inputs=[CLAIM], args=["--lr=0.1"], env=env), platform=LOCAL)
    found = manifests.provenance(life.job, life.status)
    assert found["inputs"] == [{"name": "data", "from": CLAIM["from"]}]
    assert found["programs"]["worker"]["args"] == ["--lr=0.1"]
    assert found["programs"]["worker"]["imageIDs"] == "not used"  # the ranks are processes
    assert "secret" not in str(found)
