"""Reconcile: failures and restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allranks.api.status import Failure, RestartCounts
from allranks.core.facts.model import Disruption, Exit, PodRef
from allranks.core.reconcile import reconcile
from support.builders import (
    at,
    failed,
    job,
    observed,
    pod,
    preempted,
    started,
    succeeded,
)

from .reconcile_helpers import ALL, GROUP, PS_JOB, condition, names


def test_a_group_restart_is_written_first_then_pods_are_replaced_at_once():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=60, message="ValueError: no data"))
    plan = life.step(61)
    assert plan.write_ahead
    assert (life.status.phase, life.status.attempt, life.status.attempt_time) == ("Restarting", 1, at(61))
    assert life.status.restarts == RestartCounts(counted=1, disruptions=0, by_reason={"Error": 1}, without_progress=1)
    assert life.status.last_failure == Failure(
        attempt=0,
        role="worker",
        index=1,
        rank=2,
        pod="job-worker-1-0",
        node="node-1",
        exit_code=1,
        reason="Error",
        verdict="Unknown",
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
    assert plan.delete == (), "a terminating pod is not deleted again"


def test_a_deletion_has_the_uid_as_a_precondition():
    life = started(job(**GROUP))
    uids = {p.name: p.uid for p in life.pods.values()}
    life.put(failed("worker", 1))
    life.step(61)
    assert life.step(61).delete == tuple(PodRef(name, uids[name]) for name in ALL)


@pytest.mark.parametrize(
    ("end", "seconds"),
    [
        pytest.param(failed("worker", 1), 30, id="a failure of the program"),
        pytest.param(preempted("worker", 1), None, id="a preemption"),
        pytest.param(pod("worker", 1, disruption=Disruption("DeletionByTaintManager", at(60))), 30, id="a lost node"),
    ],
)
def test_pods_that_a_failure_ends_have_its_grace_period(end, seconds):
    template = {"spec": {"terminationGracePeriodSeconds": 600}}
    life = started(job(**GROUP, template=template))
    life.put(end)
    life.step(61)
    assert {gone.grace_seconds for gone in life.step(61).delete} == {seconds}


@pytest.mark.parametrize(("pods", "failures", "seconds"), [(600, 90, 90), (600, 0, 0), (20, 30, None), (30, 30, None)])
def test_the_grace_period_of_a_failure_only_shortens_the_one_of_a_pod(pods, failures, seconds):
    template = {"spec": {"terminationGracePeriodSeconds": pods}}
    life = started(job(**GROUP, template=template, restart={"graceSeconds": failures}))
    life.put(failed("worker", 1))
    life.step(61)
    assert {gone.grace_seconds for gone in life.step(61).delete} == {seconds}


def test_pods_of_a_job_that_failed_for_good_have_the_grace_period_of_a_failure():
    template = {"spec": {"terminationGracePeriodSeconds": 600}}
    life = started(job(**GROUP, template=template, restart={"maxRestarts": 0}))
    life.put(failed("worker", 1))
    life.step(61)
    assert {gone.grace_seconds for gone in life.step(61).delete} == {30}


def test_a_suspension_after_a_failure_leaves_the_pods_their_grace_period():
    template = {"spec": {"terminationGracePeriodSeconds": 600}}
    life = started(job(**GROUP, template=template))
    life.put(failed("worker", 1))
    life.settle(61)
    life.run(70)
    life.job = job(**GROUP, template=template, suspend=True)
    life.step(80)
    assert [(gone.name, gone.grace_seconds) for gone in life.step(80).delete] == [
        ("job-master-0-1", None),
        ("job-worker-0-1", None),
        ("job-worker-1-1", None),
    ]


def test_the_first_restart_is_immediate_and_the_second_wakes_up_after_its_backoff():
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


def test_disruptions_after_progress_do_not_back_off_and_do_not_count():
    life = started(job(**GROUP, restart={"maxRestarts": 0}))
    for attempt in range(5):
        life.put(preempted("worker", 1, attempt=attempt, after=130 * (attempt + 1)))
        life.settle(130 * (attempt + 1))
        life.run(130 * (attempt + 1))
    assert life.status.restarts == RestartCounts(counted=0, disruptions=5, by_reason={"Preempted": 5})
    assert (life.status.phase, life.status.attempt) == ("Running", 5)


def test_a_window_limits_the_restarts_within_a_time():
    window = {"seconds": 1000, "maxRestarts": 2}
    life = started(job(**GROUP, restart={"maxRestarts": 100, "window": window, "backoffSeconds": 0}))
    for attempt, after in enumerate((500, 2000, 2500, 3100)):
        life.put(failed("worker", 0, attempt=attempt, after=after))
        life.settle(after)
        life.run(after + 1)
    assert (life.status.phase, life.status.restarts.counted) == ("Running", 4)
    life.put(failed("worker", 0, attempt=4, after=3400))
    life.settle(3400)
    assert life.status.phase == "Failed"
    assert condition(life, "Failed")[1:] == (
        "MaxRestartsExceeded",
        "worker-0 failed with exit code 1 (Error): 2 restarts in 1000 s are used (restart.window)",
    )


def test_a_disruption_does_not_count_in_a_window():
    life = started(job(**GROUP, restart={"window": {"seconds": 1000, "maxRestarts": 0}}))
    life.put(preempted("worker", 1))
    life.settle(60)
    assert (life.status.phase, life.status.restarts.recent) == ("Restarting", None)


def test_the_backoff_grows_with_the_restarts_within_the_window():
    window = {"seconds": 1000, "maxRestarts": 5}
    life = started(job(**GROUP, restart={"maxRestarts": 100, "window": window}))
    for attempt, after in enumerate((500, 2000)):
        life.put(failed("worker", 0, attempt=attempt, after=after))
        life.step(after)
        assert life.status.restart_time is None, "the first within the window is immediate"
        life.settle(after)
        life.run(after + 1)
    life.put(failed("worker", 0, attempt=2, after=2500))
    life.step(2500)
    assert life.status.restart_time == at(2510)


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
def test_a_bug_in_the_program_fails_the_job_at_once_not_after_the_whole_budget(line):
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


def test_the_consequences_of_a_failure_are_one_restart():
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=60, code=137), failed("master", after=61), failed("worker", 0, after=62))
    life.settle(63)
    assert (life.status.attempt, life.status.restarts.counted) == (1, 1)
    found = life.status.last_failure
    assert found is not None
    assert (found.role, found.index, found.exit_code) == ("worker", 1, 137)


def test_late_consequences_of_a_failure_are_not_a_second_restart():
    """The peers' exits arrive after the end of the attempt."""
    life = started(job(**GROUP))
    life.put(failed("worker", 1, after=60))
    life.step(61)
    life.put(failed("master", after=62), failed("worker", 0, after=62))
    life.settle(63)
    assert (life.status.attempt, life.status.restarts.counted) == (1, 1)


