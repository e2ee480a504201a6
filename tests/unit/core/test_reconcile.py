"""Reconcile: start, ownership, purity and events.

`Life` also asserts for every plan: it does not depend on the order of the pods, and a write-ahead plan creates and
deletes nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from allranks.api.status import Status
from allranks.core.beginning import SMALL_JOB_PODS
from allranks.core.facts.model import Event, Observed, Plan, RejectedCreate
from allranks.core.objects import pods
from allranks.core.reconcile import reconcile
from allranks.fields import decode, encode
from support.builders import (
    CLUSTER,
    NOW,
    Life,
    at,
    failed,
    job,
    observed,
    pending,
    pod,
    preempted,
    started,
    succeeded,
    table,
)

from .reconcile_helpers import ALL, GROUP, PS_JOB, condition, names

# --- start ------------------------------------------------------------------------------------------------------------


LARGE = {"roles": {"master": 1, "worker": SMALL_JOB_PODS}}


def test_a_large_job_first_writes_its_status():
    life = Life(job(**LARGE))
    plan = life.step(0)
    assert (plan.write_ahead, plan.create, plan.delete) == (True, (), ())
    assert life.status.phase == "Pending"
    assert (life.status.attempt, life.status.start_time, life.status.attempt_time) == (0, NOW, NOW)


def test_a_small_job_begins_with_its_pods():
    life = Life(job(**GROUP))
    plan = life.step(0)
    assert not plan.write_ahead
    assert (life.status.attempt, life.status.start_time, life.status.attempt_time) == (0, NOW, NOW)
    everything = pods.objects(life.job, life.status, CLUSTER)
    assert plan.create == (*everything.companions, *everything.pods)
    assert names(plan) == ["Service job", *(f"Pod {name}" for name in ALL)]


def test_a_small_job_whose_first_status_was_lost_continues_with_its_pods():
    life = Life(job(**GROUP))
    life.step(0)
    life.status = Status()
    assert life.step(1).create == ()
    assert (life.status.attempt, life.status.launched) == (0, True)


def test_pods_of_an_older_spec_before_the_first_status_are_not_adopted():
    """They may be configured for another size."""
    life = Life(job(**GROUP))
    life.step(0)
    life.status = Status()
    life.job = job(generation=2, roles={"master": 1, "worker": 1})
    assert life.step(1).write_ahead
    assert life.status.attempt == 1
    plan = life.step(2)
    assert [gone.name for gone in plan.delete] == ALL
    assert names(plan) == ["Service job", "Pod job-master-0-1", "Pod job-worker-0-1"]


def test_all_pods_of_an_attempt_are_created_together_after_what_they_need():
    life = Life(job(**LARGE))
    life.step(0)
    plan = life.step(1)
    everything = pods.objects(life.job, life.status, CLUSTER)
    assert plan.create == (*everything.companions, *everything.pods)


def test_running_is_when_every_replica_runs():
    life = Life(job(**GROUP))
    life.settle(0)
    assert (life.status.phase, life.status.ready) == ("Pending", "0/3")
    life.put(pod("master"), pod("worker", 0))
    life.settle(5)
    assert (life.status.phase, life.status.ready) == ("Pending", "2/3")
    assert condition(life, "Running") == ("False", "PodsPending", "2 of 3 pods run")
    life.put(pod("worker", 1))
    life.settle(9)
    assert (life.status.phase, life.status.ready, life.status.running_time) == ("Running", "3/3", at(9))
    assert condition(life, "Running") == ("True", "AllRanksRunning", "all 3 pods run")


def test_a_pod_that_was_not_created_is_created_alone():
    """The operator was killed after some of the writes: existing pods stay, missing ones are created."""
    life = Life(job(**GROUP))
    life.settle(0)
    del life.pods["job-worker-0-0"]
    life.status = replace(life.status, launched=False)
    assert names(life.step(1)) == ["Service job", "Pod job-worker-0-0"]


def test_a_job_without_changes_is_settled():
    life = started(job(**GROUP))
    assert life.step(100) == Plan()
    assert life.step(100_000) == Plan()


# Sentence, pod, rejections, (reason, message) of condition Running.
NOT_RUNNING = [
    (
        "a pod that cannot be scheduled has the scheduler's message",
        pending(index=1, waiting_reason="Unschedulable", waiting_message="0/3 nodes are available"),
        [],
        ("Unschedulable", "job-worker-1-0: 0/3 nodes are available"),
    ),
    (
        "an image that cannot be pulled has kubelet's message",
        pending(index=1, waiting_reason="ImagePullBackOff", waiting_message='Back-off pulling image "me/train:1"'),
        [],
        ("ImagePullBackOff", 'job-worker-1-0: Back-off pulling image "me/train:1"'),
    ),
    (
        "a pod that quota rejects has the API server's message",
        pending(index=1),
        [RejectedCreate("Pod", "job-worker-1-0", "Forbidden", "exceeded quota: gpus")],
        ("Forbidden", "Pod job-worker-1-0: exceeded quota: gpus"),
    ),
    (
        "a name conflict with another owner's object is reported",
        pending(index=1),
        [RejectedCreate("Service", "job", "NameTaken", "a Service of that name belongs to somebody else")],
        ("NameTaken", "Service job: a Service of that name belongs to somebody else"),
    ),
]


@table(*NOT_RUNNING)
def test_what_keeps_a_job_from_running_is_reported_in_its_condition(case):
    waiting, refused, reported = case
    life = Life(job(**GROUP))
    life.settle(0)
    life.put(pod("master"), pod("worker", 0), waiting)
    plan = reconcile(replace(life.look(5), refused=tuple(refused)))
    assert plan.next is not None
    found = plan.next.condition("Running")
    assert found is not None
    assert (plan.next.phase, found.status, found.reason, found.message) == ("Pending", "False", *reported)


def test_a_pod_that_the_api_server_refuses_is_an_event_once():
    life = Life(job(**GROUP))
    life.settle(0)
    refused = (RejectedCreate("Pod", "job-worker-1-0", "Forbidden", "exceeded quota: gpus"),)
    plan = reconcile(replace(life.look(5), refused=refused))
    event = Event("Forbidden", "Pod job-worker-1-0: exceeded quota: gpus", warning=True)
    assert (plan.next is not None, plan.events) == (True, (event,))
    life.status = plan.next or life.status
    assert reconcile(replace(life.look(9), refused=refused)).events == ()


@table(
    ("while they end", {}, 70, 91, "; 2 pods of attempt 0 end until 10:01:31 UTC and hold 8 GPUs"),
    ("when their time is over", {}, 100, None, ""),
    (
        "for their own grace period",
        {"graceSeconds": 600},
        70,
        661,
        "; 2 pods of attempt 0 end until 10:11:01 UTC and hold 8 GPUs",
    ),
)
def test_the_condition_says_which_pods_of_older_attempts_still_hold_gpus(case):
    restart, now, until, words = case
    template = {"spec": {"terminationGracePeriodSeconds": 600}}
    resources = {"limits": {"nvidia.com/gpu": 4}}
    life = started(job(roles={"worker": 2}, resources=resources, template=template, restart=restart))
    life.run(1)
    life.put(failed("worker", 1, message="ValueError: no data"))
    life.settle(61)
    for index in (0, 1):
        left = pod("worker", index, deleted_at=at(61))
        life.pods[left.name] = left
    unscheduled = {"waiting_reason": "Unschedulable", "waiting_message": "0/3 nodes are available"}
    life.put(pending(index=0, attempt=1, **unscheduled), pending(index=1, attempt=1, **unscheduled))
    plan = life.settle(now)
    running = life.status.condition("Running")
    assert running is not None
    assert running.message == f"job-worker-0-1: 0/3 nodes are available{words}"
    assert plan.wake_at == (at(until) if until else None)


def test_the_condition_running_of_a_failed_job_says_nothing_of_the_time_before():
    life = started(job(restart={"maxRestarts": 0}, roles={"worker": 2}))
    life.put(pending(index=1, waiting_reason="Unschedulable", waiting_message="0/3 nodes are available"))
    life.settle(5)
    running = life.status.condition("Running")
    assert running is not None
    assert "0/3 nodes are available" in running.message
    life.put(failed("worker", 0, message="ValueError: no data"))
    life.settle(61)
    running = life.status.condition("Running")
    assert running is not None
    assert (life.status.phase, running.status, running.reason, running.message) == (
        "Failed",
        "False",
        "MaxRestartsExceeded",
        "",
    )


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ImageInspectError", "PostStartHookError", "DeviceOnFire"])
def test_an_image_that_cannot_be_pulled_fails_the_job_after_the_startup_deadline(reason):
    life = Life(job(startupDeadlineSeconds=60))
    life.settle(0)
    life.put(pod(), pending(index=1, waiting_reason=reason, waiting_message="no such image"))
    assert life.settle(5).wake_at == at(60)
    life.settle(59.9)
    assert life.status.phase == "Pending"
    life.step(60)
    assert life.status.phase == "Failed"
    assert condition(life, "Failed") == ("True", reason, "job-worker-1-0: no such image")


def test_an_unschedulable_pod_does_not_fail_the_job():
    life = Life(job(startupDeadlineSeconds=60))
    life.settle(0)
    life.put(pod(), pending(index=1, waiting_reason="Unschedulable", waiting_message="0/3 nodes"))
    assert life.settle(5).wake_at is None
    life.settle(50_000)
    assert life.status.phase == "Pending"


def test_a_parameter_server_replaced_before_the_job_ever_ran_has_its_own_time_to_start():
    life = Life(job(**PS_JOB))
    life.settle(0)
    life.put(*(pod(role, index) for role, index in (("chief", 0), ("ps", 0), ("ps", 1))))
    life.put(failed("ps", 1, after=7200, code=137))
    life.settle(7201)
    again = pending("ps", 1, restart=1, waiting_reason="ErrImagePull", waiting_message="timeout")
    life.put(again)
    life.settle(7210)
    assert life.status.phase == "Pending"
    life.settle(7801)
    assert life.status.phase == "Failed"


def test_a_registry_that_is_away_does_not_end_a_job_that_ran_before():
    life = started(job(**PS_JOB))
    life.put(failed("ps", 1, after=7200, code=137))
    life.settle(7201)
    away = {"waiting_reason": "ErrImagePull", "waiting_message": "registry answered 503"}
    life.put(pending("ps", 1, restart=1, **away))
    life.events.clear()
    life.settle(7210)
    life.settle(90_000)
    named = "3 of 4 pods run; job-ps-1-0-1: registry answered 503"
    assert (life.status.phase, condition(life, "Running")) == ("Running", ("True", "ErrImagePull", named))
    life.put(pending("ps", 1, restart=1, **away | {"waiting_reason": "ImagePullBackOff"}))
    life.settle(90_001)
    assert life.events == ["ErrImagePull"]
    life.put(pod("ps", 1, restart=1))
    life.settle(90_010)
    assert condition(life, "Running") == ("True", "AllRanksRunning", "all 4 pods run")


def test_a_group_restart_of_a_job_that_ran_waits_for_its_images():
    life = started(job(startupDeadlineSeconds=60))
    life.put(failed("worker", 1, after=100))
    life.settle(101)
    away = {"waiting_reason": "ImagePullBackOff", "waiting_message": "503"}
    life.put(pod(attempt=1), pending(index=1, attempt=1, **away))
    life.settle(120)
    assert life.events[-1] == "ImagePullBackOff"
    life.settle(50_000)
    assert condition(life, "Running") == ("False", "ImagePullBackOff", "job-worker-1-1: 503")


def test_the_condition_names_a_pod_that_does_not_start_for_a_minute_and_what_it_waits_for():
    life = Life(job())
    life.settle(0)
    fetches = {"waiting_reason": "PodInitializing", "waiting_for": "init container fetch", "placed_at": at(5)}
    life.put(pod(), pending(index=1, **fetches))
    assert life.settle(10).wake_at == at(65)
    assert condition(life, "Running") == ("False", "PodsPending", "1 of 2 pods run")
    assert life.settle(65).wake_at is None
    waits = "job-worker-1-0: waits for init container fetch: PodInitializing since 2026-03-04T10:00:05Z"
    assert condition(life, "Running") == ("False", "PodInitializing", waits)
    life.settle(1_000_000)
    assert (life.status.phase, condition(life, "Running")) == ("Pending", ("False", "PodInitializing", waits))


def test_volumes_that_cannot_be_mounted_fail_the_job_after_the_startup_deadline():
    life = Life(job())
    life.settle(0)
    volumes = {"waiting_reason": "ContainerCreating", "waiting_for": "its volumes and its network", "unprepared": True}
    life.put(pod(), pending(index=1, placed_at=at(5), **volumes))
    life.settle(65)
    waits = "job-worker-1-0: waits for its volumes and its network: ContainerCreating since 2026-03-04T10:00:05Z"
    waits += "; kubectl describe pod shows why"
    assert condition(life, "Running") == ("False", "PodNotReadyToStart", waits)
    life.settle(605)
    assert condition(life, "Failed") == ("True", "PodNotReadyToStart", waits)
    assert life.status.last_failure
    assert life.status.last_failure.reason == "PodNotReadyToStart"


def test_an_error_that_no_schema_detects_fails_the_job_with_its_path():
    of = job(template={"spec": {"restartPolicy": "Always"}})
    life = Life(of)
    life.settle(0)
    assert condition(life, "Failed") == (
        "True",
        "InvalidSpec",
        "spec.template.spec.restartPolicy: must be Never or OnFailure: with Always a finished rank would run again",
    )
    assert life.pods == {}


# --- ownership --------------------------------------------------------------------------------------------------------


def test_labels_adopt_nothing():
    """A pod with the computed name and labels but another owner is neither counted nor deleted."""
    life = Life(job(**GROUP))
    foreign = replace(pod("master"), owned=False)
    plan = reconcile(observed(life.job, life.status, [foreign]))
    assert f"Pod {foreign.name}" in names(plan), "its creation is rejected, and the job reports it"
    assert plan.delete == ()
    assert plan.next is not None
    assert plan.next.ready == "0/3"


def test_an_owned_pod_is_identified_by_its_name_not_by_its_labels():
    life = started(job(**GROUP))
    life.put(replace(pod("worker", 0), role="master", index=7))
    assert life.settle(10) == Plan()


def test_a_job_that_another_controller_manages_is_left_alone():
    assert Life(job(managedBy="kueue.x-k8s.io/multikueue")).step(0) == Plan()


def test_a_job_with_managedBy_of_this_operator_is_managed():
    assert Life(job(managedBy="allranks.dev/operator")).step(0) != Plan()


def test_a_job_that_is_being_deleted_is_left_to_the_cascade():
    life = started(job(**GROUP))
    life.job = job(**GROUP, deletion_timestamp=at(5))
    life.put(failed("master", after=6))
    assert life.step(7) == Plan()


# --- pure -------------------------------------------------------------------------------------------------------------


def _observations() -> list[tuple[str, Observed]]:
    """One observation of each kind."""
    out: list[tuple[str, Observed]] = []

    def keep(name: str, life: Life, now: float) -> None:
        out.append((name, life.look(now)))

    life = Life(job(**GROUP))
    keep("nothing yet", life, 0)
    life.step(0)
    keep("begun", life, 0)
    life.settle(0)
    keep("created", life, 1)
    life.run(2)
    keep("running", life, 3)
    life.put(failed("worker", 1), failed("master"), preempted("worker", 0))
    keep("failed", life, 61)
    life.step(61)
    keep("restarting", life, 61)
    life.settle(61)
    life.run(62)
    life.put(succeeded("master", attempt=1, after=90))
    keep("succeeded", life, 91)
    life.step(91)
    keep("cleaning up", life, 120)
    return out


@pytest.mark.parametrize("case", _observations(), ids=lambda case: case[0])
def test_the_same_observation_gives_the_same_plan_and_is_not_modified(case):
    _, look = case
    before = (look.job.model_dump(), asdict(look.persisted), look.pods)
    assert reconcile(look) == reconcile(look)
    assert (look.job.model_dump(), asdict(look.persisted), look.pods) == before


def test_a_new_operator_continues_from_the_persisted_status():
    """A second operator, which has the status only as JSON, makes the same plan."""
    life = started(job(**GROUP))
    life.put(failed("worker", 1))
    life.step(61)
    stored = decode(Status, json.loads(json.dumps(encode(life.status))))
    assert stored == life.status
    assert reconcile(replace(life.look(62), persisted=stored)) == reconcile(life.look(62))


def test_a_restart_emits_two_events_and_the_failure_is_a_warning():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, code=139))
    failure = "worker-1 failed with exit code 139, the code of SIGSEGV (Error)"
    why = "the program was ended by a signal, or asked to be run again"
    assert life.step(61).events == (Event("RankFailed", f"{failure}: {why}", warning=True), Event("Restarting", why))


def test_failures_are_warning_events_and_successes_are_not():
    life = started(job(**GROUP))
    life.put(succeeded("master"))
    assert life.step(61).events == (Event("Succeeded", "training completed"),)
    late = started(job(**GROUP, activeDeadlineSeconds=10))
    over = "not done within activeDeadlineSeconds (10)"
    assert late.step(10).events == (Event("DeadlineExceeded", over, warning=True),)
    wrong = Life(job(template={"spec": {"restartPolicy": "Always"}}))
    (event,) = wrong.step(0).events
    assert (event.reason, event.warning) == ("InvalidSpec", True)
    stuck = Life(job(startupDeadlineSeconds=1))
    stuck.settle(0)
    stuck.put(pending(index=1, waiting_reason="InvalidImageName", waiting_message="no: such: name"))
    assert stuck.step(2).events == (Event("InvalidImageName", "job-worker-1-0: no: such: name", warning=True),)


@pytest.mark.parametrize(
    "fields",
    [GROUP, PS_JOB, {"framework": "horovod", "roles": {"worker": 3}}],
    ids=["pytorch", "tensorflow", "horovod"],
)
def test_a_running_job_of_each_framework_is_settled(fields):
    assert started(job(**fields)).step(1000) == Plan()
