"""Which failure is the root cause, and its description in `status.lastFailure`."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.api.status import Failure, ReplicaRestarts, Status
from allranks.core.diagnosis import pod_ends, reasons, root_cause
from allranks.core.facts import topology
from allranks.core.facts.model import Disruption, Exit
from support.builders import NOW, at, failed, job, pod, preempted, succeeded, table

LOGS = Path(__file__).parent / "fixtures"
GROUP = {"roles": {"master": 1, "worker": 2}}
PS_JOB = {"framework": "tensorflow", "roles": {"chief": 1, "worker": 1, "ps": 2}}


def first(of, *pods, status=None, missing=()):
    return next(root_cause.failures(of, status or Status(), pods, missing, at(300)))


def oom(index, after):
    return failed("worker", index, after=after, code=137, reason="OOMKilled")


# Sentence, failed pods, the root cause.
CAUSES = [
    ("the earliest failure is the cause", [failed(index=0, after=61), failed(index=1, after=60)], "worker-1"),
    (
        "the order of the pods does not matter",
        [failed(index=1, after=60), failed(index=0, after=61)],
        "worker-1",
    ),
    (
        "of failures in one second, OOMKilled comes before its peers' exits",
        [failed("master", after=60), oom(1, after=60)],
        "worker-1",
    ),
    (
        "of failures in one second, a kill comes before its peers' exits",
        [failed("master", after=60), failed(index=1, after=60, code=137)],
        "worker-1",
    ),
    (
        "of failures in one second, an exit comes before the SIGTERM that its launcher sent",
        [failed("master", after=60, code=143), failed(index=1, after=60, code=1)],
        "worker-1",
    ),
    (
        "of failures in one second, an exit comes before a watchdog's SIGABRT",
        [failed("master", after=60, code=134), failed(index=1, after=60, code=1)],
        "worker-1",
    ),
    (
        "of failures in one second, a disruption comes before its peers' exits",
        [failed("master", after=60), preempted(index=1, after=60)],
        "worker-1",
    ),
    (
        "DisruptionTarget comes before the exit of a peer that lost its connection",
        [failed("master", after=62), preempted(index=1, after=60, phase="Failed", exit=Exit(143, at(70)))],
        "worker-1",
    ),
    (
        "a pod deleted by someone comes before the exit of a peer that lost its connection",
        [failed("master", after=62), pod(index=1, deleted_at=at(60))],
        "worker-1",
    ),
    (
        "a pod deleted after its peer's exit is not the cause",
        [failed("master", after=60), pod(index=1, deleted_at=at(62))],
        "master-0",
    ),
    (
        "of equal failures in one second the lowest replica is the cause",
        [failed(index=1, after=60), failed(index=0, after=60)],
        "worker-0",
    ),
]


@table(*CAUSES)
def test_cause(case):
    pods, cause = case
    found = first(job(**GROUP), *pods)
    assert f"{found.role}-{found.index}" == cause


def described(**fields) -> Failure:
    defaults = {
        "attempt": 0,
        "role": "worker",
        "index": 1,
        "rank": 2,
        "pod": "job-worker-1-0",
        "node": "node-1",
        "exit_code": 1,
        "signal": None,
        "reason": "Error",
        "message": "",
        "time": at(60),
        "ran_seconds": 58.0,
    }
    return Failure(**defaults | fields)


WATCHED = "allranks: the program was ended by signal 11 (SIGSEGV)"
LONG = "\n".join(f"line {number}" for number in range(40))

# Sentence, the pod, lastFailure.
DESCRIPTIONS = [
    (
        "an exit has its code, reason, node and last lines",
        failed(index=1, message="ValueError: no data\n"),
        described(message="ValueError: no data"),
    ),
    (
        "a signal that the kernel reported has its number",
        failed(index=1, exit=Exit(139, at(60), signal=11)),
        described(exit_code=139, signal=11),
    ),
    ("an exit code alone is no signal", failed(index=1, code=139), described(exit_code=139)),
    ("exit 138 is no signal", failed(index=1, code=138), described(exit_code=138)),
    (
        "the helper in the pod reports the signal of the program",
        failed(index=1, code=139, message=f"step 7\n{WATCHED}"),
        described(exit_code=139, signal=11, message="step 7"),
    ),
    (
        "a line of the program that is not the last one is no report of the helper",
        failed(index=1, code=139, message=f"{WATCHED}\nstep 7"),
        described(exit_code=139, message=f"{WATCHED}\nstep 7"),
    ),
    (
        "a line that does not fit the exit code is no report of the helper",
        failed(index=1, code=1, message=WATCHED),
        described(message=WATCHED),
    ),
    (
        "OOMKilled is the reason where kubelet says so",
        failed(index=1, exit=Exit(137, at(60), "OOMKilled", signal=9)),
        described(exit_code=137, signal=9, reason="OOMKilled"),
    ),
    (
        "of a long message the last 20 lines are kept",
        failed(index=1, message=LONG),
        described(message="\n".join(LONG.splitlines()[-20:])),
    ),
    (
        "of a long line the last 2048 characters are kept",
        failed(index=1, message="x" * 5000),
        described(message="x" * 2048),
    ),
    (
        "a preemption has the scheduler's message and no exit code",
        preempted(index=1),
        described(exit_code=None, reason="Preempted", message="preempted by team/urgent"),
    ),
    (
        "the exit after a preemption is not recorded: it was requested",
        preempted(index=1, phase="Failed", exit=Exit(143, at(65), "Error", "stopping")),
        described(exit_code=None, reason="Preempted", message="preempted by team/urgent"),
    ),
    (
        "a program that failed before its pod was preempted has failed by itself",
        failed(index=1, message="ValueError: no data", disruption=Disruption("PreemptionByScheduler", at(90))),
        described(message="ValueError: no data"),
    ),
    (
        "a program that failed before its pod was deleted has failed by itself",
        failed(index=1, deleted_at=at(61)),
        described(),
    ),
    (
        "a pod deleted by someone has reason Deleted",
        pod(index=1, deleted_at=at(60)),
        described(exit_code=None, reason="Deleted", message="the pod was deleted by someone"),
    ),
    (
        "a program that ended because its pod was deleted did not fail by itself",
        failed(index=1, code=143, after=70, deleted_at=at(60)),
        described(exit_code=None, reason="Deleted", message="the pod was deleted by someone"),
    ),
    (
        "a pod that kubelet rejected has kubelet's message",
        pod(
            index=1,
            phase="Failed",
            started_at=None,
            waiting_reason="UnexpectedAdmissionError",
            waiting_message="Allocate failed due to no healthy devices",
        ),
        described(
            exit_code=None,
            reason="UnexpectedAdmissionError",
            message="Allocate failed due to no healthy devices",
            time=at(300),
            ran_seconds=0.0,
        ),
    ),
]


@table(*DESCRIPTIONS)
def test_description(case):
    ended, failure = case
    assert first(job(**GROUP), ended) == failure


@pytest.mark.parametrize(
    ("kubernetes", "ours"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("DeletionByTaintManager", "NodeLost"),
        ("DeletionByPodGC", "NodeLost"),
        ("EvictionByEvictionAPI", "Evicted"),
        ("TerminationByKubelet", "Evicted"),
        ("SomethingNew", "Disrupted"),
    ],
)
def test_every_reason_of_DisruptionTarget_has_one_of_ours(kubernetes, ours):
    found = first(job(**GROUP), pod(index=1, disruption=Disruption(kubernetes, at(60))))
    assert (found.reason, found.reason in reasons.UNCOUNTED) == (ours, True)


def test_a_missing_pod_was_deleted_by_someone():
    of = job(**GROUP)
    gone = topology.replicas(of, Status())[2]
    assert first(of, missing=[gone]) == described(
        node=None,
        exit_code=None,
        reason="Deleted",
        message="the pod was deleted by someone",
        time=at(300),
        ran_seconds=None,
    )


def test_of_a_replica_restarted_alone_the_newest_pod_is_named():
    of = job(**PS_JOB)
    status = Status(replica_restarts={"ps-1": ReplicaRestarts(count=2, restart_time=NOW)})
    gone = topology.replicas(of, status)[3]
    assert (first(of, status=status, missing=[gone]).pod, gone.role) == ("job-ps-1-0-2", "ps")


SPAWNED = """Traceback (most recent call last):
  File "/app/train.py", line 14, in <module>
torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV
"""
# Sentence, job, failed pod, its rank.
RANKS = [
    ("the master is rank 0", GROUP, failed("master"), 0),
    ("the workers follow", GROUP, failed("worker", 1), 2),
    ("a parameter server has no rank", PS_JOB, failed("ps"), None),
    ("a process that the program started itself has no rank", GROUP, failed("master", message=SPAWNED), None),
    (
        "where 8 processes run in a pod, its index is no rank",
        {"pytorch": {"processesPerNode": 8}},
        failed("worker", 1),
        None,
    ),
    (
        "where each pod has 2 Horovod slots, its index is no rank",
        {"framework": "horovod", "horovod": {"slotsPerWorker": 2}},
        failed("worker", 1),
        None,
    ),
]


@table(*RANKS)
def test_rank(case):
    fields, ended, rank = case
    assert first(job(**fields), ended).rank == rank


@pytest.mark.parametrize(
    ("observed", "has_failed"),
    [
        (pod(), False),
        (succeeded(), False),
        (failed(), True),
        (preempted(), True),
        (pod(deleted_at=at(5)), True),
        (pod(exit=Exit(0, at(5), "Completed")), False),
        (pod(phase="Unknown"), False),
    ],
    ids=[
        "a pod that runs has not failed",
        "a pod that succeeded has not failed",
        "a pod that failed has",
        "a pod that is being preempted counts as failed",
        "a pod that is being deleted counts as failed",
        "a completed trainer with a running sidecar has not failed",
        "an unreachable node is not yet a failure",
    ],
)
def test_failed(observed, has_failed):
    assert pod_ends.failed(observed) is has_failed