def test_a_pod_that_was_marked_and_deleted_at_once_is_lost_with_its_node():
    """The pod garbage collector does it in 20 ms when a node object was deleted: a reconcile may come later."""
    life = started(job(roles={"master": 1, "worker": 2}))
    gone = life.pods.pop("job-worker-1-0")
    words = "PodGC: node no longer exists"
    marked = replace(gone, phase="Failed", disruption=Disruption("DeletionByPodGC", at(60), words))
    life.put(failed("master", after=62))  # lost its peer
    plan = reconcile(replace(life.look(63), removed={marked.name: marked}))
    assert plan.next is not None
    found = plan.next.last_failure
    assert found is not None
    assert (found.reason, found.pod, found.node, found.message) == ("NodeLost", marked.name, "node-0", words)
    assert (plan.next.attempt, plan.next.restarts.counted, plan.next.restarts.disruptions) == (1, 0, 1)


def test_a_pod_that_its_kubelet_deleted_at_once_after_a_reboot_corrects_the_failure_of_its_peer():
    """A kubelet that starts finds the pod ended and being deleted, writes its status and deletes it in one go."""
    life = started(job(roles={"master": 1, "worker": 2}))
    life.put(failed("master", after=60))  # lost its peer
    before = life.pods["job-worker-1-0"]
    life.settle(61)
    assert life.status.restarts.counted == 1
    life.pods.pop(before.name, None)
    gone = replace(before, phase="Failed", deleted_at=at(61), exit=Exit(255, at(70), "ContainerStatusUnknown"))
    plan = reconcile(replace(life.look(71), removed={gone.name: gone}))
    assert plan.next is not None
    assert plan.next.last_failure is not None
    assert (plan.next.last_failure.pod, plan.next.last_failure.reason) == (gone.name, "ContainerStatusUnknown")
    assert (plan.next.attempt, plan.next.restarts.counted, plan.next.restarts.disruptions) == (1, 0, 1)
    assert [event.reason for event in plan.events] == ["CauseFound"]


def test_the_last_state_of_a_pod_of_an_earlier_attempt_explains_no_deletion():
    life = started(job(roles={"master": 1, "worker": 2}))
    gone = life.pods.pop("job-worker-1-0")
    earlier = replace(gone, name="job-worker-1-9", disruption=Disruption("DeletionByPodGC", at(60)))
    plan = reconcile(replace(life.look(63), removed={earlier.name: earlier}))
    assert plan.next is not None
    assert plan.next.last_failure is not None
    assert plan.next.last_failure.reason == "Deleted"


