"""How a job lives, step by step: what is observed, what is decided, what is written before anything is done.

`Life` also asserts of every plan here: it does not depend on the order of the pods, and one that is written ahead
creates and deletes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from allranks.api.status import Failure, RestartCounts, Status
from allranks.core.manifests import pods
from allranks.core.model import Disruption, Event, Exit, Observed, Plan, PodRef, RejectedCreate
from allranks.core.reconcile import CLEANUP_GRACE, SMALL, reconcile
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

GROUP = {"roles": {"master": 1, "worker": 2}}
PS_JOB = {"framework": "tensorflow", "roles": {"chief": 1, "worker": 1, "ps": 2}}
ALL = ["job-master-0-0", "job-worker-0-0", "job-worker-1-0"]


def names(plan: Plan) -> list[str]:
    return [f"{made['kind']} {made['metadata']['name']}" for made in plan.create]


def condition(life: Life, kind: str) -> tuple[str, str, str]:
    found = life.status.condition(kind)
    assert found is not None
    return found.status, found.reason, found.message


# --- start -----------------------------------------------------------------------------------------------------------


LARGE = {"roles": {"master": 1, "worker": SMALL}}


def test_a_large_job_first_writes_down_that_an_attempt_begins():
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


def test_a_small_job_whose_first_status_was_lost_goes_on_with_its_pods():
    life = Life(job(**GROUP))
    life.step(0)
    life.status = Status()
    assert life.step(1).create == ()
    assert (life.status.attempt, life.status.launched) == (0, True)


def test_pods_of_a_spec_that_was_changed_before_the_first_status_are_not_taken_for_its_own():
    """They may be wired for another size."""
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
    """The operator was killed after some of the writes: what is there stays, what is missing is made."""
    life = Life(job(**GROUP))
    life.settle(0)
    del life.pods["job-worker-0-0"]
    life.status = life.status.model_copy(update={"launched": False})
    assert names(life.step(1)) == ["Service job", "Pod job-worker-0-0"]


def test_a_job_that_was_told_nothing_new_is_settled():
    life = started(job(**GROUP))
    assert life.step(100) == Plan()
    assert life.step(100_000) == Plan()


# Sentence, pod, refusals, (reason, message) of condition Running.
NOT_RUNNING = [
    (
        "a pod that cannot be scheduled is told with the scheduler's words",
        pending(index=1, waiting_reason="Unschedulable", waiting_message="0/3 nodes are available"),
        [],
        ("Unschedulable", "job-worker-1-0: 0/3 nodes are available"),
    ),
    (
        "an image that cannot be pulled is told with kubelet's words",
        pending(index=1, waiting_reason="ImagePullBackOff", waiting_message='Back-off pulling image "me/train:1"'),
        [],
        ("ImagePullBackOff", 'job-worker-1-0: Back-off pulling image "me/train:1"'),
    ),
    (
        "a pod that quota refuses is told with the API server's words",
        pending(index=1),
        [RejectedCreate("Pod", "job-worker-1-0", "Forbidden", "exceeded quota: gpus")],
        ("Forbidden", "Pod job-worker-1-0: exceeded quota: gpus"),
    ),
    (
        "an object of the wanted name that is not ours is told",
        pending(index=1),
        [RejectedCreate("Service", "job", "NameTaken", "a Service of that name belongs to somebody else")],
        ("NameTaken", "Service job: a Service of that name belongs to somebody else"),
    ),
]


@table(*NOT_RUNNING)
def test_what_keeps_a_job_from_running_is_told_in_its_condition(case):
    seen, refused, told = case
    life = Life(job(**GROUP))
    life.settle(0)
    life.put(pod("master"), pod("worker", 0), seen)
    plan = reconcile(replace(life.look(5), refused=tuple(refused)))
    assert plan.status is not None
    found = plan.status.condition("Running")
    assert found is not None
    assert (plan.status.phase, found.status, found.reason, found.message) == ("Pending", "False", *told)


def test_an_image_that_cannot_be_pulled_fails_the_job_after_the_startup_deadline():
    life = Life(job(startupDeadlineSeconds=60))
    life.settle(0)
    life.put(pod(), pending(index=1, waiting_reason="ImagePullBackOff", waiting_message="no such image"))
    assert life.settle(5).wake_at == at(60)
    life.settle(59.9)
    assert life.status.phase == "Pending"
    life.step(60)
    assert life.status.phase == "Failed"
    assert condition(life, "Failed") == ("True", "ImagePullBackOff", "job-worker-1-0: no such image")


def test_a_pod_that_waits_for_a_node_is_waited_for():
    life = Life(job(startupDeadlineSeconds=60))
    life.settle(0)
    life.put(pod(), pending(index=1, waiting_reason="Unschedulable", waiting_message="0/3 nodes"))
    assert life.settle(5).wake_at is None
    life.settle(50_000)
    assert life.status.phase == "Pending"


def test_a_parameter_server_replaced_after_hours_has_its_own_time_to_start():
    life = started(job(**PS_JOB))
    life.put(failed("ps", 1, after=7200, code=137))
    life.settle(7201)
    again = pending("ps", 1, restart=1, waiting_reason="ErrImagePull", waiting_message="timeout")
    life.put(again)
    life.settle(7210)
    assert life.status.phase == "Running"
    life.settle(7801)
    assert life.status.phase == "Failed"


def test_what_no_schema_sees_fails_the_job_with_its_path():
    of = job(template={"spec": {"restartPolicy": "Always"}})
    life = Life(of)
    life.settle(0)
    assert condition(life, "Failed") == (
        "True",
        "InvalidSpec",
        "spec.template.spec.restartPolicy: must be Never or OnFailure: with Always a finished rank would run again",
    )
    assert life.pods == {}


# --- ownership -------------------------------------------------------------------------------------------------------


def test_labels_adopt_nothing():
    """A pod of the wanted name and labels that is not ours is neither counted nor deleted."""
    life = Life(job(**GROUP))
    foreign = replace(pod("master"), owned=False)
    plan = reconcile(observed(life.job, life.status, [foreign]))
    assert f"Pod {foreign.name}" in names(plan), "its creation is refused, and the job says so"
    assert plan.delete == ()
    assert plan.status is not None
    assert plan.status.ready == "0/3"


def test_a_pod_of_ours_is_known_by_its_name_not_by_its_labels():
    life = started(job(**GROUP))
    life.put(replace(pod("worker", 0), role="master", index=7))
    assert life.settle(10) == Plan()


def test_a_job_that_another_controller_manages_is_left_alone():
    assert Life(job(managedBy="kueue.x-k8s.io/multikueue")).step(0) == Plan()


def test_a_job_that_this_operator_manages_by_name_is_not():
    assert Life(job(managedBy="allranks.dev/operator")).step(0) != Plan()


def test_a_job_that_is_being_deleted_is_left_to_the_cascade():
    life = started(job(**GROUP))
    life.job = job(**GROUP, deletion_timestamp=at(5))
    life.put(failed("master", after=6))
    assert life.step(7) == Plan()


# --- end -------------------------------------------------------------------------------------------------------------


def test_success_is_written_first_then_peers_may_end_then_what_runs_is_deleted():
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60))
    plan = life.step(61)
    assert (plan.write_ahead, life.status.phase, life.status.completion_time) == (True, "Succeeded", at(61))
    assert condition(life, "Complete") == ("True", "Completed", "training completed")
    assert life.settle(61).wake_at == at(61) + CLEANUP_GRACE
    assert sorted(life.pods) == ALL, "rank 0 is often done a moment before the others"
    life.put(succeeded("worker", 0, after=62))
    life.settle(71)
    assert sorted(life.pods) == ["job-master-0-0", "job-worker-0-0"], "only what still runs is deleted"
    assert life.settle(1000) == Plan()


def test_parameter_servers_and_their_workers_are_deleted_at_once_as_they_never_end():
    life = started(job(**PS_JOB))
    life.put(succeeded("chief"))
    life.settle(61)
    assert sorted(life.pods) == ["job-chief-0-0"]


# cleanPodPolicy, pods that are left long after the end.
POLICIES = [
    ("Running deletes what still runs", "Running", ["job-master-0-0", "job-worker-0-0"]),
    ("All deletes all", "All", []),
    ("None deletes nothing", "None", ALL),
]


@table(*POLICIES)
def test_cleanPodPolicy(case):
    policy, left = case
    life = started(job(**GROUP, cleanPodPolicy=policy))
    life.put(succeeded("master"), succeeded("worker", 0))
    life.settle(61)
    life.settle(100)
    assert sorted(life.pods) == left


@table(*POLICIES)
def test_cleanPodPolicy_of_a_job_that_failed_applies_at_once(case):
    policy, left = case
    life = started(job(**GROUP, cleanPodPolicy=policy, restart={"maxRestarts": 0}))
    life.put(failed("master"), failed("worker", 0))
    life.settle(61)
    assert sorted(life.pods) == left


def test_a_finished_job_is_deleted_after_its_ttl():
    life = started(job(**GROUP, ttlSecondsAfterFinished=100))
    life.put(succeeded("master"), succeeded("worker", 0), succeeded("worker", 1))
    life.step(61)
    assert life.settle(62).wake_at == at(161)
    assert life.step(160.9).delete_job is False
    assert life.step(161) == Plan(delete_job=True)


def test_a_ttl_of_zero_deletes_at_once():
    life = started(job(**GROUP, ttlSecondsAfterFinished=0))
    life.put(succeeded("master"))
    life.step(61)
    assert life.step(61) == Plan(delete_job=True)


def ended(phase: str) -> Life:
    life = started(job(**GROUP, restart={"maxRestarts": 0}, cleanPodPolicy="None"))
    life.put(succeeded("master") if phase == "Succeeded" else failed("master"))
    life.settle(61)
    assert life.status.phase == phase
    return life


def _fails(life: Life) -> None:
    life.put(failed("worker", 1, after=62))


def _disappears(life: Life) -> None:
    life.pods.clear()


def _suspends(life: Life) -> None:
    life.job = job(**GROUP, suspend=True, cleanPodPolicy="None")


def _resizes(life: Life) -> None:
    life.job = job(roles={"master": 1, "worker": 5}, cleanPodPolicy="None")


def _expires(life: Life) -> None:
    life.job = job(**GROUP, activeDeadlineSeconds=1, cleanPodPolicy="None")


def _succeeds(life: Life) -> None:
    life.put(*(succeeded(p.role, p.index, after=63) for p in life.pods.values()))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("change", [_fails, _disappears, _suspends, _resizes, _expires, _succeeds])
def test_a_finished_job_never_restarts_and_its_verdict_never_changes(phase, change):
    life = ended(phase)
    before = life.status
    change(life)
    assert not life.settle(500).create
    assert not [event for event in life.events if event == "PodsCreated"][1:]
    for field in ("phase", "conditions", "attempt", "restarts", "last_failure", "completion_time"):
        assert getattr(life.status, field) == getattr(before, field), field


# --- failure and restart ---------------------------------------------------------------------------------------------


def test_a_group_restart_is_written_first_then_old_pods_go_and_new_ones_come_at_once():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=60, message="ValueError: no data"))
    plan = life.step(61)
    assert plan.write_ahead
    assert (life.status.phase, life.status.attempt, life.status.attempt_time) == ("Restarting", 1, at(61))
    assert life.status.restarts == RestartCounts(counted=1, disruptions=0, by_reason={"Error": 1})
    assert life.status.last_failure == Failure(
        attempt=0,
        role="worker",
        index=1,
        rank=2,
        pod="job-worker-1-0",
        node="node-1",
        exit_code=1,
        reason="Error",
        message="ValueError: no data",
        time=at(60),
        ran_seconds=58.0,
    )
    assert condition(life, "Restarting") == (
        "True",
        "Error",
        "worker-1 failed with exit code 1 (Error): the program failed",
    )
    plan = life.step(61)
    assert [gone.name for gone in plan.delete] == ALL
    assert names(plan)[1:] == ["Pod job-master-0-1", "Pod job-worker-0-1", "Pod job-worker-1-1"]
    life.run(70)
    assert (life.status.phase, life.status.ready) == ("Running", "3/3")
    assert life.events == ["PodsCreated", "RankFailed", "Restarting", "PodsCreated"]


def test_a_pod_stuck_terminating_on_a_dead_node_never_blocks_the_next_attempt():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=60))
    life.step(61)
    stuck = [replace(p, deleted_at=at(62), node="dead") for p in life.pods.values()]
    plan = reconcile(observed(life.job, life.status, stuck, 63))
    assert [made["metadata"]["name"] for made in plan.create if made["kind"] == "Pod"] == [
        "job-master-0-1",
        "job-worker-0-1",
        "job-worker-1-1",
    ]
    assert plan.delete == (), "what is being deleted is not deleted again"


def test_a_deletion_names_the_uid_so_that_a_namesake_is_never_hit():
    life = started(job(**GROUP))
    uids = {p.name: p.uid for p in life.pods.values()}
    life.put(failed("worker", 1))
    life.step(61)
    assert life.step(61).delete == tuple(PodRef(name, uids[name]) for name in ALL)


def test_the_first_restart_is_immediate_the_second_waits_and_wakes_by_itself():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=200))
    life.settle(200)
    life.run(210)
    life.put(failed("worker", 1, attempt=1, after=500, code=7))
    life.step(500)
    assert (life.status.restarts.counted, life.status.restart_time) == (2, at(510))
    plan = life.step(500)
    assert [gone.name for gone in plan.delete] == ["job-master-0-1", "job-worker-0-1", "job-worker-1-1"]
    assert (plan.create, plan.wake_at) == ((), at(510))
    assert life.settle(509.9).wake_at == at(510)
    assert names(life.step(510))[1:] == ["Pod job-master-0-2", "Pod job-worker-0-2", "Pod job-worker-1-2"]


def test_disruptions_do_not_back_off_and_do_not_count():
    life = started(job(**GROUP, restart={"maxRestarts": 0}))
    for attempt in range(5):
        life.put(preempted("worker", 1, attempt=attempt, after=60 + attempt))
        life.settle(61 + attempt)
        life.run(61.5 + attempt)
    assert life.status.restarts == RestartCounts(counted=0, disruptions=5, by_reason={"Preempted": 5})
    assert (life.status.phase, life.status.attempt) == ("Running", 5)


def test_a_used_budget_fails_the_job_with_its_first_failure_in_one_line():
    life = started(job(**GROUP, restart={"maxRestarts": 1}))
    life.put(failed("worker", 0, after=200))
    life.settle(200)
    life.run(201)
    life.put(failed("worker", 1, attempt=1, after=500, code=3, message="Traceback\nOSError: disk full\n"))
    life.settle(500)
    assert condition(life, "Failed") == (
        "True",
        "MaxRestartsExceeded",
        "worker-1 failed with exit code 3 (Error): all 1 restarts of restart.maxRestarts are used; "
        "last line: OSError: disk full",
    )
    assert life.status.restarts.counted == 1


LONG_LINE = "RuntimeError: pid {pid}: shapes do not match: " + ", ".join(f"[{n}, 5]" for n in range(60)) + " at 0x{pid}"


@pytest.mark.parametrize("line", ["ValueError: lr", LONG_LINE], ids=["a short last line", "a long last line"])
def test_a_bug_in_the_program_fails_at_once_not_after_the_whole_budget(line):
    life = started(job(**GROUP))
    said = [line.format(pid=pid) for pid in (998, 1002)]
    for attempt in (0, 1):
        after = 10 + 20 * attempt
        message = f"Traceback:\n{said[attempt]}\n"
        life.put(failed("worker", 1, attempt, after, message=message, started_at=at(after - 5)))
        life.settle(after)
        life.run(after + 5)
    assert (life.status.phase, life.status.attempt, life.status.restarts.counted) == ("Failed", 1, 1)
    assert condition(life, "Failed") == (
        "True",
        "Error",
        "worker-1 failed with exit code 1 (Error): failed the same way twice before any progress: a bug in the "
        f"program, not a fault; last line: {said[1]}",
    )


def test_the_same_failure_before_and_after_a_suspension_is_not_in_a_row():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, 0, 10, started_at=at(5)))
    life.settle(10)
    life.run(15)
    life.job = job(**GROUP, suspend=True)
    life.settle(500)
    life.job = job(**GROUP)
    life.settle(900)
    life.run(900)
    life.put(failed("worker", 1, 2, 910, started_at=at(905)))
    life.settle(910)
    assert (life.status.phase, life.status.attempt, life.status.restarts.counted) == ("Restarting", 3, 2)


def test_the_avalanche_that_follows_the_first_failure_is_one_restart():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=60, code=137), failed("master", after=61), failed("worker", 0, after=62))
    life.settle(63)
    assert (life.status.attempt, life.status.restarts.counted) == (1, 1)
    found = life.status.last_failure
    assert found is not None
    assert (found.role, found.index, found.signal) == ("worker", 1, 9)


def test_the_avalanche_seen_late_is_not_a_second_restart():
    """Only the first failure was seen; its peers' exits arrive when the attempt is over."""
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=60))
    life.step(61)
    life.put(failed("master", after=62), failed("worker", 0, after=62))
    life.settle(63)
    assert (life.status.attempt, life.status.restarts.counted) == (1, 1)


