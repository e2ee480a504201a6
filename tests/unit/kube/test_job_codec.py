"""Decoding jobs: strict with a condition for what does not decode, lenient for the command line."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from allranks.kube import job_codec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = {"framework": "pytorch", "image": "x", "command": ["a"], "roles": {"worker": {"replicas": 1}}}


def job(spec: Any, status: Any = None) -> dict[str, Any]:
    metadata = {"name": "demo", "namespace": "ns", "uid": "u", "generation": 3}
    document = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": metadata}
    return document | ({"spec": spec} if spec is not ... else {}) | ({"status": status} if status is not None else {})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SPEC | {"framwork": "x"}, "spec.framwork: unknown field, did you mean framework?"),
        (SPEC | {"framework": "caffe"}, "spec.framework:"),
        (SPEC | {"roles": {"worker": {"replicas": "many"}}}, "spec.roles.worker.replicas: must be a whole number"),
        (SPEC | {"roles": []}, "spec.roles: must be a mapping"),
        ({}, "spec.framework: is required"),
        (None, "spec: must be a mapping"),
        (..., "spec: "),
    ],
)
def test_an_error_names_the_path_of_the_field(spec: Any, message: str) -> None:
    with pytest.raises(job_codec.DecodeError) as raised:
        job_codec.job(job(spec))
    assert message in str(raised.value)


def test_a_valid_job_is_decoded() -> None:
    assert job_codec.job(job(SPEC)).spec.framework == "pytorch"
    assert job_codec.status(job(SPEC)).phase == "Pending"


@pytest.mark.parametrize("status", [{"phase": "Dancing"}, {"attempt": "one"}, {"conditions": 5}])
def test_a_status_that_does_not_decode_is_an_error(status: Any) -> None:
    with pytest.raises(job_codec.DecodeError, match="status"):
        job_codec.status(job(SPEC, status))


def test_a_job_that_has_not_started_fails() -> None:
    change = job_codec.invalid_spec_patch(job({}), "why", NOW)
    assert change == {
        "phase": "Failed",
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T00:00:00Z",
        "conditions": [
            {
                "type": "Failed",
                "status": "True",
                "reason": "InvalidSpec",
                "message": "why",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "observedGeneration": 3,
            }
        ],
    }


def test_a_running_job_continues_with_one_condition() -> None:
    running = {"type": "Running", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2025"}
    status = {"phase": "Running", "startTime": "2025", "conditions": [running, {"type": "Other"}]}
    change = job_codec.invalid_spec_patch(job({}, status), "why", NOW)
    assert change is not None
    assert "phase" not in change
    assert change["conditions"][1] == {
        "type": "Running",
        "status": "True",
        "reason": "InvalidSpec",
        "message": "why",
        "lastTransitionTime": "2025",
        "observedGeneration": 3,
    }
    assert job_codec.invalid_spec_patch(job({}, status | change), "why", NOW) is None


@pytest.mark.parametrize(
    "status",
    [
        {"phase": ["Running"], "startTime": "2025"},
        {"startTime": "2025", "conditions": [{"type": "Running", "status": "True"}]},
        {"conditions": [{"type": "Failed", "status": "True"}]},
    ],
)
def test_an_incomplete_status_gets_the_condition_too(status: Any) -> None:
    change = job_codec.invalid_spec_patch(job({}, status), "why", NOW)
    assert change is not None
    assert [c["message"] for c in change["conditions"]] == ["why"]
    assert change["conditions"][0]["lastTransitionTime"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_job_is_never_changed(phase: str) -> None:
    assert job_codec.invalid_spec_patch(job({}, {"phase": phase}), "why", NOW) is None


@pytest.mark.parametrize("status", [5, [], {"conditions": 5}, {"conditions": [None, 3]}])
def test_a_status_of_any_shape_gets_the_condition(status: Any) -> None:
    change = job_codec.invalid_spec_patch(job({}, status), "why", NOW)
    assert change is not None
    assert [c["type"] for c in change["conditions"]] == ["Failed"]


def test_fields_of_a_newer_operator_are_left_out() -> None:
    newer = {"phase": "Running", "ready": "2/2", "mood": "good", "restarts": {"counted": 2, "planned": 1}}
    newer |= {"lastFailure": {"pod": "p", "time": "2026-03-04T10:00:00Z", "culprit": "cosmic rays"}, "goodput": 7}
    status = job_codec.status_of({"status": newer})
    assert (status.phase, status.ready, status.restarts.counted) == ("Running", "2/2", 2)
    assert status.last_failure is not None
    assert status.goodput is None
    assert job_codec.status_of({}).phase == "Pending"


def test_an_error_names_only_the_fields_that_are_wrong() -> None:
    """A field of a newer operator is none of them."""
    with pytest.raises(job_codec.DecodeError, match=r"^status\.attempt: [^;]*$"):
        job_codec.status({"status": {"mood": "good", "attempt": "x", "restarts": {"planned": 1}}})


@pytest.mark.parametrize("status", [{"mood": "good"}, {"restartedIndexes": {"worker": {"counts": {"one": "3"}}}}])
def test_what_is_left_out_stays_in_the_manifest(status: dict[str, Any]) -> None:
    given = {"status": {"phase": "Running", "history": [{"attempt": "x"}], **copy.deepcopy(status)}}
    before = copy.deepcopy(given)
    assert job_codec.status_of(given).phase == "Running"
    assert given == before


def test_an_object_without_a_required_field_is_left_out() -> None:
    incomplete = {"phase": "Failed", "lastFailure": {"pod": "p"}, "history": [{"attempt": 0}, {"attempt": "x"}, None]}
    status = job_codec.status_of({"status": incomplete})
    assert (status.phase, status.last_failure, status.history) == ("Failed", None, [])


def test_pods_with_only_the_label_do_not_belong_to_the_job() -> None:
    def pod(name: str, **fields: Any) -> dict[str, Any]:
        stamp = "2026-03-04T10:00:00Z"
        return {"metadata": {"name": name, "uid": name, "creationTimestamp": stamp, **fields}}

    owner = {"kind": "DistributedTraining", "name": "job", "uid": "u", "controller": True}
    job = {"metadata": {"name": "job", "uid": "u"}, "spec": {}}
    pods = [pod("mine", ownerReferences=[owner]), pod("other"), pod("old", ownerReferences=[{**owner, "uid": "x"}])]
    assert [pod.name for pod in job_codec.pods_of(job, pods)] == ["mine"]