@pytest.mark.parametrize("deleted_at", [None, at(61)])
def test_a_rank_that_succeeded_and_was_collected_between_two_looks_has_succeeded(deleted_at):
    life = started(job(roles={"master": 1, "worker": 2}, success="All"))
    gone = replace(life.pods.pop("job-worker-1-0"), phase="Succeeded", exit=Exit(0, at(60)), deleted_at=deleted_at)
    removed = {gone.name: gone}
    plan = reconcile(replace(life.look(62), removed=removed))
    assert plan.next is not None
    assert (plan.next.attempt, plan.next.phase, plan.next.done) == (0, "Running", {"worker": "1"})
    assert not plan.create
    life.status = plan.next
    assert reconcile(replace(life.look(63), removed=removed)).empty
    for name in list(life.pods):
        ended = life.pods.pop(name)
        removed[name] = replace(gone, name=name, uid=ended.uid, role=ended.role, index=ended.index)
    plan = reconcile(replace(life.look(70), removed=removed))
    assert plan.next is not None
    assert plan.next.phase == "Succeeded"


def test_a_pod_that_somebody_deleted_restarts_the_group_uncounted():
    life = started(job(**GROUP))
    del life.pods["job-worker-0-0"]
    life.settle(60)
    assert life.status.restarts == RestartCounts(counted=0, disruptions=1, by_reason={"Deleted": 1}, without_progress=1)
    assert life.status.attempt == 1


def test_a_parameter_server_restarts_alone():
    life = started(job(**PS_JOB))
    life.put(failed("ps", 1, after=60, code=137))
    before = {name: p.uid for name, p in life.pods.items()}
    assert life.step(61).write_ahead
    plan = life.step(61)
    assert ([gone.name for gone in plan.delete], names(plan)) == (["job-ps-1-0"], ["Pod job-ps-1-0-1"])
    life.run(70)
    del before["job-ps-1-0"]
    assert before.items() <= {name: p.uid for name, p in life.pods.items()}.items(), "the others continue"
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
    assert "job-ps-0-0-2" not in life.pods, "the second restart without progress has a backoff"
    life.settle(80)
    assert "job-ps-0-0-2" in life.pods
    assert life.status.restarts == RestartCounts(disruptions=2, by_reason={"Preempted": 1, "Deleted": 1})


def test_a_lost_parameter_server_that_makes_the_chief_fail_is_the_cause_of_a_group_restart():
    """The root cause is the earliest failure of the attempt, whatever restarts because of it."""
    life = started(job(**PS_JOB))
    life.put(preempted("ps", 0, after=60), failed("chief", after=62))
    life.settle(63)
    found = life.status.last_failure
    assert found is not None
    assert (found.role, found.reason) == ("ps", "Preempted")
    assert (life.status.attempt, life.status.restarts.counted, life.status.restarts.disruptions) == (1, 0, 1)


def test_restart_scope_pod_restarts_a_worker_alone():
    life = started(job(**GROUP, restart={"scope": "Pod"}))
    life.put(failed("worker", 1, after=60))
    life.settle(61)
    assert (life.status.attempt, sorted(life.pods)) == (0, ["job-master-0-0", "job-worker-0-0", "job-worker-1-0-1"])


def test_concurrent_individual_restarts_are_evaluated_one_by_one_and_written_once():
    of = job(roles={"worker": 4}, restart={"scope": "Pod", "maxRestarts": 9})
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


def test_concurrent_individual_restarts_beyond_the_budget_fail_the_job():
    life = started(job(roles={"worker": 4}, restart={"scope": "Pod", "maxRestarts": 2}))
    life.put(*(failed("worker", number, after=60 + number, code=136 + number) for number in (1, 2, 3)))
    plan = life.step(70)
    assert (life.status.phase, life.status.restarts.counted, len(plan.events)) == ("Failed", 2, 3)
    assert life.status.last_failure.index == 3


def test_counted_and_uncounted_restarts_are_written_separately():
    """Metrics count them per write."""
    life = started(job(roles={"worker": 4}, restart={"scope": "Pod"}))
    life.put(failed("worker", 1, after=60), preempted("worker", 2, after=61), preempted("worker", 3, after=62))
    life.step(70)
    assert (life.status.restarts.counted, life.status.restarts.disruptions) == (1, 0)
    life.step(70)
    assert (life.status.restarts.counted, life.status.restarts.disruptions) == (1, 2)