def test_a_pod_that_somebody_deleted_restarts_the_group_uncounted():
    life = started(job(**GROUP))
    del life.pods["job-worker-0-0"]
    life.settle(60)
    assert life.status.restarts == RestartCounts(counted=0, disruptions=1, by_reason={"Deleted": 1})
    assert life.status.attempt == 1


def test_a_parameter_server_restarts_alone():
    life = started(job(**PS_JOB))
    life.put(failed("ps", 1, after=60, code=137))
    before = {name: seen.uid for name, seen in life.pods.items()}
    assert life.step(61).write_ahead
    plan = life.step(61)
    assert ([gone.name for gone in plan.delete], names(plan)) == (["job-ps-1-0"], ["Pod job-ps-1-0-1"])
    life.run(70)
    del before["job-ps-1-0"]
    assert before.items() <= {name: seen.uid for name, seen in life.pods.items()}.items(), "the others go on"
    assert (life.status.phase, life.status.attempt, life.status.restarts.counted) == ("Running", 0, 1)


def test_a_parameter_server_restarted_alone_backs_off_too():
    life = started(job(**PS_JOB))
    for restart, (after, due) in enumerate(((200, 200), (600, 610))):
        life.put(failed("ps", 0, restart=restart, after=after, code=137))
        life.step(after)
        assert life.status.replica_restarts["ps-0"].restart_time == at(due)
        life.settle(after)
        life.settle(due)
        life.run(due)
    assert sorted(life.pods) == ["job-chief-0-0", "job-ps-0-0-2", "job-ps-1-0", "job-worker-0-0"]


