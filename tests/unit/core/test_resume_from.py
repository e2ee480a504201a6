"""`resumeFrom`: where the checkpoints of the other job are, what is refused, and what the pods get."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.data import InputStatus
from allranks.api.job import Checkpoint
from allranks.api.status import Status
from allranks.api.validation import InvalidManifest, parse
from allranks.cache_key import cache_key
from allranks.core.facts import resume_source
from allranks.core.facts.data_store import DataStore
from allranks.core.facts.model import Observed
from allranks.core.facts.resume_source import ResumeSource
from allranks.core.objects import pods
from allranks.core.reconcile import reconcile
from support.builders import CLUSTER, NOW, Life, at, failed, job, manifest, table
from unit.core.test_transfers import end

SOURCE = "/allranks-resume-from"
OWN = {"claim": "checkpoints", "subPath": "second"}


def source(phase: str = "Succeeded", **checkpoint: Any) -> ResumeSource:
    return ResumeSource(phase, Checkpoint.model_validate(checkpoint, by_alias=True, by_name=False))


@table(
    ("a claim", source(claim="checkpoints", subPath="first"), "claim://checkpoints/first"),
    ("another claim", source(claim="others"), "claim://others/"),
    ("a suspended job", source("Suspended", claim="others", subPath="a/b"), "claim://others/a/b"),
)
def test_the_checkpoints_are_found(case: Any):
    given, address = case
    assert resume_source.locate(job(checkpoint=OWN, resumeFrom="first"), given) == (address, [])


@table(
    ("an unknown job", None, "spec.resumeFrom", "there is no DistributedTraining first in namespace team"),
    ("no checkpoints", ResumeSource("Succeeded"), "spec.resumeFrom", "first has no checkpoints: it does not set"),
    ("a running job", source("Running", claim="others"), "spec.resumeFrom", "first is Running and may be writing"),
    ("the same folder", source(claim="checkpoints", subPath="./second/"), "spec.checkpoint.subPath", "overlaps"),
    ("a folder around it", source(claim="checkpoints"), "spec.checkpoint.subPath", "overlaps the folder of first"),
    ("a folder inside", source(claim="checkpoints", subPath="second/x"), "spec.checkpoint.subPath", "overlaps"),
    ("a volume of a pod", source(volume={"emptyDir": {}}), "spec.resumeFrom", "are gone: a volume of type emptyDir"),
    ("another volume", source(volume={"nfs": {"server": "a", "path": "/"}}), "spec.resumeFrom", "does not have"),
    ("a long path", source(claim="c", subPath="x" * 600), "spec.resumeFrom", "more than 512 characters"),
)
def test_what_cannot_work_is_refused_with_the_path_of_the_field(case: Any):
    given, field, message = case
    address, [problem] = resume_source.locate(job(checkpoint=OWN, resumeFrom="first"), given)
    assert (address, problem[0]) == ("", field)
    assert message in problem[1]


def test_a_step_of_a_running_job_can_be_named():
    wanted = job(checkpoint=OWN, resumeFrom="first/500")
    assert resume_source.locate(wanted, source("Running", claim="others"))[1] == []


def test_the_same_volume_has_another_folder():
    nfs = {"nfs": {"server": "a", "path": "/"}}
    wanted = job(checkpoint={"volume": nfs, "subPath": "second"}, resumeFrom="first")
    assert resume_source.locate(wanted, source(volume=nfs, subPath="first")) == ("volume:///first", [])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resumeFrom": "first"}, "needs checkpoint"),
        ({"resumeFrom": "First/x", "checkpoint": OWN}, "spec.resumeFrom"),
    ],
)
def test_the_schema_refuses_it(fields: dict[str, Any], message: str):
    with pytest.raises(InvalidManifest, match=message):
        parse(manifest(**fields))


def test_a_job_cannot_start_from_itself():
    assert ("spec.resumeFrom", "names this job") in [
        (path, text[:14]) for path, text in pods.problems(job(checkpoint=OWN, resumeFrom="job/5"))
    ]


def begun(**observed: Any) -> Any:
    wanted = job(checkpoint=OWN, resumeFrom="first/500", roles={"worker": 2}, generation=1)
    return Observed(wanted, Status(), (), NOW, CLUSTER, **observed)


def test_the_address_is_written_before_the_pods_are_created():
    observed = begun(resume_source=source(claim="others", subPath="first"))
    plan = reconcile(observed)
    assert plan.write_ahead
    assert plan.next is not None
    assert plan.next.resumed_from == "claim://others/first"
    later = reconcile(replace(observed, persisted=plan.next, resume_source=None, now=at(1)))
    pod = next(each for each in later.create if each["kind"] == "Pod")
    [init] = [each for each in pod["spec"]["initContainers"] if each["name"] == "allranks-resume"]
    arguments = ["/allranks-resume-from", "/checkpoints", "--name", "first/500", "--step", "500", "--copier", "1"]
    assert init["command"][2:] == arguments
    mounts = {mount["mountPath"]: mount for mount in init["volumeMounts"]}
    assert mounts["/allranks-resume-from"] == {
        "name": "allranks-resume",
        "mountPath": "/allranks-resume-from",
        "readOnly": True,
        "subPath": "first",
    }
    assert mounts["/checkpoints"]["subPath"] == "second"
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["allranks-resume"]["persistentVolumeClaim"] == {"claimName": "others"}
    assert "allranks-resume" not in {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}


def test_pods_that_are_replaced_after_all_ran_need_no_copy():
    observed = begun(resume_source=source(claim="others"))
    status = replace(reconcile(observed).next, first_running_time=at(5))
    later = reconcile(replace(observed, persisted=status, now=at(6)))
    pod = next(each for each in later.create if each["kind"] == "Pod")
    assert all(each["name"] != "allranks-resume" for each in pod["spec"].get("initContainers", ()))


def test_a_job_whose_source_does_not_exist_fails():
    plan = reconcile(begun())
    assert plan.next is not None
    assert plan.next.phase == "Failed"
    condition = plan.next.condition("Failed")
    assert condition is not None
    assert condition.reason == "InvalidSpec"
    assert condition.message == "spec.resumeFrom: there is no DistributedTraining first in namespace team"


ADDRESS = "s3://models/run"
UPLOADED = {"name": "saved", "path": "/checkpoints", "to": f"{ADDRESS}/", "when": "Checkpoint", "secret": "aws"}
REVISION = "step-5:list:1"


def at_address(claim: str = "allranks-data", **fields: Any) -> Life:
    """A job whose starting point is in an object store, before anything is fetched."""
    spec = {"checkpoint": OWN, "resumeFrom": ADDRESS, "progress": {}, **fields}
    data = DataStore(claim, "allranks/data:1", 10**9)
    life = Life(job(**spec), platform=replace(CLUSTER, data=data))
    life.settle(0)
    return life


def fetched(life: Life) -> list[dict[str, Any]]:
    """The init containers of a pod, after the starting point was fetched, or found."""
    found = {"revision": REVISION, "bytes": 7}
    claim = life.platform.data is not None and life.platform.data.claim
    more = {"sha256": "ab" * 32, "cached": False} if claim else {}
    end(life, "job-fetch-resume-from", {"fetched": {**found, **more}})
    life.settle(60)
    pod = pods.objects(life.job, life.status, life.platform).pods[0]
    return pod["spec"].get("initContainers", [])


def fetch_request(container: dict[str, Any]) -> dict[str, Any]:
    return json.loads(container["env"][0]["value"])


def test_an_address_is_fetched_as_an_input_and_copied_before_the_ranks_start():
    life = at_address(outputs=[UPLOADED])
    [fetch] = reconcile(replace(life.look(0), pods=())).create[:1]
    [container] = fetch["spec"]["containers"]
    wanted = {"act": "fetch", "uri": ADDRESS, "newest": True, "may_be_empty": True}
    assert wanted.items() <= fetch_request(container).items()
    assert container["envFrom"] == [{"secretRef": {"name": "aws"}}]
    assert life.status.resumed_from == ADDRESS
    end(life, "job-check-saved", {"checked": ""})
    init = {each["name"]: each for each in fetched(life)}
    assert [each.revision for each in life.status.inputs] == [REVISION]
    copy = init["allranks-resume"]
    assert copy["command"][2:] == [SOURCE, "/checkpoints", "--name", ADDRESS, "--may-be-empty", "--copier", "1"]
    [mount] = [mount for mount in copy["volumeMounts"] if mount["mountPath"] == SOURCE]
    below = f"inputs/{cache_key(ADDRESS, REVISION)}/files"
    assert mount == {"name": "allranks-data", "mountPath": SOURCE, "readOnly": True, "subPath": below}
    [pod, _] = pods.objects(life.job, life.status, life.platform).pods
    assert {"allranks-data"} <= {volume["name"] for volume in pod["spec"]["volumes"]}
    assert SOURCE not in {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    ran = replace(life.status, first_running_time=at(70))
    again = pods.objects(life.job, ran, life.platform).pods[0]["spec"].get("initContainers", [])
    assert "allranks-resume" not in {each["name"] for each in again}


def test_the_address_of_others_must_have_a_checkpoint_and_has_a_secret_of_its_own():
    other = {**UPLOADED, "to": "s3://models/mine"}
    life = at_address(outputs=[other], checkpoint={**OWN, "secret": "theirs"})
    fetch = reconcile(replace(life.look(0), pods=())).create[0]["spec"]["containers"][0]
    assert fetch_request(fetch)["may_be_empty"] is False
    assert fetch["envFrom"] == [{"secretRef": {"name": "theirs"}}]


def test_without_a_claim_each_pod_fetches_the_checkpoint_that_was_found():
    life = at_address(claim="")
    fetch, copy = (each for each in fetched(life) if each["name"] != "allranks-helper")
    wanted = {"act": "fetch-for-ranks", "uri": ADDRESS, "revision": REVISION, "newest": True}
    assert wanted.items() <= fetch_request(fetch).items()
    [mount] = [mount for mount in copy["volumeMounts"] if mount["mountPath"] == SOURCE]
    assert mount["name"] == fetch["volumeMounts"][0]["name"]
    assert mount["subPath"] == f"{cache_key(ADDRESS, REVISION)}/files"


def test_a_starting_point_that_cannot_be_fetched_fails_the_job_with_its_field():
    life = at_address()
    end(life, "job-fetch-resume-from", {"error": f"{ADDRESS}: there is no such object, and none below it"})
    life.settle(60)
    failed = life.status.condition("Failed")
    assert failed is not None
    assert (failed.reason, failed.message) == (
        "InputFailed",
        f"spec.resumeFrom: {ADDRESS}: there is no such object, and none below it",
    )


def test_a_cluster_that_fetches_nothing_refuses_an_address():
    life = Life(job(checkpoint=OWN, resumeFrom=ADDRESS), platform=CLUSTER)
    life.settle(0)
    failed = life.status.condition("Failed")
    assert failed is not None
    assert failed.message.startswith("spec.resumeFrom: a pod fetches s3:// before the ranks start, and this cluster")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resumeFrom": "s3://key:secret@b/p", "checkpoint": OWN}, "must not contain credentials"),
        ({"resumeFrom": "s3://b/../p", "checkpoint": OWN}, r"must not have \. or \.\. as a part"),
        ({"resumeFrom": "ftp://b/p", "checkpoint": OWN}, "spec.resumeFrom"),
        ({"resumeFrom": "s3://b/p"}, "needs checkpoint"),
    ],
)
def test_the_schema_refuses_addresses_that_cannot_work(fields: dict[str, Any], message: str):
    with pytest.raises(InvalidManifest, match=message):
        parse(manifest(**fields))


def test_an_input_may_not_have_the_name_of_the_starting_point():
    source = {"name": "resume-from", "from": "s3://b/p", "path": "/data"}
    problem = ("spec.inputs[0].name", "an input has the name resume-from as well: choose another one")
    assert problem in pods.problems(job(checkpoint=OWN, resumeFrom=ADDRESS, inputs=[source]))
    assert pods.problems(job(checkpoint=OWN, resumeFrom="first", inputs=[source])) == []


def test_volumes_that_end_with_their_pods_are_filled_in_every_attempt_from_the_newest_checkpoint():
    life = at_address(checkpoint={"volume": {"emptyDir": {}}})
    assert "allranks-resume" in {each["name"] for each in fetched(life)}
    life.run(61)
    life.put(failed(index=0))
    life.settle(100)
    life.settle(200)
    assert (life.status.attempt, life.status.inputs) == (1, [InputStatus(name="resume-from", state="Fetching")])
    assert "job-worker-0-1" not in life.pods
    newer = {"revision": "step-10:list:2", "sha256": "cd" * 32, "bytes": 8, "cached": False}
    end(life, "job-fetch-resume-from", {"fetched": newer}, after=210)
    life.settle(260)
    assert "job-worker-0-1" in life.pods
    [pod, _] = pods.objects(life.job, life.status, life.platform).pods
    copy = next(each for each in pod["spec"]["initContainers"] if each["name"] == "allranks-resume")
    below = f"inputs/{cache_key(ADDRESS, 'step-10:list:2')}/files"
    assert below in {mount.get("subPath") for mount in copy["volumeMounts"]}


def test_a_volume_that_all_pods_share_keeps_the_checkpoints_of_the_job_itself():
    life = at_address()
    fetched(life)
    life.run(61)
    life.put(failed(index=0))
    life.settle(100)
    life.settle(200)
    assert "job-worker-0-1" in life.pods
    assert [state.revision for state in life.status.inputs] == [REVISION]
