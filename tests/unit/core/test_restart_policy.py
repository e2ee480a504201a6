"""What a failure leads to: the rules of `2-semantics`, one case for each sentence."""

from __future__ import annotations

from datetime import timedelta

import pytest

from allranks.api.status import Failure, PastAttempt, ReplicaRestarts, RestartCounts, Status
from allranks.core import restart_policy
from allranks.core.restart_policy import Ruling
from support.builders import NOW, at, failure, job, pending, pod, succeeded, table

PROGRAM_FAILED = Ruling("restart", "the program failed", "Error")
TWICE = Ruling("fail", "failed the same way twice before any progress: a bug in the program, not a fault", "Error")
SIGNAL = Ruling("restart", "the program was ended by a signal, or asked to be run again", "Error")
OOM = {"reason": "OOMKilled", "exit_code": 137, "signal": 9}


def lost(reason: str) -> Failure:
    return failure(exit_code=None, reason=reason, message="")


def past(failure: Failure | None) -> list[PastAttempt]:
    """A history that ends with it."""
    return [PastAttempt(attempt=0, end_time=NOW, reason=failure.reason, failure=failure)] if failure else []


def disruption(reason: str) -> Ruling:
    return Ruling("restartUncounted", "a disruption, not a failure of the program", reason)


# Sentence, failure of this attempt, failure of the attempt before it, ruling.
DEFAULTS = [
    ("preemption is a disruption: restarted, and not counted", lost("Preempted"), None, disruption("Preempted")),
    ("eviction is a disruption: restarted, and not counted", lost("Evicted"), None, disruption("Evicted")),
    ("a lost node is a disruption: restarted, and not counted", lost("NodeLost"), None, disruption("NodeLost")),
    ("a pod deleted by someone is not counted", lost("Deleted"), None, disruption("Deleted")),
    ("an unknown disruption is not counted either", lost("Disrupted"), None, disruption("Disrupted")),
    (
        "a disruption is not counted even where the same came before",
        lost("Preempted"),
        lost("Preempted"),
        disruption("Preempted"),
    ),
    (
        "OOMKilled is restarted the first time",
        failure(**OOM),
        None,
        Ruling("restart", "out of memory for the first time", "OOMKilled"),
    ),
    (
        "OOMKilled fails after the second in a row",
        failure(**OOM, attempt=1),
        failure(**OOM),
        Ruling("fail", "out of memory twice in a row", "OOMKilled"),
    ),
    (
        "OOMKilled after another failure is the first in a row",
        failure(**OOM, attempt=1),
        failure(),
        Ruling("restart", "out of memory for the first time", "OOMKilled"),
    ),
    (
        "OOMKilled twice with an attempt between them that was not is not in a row",
        failure(**OOM, attempt=2),
        failure(**OOM),
        Ruling("restart", "out of memory for the first time", "OOMKilled"),
    ),
    (
        "OOMKilled of two ranks in two attempts is in a row",
        failure(**OOM, attempt=1, index=1),
        failure(**OOM),
        Ruling("fail", "out of memory twice in a row", "OOMKilled"),
    ),
    (
        "OOMKilled twice fails even after hours of progress",
        failure(**OOM, attempt=1, ran_seconds=9000.0),
        failure(**OOM, ran_seconds=9000.0),
        Ruling("fail", "out of memory twice in a row", "OOMKilled"),
    ),
    ("exit 1 restarts while the budget lasts", failure(exit_code=1), None, PROGRAM_FAILED),
    ("exit 127 restarts while the budget lasts", failure(exit_code=127), None, PROGRAM_FAILED),
    (
        "two attempts in a row that fail the same way before any progress fail at once",
        failure(attempt=1),
        failure(),
        TWICE,
    ),
    (
        "addresses, pids and times in the last line do not make two failures differ",
        failure(attempt=1, message="pid 4711: bad object at 0x7f33 after 12.5 s"),
        failure(message="pid 42: bad object at 0xdeadbeef after 3.0 s"),
        TWICE,
    ),
    (
        "the same failure after progress is a fault, not a bug",
        failure(attempt=1, ran_seconds=3600.0),
        failure(ran_seconds=3600.0),
        PROGRAM_FAILED,
    ),
    (
        "the same failure, once after progress and once before, is not before any progress",
        failure(attempt=1, ran_seconds=5.0),
        failure(ran_seconds=3600.0),
        PROGRAM_FAILED,
    ),
    (
        "an attempt of less than 2 minutes has made no progress",
        failure(attempt=1, ran_seconds=119.9),
        failure(ran_seconds=119.9),
        TWICE,
    ),
    (
        "an attempt of 2 minutes has made some",
        failure(attempt=1, ran_seconds=120.0),
        failure(ran_seconds=120.0),
        PROGRAM_FAILED,
    ),
    (
        "a different exit code is a different way to fail",
        failure(attempt=1, exit_code=2),
        failure(exit_code=1),
        PROGRAM_FAILED,
    ),
    (
        "a different last line is a different way to fail",
        failure(attempt=1, message="OSError: disk full"),
        failure(message="ValueError: shapes differ"),
        PROGRAM_FAILED,
    ),
    (
        "the same failure two attempts ago is not in a row",
        failure(attempt=2),
        failure(attempt=0),
        PROGRAM_FAILED,
    ),
    (
        "a disruption between them breaks the row",
        failure(attempt=2),
        failure(attempt=1, exit_code=None, reason="Preempted", message=""),
        PROGRAM_FAILED,
    ),
    ("exit 128 and above restarts", failure(exit_code=128), None, SIGNAL),
    ("a signal restarts", failure(exit_code=137, signal=9), None, SIGNAL),
    ("exit 138 is the program's own 'retry me'", failure(exit_code=138, signal=10), None, SIGNAL),
    (
        "exit 138 twice before any progress is still 'retry me'",
        failure(attempt=1, exit_code=138, signal=10),
        failure(exit_code=138, signal=10),
        SIGNAL,
    ),
    ("exit 255 restarts", failure(exit_code=255), None, SIGNAL),
    (
        "a pod that failed before its program ran is restarted while the budget lasts",
        failure(exit_code=None, reason="OutOfcpu"),
        None,
        Ruling("restart", "the pod failed before its program ran", "OutOfcpu"),
    ),
]


