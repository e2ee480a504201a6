"""The condition OutputsUploaded. `tests/model/scenarios/data.yaml` has the course of events on a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allranks.core.facts.model import Platform
from allranks.core.facts.uploads import Upload
from allranks.core.reconcile import reconcile
from support.builders import Life, failed, job, started, succeeded

LOCAL = Platform("allranks", local=True)
OUTPUTS = [
    {"name": "model", "path": "/out", "to": "s3://models/penguins", "deadlineSeconds": 60},
    {"name": "logs", "path": "/logs", "to": "s3://models/logs"},
]


def completed(outputs: int = 1) -> Life:
    life = started(job(outputs=OUTPUTS[:outputs], success="All"), platform=LOCAL)
    assert life.status.condition("OutputsUploaded") is None
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    return life


def condition(life: Life) -> tuple[str, str, str]:
    found = life.status.condition("OutputsUploaded")
    assert found
    return found.status, found.reason, found.message


def test_it_says_how_many_files_are_there() -> None:
    life = completed()
    assert condition(life) == ("False", "Uploading", "model is being uploaded to s3://models/penguins")
    life.uploads = {"model": Upload("Uploading", bytes=4096, files=10, sent=(3, 1024))}
    life.settle(110)
    text = "model is being uploaded to s3://models/penguins: 3 of 10 files, 1.0 KiB of 4.0 KiB"
    assert condition(life) == ("False", "Uploading", text)
    life.uploads = {"model": Upload("Uploaded", bytes=4096, files=10)}
    life.settle(120)
    text = "model is in s3://models/penguins: 10 files, 4.0 KiB"
    assert (life.status.phase, *condition(life)) == ("Succeeded", "True", "Uploaded", text)


def test_a_text_that_is_too_long_for_the_status_is_written_once() -> None:
    outputs = [{"name": f"o{n}", "path": f"/o{n}", "to": "s3://models/" + "x" * 600} for n in range(8)]
    life = started(job(outputs=outputs, success="All"), platform=LOCAL)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    life.uploads = {each["name"]: Upload("Uploaded", bytes=1, files=1) for each in outputs}
    life.settle(110)
    assert life.status.phase == "Succeeded"
    assert reconcile(life.look(120)).next is None


def test_the_reason_of_a_failure_is_whole_and_stays_when_what_said_it_is_gone() -> None:
    life = completed(outputs=2)
    reason = "access is denied: " + "x" * 300
    life.uploads = {"model": Upload("Failed", message=reason, where="/runs/1/outputs/model")}
    life.settle(110)
    assert life.status.phase == "Running"
    text = f"model is not uploaded: {reason}; the files are in /runs/1/outputs/model; logs is being uploaded"
    assert condition(life)[2].startswith(text)
    life.uploads["logs"] = Upload("Uploaded", bytes=1, files=1)
    life.settle(120)
    found = condition(life)
    assert found[:2] == ("False", "Failed")
    assert reason in found[2]
    life.uploads = {}
    life.settle(500)
    assert condition(life) == found


def test_a_deadline_is_a_reason_of_its_own_also_if_another_output_fails_later() -> None:
    life = completed(outputs=2)
    life.uploads = {"model": Upload("Uploading", message="no route"), "logs": Upload("Uploading")}
    life.settle(110)
    assert condition(life)[:2] == ("False", "UploadRetrying")
    life.settle(160)
    assert condition(life)[:2] == ("False", "DeadlineExceeded")
    life.uploads = {"logs": Upload("Failed", message="access is denied")}
    life.settle(170)
    assert (life.status.phase, *condition(life)[:2]) == ("Failed", "False", "DeadlineExceeded")
    assert "not within deadlineSeconds (60): no route" in condition(life)[2]
    assert "logs is not uploaded: access is denied" in condition(life)[2]


def test_an_upload_that_failed_before_its_deadline_does_not_count_as_overdue_later() -> None:
    life = completed(outputs=2)
    life.uploads = {"model": Upload("Failed", message="access is denied"), "logs": Upload("Uploading")}
    life.settle(110)
    life.uploads = {"logs": Upload("Uploaded", bytes=1, files=1)}  # the pod of the other one is gone
    life.settle(300)
    assert condition(life)[:2] == ("False", "Failed")
    failure = life.status.condition("Failed")
    assert failure
    assert failure.message == "the program completed, but output model is not uploaded: access is denied"


@pytest.mark.parametrize(("outputs", "present"), [(OUTPUTS[:1], True), (None, False)])
def test_a_job_that_failed_says_that_its_outputs_are_not_uploaded(outputs: object, present: bool) -> None:
    fields = {"outputs": outputs} if outputs else {}
    life = started(job(restart={"maxRestarts": 0}, **fields), platform=LOCAL)
    life.put(failed(index=0))
    life.settle(100)
    assert life.status.phase == "Failed"
    found = life.status.condition("OutputsUploaded")
    assert (found is not None) == present
    if found:
        assert (found.status, found.reason) == ("False", "JobFailed")
        assert "with when: Always" in found.message


def test_a_job_that_an_earlier_version_finished_is_not_written_again() -> None:
    life = completed()
    life.uploads = {"model": Upload("Uploaded", bytes=1, files=1)}
    life.settle(110)
    left = [each for each in life.status.conditions if each.type != "OutputsUploaded"]
    life.status = replace(life.status, conditions=left)
    assert life.step(120).next is None
