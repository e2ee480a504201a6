"""The check of the destinations of outputs on a cluster. `tests/model/scenarios/data.yaml` has the course of events."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allranks.core.facts.data_store import DataStore
from allranks.core.facts.model import Exit, Manifest
from allranks.core.reconcile import reconcile
from support.builders import CLUSTER, Life, at, job

WITH_DATA = replace(CLUSTER, data=DataStore("allranks-data", "allranks/data:1", 10**9))
MODEL = {"name": "model", "path": "/out", "to": "s3://models/penguins", "secret": "aws-write"}
LOGS = {"name": "logs", "path": "/logs", "to": "claim://logs/a"}
POD = "job-check-model"
OPTIONAL: Manifest = {"inputs": [{"name": "data", "from": "claim://c", "path": "/data"}]}


def begin(*outputs: dict[str, Any], **spec: Any) -> Life:
    life = Life(job(outputs=list(outputs), **spec), platform=WITH_DATA)
    life.settle(0)
    return life


def says(life: Life, said: object, now: float) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    life.pods[POD] = replace(life.pods[POD], phase="Succeeded", exit=Exit(0, at(now), "Completed", text))
    life.settle(now)


def test_the_pod_has_only_the_secret_of_its_output_and_no_volume() -> None:
    life = begin(MODEL, LOGS)
    [made] = reconcile(replace(life.look(0), pods=())).create
    spec, [container] = made["spec"], made["spec"]["containers"]
    assert made["metadata"]["name"] == POD
    assert json.loads(container["env"][0]["value"]) == {"act": "check", "to": "s3://models/penguins"}
    assert container["envFrom"] == [{"secretRef": {"name": "aws-write"}}]
    assert (spec["volumes"], spec["automountServiceAccountToken"]) == ([], False)
    assert spec["securityContext"]["runAsNonRoot"]


def test_ranks_start_after_the_check_and_its_pod_is_deleted() -> None:
    life = begin(MODEL, **OPTIONAL)
    assert list(life.pods) == [POD]
    condition = life.status.condition("Running")
    assert condition
    assert condition.reason == "CheckingOutputs"
    assert condition.message == "destinations are checked: model at s3://models/penguins"
    says(life, {"checked": ""}, 10)
    assert sorted(life.pods) == ["job-worker-0-0", "job-worker-1-0"]
    assert (life.status.outputs[0].state, life.events.count("OutputUnchecked")) == ("Pending", 0)


def test_outputs_in_claims_are_not_checked() -> None:
    assert sorted(begin(LOGS).pods) == ["job-worker-0-0", "job-worker-1-0"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"error": "s3://models/penguins: access is denied"}, "s3://models/penguins: access is denied"),
        ("Traceback", f"pod {POD} ended without a result: its image must have allranks with the extra data"),
        ({"fetched": {}}, "there is no result"),
    ],
)
def test_a_destination_that_refuses_fails_the_job_with_the_path_of_the_field(said: object, message: str) -> None:
    life = begin(LOGS, MODEL)
    says(life, said, 10)
    condition = life.status.condition("Failed")
    assert condition
    assert (condition.reason, condition.message) == ("OutputFailed", f"spec.outputs[1]: {message}")
    assert life.pods == {}


def test_an_image_of_an_earlier_version_decides_nothing() -> None:
    life = begin(MODEL)
    crashed = Exit(1, at(5), "Error", "Traceback (most recent call last):\nKeyError: 'check'\n")
    life.pods[POD] = replace(life.pods[POD], container_restarts=1, last_exit=crashed)
    life.settle(10)
    assert sorted(life.pods) == ["job-worker-0-0", "job-worker-1-0"]
    assert life.events.count("OutputUnchecked") == 1


def test_an_error_that_may_pass_is_waited_for() -> None:
    life = begin(MODEL)
    again = Exit(1, at(5), "Error", json.dumps({"error": "the disk is full"}))
    life.pods[POD] = replace(life.pods[POD], container_restarts=1, last_exit=again)
    life.settle(10)
    assert list(life.pods) == [POD]
    condition = life.status.condition("Running")
    assert condition
    assert condition.reason == "CheckRetrying"


def test_a_job_that_failed_checks_nothing_any_more() -> None:
    life = begin(MODEL, {**MODEL, "name": "other", "path": "/other"})
    says(life, {"error": "access is denied"}, 10)
    assert [each.state for each in life.status.outputs] == ["Failed", "Pending"]


def test_a_job_of_an_earlier_version_is_not_checked_when_it_restarts() -> None:
    """Its outputs are Pending, and its ranks have run."""
    life = begin(MODEL)
    says(life, {"checked": ""}, 10)
    life.run(11)
    name, first = next(iter(life.pods.items()))
    life.pods[name] = replace(first, phase="Failed", exit=Exit(1, at(20)))
    for now in (30, 60, 90):
        life.settle(now)
    assert {each.rpartition("-")[0] for each in life.pods} == {"job-worker-0", "job-worker-1"}


def test_a_result_of_a_pod_that_was_lost_is_not_waited_for() -> None:
    life = begin(MODEL)
    before = life.pods[POD].uid
    life.pods[POD] = replace(life.pods[POD], phase="Failed", exit=Exit(137, at(5), "OOMKilled"))
    life.settle(20)
    assert life.pods[POD].uid != before