@table(*DEFAULTS)
def test_default_rule(case):
    now, before, ruling = case
    # What ended the attempt before is on record only if that attempt is the one before.
    ended = before if before and before.attempt == now.attempt - 1 else None
    status = Status(attempt=now.attempt, history=past(ended))
    assert restart_policy.rule_on(job(), status, now) == ruling


# Sentence, maxRestarts, restarts so far (counted, disruptions), failure, ruling.
BUDGETS = [
    ("the last restart of the budget is granted", 3, (2, 0), failure(), PROGRAM_FAILED),
    (
        "a used budget ends the job",
        3,
        (3, 0),
        failure(),
        Ruling("fail", "all 3 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    (
        "maxRestarts 0 ends the job at the first failure",
        0,
        (0, 0),
        failure(),
        Ruling("fail", "restart.maxRestarts is 0", "MaxRestartsExceeded"),
    ),
    (
        "a budget that was lowered below what is used ends the job",
        1,
        (2, 0),
        failure(),
        Ruling("fail", "all 1 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    ("disruptions use none of the budget", 3, (2, 50), failure(), PROGRAM_FAILED),
    ("a disruption is restarted though the budget is used", 3, (3, 0), lost("Evicted"), disruption("Evicted")),
    (
        "a signal counts against the budget",
        3,
        (3, 0),
        failure(exit_code=137, signal=9),
        Ruling("fail", "all 3 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    (
        "out of memory counts against the budget",
        3,
        (3, 0),
        failure(**OOM),
        Ruling("fail", "all 3 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
]


@table(*BUDGETS)
def test_budget(case):
    allowed, (counted, disruptions), now, ruling = case
    status = Status(restarts=RestartCounts(counted=counted, disruptions=disruptions))
    assert restart_policy.rule_on(job(restart={"maxRestarts": allowed}), status, now) == ruling


def user(*rules: dict[str, object]) -> dict[str, object]:
    return {"rules": list(rules), "maxRestarts": 1}


# Sentence, restart block, restarts counted so far, failure, (action, why, reason).
USER_RULES = [
    (
        "a user's rule comes before the default ones",
        user({"exitCodes": [1], "action": "fail"}),
        0,
        failure(),
        Ruling("fail", "restart.rules[0] says fail", "Error"),
    ),
    (
        "first match wins",
        user({"exitCodes": [7], "action": "fail"}, {"exitCodes": [1, 2], "action": "restartUncounted"})
        | {"maxRestarts": 0},
        0,
        failure(exit_code=2),
        Ruling("restartUncounted", "restart.rules[1] says restartUncounted", "Error"),
    ),
    (
        "of two rules that match the first one is taken",
        user({"exitCodes": [1], "action": "restart"}, {"exitCodes": [1], "action": "fail"}),
        0,
        failure(),
        Ruling("restart", "restart.rules[0] says restart", "Error"),
    ),
    ("no match leaves it to the default rules", user({"exitCodes": [9], "action": "fail"}), 0, failure(), None),
    (
        "a rule for a signal is for the signal that ended the rank",
        user({"signals": [9], "action": "restartUncounted"}),
        0,
        failure(exit_code=137, signal=9),
        Ruling("restartUncounted", "restart.rules[0] says restartUncounted", "Error"),
    ),
    (
        "a rule for a signal is not for the exit code of that number",
        user({"signals": [9], "action": "restartUncounted"}),
        0,
        failure(exit_code=9),
        None,
    ),
    (
        "a rule for an exit code also finds 128 + signal",
        user({"exitCodes": [137], "action": "fail"}),
        0,
        failure(exit_code=137, signal=9),
        Ruling("fail", "restart.rules[0] says fail", "Error"),
    ),
    (
        "a rule for a reason can make a disruption count",
        user({"reasons": ["Preempted"], "action": "restart"}),
        0,
        lost("Preempted"),
        Ruling("restart", "restart.rules[0] says restart", "Preempted"),
    ),
    (
        "a rule's restart counts against the budget too",
        user({"reasons": ["Preempted"], "action": "restart"}),
        1,
        lost("Preempted"),
        Ruling("fail", "all 1 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    (
        "restartUncounted needs no budget",
        user({"exitCodes": [1], "action": "restartUncounted"}),
        1,
        failure(),
        Ruling("restartUncounted", "restart.rules[0] says restartUncounted", "Error"),
    ),
    (
        "ignore needs no budget",
        user({"exitCodes": [1], "action": "ignore"}),
        1,
        failure(),
        Ruling("ignore", "restart.rules[0] says ignore", "Error"),
    ),
    (
        "a rule with restart outweighs 'twice the same way'",
        user({"exitCodes": [1], "action": "restart"}),
        0,
        failure(attempt=1),
        Ruling("restart", "restart.rules[0] says restart", "Error"),
    ),
]


@table(*USER_RULES)
def test_users_rule(case):
    restart, counted, now, ruling = case
    of = job(restart=restart)
    before = failure() if now.attempt else None
    status = Status(attempt=now.attempt, history=past(before), restarts=RestartCounts(counted=counted))
    assert restart_policy.rule_on(of, status, now) == (ruling or PROGRAM_FAILED)


PS_JOB = {"framework": "tensorflow", "roles": {"chief": 1, "worker": 2, "ps": 2}}
PS = {"role": "ps", "pod": "job-ps-0-0", "rank": None}


@table(
    (
        "a parameter server that fails again the same way at once fails the job",
        failure(**PS),
        failure(**PS),
        TWICE,
    ),
    (
        "two parameter servers that fail at the same moment have each failed once",
        failure(**PS | {"index": 1}),
        failure(**PS),
        PROGRAM_FAILED,
    ),
)
def test_a_replica_that_restarts_alone_is_compared_with_itself(case):
    now, before, ruling = case
    alone = ReplicaRestarts(count=1, restart_time=at(0), failure=before)
    status = Status(last_failure=before, replica_restarts={f"ps-{before.index}": alone})
    assert restart_policy.rule_on(job(**PS_JOB), status, now) == ruling


@pytest.mark.parametrize(
    ("number", "seconds"), [(1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (8, 300), (9_999, 300)]
)
def test_backoff_is_none_for_the_first_restart_then_doubles_to_300_s(number, seconds):
    assert restart_policy.backoff(job(), number) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("base", "seconds"), [(0, [0, 0, 0, 0]), (1, [0, 1, 2, 4]), (60, [0, 60, 120, 240]), (600, [0, 300, 300, 300])]
)
def test_backoff_begins_with_backoffSeconds_and_is_never_more_than_300_s(base, seconds):
    of = job(restart={"backoffSeconds": base})
    assert [restart_policy.backoff(of, number).total_seconds() for number in (1, 2, 3, 4)] == seconds


ELASTIC = {"roles": {"worker": 2}, "elastic": {"minReplicas": 1, "maxReplicas": 3}}

# Sentence, job, role, scope.
SCOPES = [
    ("PyTorch's master restarts with its group", {"roles": {"master": 1, "worker": 1}}, "master", "group"),
    ("PyTorch's workers restart with their group", {"roles": {"master": 1, "worker": 1}}, "worker", "group"),
    ("TensorFlow's chief restarts with its group", PS_JOB, "chief", "group"),
    ("TensorFlow's workers restart with their group", PS_JOB | {"roles": {"worker": 2}}, "worker", "group"),
    ("a chief's workers restart with it", PS_JOB | {"roles": {"chief": 1, "worker": 2}}, "worker", "group"),
    ("workers of a chief with parameter servers restart alone", PS_JOB, "worker", "pod"),
    ("parameter servers restart alone", PS_JOB, "ps", "pod"),
    ("PyTorch's elastic workers restart with their group", ELASTIC, "worker", "group"),
    ("Horovod's elastic workers restart alone", ELASTIC | {"framework": "horovod"}, "worker", "pod"),
    ("evaluators restart alone", PS_JOB, "evaluator", "pod"),
    ("Horovod's workers restart with their group", {"framework": "horovod", "roles": {"worker": 2}}, "worker", "group"),
    ("restart.scope says pod for all", {"restart": {"scope": "pod"}}, "worker", "pod"),
    ("restart.scope says group for all", PS_JOB | {"restart": {"scope": "group"}}, "ps", "group"),
]


@table(*SCOPES)
def test_scope(case):
    fields, role, scope = case
    assert restart_policy.scope(job(**fields), role, 1) == scope


def test_elastic_horovods_first_worker_restarts_all_which_meet_at_it():
    assert restart_policy.scope(job(**ELASTIC, framework="horovod"), "worker", 0) == "group"


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
        {"framework": "horovod", "roles": {"worker": 1, "launcher": 1}, "horovod": {"controller": "mpi"}},
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
        "success: all waits for every rank",
        {"roles": {"master": 1, "worker": 1}, "success": "all"},
        [done("master"), pod("worker")],
        [],
        False,
    ),
    (
        "success: all does not wait for parameter servers, which never end",
        PS_JOB | {"success": "all"},
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
    ("a pod that is not there has not succeeded", {}, [done("worker")], [], False),
    ("a pod that has not begun has not succeeded", {}, [done("worker"), pending("worker", 1)], [], False),
    ("a job goes on without a rank that is ignored", {}, [done("worker")], ["worker-1"], True),
]


@table(*SUCCESS)
def test_success(case):
    fields, pods, ignored, over = case
    held = {(p.role, p.index): p for p in pods}
    assert restart_policy.succeeded(job(**fields), Status(ignored=ignored), held) is over


# Sentence, activeDeadlineSeconds, active since, active before, deadline.
DEADLINES = [
    ("without activeDeadlineSeconds there is no deadline", None, NOW, 0.0, None),
    ("the deadline counts from when the job became active", 60, at(5), 0.0, at(65)),
    ("time unsuspended before counts too", 60, at(100), 45.0, at(115)),
    ("time suspended does not count", 60, None, 45.0, None),
    ("a limit that was lowered below what is used is due at once", 30, at(100), 45.0, at(100)),
]


@table(*DEADLINES)
def test_active_deadline(case):
    limit, since, before, deadline = case
    of = job(activeDeadlineSeconds=limit) if limit else job()
    assert restart_policy.active_deadline(of, Status(active_since=since, active_seconds=before)) == deadline


# Sentence, status, deadline of worker 0's start.
STARTUPS = [
    ("the time to start counts from the attempt", Status(attempt_time=at(5)), at(605)),
    ("backoff does not count", Status(attempt_time=at(5), restart_time=at(25)), at(625)),
    (
        "a replica restarted alone has its own time to start",
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
    assert restart_policy.startup_deadline(job(), status, pending()) == deadline