def test_a_replaced_parameter_server_that_is_deleted_by_someone_is_replaced_again():
    life = started(job(**PS_JOB))
    life.put(preempted("ps", 0))
    life.settle(61)
    life.run(62)
    del life.pods["job-ps-0-0-1"]
    life.settle(70)
    assert "job-ps-0-0-2" in life.pods
    assert life.status.restarts == RestartCounts(disruptions=2, by_reason={"Preempted": 1, "Deleted": 1})


def test_a_lost_parameter_server_that_takes_the_chief_along_is_the_cause_of_a_group_restart():
    """The cause is the earliest failure of the attempt, whatever restarts because of it."""
    life = started(job(**PS_JOB))
    life.put(preempted("ps", 0, after=60), failed("chief", after=62))
    life.settle(63)
    found = life.status.last_failure
    assert found is not None
    assert (found.role, found.reason) == ("ps", "Preempted")
    assert (life.status.attempt, life.status.restarts.counted, life.status.restarts.disruptions) == (1, 0, 1)


def test_restart_scope_pod_restarts_a_worker_alone():
    life = started(job(**GROUP, restart={"scope": "pod"}))
    life.put(failed("worker", 1, after=60))
    life.settle(61)
    assert (life.status.attempt, sorted(life.pods)) == (0, ["job-master-0-0", "job-worker-0-0", "job-worker-1-0-1"])


