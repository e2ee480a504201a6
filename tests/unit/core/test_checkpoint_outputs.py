"""Outputs with `when: Checkpoint`: each checkpoint that ranks report is uploaded while the job runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import ProgressStatus
from allranks.core.facts.data_store import DataStore
from allranks.core.facts.model import Exit, Platform
from allranks.core.facts.rank_reports import Reports
from allranks.core.facts.uploads import Upload
from allranks.core.objects import pods
from allranks.core.reconcile import reconcile
from allranks.core.transfers import manifests as transfers
from support.builders import CLUSTER, UID, Life, at, failed, job, rank, started, succeeded

STORE = DataStore("allranks-data", "allranks/data:1", 10**9)
WITH_DATA = replace(CLUSTER, data=STORE)
LOCAL = Platform("allranks", local=True)
SAVED = {"name": "saved", "path": "/checkpoints", "to": "s3://models/penguins/", "when": "Checkpoint"}
POD = "job-upload-saved"


def training(output: dict[str, Any] | None = None, platform: Platform = WITH_DATA, **spec: Any) -> Life:
    fields = {"checkpoint": {"claim": "own", "subPath": "a"}, "progress": {}, "restart": {"maxRestarts": 1}, **spec}
    return started(job(outputs=[{**SAVED, **(output or {})}], **fields), platform=platform)


def save(life: Life, step: int, now: float) -> None:
    """Ranks have stored a checkpoint."""
    progress = life.status.progress or ProgressStatus()
    progress = replace(progress, step=step, checkpoint_step=step, checkpoint_time=at(now))
    life.status = replace(life.status, progress=progress)
    life.settle(now)


def request(life: Life) -> dict[str, Any]:
    """What the pod that the plans would make now is asked for."""
    made = transfers.upload_pod(life.job, (life.job.spec.outputs or [])[0], life.status, WITH_DATA, STORE)
    return dict(json.loads(made["spec"]["containers"][0]["env"][0]["value"]))


def end(life: Life, now: float, step: int, saved: float, **said: Any) -> None:
    """The pod that uploads has ended with this result."""
    said = said or {"uploaded": {"bytes": 10, "files": 2}}
    text = json.dumps({**said, "step": step, "mark": int(at(saved).timestamp())})
    life.pods[POD] = replace(life.pods[POD], phase="Succeeded", exit=Exit(0, at(now), "Completed", text))
    life.settle(now)


def state(life: Life) -> tuple[str, int | None, int | None]:
    [output] = life.status.outputs
    return output.state, output.step, output.uploaded_step


def test_a_checkpoint_is_uploaded_while_the_ranks_go_on() -> None:
    life = training()
    assert state(life) == ("Pending", None, None)
    save(life, 100, 60)
    assert (life.status.phase, state(life), POD in life.pods) == ("Running", ("Uploading", 100, None), True)
    wanted = request(life)
    mark = int(at(60).timestamp())
    assert {name: wanted[name] for name in ("source", "directory", "to", "shown", "step", "mark")} == {
        "source": "/checkpoints",
        "directory": "/outputs/saved",
        "to": "s3://models/penguins/step-100",
        "shown": "s3://models/penguins/step-100",
        "step": 100,
        "mark": mark,
    }
    assert wanted["provenance"]["step"] == 100
    end(life, 70, 100, 60)
    assert (state(life), POD in life.pods) == (("Uploaded", 100, 100), False)
    assert [life.events.count(name) for name in ("CheckpointUploaded", "UploadingOutputs")] == [1, 0]
    save(life, 200, 80)
    assert (state(life), POD in life.pods) == (("Uploading", 200, 100), True)


def test_the_status_says_that_a_checkpoint_is_uploaded_before_its_pod_exists() -> None:
    """After a kill in between, the next operator would delete the pod, and create it again when ranks report."""
    life = training()
    reported = rank(0, 100, stepped=60, checkpoint_step=100, checkpoint_at=at(60))
    looked = replace(life.look(60), reports=Reports(at(0), (reported,)))
    first = reconcile(looked)
    assert (first.create, first.next and first.next.outputs[0].state) == ((), "Uploading")
    assert first.next
    then = reconcile(replace(looked, persisted=first.next))
    assert [made["metadata"]["name"] for made in then.create] == [POD]


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("said", [{"uploaded": {"bytes": 10, "files": 2}}, {"error": "access is denied"}])
def test_the_pod_of_an_upload_stays_until_the_status_has_its_result(said: dict[str, Any], newer: bool) -> None:
    """The status may be written later than pods are deleted. An operator that is killed between would upload again."""
    life = training()
    save(life, 100, 60)
    first = life.pods[POD].uid
    if newer:
        save(life, 200, 65)
    text = json.dumps({**said, "step": 100, "mark": int(at(60).timestamp())})
    life.pods[POD] = replace(life.pods[POD], phase="Succeeded", exit=Exit(0, at(70), "Completed", text))
    unwritten, plan = life.status, life.step(70)
    if newer and "error" in said:
        assert [each.uid for each in plan.delete] == [first]  # an earlier checkpoint: the status has nothing to say
        return
    assert (plan.delete, plan.next != unwritten) == ((), True)
    assert [each.uid for each in life.step(70).delete] == [first]


def test_the_pod_reads_the_checkpoints_and_can_change_none() -> None:
    life = training()
    save(life, 100, 60)
    made = transfers.upload_pod(life.job, (life.job.spec.outputs or [])[0], life.status, WITH_DATA, STORE)
    volumes = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in made["spec"]["volumes"]}
    assert volumes == {"allranks-data": "allranks-data", "checkpoint": "own"}
    assert made["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "allranks-data", "mountPath": "/outputs", "subPath": f"outputs/{UID}"},
        {"name": "checkpoint", "mountPath": "/checkpoints", "readOnly": True, "subPath": "a"},
    ]


def test_ranks_get_no_other_volume_for_their_checkpoints() -> None:
    life = training()
    [made, _] = pods.objects(life.job, life.status, WITH_DATA).pods
    mounts = [each["name"] for each in made["spec"]["containers"][0]["volumeMounts"]]
    assert (mounts.count("checkpoint"), "allranks-data" in mounts) == (1, False)


def test_a_newer_checkpoint_waits_for_the_upload_before_it_and_those_between_are_left_out() -> None:
    life = training()
    save(life, 100, 60)
    first = life.pods[POD].uid
    save(life, 200, 70)
    save(life, 300, 80)
    assert (state(life), life.pods[POD].uid) == (("Uploading", 300, None), first)
    end(life, 90, 100, 60)
    assert state(life) == ("Uploading", 300, 100)
    assert life.pods[POD].uid != first
    assert request(life)["step"] == 300


def test_an_upload_outlives_a_restart_of_the_ranks() -> None:
    life = training()
    save(life, 100, 60)
    before = life.pods[POD].uid
    life.put(failed(index=0, after=61))
    life.settle(70)
    life.settle(90)
    assert (life.status.attempt, life.pods[POD].uid) == (1, before)
    assert life.status.progress is None or life.status.progress.checkpoint_step is None
    end(life, 95, 100, 60)
    assert state(life) == ("Uploaded", 100, 100)


def test_the_same_step_of_a_later_attempt_is_uploaded_again() -> None:
    life = training()
    save(life, 100, 60)
    end(life, 70, 100, 60)
    save(life, 100, 61)  # the times of reports vary
    assert state(life)[0] == "Uploaded"
    save(life, 100, 300)
    assert state(life)[0] == "Uploading"
    assert request(life)["mark"] == int(at(300).timestamp())


def test_a_checkpoint_that_cannot_be_uploaded_does_not_fail_the_job_and_the_next_one_is_tried() -> None:
    life = training()
    save(life, 100, 60)
    end(life, 70, 100, 60, error="s3://models/penguins/step-100: access is denied")
    assert (life.status.phase, state(life)) == ("Running", ("Failed", 100, None))
    assert life.status.outputs[0].message == "s3://models/penguins/step-100: access is denied"
    assert (life.events.count("CheckpointNotUploaded"), POD in life.pods) == (1, False)
    save(life, 200, 80)
    assert (state(life), life.status.outputs[0].message) == (("Uploading", 200, None), None)
    end(life, 90, 200, 80)
    assert state(life) == ("Uploaded", 200, 200)


def test_an_upload_that_is_tried_again_is_an_event_and_a_message() -> None:
    life = training()
    save(life, 100, 60)
    last = Exit(1, at(61), "Error", json.dumps({"error": "no route", "step": 100, "mark": 1}))
    for restarts in (1, 2):
        pod = replace(life.pods[POD], phase="Running", last_exit=last, container_restarts=restarts)
        life.pods[POD] = pod
        life.settle(70 + restarts)
        assert life.status.outputs[0].message == f"no route; try {restarts + 1} follows"
    assert life.events.count("UploadRetrying") == 1
    assert state(life)[0] == "Uploading"


def test_a_job_succeeds_when_its_last_checkpoint_is_there() -> None:
    life = training(success="All")
    save(life, 100, 60)
    save(life, 200, 70)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    assert (life.status.phase, life.status.outputs[0].start_time) == ("Running", at(100))
    end(life, 110, 100, 60)
    assert (life.status.phase, state(life)) == ("Running", ("Uploading", 200, 100))
    end(life, 120, 200, 70)
    assert (life.status.phase, state(life)) == ("Succeeded", ("Uploaded", 200, 200))
    assert POD not in life.pods


def test_a_job_whose_checkpoints_are_all_uploaded_succeeds_at_once() -> None:
    life = training(success="All")
    save(life, 100, 60)
    end(life, 70, 100, 60)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    assert life.status.phase == "Succeeded"


def test_the_last_checkpoint_is_tried_once_more_and_then_fails_the_job() -> None:
    life = training(success="All")
    save(life, 100, 60)
    end(life, 70, 100, 60, error="access is denied")
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    assert state(life)[0] == "Uploading"
    end(life, 110, 100, 60, error="access is denied")
    condition = life.status.condition("Failed")
    assert condition
    message = "the program completed, but output saved is not uploaded: access is denied"
    assert (condition.reason, condition.message) == ("OutputFailed", message)


def fails(life: Life, now: float, step: int, saved: float) -> None:
    """The pod has failed, and nothing has looked at it yet."""
    said = json.dumps({"error": "access is denied", "step": step, "mark": int(at(saved).timestamp())})
    life.pods[POD] = replace(life.pods[POD], phase="Succeeded", exit=Exit(0, at(now), "Completed", said))


def test_a_failure_that_is_first_observed_together_with_the_completion_is_not_the_last_try() -> None:
    life = training(success="All")
    save(life, 100, 60)
    first = life.pods[POD].uid
    fails(life, 99, 100, 60)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    assert (life.status.phase, state(life)[0]) == ("Running", "Uploading")
    assert life.pods[POD].uid != first
    end(life, 110, 100, 60)
    assert (life.status.phase, state(life)) == ("Succeeded", ("Uploaded", 100, 100))


def test_a_try_that_was_under_way_at_the_completion_is_followed_by_another_one_and_no_third() -> None:
    """Whatever the clocks of nodes show."""
    life = training(success="All")
    save(life, 100, 60)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    first = life.pods[POD].uid
    for now, phase in ((50, "Running"), (20, "Failed")):
        fails(life, now, 100, 60)
        life.settle(200 - now)
        assert life.status.phase == phase
        assert first not in {each.uid for each in life.pods.values()}


def test_an_upload_that_succeeded_before_the_completion_is_not_repeated() -> None:
    life = training(success="All")
    save(life, 100, 60)
    said = json.dumps({"uploaded": {"bytes": 10, "files": 2}, "step": 100, "mark": int(at(60).timestamp())})
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    life.pods[POD] = replace(life.pods[POD], phase="Succeeded", exit=Exit(0, at(99), "Completed", said))
    life.settle(110)
    assert life.status.phase == "Succeeded"


def test_a_local_failure_before_the_completion_is_not_the_last_try() -> None:
    life = training(platform=LOCAL, success="All")
    save(life, 100, 60)
    of_checkpoint = (100, int(at(60).timestamp()))
    life.uploads = {"saved": Upload("Failed", message="access is denied", checkpoint=of_checkpoint)}
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    assert (life.status.phase, state(life)[0]) == ("Running", "Uploading")
    life.uploads = {"saved": Upload("Failed", message="access is denied", checkpoint=of_checkpoint, final=True)}
    life.settle(110)
    assert life.status.phase == "Failed"


def test_the_deadline_applies_when_the_program_has_ended() -> None:
    life = training({"deadlineSeconds": 60}, success="All")
    save(life, 100, 60)
    life.settle(1000)
    assert state(life)[0] == "Uploading"
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(1100)
    assert life.settle(1159).wake_at == at(1160)
    life.settle(1160)
    assert (life.status.phase, state(life), POD in life.pods) == ("Failed", ("Failed", 100, None), False)


def test_a_program_that_reports_no_checkpoint_fails() -> None:
    life = training(success="All")
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    condition = life.status.condition("Failed")
    assert condition
    assert "output saved is not uploaded: the program has reported no checkpoint" in condition.message
    assert POD not in life.pods


def test_the_last_checkpoint_of_a_failed_job_is_uploaded() -> None:
    life = training(restart={"maxRestarts": 0})
    save(life, 100, 60)
    life.put(failed(index=0, after=61))
    life.settle(100)
    assert (life.status.phase, state(life)) == ("Failed", ("Uploading", 100, None))
    assert life.status.outputs[0].start_time == at(100)
    end(life, 110, 100, 60)
    assert (life.status.phase, state(life), POD in life.pods) == ("Failed", ("Uploaded", 100, 100), False)


def test_a_suspended_job_goes_on_with_its_upload() -> None:
    life = training()
    save(life, 100, 60)
    life.job = job(outputs=[SAVED], checkpoint={"claim": "own", "subPath": "a"}, progress={}, suspend=True)
    life.settle(70)
    assert (life.status.phase, list(life.pods)) == ("Suspended", [POD])
    end(life, 80, 100, 60)
    assert (state(life), life.pods) == (("Uploaded", 100, 100), {})


def test_a_broken_image_is_an_error_and_no_endless_loop() -> None:
    life = training()
    save(life, 100, 60)
    pod = replace(life.pods[POD], phase="Succeeded", exit=Exit(0, at(70), "Completed", "Traceback"))
    life.pods[POD] = pod
    life.settle(70)
    assert (state(life), POD in life.pods) == (("Failed", 100, None), False)


def test_a_local_run_reports_its_uploads_in_the_same_way() -> None:
    life = training(platform=LOCAL)
    save(life, 100, 60)
    assert list(life.pods) == ["job-worker-0-0", "job-worker-1-0"]
    first = (100, int(at(60).timestamp()))
    life.uploads = {"saved": Upload("Uploading", checkpoint=first)}
    save(life, 200, 70)
    life.uploads = {"saved": Upload("Uploaded", bytes=1, files=1, checkpoint=first)}
    life.settle(80)
    assert state(life) == ("Uploading", 200, 100)


@pytest.mark.parametrize("volume", ["emptyDir", "ephemeral"])
def test_checkpoints_of_single_pods_are_refused(volume: str) -> None:
    of = job(outputs=[SAVED], checkpoint={"volume": {volume: {}}}, progress={})
    message = "the checkpoints are in a volume that ends with its pod: choose a claim for them"
    assert pods.problems(of) == [("spec.outputs[0].when", message)]
