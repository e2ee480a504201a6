"""Success of a job, and the deadlines of the rules."""

from __future__ import annotations

from allranks.api.status import ReplicaRestarts, Status
from allranks.core.rules import failure, lifecycle
from support.builders import NOW, at, job, pending, pod, succeeded, table

PS_JOB = {"framework": "tensorflow", "roles": {"chief": 1, "worker": 2, "ps": 2}}


def done(role: str, index: int = 0):
    return succeeded(role, index)


# Sentence, job, pods, replicas ignored, whether the job has succeeded.
SUCCESS = [
    (
        "PyTorch's master ends the job where there is one",
        {"roles": {"master": 1, "worker": 1}},
        [done("master"), pod("worker")],
        [],
        True,
    ),
    (
        "PyTorch's workers do not end a job that has a master",
        {"roles": {"master": 1, "worker": 1}},
        [pod("master"), done("worker")],
        [],
        False,
    ),
    ("PyTorch without a master ends when all workers have", {}, [done("worker"), done("worker", 1)], [], True),
    ("PyTorch without a master does not end with rank 0 alone", {}, [done("worker"), pod("worker", 1)], [], False),
    ("TensorFlow's chief ends the job", PS_JOB, [done("chief"), pod("worker"), pod("ps")], [], True),
    (
        "TensorFlow without a chief ends with worker 0",
        {"framework": "tensorflow", "roles": {"worker": 2}},
        [done("worker"), pod("worker", 1)],
        [],
        True,
    ),
    (
        "TensorFlow without a chief does not end with worker 1",
        {"framework": "tensorflow", "roles": {"worker": 2}},
        [pod("worker"), done("worker", 1)],
        [],
        False,
    ),
    (
        "Horovod's launcher ends the job",
        {"framework": "horovod", "roles": {"worker": 1, "launcher": 1}, "horovod": {"controller": "MPI"}},
        [done("launcher"), pod("worker")],
        [],
        True,
    ),
    (
        "Horovod without a launcher ends when all workers have",
        {"framework": "horovod", "roles": {"worker": 2}},
        [done("worker"), pod("worker", 1)],
        [],
        False,
    ),
    (
        "success: All waits for every rank",
        {"roles": {"master": 1, "worker": 1}, "success": "All"},
        [done("master"), pod("worker")],
        [],
        False,
    ),
    (
        "success: All does not wait for parameter servers, which never end",
        PS_JOB | {"success": "All"},
        [done("chief"), done("worker"), done("worker", 1), pod("ps"), pod("ps", 1)],
        [],
        True,
    ),
    (
        "success: worker waits for all workers, not for the chief",
        PS_JOB | {"success": "worker"},
        [pod("chief"), done("worker"), done("worker", 1)],
        [],
        True,
    ),
    ("a missing pod has not succeeded", {}, [done("worker")], [], False),
    ("a pending pod has not succeeded", {}, [done("worker"), pending("worker", 1)], [], False),
    ("an ignored rank does not keep a job from succeeding", {}, [done("worker")], ["worker-1"], True),
    ("ignored ranks alone are no success", {}, [], ["worker-0", "worker-1"], False),
]


@table(*SUCCESS)
def test_success(case):
    fields, pods, ignored, over = case
    held = {(p.role, p.index): p for p in pods}
    assert lifecycle.succeeded(job(**fields), Status(ignored=ignored), held) is over


def test_a_rank_that_completed_and_whose_pod_is_gone_has_succeeded():
    assert lifecycle.succeeded(job(), Status(done={"worker": "0"}), {("worker", 1): done("worker", 1)})
    assert not lifecycle.succeeded(job(), Status(done={"worker": "0"}), {("worker", 1): pod("worker", 1)})


# Sentence, activeDeadlineSeconds, active since, active before, deadline.
DEADLINES = [
    ("without activeDeadlineSeconds there is no deadline", None, NOW, 0.0, None),
    ("the deadline counts from when the job became active", 60, at(5), 0.0, at(65)),
    ("time unsuspended before counts too", 60, at(100), 45.0, at(115)),
    ("time suspended does not count", 60, None, 45.0, None),
    ("a limit lowered below the used time is due at once", 30, at(100), 45.0, at(100)),
]


@table(*DEADLINES)
def test_active_deadline(case):
    limit, since, before, deadline = case
    assert lifecycle.active_deadline(limit, Status(active_since=since, active_seconds=before)) == deadline


# Sentence, status, deadline of worker 0's start.
STARTUPS = [
    ("the startup deadline counts from the attempt", Status(attempt_time=at(5)), at(605)),
    ("backoff does not count", Status(attempt_time=at(5), restart_time=at(25)), at(625)),
    (
        "a replica restarted alone has its own startup deadline",
        Status(
            attempt_time=at(5),
            replica_restarts={"worker-0": ReplicaRestarts(count=1, restart_time=at(7200))},
        ),
        at(7800),
    ),
]


@table(*STARTUPS)
def test_startup_deadline(case):
    status, deadline = case
    assert failure.startup_deadline(job(), status, pending()) == deadline