def test_pods_that_restart_alone_at_once_are_one_write_and_decided_as_if_each_had_failed_by_itself():
    of = job(roles={"worker": 4}, restart={"scope": "pod", "maxRestarts": 9})
    ends = [failed("worker", number, after=60 + number, code=136 + number) for number in (3, 1, 2)]
    together, singly = started(of), started(of)
    together.put(*ends)
    plan = together.step(70)
    for end in sorted(ends, key=lambda pod: pod.exit.finished_at):
        singly.put(end)
        assert singly.step(70).write_ahead
    assert plan.write_ahead
    assert together.status == singly.status
    assert [event.message.split()[0] for event in plan.events] == ["worker-1", "worker-2", "worker-3"]
    assert together.status.restarts.counted == 3
    assert not together.step(70).write_ahead


def test_one_failure_too_many_among_those_that_restart_alone_fails_the_job():
    life = started(job(roles={"worker": 4}, restart={"scope": "pod", "maxRestarts": 2}))
    life.put(*(failed("worker", number, after=60 + number, code=136 + number) for number in (1, 2, 3)))
    plan = life.step(70)
    assert (life.status.phase, life.status.restarts.counted, len(plan.events)) == ("Failed", 2, 3)
    assert life.status.last_failure.index == 3


def test_restarts_that_count_and_those_that_do_not_are_written_apart():
    """Metrics tell them apart by the write."""
    life = started(job(roles={"worker": 4}, restart={"scope": "pod"}))
    life.put(failed("worker", 1, after=60), preempted("worker", 2, after=61), preempted("worker", 3, after=62))
    life.step(70)
    assert (life.status.restarts.counted, life.status.restarts.disruptions) == (1, 0)
    life.step(70)
    assert (life.status.restarts.counted, life.status.restarts.disruptions) == (1, 2)