def test_the_job_continues_without_a_pod_whose_failure_is_ignored():
    life = started(job(**GROUP, restart={"rules": [{"exitCodes": [9], "action": "Ignore"}]}))
    life.put(failed("worker", 1, after=60, code=9))
    assert life.step(61).write_ahead
    assert life.settle(61).create == ()
    assert (life.status.phase, life.status.attempt, life.status.ignored) == ("Running", 0, ["worker-1"])
    assert life.status.restarts == RestartCounts()
    life.put(succeeded("master", after=90))
    life.settle(91)
    assert life.status.phase == "Succeeded"


def test_the_job_continues_without_a_pod_whose_deletion_is_ignored():
    life = started(job(**GROUP, restart={"rules": [{"reasons": ["Deleted"], "action": "Ignore"}]}))
    del life.pods["job-worker-1-0"]
    assert life.settle(61).create == ()
    assert (life.status.phase, life.status.attempt, sorted(life.pods)) == ("Running", 0, ALL[:2])


def test_a_rank_that_completed_is_not_recreated_also_if_not_all_pods_of_its_attempt_exist_yet():
    life = started(job(**GROUP))
    life.put(succeeded("worker", 1, after=60))
    life.settle(61)
    assert life.status.done == {"worker": "1"}
    life.status = replace(life.status, launched=False, running_time=None)
    del life.pods["job-worker-1-0"]
    assert life.settle(62).create == ()
    assert (life.status.attempt, life.status.launched, life.status.ready) == (0, True, "3/3")
    assert life.status.running_time is not None


def test_a_rank_that_completed_and_is_evicted_for_its_sidecar_has_not_failed():
    life = started(job(**GROUP))
    life.put(succeeded("worker", 1, after=60, phase="Running"))
    life.settle(61)
    life.put(failed("worker", 1, after=90, code=137, reason="LimitExceeded"))
    life.settle(91)
    assert (life.status.attempt, life.status.roles["worker"].succeeded, life.status.roles["worker"].failed) == (0, 1, 0)


def test_success_outweighs_the_failure_of_a_peer():
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60), failed("worker", 1, after=60))
    life.settle(61)
    assert (life.status.phase, life.status.restarts) == ("Succeeded", RestartCounts())


@pytest.mark.parametrize(
    "removal",
    [{"deleted_at": at(50)}, {"disruption": Disruption("EvictionByEvictionAPI", at(50))}],
    ids=["deleted by someone", "evicted"],
)
def test_exit_0_of_a_terminating_rank_is_no_success(removal):
    """The program saved its state and stopped on SIGTERM; the training is not complete."""
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60, **removal))
    life.settle(61)
    assert (life.status.phase, life.status.attempt, life.status.restarts.disruptions) == ("Restarting", 1, 1)


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_pod_that_its_kubelet_ended_is_disrupted_although_the_condition_comes_after_the_exit(code: int):
    """The kubelet sets DisruptionTarget when all containers have ended."""
    life = started(job(**GROUP))
    ended = Exit(code, at(60), "Error" if code else "Completed")
    life.put(replace(pod("master"), phase="Failed", exit=ended, disruption=Disruption("TerminationByKubelet", at(61))))
    life.settle(62)
    assert (life.status.phase, life.status.attempt, life.status.restarts.disruptions) == ("Restarting", 1, 1)
    assert life.status.last_failure
    assert (life.status.last_failure.reason, life.status.last_failure.exit_code) == ("Evicted", None)


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_pod_whose_containers_have_ended_is_judged_when_its_kubelet_has_written_its_phase(code: int):
    life = started(job(**GROUP))
    ended = Exit(code, at(60), "Error" if code else "Completed")
    life.put(replace(pod("master"), exit=ended, settling=True))
    plan = life.settle(61)
    assert (life.status.phase, life.status.attempt, life.status.done) == ("Running", 0, {})
    assert plan.wake_at == at(75), "a kubelet that never writes the phase does not keep the job waiting"
    life.settle(75)
    assert (life.status.phase, life.status.attempt) == (("Succeeded", 0) if code == 0 else ("Restarting", 1))


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_clock_of_a_node_that_is_wrong_does_not_delay_the_judgement(minutes: int):
    life = started(job(**GROUP))
    life.put(replace(pod("master"), exit=Exit(1, at(60 + 60 * minutes)), settling=True))
    life.settle(61)
    assert (life.status.phase, life.status.attempt) == ("Restarting", 1)


def test_exit_0_before_the_pod_was_deleted_is_success():
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60, deleted_at=at(61)))
    life.settle(62)
    assert life.status.phase == "Succeeded"


def test_a_completed_trainer_with_a_running_sidecar_has_succeeded():
    life = started(job(**GROUP))
    life.put(pod("master", exit=Exit(0, at(60), "Completed")))
    life.settle(61)
    assert life.status.phase == "Succeeded"
