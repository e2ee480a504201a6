"""Failures whose cause is another replica, a device, or a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from allranks.api.status import PastAttempt, ProgressStatus, Status
from allranks.core.diagnosis import hardware, restart_policy
from allranks.core.diagnosis.comparison import Comparison
from allranks.core.diagnosis.culprit import Evidence, culprit, culprit_of_hang
from allranks.core.diagnosis.patterns import absent, is_unreadable_data, joined, kind_of_error
from allranks.core.diagnosis.verdict import judged
from allranks.core.facts import bad_nodes
from allranks.core.facts.model import RejectedCreate
from allranks.core.facts.rank_reports import Position, Reports
from allranks.core.facts.status_summary import warning
from support.builders import CLUSTER, NOW, at, failed, failure, job, pending, pod, rank, started, succeeded, table

JOB = job(roles={"worker": 4})
RUNNING = Status(attempt=0, attempt_time=at(0), running_time=at(1))
NEVER_WHOLE = replace(RUNNING, running_time=None)
STEPPED = replace(RUNNING, progress=ProgressStatus(step=9, first_step_time=at(2)))
LOST = failure(because="LostPeer", message="RuntimeError: Connection closed by peer [10.0.0.1]:3")
GAVE_UP = failure(because="LostPeer", message="torch.distributed.DistStoreError: 3/4 clients joined.")
RAISED = failure(message="ValueError: sample 4711 is broken")


def pods(*of_job):
    return {(each.role, each.index): each for each in of_job}


def weigh(status, cause, *of_job, missing=(), refused=(), reports=None, of=JOB):
    return culprit(Evidence(of, status, CLUSTER, pods(*of_job), missing, refused, reports), cause)


def test_a_pod_without_a_node_is_the_cause_of_an_attempt_that_was_never_whole():
    waiting = pending("worker", 3, waiting_reason="Unschedulable", waiting_message="0/3 nodes are available")
    cause = weigh(NEVER_WHOLE, LOST, pod("worker", 1), waiting)
    assert (cause.index, cause.rank, cause.reason, cause.because) == (3, 3, "NotStarted", "NeverWhole")
    assert cause.message.startswith("job-worker-3-0 had no node: 0/3 nodes are available")
    assert "worker-0: RuntimeError: Connection closed by peer" in cause.message
    assert restart_policy.decide_restart(JOB, NEVER_WHOLE, cause).action == "RestartUncounted"


@table(
    ("that waits for its containers", pending("worker", 3, node="node-1")),
    ("whose program has started", pod("worker", 3, node="node-1")),
    ("whose program has failed too", failed("worker", 3, node="node-1")),
)
def test_a_pod_that_gets_the_place_of_a_rank_that_gave_up_is_the_cause_of_an_attempt_that_was_never_whole(case):
    (late,) = case
    cause = weigh(NEVER_WHOLE, LOST, pod("worker", 1, placed_at=at(1)), replace(late, placed_at=LOST.time))
    assert (cause.index, cause.node, cause.because) == (3, None, "NeverWhole")
    assert cause.message.startswith("job-worker-3-0 had no node until another rank had given up")
    assert judged(JOB, NEVER_WHOLE, cause).verdict == "Capacity"


def test_the_failure_of_a_pod_whose_peers_had_given_up_before_it_had_a_node_is_not_of_its_program():
    late = failed("worker", 3, node="node-1", placed_at=at(50))
    cause = failure(index=3, pod=late.name, node="node-1", message="RuntimeError: no master")
    gave_up = failed("worker", 0)
    assert gave_up.exit
    gave_up = replace(gave_up, exit=replace(gave_up.exit, finished_at=at(50)))
    found_no_place = weigh(NEVER_WHOLE, cause, gave_up, late)
    assert (found_no_place.index, found_no_place.node, found_no_place.because) == (3, None, "NeverWhole")
    in_time = replace(late, placed_at=at(49))
    assert weigh(NEVER_WHOLE, cause, gave_up, in_time).because != "NeverWhole"
    assert weigh(RUNNING, cause, gave_up, late).because != "NeverWhole"
    assert weigh(NEVER_WHOLE, cause, succeeded("worker", 0, after=49), late).because != "NeverWhole"


def test_a_pod_that_had_a_place_when_a_rank_gave_up_is_not_said_to_have_had_none():
    late = pending("worker", 3, node="node-1", placed_at=LOST.time - timedelta(seconds=1))
    cause = weigh(NEVER_WHOLE, LOST, pod("worker", 1), late)
    assert (cause.node, judged(JOB, NEVER_WHOLE, cause).verdict) == ("node-1", "Unknown")
    assert weigh(NEVER_WHOLE, LOST, pod("worker", 1), pod("worker", 3, placed_at=late.placed_at)) == LOST


def test_a_pod_that_the_api_server_refused_is_the_cause_too():
    refused = RejectedCreate("Pod", "job-worker-3-0", "Forbidden", "exceeded quota: pods=3")
    absent = [replica for replica in _replicas() if replica.index == 3]
    cause = weigh(NEVER_WHOLE, LOST, pod("worker", 1), missing=absent, refused=[refused])
    assert (cause.index, cause.because) == (3, "PodRefused")
    assert "exceeded quota: pods=3" in cause.message


def _replicas():
    from allranks.core.facts import topology

    return topology.replicas(JOB, RUNNING)


def test_an_exception_of_the_program_is_its_own_also_while_a_pod_waits():
    traceback = 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: sample 4711 is broken'
    cause = failure(message=traceback)
    assert weigh(NEVER_WHOLE, cause, pod("worker", 1), pending("worker", 3)) == cause


def test_a_rank_that_completed_just_before_is_the_peer_that_was_lost():
    reports = Reports(NOW, (rank(1, 10, total_steps=20, done=True),))
    done = succeeded("worker", 1, after=59)
    cause = weigh(STEPPED, LOST, failed("worker", 0), done, pod("worker", 2), pod("worker", 3), reports=reports)
    assert (cause.index, cause.reason, cause.because, cause.exit_code) == (1, "CompletedEarly", "CompletedEarly", None)
    assert cause.message.startswith("worker-1 completed at step 10 of 20 while other ranks still needed it")


def test_a_rank_that_completed_under_a_launcher_that_waits_is_the_peer_that_was_lost():
    launched = [failed("worker", 0), pod("worker", 1), pod("worker", 2), pod("worker", 3)]
    raised = Position(call="ended", raising="RuntimeError: Connection closed by peer [10.0.0.1]:3")
    done = replace(rank(1, 10, total_steps=20, done=True), received_at=at(59))
    lost = replace(rank(2, 10, total_steps=20, done=True, position=raised), received_at=at(60))
    cause = weigh(STEPPED, LOST, *launched, reports=Reports(NOW, (done, lost)))
    assert (cause.index, cause.because) == (1, "CompletedEarly")
    assert cause.message.startswith("worker-1 completed at step 10 of 20 while other ranks still needed it")
    later = replace(done, received_at=at(70))
    for ranks in ((lost,), (later, lost), (done, replace(done, local_rank=1, done=False))):
        assert weigh(STEPPED, LOST, *launched, reports=Reports(NOW, ranks)).because == "LostPeer"


@table(
    ("long before", [succeeded("worker", 1, after=10), pod("worker", 2), pod("worker", 3)]),
    ("most others completed too", [succeeded("worker", i, after=59) for i in (1, 2, 3)]),
)
def test_a_rank_that_completed_is_not_the_peer_that_was_lost(case):
    [others] = case
    assert weigh(STEPPED, LOST, failed("worker", 0), *others).because == "LostPeer"


def test_the_rank_that_had_not_joined_is_named_if_it_is_the_only_one_left():
    others = [failed("worker", 0), failed("worker", 1), failed("worker", 2), pod("worker", 3)]
    cause = weigh(RUNNING, GAVE_UP, *others)
    assert (cause.index, cause.reason, cause.because) == (3, "NotJoined", "NotJoined")
    assert cause.message.startswith("3 of 4 ranks had joined the group: worker-3 (it runs) had not")
    before = replace(RUNNING, attempt=1, history=[PastAttempt(end_time=NOW, reason="NotJoined", failure=cause)])
    assert restart_policy.decide_restart(JOB, RUNNING, cause).action == "RestartUncounted"
    assert restart_policy.decide_restart(JOB, before, replace(cause, attempt=1)).action == "Restart"


def test_no_rank_is_named_if_several_ranks_may_be_the_one_that_had_not_joined():
    cause = weigh(RUNNING, GAVE_UP, failed("worker", 0), *(pod("worker", i) for i in (1, 2, 3)))
    assert (cause.index, cause.because) == (0, "NotJoined")
    assert cause.message.startswith("3 of 4 ranks had joined the group\n")


# recorded: jax 0.10
BARRIER_OF_JAX = """jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: {id}. This usually happens \
because a task triggered the barrier too early or too slowly. Please look at the task logs (both timed out and first \
task) to debug further.
# of tasks that reached the barrier: 2/4.
The first task at the barrier: 0. Some timed out task names:
3
2