def test_an_ignored_failure_goes_on_without_the_pod():
    life = started(job(**GROUP, restart={"rules": [{"exitCodes": [9], "action": "ignore"}]}))
    life.put(failed("worker", 1, after=60, code=9))
    assert life.step(61).write_ahead
    assert life.settle(61).create == ()
    assert (life.status.phase, life.status.attempt, life.status.ignored) == ("Running", 0, ["worker-1"])
    assert life.status.restarts == RestartCounts()
    life.put(succeeded("master", after=90))
    life.settle(91)
    assert life.status.phase == "Succeeded"


def test_an_ignored_deletion_goes_on_without_the_pod():
    life = started(job(**GROUP, restart={"rules": [{"reasons": ["Deleted"], "action": "ignore"}]}))
    del life.pods["job-worker-1-0"]
    assert life.settle(61).create == ()
    assert (life.status.phase, life.status.attempt, sorted(life.pods)) == ("Running", 0, ALL[:2])


def test_success_outweighs_the_failure_of_a_peer():
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60), failed("worker", 1, after=60))
    life.settle(61)
    assert (life.status.phase, life.status.restarts) == ("Succeeded", RestartCounts())


@pytest.mark.parametrize(
    "taken",
    [{"deleted_at": at(50)}, {"disruption": Disruption("EvictionByEvictionAPI", at(50))}],
    ids=["deleted by someone", "evicted"],
)
def test_exit_0_of_a_rank_that_was_told_to_go_is_no_success(taken):
    """It has saved and gone, as a good program does; the training is not done."""
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60, **taken))
    life.settle(61)
    assert (life.status.phase, life.status.attempt, life.status.restarts.disruptions) == ("Restarting", 1, 1)


