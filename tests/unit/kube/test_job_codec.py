"""A resource that cannot be read is marked, itself alone; what runs is left running."""

from __future__ import annotations

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
    ("spec", "told"),
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
def test_what_is_wrong_is_told_with_the_path_of_the_field(spec: Any, told: str) -> None:
    with pytest.raises(job_codec.DecodeError) as raised:
        job_codec.job(job(spec))
    assert told in str(raised.value)


def test_a_good_one_is_read() -> None:
    assert job_codec.job(job(SPEC)).spec.framework == "pytorch"
    assert job_codec.status(job(SPEC)).phase == "Pending"


@pytest.mark.parametrize("status", [{"phase": "Dancing"}, {"attempt": "one"}, {"conditions": 5}, {"unknown": 1}])
def test_a_status_that_cannot_be_read_is_told_too(status: Any) -> None:
    with pytest.raises(job_codec.DecodeError, match="status"):
        job_codec.status(job(SPEC, status))


def test_a_job_that_never_began_fails() -> None:
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


def test_what_runs_is_left_running_and_told_of_once() -> None:
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
def test_what_its_status_lacks_does_not_keep_it_from_being_told(status: Any) -> None:
    change = job_codec.invalid_spec_patch(job({}, status), "why", NOW)
    assert change is not None
    assert [c["message"] for c in change["conditions"]] == ["why"]
    assert change["conditions"][0]["lastTransitionTime"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_verdict_never_changes_even_where_nothing_can_be_read(phase: str) -> None:
    assert job_codec.invalid_spec_patch(job({}, {"phase": phase}), "why", NOW) is None


@pytest.mark.parametrize("status", [5, [], {"conditions": 5}, {"conditions": [None, 3]}])
def test_a_status_of_any_shape_can_be_marked(status: Any) -> None:
    change = job_codec.invalid_spec_patch(job({}, status), "why", NOW)
    assert change is not None
    assert [c["type"] for c in change["conditions"]] == ["Failed"]


def test_a_status_of_a_newer_operator_is_read_as_far_as_it_is_known():
    newer = {"phase": "Running", "ready": "2/2", "mood": "good", "restarts": {"counted": 2, "planned": 1}}
    newer |= {"lastFailure": {"pod": "p", "time": "2026-03-04T10:00:00Z", "blame": "cosmic rays"}, "goodput": 7}
    status = job_codec.status_of({"status": newer})
    assert (status.phase, status.ready, status.restarts.counted) == ("Running", "2/2", 2)
    assert status.last_failure is not None
    assert status.goodput is None
    assert job_codec.status_of({}).phase == "Pending"


def test_pods_that_only_carry_the_label_are_not_the_jobs():
    def pod(name: str, **fields: Any) -> dict[str, Any]:
        stamp = "2026-03-04T10:00:00Z"
        return {"metadata": {"name": name, "uid": name, "creationTimestamp": stamp, **fields}}

    owner = {"kind": "DistributedTraining", "name": "job", "uid": "u", "controller": True}
    job = {"metadata": {"name": "job", "uid": "u"}, "spec": {}}
    there = [pod("mine", ownerReferences=[owner]), pod("other"), pod("old", ownerReferences=[{**owner, "uid": "x"}])]
    assert [pod.name for pod in job_codec.pods_of(job, there)] == ["mine"]
