"""Limits of a cluster: the job shows the cluster's own message, and continues when there is capacity."""

from __future__ import annotations

import json

from .jobs import PREFIX, Team, training

DEADLINE = 90
"""Seconds until a job fails. A busy kubelet took more than 20 to report that an image cannot be pulled."""
GOES_WELL = ("sh", "-c", "exit 0")
MEETS = """
other=quota-worker-$((1 - ALLRANKS_INDEX))-0.quota
until getent hosts "$other"; do sleep 0.2; done
sleep 5 # time for the other rank to find this one
"""


def test_too_few_gpus_are_reported_in_the_schedulers_words(team: Team) -> None:
    job = team.start(training("gpus", *GOES_WELL, resources={"limits": {"nvidia.com/gpu": 800}}))
    team.reports(job, "Insufficient nvidia.com/gpu")
    assert team.status(job)["phase"] == "Pending"


def test_an_image_that_does_not_exist_fails_the_job_after_its_deadline(team: Team) -> None:
    job = team.start(training("image", *GOES_WELL, image=f"{PREFIX}/pytorch:nowhere", startupDeadlineSeconds=DEADLINE))
    team.reports(job, "ErrImagePull")
    team.wait(f"dt/{job}", "--for=condition=Failed")
    [failed] = [condition for condition in team.status(job)["conditions"] if condition["type"] == "Failed"]
    assert "pytorch:nowhere" in failed["message"], failed


def test_the_image_of_an_init_container_that_does_not_exist_fails_the_job_and_is_named(team: Team) -> None:
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}  # as the namespace requires
    fetch = {"name": "fetch", "image": f"{PREFIX}/pytorch:nowhere", "securityContext": restricted}
    template = {"spec": {"initContainers": [fetch]}}
    job = team.start(training("init", *GOES_WELL, template=template, startupDeadlineSeconds=DEADLINE))
    team.reports(job, "init container fetch")
    team.wait(f"dt/{job}", "--for=condition=Failed")
    [failed] = [condition for condition in team.status(job)["conditions"] if condition["type"] == "Failed"]
    assert "init container fetch" in failed["message"], failed


def test_a_volume_that_cannot_be_mounted_fails_the_job_and_is_named(team: Team) -> None:
    mounts = {"name": "trainer", "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
    template = {"spec": {"containers": [mounts], "volumes": [{"name": "keys", "secret": {"secretName": "nowhere"}}]}}
    job = team.start(training("volume", *GOES_WELL, template=template, startupDeadlineSeconds=DEADLINE))
    team.wait(f"dt/{job}", "--for=condition=Failed")
    [failed] = [condition for condition in team.status(job)["conditions"] if condition["type"] == "Failed"]
    assert failed["reason"] == "PodNotReadyToStart", failed
    assert "its volumes and its network" in failed["message"], failed


def test_a_quota_holds_the_job_until_it_is_raised(team: Team) -> None:
    team.kubectl("create", "quota", "few", "--hard=pods=1")
    job = team.start(training("quota", "sh", "-c", MEETS, roles={"worker": {"replicas": 2}}))
    team.reports(job, "exceeded quota: few")
    team.kubectl("patch", "quota", "few", "-p", json.dumps({"spec": {"hard": {"pods": "2"}}}))
    team.completes(job)