def test_exit_0_before_the_pod_was_deleted_is_success():
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60, deleted_at=at(61)))
    life.settle(62)
    assert life.status.phase == "Succeeded"


def test_a_trainer_that_is_done_while_its_sidecar_runs_is_done():
    life = started(job(**GROUP))
    life.put(pod("master", exit=Exit(0, at(60), "Completed")))
    life.settle(61)
    assert life.status.phase == "Succeeded"


# --- suspend, resize, deadline ---------------------------------------------------------------------------------------


def test_suspend_is_written_first_then_the_pods_go_and_the_job_stays():
    life = started(job(**GROUP))
    life.job = job(**GROUP, suspend=True)
    plan = life.step(60)
    assert (plan.write_ahead, life.status.phase) == (True, "Suspended")
    assert [gone.name for gone in life.step(60).delete] == ALL
    life.settle(60)
    assert condition(life, "Suspended") == ("True", "Suspended", "spec.suspend is true")
    assert (life.status.ready, life.status.roles["worker"].active) == ("0/3", 0)
    assert life.step(9_999) == Plan()


def test_resume_begins_a_new_attempt_that_counts_against_nothing():
    life = started(job(**GROUP))
    life.job = job(**GROUP, suspend=True)
    life.settle(60)
    life.job = job(**GROUP)
    life.settle(600)
    assert (life.status.phase, life.status.attempt, life.status.restarts) == ("Pending", 1, RestartCounts())
    assert sorted(life.pods) == ["job-master-0-1", "job-worker-0-1", "job-worker-1-1"]
    life.run(610)
    assert (life.status.phase, condition(life, "Suspended")[0]) == ("Running", "False")


