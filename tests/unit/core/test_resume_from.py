"""`resumeFrom`: where the checkpoints of the other job are, what is refused, and what the pods get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.job import Checkpoint
from allranks.api.status import Status
from allranks.api.validation import InvalidManifest, parse
from allranks.core.facts import resume_source
from allranks.core.facts.model import Observed
from allranks.core.facts.resume_source import ResumeSource
from allranks.core.facts.status_update import changed
from allranks.core.objects import pods
from allranks.core.reconcile import reconcile
from support.builders import CLUSTER, NOW, at, job, manifest, table

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
    status = changed(reconcile(observed).next, first_running_time=at(5))
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