RPC: /xla.coordination.CoordinationService/Barrier
"""
BARRIER_OF_TORCH = "RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 8000 ms"
# TORCH_NCCL_DESYNC_DEBUG: torch/csrc/distributed/c10d/TraceUtils.h
DESYNC = """[rank1]:[E ProcessGroupNCCL.cpp:847] [Rank 1]
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [0, 1] joined but didn't finish collective #7 (count from 1)
\t     [2, 3] finished collective #6, but didn't join collective #7 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #6 finished ranks:
\t     [2, 3] finished ALLREDUCE
"""
NCCL_KEY = (
    "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [2] via "
    "c10d key-value store by key '0', but store->get('0') got error: {}"
)
STALL_OF_HOROVOD = """[2026-11-30 14:48:47.256978: W horovod/common/stall_inspector.cc:107] One or more tensors were
Missing ranks:
2: [allreduce.x, allreduce.y]
3: [allreduce.x]
"""


@table(
    ("torch", BARRIER_OF_TORCH, [2, 3]),
    ("torch, one rank", "RuntimeError: Rank 2 failed to pass monitoredBarrier in 8000 ms", [2]),
    ("jax", BARRIER_OF_JAX.format(id="sync0::0"), [2, 3]),
    (
        "jax, names",
        "Timed out task names:\n/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:0\n",
        [0, 3],
    ),
    ("Horovod", STALL_OF_HOROVOD, [2, 3]),
    ("Horovod, which ends the job", STALL_OF_HOROVOD.replace("2: ", "2!: "), [2, 3]),
    ("Horovod, before 0.20", "Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1]", [1]),
    ("torch, ranks that are behind", DESYNC, [2, 3]),
    (
        "torch, ranks that never came",
        "\t - [2, 3] are the lagging ranks that caused this timeout. They never joined any collectives",
        [2, 3],
    ),
    ("torch, the key of NCCL", NCCL_KEY.format("wait timeout after 600000ms, keys: /default_pg/0//cuda//0"), [2]),
    ("torch, the key of NCCL, before 2.5", NCCL_KEY.format("Timeout waiting for key: default_pg/0/0"), [2]),
    (
        "torch, the key of NCCL in a group of some ranks",
        NCCL_KEY.format("wait timeout, keys: /default_pg/0//7//cuda//0"),
        [],
    ),
    ("torch, ranks of a group of some ranks", f"[PG ID 7 PG GUID 7 Rank 1] {DESYNC}", []),
    ("torch, the store is gone", NCCL_KEY.format("Connection reset by peer"), []),
    ("nothing", "RuntimeError: Connection closed by peer [10.0.0.1]:3", []),
)
def test_the_ranks_that_an_output_says_were_waited_for(case):
    text, ranks = case
    assert absent(text) == ranks


@table(
    ("in the output that ended", BARRIER_OF_TORCH, ""),
    ("in that of another rank", "RuntimeError: Connection closed by peer [10.0.0.1]:3", STALL_OF_HOROVOD),
)
def test_a_rank_that_an_output_says_was_waited_for_is_the_cause(case):
    own, of_peer = case
    ended = failure(because="LostPeer", message=own)
    cause = weigh(STEPPED, ended, failed("worker", 0), failed("worker", 1, message=of_peer), *map(_worker, (2, 3)))
    assert (cause.index, cause.rank, cause.reason, cause.because, cause.exit_code) == (2, 2, "Absent", "Absent", None)
    assert cause.message.startswith("other ranks waited for worker-2, worker-3 (they run) without success\nworker-0: ")
    assert restart_policy.decide_restart(JOB, STEPPED, cause).action == "Restart"


TIMED_OUT = "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 8000ms for recv operation"


def test_the_only_rank_that_does_not_give_up_is_the_one_for_which_the_others_waited():
    of = job(roles={"worker": 3})
    ended = failure(because="LostPeer", message=TIMED_OUT)
    gave_up, runs = failed("worker", 2, message=TIMED_OUT), pod("worker", 1)
    cause = weigh(STEPPED, ended, failed("worker", 0), runs, gave_up, of=of)
    assert (cause.index, cause.rank, cause.because, cause.exit_code) == (1, 1, "Absent", None)
    assert cause.message.startswith("other ranks waited for worker-1 (it runs) without success\nworker-0: ")
    others = (
        (runs, pod("worker", 2)),  # another one may be the cause too
        (failed("worker", 1, message="ValueError"), gave_up),  # it failed by itself
        (runs, failed("worker", 2, message="MemoryError")),
    )
    for pods_of_others in others:
        assert weigh(STEPPED, ended, failed("worker", 0), *pods_of_others, of=of).because == "LostPeer"
    assert weigh(STEPPED, LOST, failed("worker", 0), runs, gave_up, of=of).because == "LostPeer"


def _worker(index):
    return pod("worker", index)


def test_a_rank_that_raised_by_itself_is_the_cause_whatever_others_say_about_ranks_that_they_waited_for():
    raised = replace(RAISED, index=1, rank=1)
    peer = failed("worker", 0, message=BARRIER_OF_TORCH)
    assert weigh(STEPPED, raised, peer, failed("worker", 1), pod("worker", 2), pod("worker", 3)) == raised


def test_ranks_that_did_not_come_to_the_first_barrier_had_not_joined():
    ended = failure(because="LostPeer", message=BARRIER_OF_JAX.format(id="[Init]Wait_for_all_tasks_to_register::0"))
    cause = weigh(RUNNING, ended, failed("worker", 0), *map(_worker, (1, 2, 3)))
    assert (cause.index, cause.because) == (2, "NotJoined")
    assert cause.message.startswith("2 of 4 ranks had joined the group: worker-2, worker-3 (they run) had not")


# recorded: jax 0.10, process 1 of 2 started late
REGISTERING = """F1130 15:24:09.257865 3356 client.h:80] Terminating process because the JAX distributed service \
detected fatal errors. absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded

RPC: /xla.coordination.CoordinationService/RegisterTask
"""


def test_the_only_rank_that_still_runs_had_not_joined_if_the_others_waited_for_the_group():
    ended = failure(because="LostPeer", exit_code=134, signal=6, message=REGISTERING)
    others = [failed("worker", index) for index in (0, 1, 2)]
    cause = weigh(RUNNING, ended, *others, pod("worker", 3))
    assert (cause.index, cause.because) == (3, "NotJoined")
    assert cause.message.startswith("the group of ranks never formed: worker-3 (it runs) had not joined")
    assert weigh(RUNNING, ended, others[0], *map(_worker, (1, 2, 3))).index == 0


def test_the_cause_is_the_rank_that_raised_also_if_another_one_prints_it():
    printed = replace(RAISED, index=0, rank=2, pod="job-worker-0-0")
    cause = weigh(RUNNING, printed, failed("worker", 0), pod("worker", 1), pod("worker", 2), pod("worker", 3))
    assert (cause.index, cause.rank, cause.pod) == (2, 2, "job-worker-2-0")


TORN = failure(message="_pickle.UnpicklingError: pickle data was truncated")


def test_a_torn_checkpoint_is_said_with_the_steps_of_others():
    past = PastAttempt(end_time=NOW, reason="Error", failure=LOST, first_step=1, last_step=8, checkpoint_step=4)
    status = replace(RUNNING, attempt=1, history=[past])
    cause = weigh(status, replace(TORN, attempt=1))
    assert cause.because == "CheckpointUnreadable"
    assert "a checkpoint of step 4 was stored before, and the program had come to step 8" in cause.message
    assert restart_policy.decide_restart(JOB, status, cause).action == "Restart"
    again = replace(
        status, attempt=2, history=[past, PastAttempt(attempt=1, end_time=NOW, reason="Error", failure=cause)]
    )
    decision = restart_policy.decide_restart(JOB, again, replace(cause, attempt=2))
    assert decision.action == "Fail"
    assert "bug" not in decision.explanation


def test_data_that_cannot_be_read_is_no_checkpoint_where_there_is_none():
    assert weigh(RUNNING, TORN).because is None
    assert weigh(STEPPED, TORN, of=job(roles={"worker": 4}, checkpoint={"claim": "c"})).because is None


DEVICE = failure(because="DeviceError", message="RuntimeError: CUDA error: uncorrectable ECC", node="node-2")


def test_the_second_device_error_on_the_same_node_does_not_count():
    history = [PastAttempt(end_time=NOW, reason="Error", counted=True, failure=DEVICE)]
    again = replace(RUNNING, attempt=1, history=history)
    assert restart_policy.decide_restart(JOB, RUNNING, DEVICE).action == "Restart"
    assert restart_policy.decide_restart(JOB, again, replace(DEVICE, attempt=1)).action == "RestartUncounted"
    elsewhere = replace(DEVICE, attempt=1, node="node-3")
    assert restart_policy.decide_restart(JOB, again, elsewhere).action == "Restart"


def test_a_device_error_makes_the_next_attempt_avoid_the_node():
    life = started(job(roles={"worker": 2}))
    life.run(1)
    life.put(
        failed("worker", 1, node="node-2", message="RuntimeError: CUDA error: uncorrectable ECC error encountered")
    )
    life.settle(61)
    assert life.status.avoided_nodes == ["node-2"]
    assert life.status.last_failure is not None
    assert life.status.last_failure.because == "DeviceError"


UNHEALTHY = ("nvidia.com/gpu GPU-7",)
FLAGGED = {"node-2": "condition GpuMemWatch=True ([DCGM_FR_FAULTY_MEMORY] GPU 0)"}


@table(
    ("a device of the pod", pod("worker", 2, unhealthy_devices=UNHEALTHY), {}, "DeviceUnhealthy", "GPU-7 as unhealthy"),
    ("the node of the pod", pod("worker", 2), FLAGGED, "NodeUnhealthy", "node node-2 has condition GpuMemWatch=True"),
)
def test_the_rank_that_others_lost_is_the_one_with_unhealthy_hardware(case):
    unhealthy, problems, because, words = case
    found = pods(failed("worker", 0), pod("worker", 1), unhealthy, pod("worker", 3))
    cause = culprit(Evidence(JOB, STEPPED, CLUSTER, found, node_problems=problems), LOST)
    assert (cause.index, cause.rank, cause.node, cause.because) == (2, 2, "node-2", because)
    assert words in cause.message
    assert "Connection closed by peer" in cause.message
    decision = restart_policy.decide_restart(JOB, STEPPED, cause)
    assert decision.action == "RestartUncounted"
    assert decision.explanation.endswith("node node-2 is avoided")


@table(
    ("an exception", failure(index=2), "NodeUnhealthy"),
    ("an init container", failure(index=2, reason="InitContainerFailed", because="InitContainer"), "NodeUnhealthy"),
    ("a program that was not found", failure(index=2, reason="StartError", exit_code=128), "NodeUnhealthy"),
    ("a limit of memory", failure(index=2, reason="OOMKilled", exit_code=137), None),
    ("an exception of another rank", failure(index=1), None),
)
def test_a_failure_on_an_unhealthy_node_has_this_cause_unless_it_has_its_own(case):
    cause, because = case
    found = pods(failed("worker", 2), pod("worker", 1))
    assert culprit(Evidence(JOB, STEPPED, CLUSTER, found, node_problems=FLAGGED), cause).because == because


def test_a_hang_is_the_one_of_the_rank_with_unhealthy_hardware_and_does_not_count():
    hang = failure(reason="Hang", exit_code=None, message="no rank has completed a step since 10:00:00 UTC")
    found = [pod("worker", 0), pod("worker", 3, unhealthy_devices=UNHEALTHY)]
    cause = culprit_of_hang(Evidence(JOB, STEPPED, CLUSTER, pods(*found)), hang)
    assert (cause.index, cause.rank, cause.node, cause.reason, cause.because) == (
        *(3, 3, "node-3"),
        *("Hang", "DeviceUnhealthy"),
    )
    of = job(roles={"worker": 4}, hang={"timeoutSeconds": 60})
    decision = restart_policy.decide_after_hang(of, STEPPED, cause)
    assert decision.action == "RestartUncounted"
    assert decision.explanation == (
        "no progress for 60 s (hang.timeoutSeconds); the platform reports its device as unhealthy: "
        "node node-3 is avoided"
    )
    assert culprit_of_hang(Evidence(JOB, STEPPED, CLUSTER, pods(found[0]), node_problems=FLAGGED), hang) == hang
    fails = job(roles={"worker": 4}, hang={"timeoutSeconds": 60, "action": "Fail"})
    assert restart_policy.decide_after_hang(fails, STEPPED, cause).action == "Fail"


def test_the_condition_names_pods_with_unhealthy_hardware_until_they_are_healthy():
    life = started(JOB)
    life.put(*(pod("worker", index, node="node-2") for index in (1, 2)))
    unhealthy = hardware.with_hardware(replace(life.look(5), node_problems=FLAGGED)).current
    condition = unhealthy.condition("HardwareUnhealthy")
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "NodeUnhealthy")
    assert condition.message.startswith("worker-1: node node-2 has condition GpuMemWatch=True")
    assert "; worker-2: node node-2 has" in condition.message
    assert warning(life.status, unhealthy, hardware.CONDITION) is not None
    assert warning(unhealthy, unhealthy, hardware.CONDITION) is None
    life.status = unhealthy
    healthy = hardware.with_hardware(life.look(6)).current
    assert healthy.condition("HardwareUnhealthy").status == "False"


def _failed_on(*nodes: str, because: str = "DeviceError", **last: Any) -> Status:
    history = [
        PastAttempt(end_time=NOW, reason="Error", failure=replace(DEVICE, because=because, node=n)) for n in nodes
    ]
    more = [PastAttempt(end_time=NOW, **last)] if last else []
    return replace(RUNNING, history=[*history, *more], avoided_nodes=sorted({*nodes}))


@table(
    ("devices, newest first", _failed_on("a", "b", "a"), ["a", "b"]),
    ("an init container on one node", _failed_on("a", "a", because="InitContainer"), ["a"]),
    ("an init container everywhere", _failed_on("a", "b", because="InitContainer"), []),
    ("exceptions of the program", _failed_on("a", because=None), []),
    ("no others were free", _failed_on("a", reason="NoOtherNodes"), []),
)
def test_nodes_on_which_hardware_failed_are_excluded(case):
    status, nodes = case
    assert bad_nodes.excluded_nodes(status) == nodes


@table(
    ("twice", 2, "Restart", "in step 10 of 2 attempts"),
    ("three times", 3, "Fail", "in step 10 of 3 attempts: a bug in the program or in its data"),
)
def test_the_same_failure_in_the_same_step_of_each_attempt(case):
    attempts, action, words = case
    history = [
        PastAttempt(attempt=n, end_time=NOW, reason="Error", failure=RAISED, first_step=1, last_step=9)
        for n in range(attempts - 1)
    ]
    decision = restart_policy.decide_restart(JOB, replace(STEPPED, attempt=attempts - 1, history=history), RAISED)
    assert decision.action == action
    if action == "Fail":
        assert words in decision.explanation


def test_the_step_of_a_failure_is_the_one_of_its_rank_although_others_are_further():
    reports = Reports(NOW, (rank(0, 34, done=True), rank(1, 40)))
    status = replace(RUNNING, progress=ProgressStatus(step=40, first_step_time=at(2)))
    cause = weigh(status, RAISED, failed("worker", 0), pod("worker", 1), reports=reports)
    assert cause.step == 35
    without_last_report = Reports(NOW, (rank(0, 30), rank(1, 40)))
    assert weigh(status, RAISED, failed("worker", 0), pod("worker", 1), reports=without_last_report).step is None
    history = [
        PastAttempt(attempt=n, end_time=NOW, reason="Error", failure=cause, first_step=1, last_step=38 + n)
        for n in range(2)
    ]
    decision = restart_policy.decide_restart(JOB, replace(status, attempt=2, history=history), cause)
    assert decision.action == "Fail"
    assert "in step 35 of 3 attempts" in decision.explanation
    elsewhere = replace(cause, step=36)
    assert (
        restart_policy.decide_restart(JOB, replace(status, attempt=2, history=history), elsewhere).action == "Restart"
    )


def test_a_rank_that_is_killed_in_the_same_step_of_each_attempt_is_not_called_a_bug():
    killed = failure(exit_code=137, signal=9, message="step 9")
    past = PastAttempt(end_time=NOW, reason="Error", failure=killed, first_step=1, last_step=9)
    decision = restart_policy.decide_restart(JOB, replace(STEPPED, attempt=2, history=[past, past]), killed)
    assert decision.action == "Fail"
    assert "in step 10 of 3 attempts: something kills it there, often for its memory" in decision.explanation


def test_failures_in_different_steps_are_not_the_same():
    past = PastAttempt(end_time=NOW, reason="Error", failure=RAISED, first_step=1, last_step=7)
    assert Comparison(JOB, replace(STEPPED, history=[past, past]), RAISED).same_step == 0


@table(
    ("it requests none", {}, None),
    ("it requests one", {"limits": {"nvidia.com/gpu": 1}}, "DeviceError"),
)
def test_a_program_that_finds_no_gpu_accuses_its_node_only_if_its_pod_requests_one(case):
    resources, because = case
    ended = failure(because="DeviceError", message="RuntimeError: CUDA error: no CUDA-capable device is detected")
    assert weigh(RUNNING, ended, of=job(roles={"worker": 4}, resources=resources)).because == because


@table(("on the same node", "node-2", "DeviceError"), ("on another node", "node-3", None))
def test_a_program_that_finds_no_gpu_on_two_nodes_accuses_none(case):
    node, because = case
    of = job(roles={"worker": 4}, resources={"limits": {"nvidia.com/gpu": 1}})
    before = failure(because="DeviceError", node="node-2", message="RuntimeError: No CUDA GPUs are available")
    status = replace(RUNNING, attempt=1, history=[PastAttempt(end_time=NOW, reason="Error", failure=before)])
    assert weigh(status, replace(before, node=node, attempt=1), of=of).because == because


@table(
    ("CUDA", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("CUDA, busy", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("bus", "GPU has fallen off the bus"),
    ("kernel", "NVRM: Xid (PCI:0000:3b:00): 79, pid=123"),
    ("AMD", "hipErrorECCNotCorrectable"),
    ("NVSwitch", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    ("NVSwitch, XLA", "failed call to cuInit: INTERNAL: CUDA error: CUDA_ERROR_SYSTEM_NOT_READY"),
    ("NVSwitch, torch before 1.5", "cuda runtime error (802) : system not yet initialized"),
    ("no GPU, torch", "RuntimeError: No CUDA GPUs are available"),
    (
        "no driver, torch",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    ),
    ("no GPU, JAX", "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices."),
    ("no GPU, Lightning", "MisconfigurationException: No supported gpu backend found!"),
    ("disk", "OSError: [Errno 5] Input/output error"),
    ("memory of a GPU is no device error", "torch.OutOfMemoryError: CUDA out of memory", False),
    ("nor is an assertion", "RuntimeError: CUDA error: device-side assert triggered", False),
    ("nor an illegal address", "CUDA error: an illegal memory access was encountered", False),
)
def test_device_errors(case):
    text, *expected = case
    assert (kind_of_error(text) == "DeviceError") is (expected != [False])


@table(
    ("pickle", "EOFError: Ran out of input"),
    ("gzip", "EOFError: Compressed file ended before the end-of-stream marker was reached"),
    ("torch", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ("torch, old format", "RuntimeError: unexpected EOF, expected 40 more bytes. The file might be corrupted."),
    ("safetensors", "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
    ("HDF5", "OSError: Unable to synchronously open file (truncated file: eof = 96, sblock->base_addr = 0)"),
    ("TensorFlow", "tensorflow.python.framework.errors_impl.DataLossError: Checksum does not match"),
    ("a file that does not exist is no damage", "FileNotFoundError: [Errno 2] No such file or directory", False),
    ("nor are other weights", "RuntimeError: Error(s) in loading state_dict for Net: size mismatch", False),
)
def test_unreadable_data(case):
    text, *expected = case
    assert is_unreadable_data(text) is (expected != [False])


@table(
    ("a full disk", "OSError: [Errno 28] No space left on device: 'model.pt'"),
    ("a quota", "OSError: [Errno 122] Disk quota exceeded"),
    ("torch", "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 4000 vs 3888"),
    (
        "shared memory",
        "Error while creating shared memory segment /dev/shm/nccl-W, error: No space left on device (28)",
    ),
    ("memory is no file", "torch.OutOfMemoryError: CUDA out of memory", False),
    ("nor is a file that cannot be read", "PermissionError: [Errno 13] Permission denied: 'data.csv'", False),
)
def test_files_that_cannot_be_written(case):
    text, *expected = case
    assert (kind_of_error(text) == "WriteFailed") is (expected != [False])


def test_a_file_that_cannot_be_written_in_the_same_step_of_each_attempt_is_no_bug():
    full = failure(because="WriteFailed", message="OSError: [Errno 28] No space left on device: 'model.pt'")
    past = PastAttempt(end_time=NOW, reason="Error", failure=full, first_step=1, last_step=9)
    decision = restart_policy.decide_restart(JOB, replace(STEPPED, attempt=2, history=[past, past]), full)
    assert (decision.action, decision.explanation) == ("Restart", "a file could not be written")


def test_the_number_of_processes_that_joined():
    assert joined("Timed out after 9 seconds waiting for clients. 1/2 clients joined.") == (1, 2)
    assert joined(BARRIER_OF_JAX.format(id="[Init]Wait_for_all_tasks_to_register::0")) == (2, 4)
    assert joined(BARRIER_OF_JAX.format(id="multihost_broadcast_sync0::0")) is None
    assert joined("store based barrier on rank: 7, for key: x (world_size=8, worker_count=6, timeout=0:30:00)") == (
        6,
        8,
    )
    assert joined("Connection closed by peer") is None