def test_a_job_created_suspended_makes_nothing_until_it_is_resumed():
    life = Life(job(**GROUP, suspend=True))
    assert life.settle(0).create == ()
    assert (life.status.phase, life.pods) == ("Suspended", {})
    life.job = job(**GROUP)
    life.settle(60)
    assert (life.status.attempt, sorted(life.pods)) == (0, ALL)


def test_a_job_suspended_while_it_waits_for_its_backoff_stays_without_pods():
    life = started(job(**GROUP))
    life.status = life.status.model_copy(update={"restarts": RestartCounts(counted=1)})
    life.put(failed("worker", 0, after=200))
    life.settle(200)
    life.job = job(**GROUP, suspend=True)
    assert life.settle(205).wake_at is None
    assert (life.status.phase, life.pods) == ("Suspended", {})


def test_a_job_that_is_done_when_it_is_suspended_is_done():
    life = started(job(**GROUP))
    life.job = job(**GROUP, suspend=True)
    life.put(succeeded("master"))
    life.settle(61)
    assert life.status.phase == "Succeeded"


def test_a_group_that_is_resized_restarts_at_its_new_size_and_counts_nothing():
    life = started(job(**GROUP))
    life.job = job(roles={"master": 1, "worker": 1}, generation=2)
    assert life.step(60).write_ahead
    life.settle(60)
    assert (life.status.attempt, life.status.restarts) == (1, RestartCounts())
    assert sorted(life.pods) == ["job-master-0-1", "job-worker-0-1"]
    life.run(61)
    assert (life.status.ready, life.status.observed_generation) == ("2/2", 2)


def test_a_restart_takes_the_new_size_along():
    life = started(job(**GROUP))
    life.put(failed("worker", 1))
    life.job = job(roles={"master": 1, "worker": 3})
    life.settle(61)
    life.run(62)
    assert (life.status.attempt, life.status.ready) == (1, "4/4")


@pytest.mark.parametrize(
    "change",
    [
        {"image": "me/train:2"},
        {"env": [{"name": "X", "value": "1"}]},
        {"ttlSecondsAfterFinished": 5},
        {"restart": {"maxRestarts": 9}},
        {"startupDeadlineSeconds": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_runs_is_left_alone_whatever_changed(change):
    life = started(job(**GROUP))
    life.job = job(**GROUP | change)
    assert life.settle(5000) == Plan()


def test_the_active_deadline_fires_by_itself():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    assert life.settle(50).wake_at == at(100)
    life.settle(99.9)
    assert life.status.phase == "Running"
    life.settle(100)
    assert condition(life, "Failed") == ("True", "DeadlineExceeded", "not done within activeDeadlineSeconds (100)")
    assert life.pods == {}


def test_the_active_deadline_counts_time_unsuspended():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    life.job = job(**GROUP, activeDeadlineSeconds=100, suspend=True)
    life.settle(40)
    assert life.settle(5000).wake_at is None
    life.job = job(**GROUP, activeDeadlineSeconds=100)
    assert life.settle(6000).wake_at == at(6060)


def test_the_active_deadline_goes_on_over_restarts():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    life.put(failed("worker", 1, after=60))
    assert life.settle(61).wake_at == at(100)


def test_a_deadline_that_is_taken_away_is_gone():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    life.job = job(**GROUP)
    assert life.settle(5000) == Plan()
    assert life.status.phase == "Running"


# --- pure ------------------------------------------------------------------------------------------------------------


def _observations() -> list[tuple[str, Observed]]:
    """One of each kind of moment."""
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
def test_the_same_observation_gives_the_same_plan_and_is_left_as_it_was(case):
    _, look = case
    before = (look.job.model_dump(), look.status.model_dump(), look.pods)
    assert reconcile(look) == reconcile(look)
    assert (look.job.model_dump(), look.status.model_dump(), look.pods) == before


def test_the_operator_may_die_after_any_plan_as_all_is_in_status_and_pods():
    """A second operator that knows status and pods only as they were read back (JSON) goes on the same way."""
    life = started(job(**GROUP))
    life.put(failed("worker", 1))
    life.step(61)
    stored = Status.model_validate_json(life.status.model_dump_json(by_alias=True), by_alias=True)
    assert stored == life.status
    assert reconcile(replace(life.look(62), status=stored)) == reconcile(life.look(62))


def test_a_restart_tells_two_events_of_which_the_failure_is_a_warning():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, code=139))
    blamed = "worker-1 was ended by signal 11 (Error)"
    why = "the program was ended by a signal, or asked to be run again"
    assert life.step(61).events == (Event("RankFailed", f"{blamed}: {why}", warning=True), Event("Restarting", why))


def test_bad_news_are_warnings_and_good_ones_are_not():
    life = started(job(**GROUP))
    life.put(succeeded("master"))
    assert life.step(61).events == (Event("Succeeded", "training completed"),)
    late = started(job(**GROUP, activeDeadlineSeconds=10))
    over = "not done within activeDeadlineSeconds (10)"
    assert late.step(10).events == (Event("DeadlineExceeded", over, warning=True),)
    wrong = Life(job(template={"spec": {"restartPolicy": "Always"}}))
    (told,) = wrong.step(0).events
    assert (told.reason, told.warning) == ("InvalidSpec", True)
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
