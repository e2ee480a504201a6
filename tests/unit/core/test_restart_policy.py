"""What a failure leads to: the rules of docs/reference/semantics.md, one case for each sentence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from allranks.api.status import Failure, PastAttempt, ProgressStatus, ReplicaRestarts, RestartCounts, Status
from allranks.core.diagnosis import comparison, restart_policy
from allranks.core.diagnosis.correlation import EarlierFailures
from allranks.core.diagnosis.restart_policy import RestartDecision
from allranks.core.facts import topology
from support.builders import NOW, at, failure, job, table

PROGRAM_FAILED = RestartDecision("Restart", "the program failed", "Error")
TWICE = RestartDecision(
    "Fail", "failed the same way twice before any progress: a bug in the program, not a fault", "Error"
)
SIGNAL = RestartDecision("Restart", "the program was ended by a signal, or asked to be run again", "Error")
KILLED = RestartDecision("Restart", "the program was ended by SIGKILL", "Error")
SEGFAULT = RestartDecision("Restart", "the program was ended by SIGSEGV", "Error")
SAME_SIGNAL = RestartDecision(
    "Fail", "ended by the same signal twice before any progress: a bug in the program, not a fault", "Error"
)
BROKEN_NODE = {
    "reason": "StartError",
    "exit_code": 128,
    "message": "OCI runtime create failed: nvidia-container-cli: initialization error",
    "ran_seconds": 0.0,
}
OOM = {"reason": "OOMKilled", "exit_code": 137, "signal": 9}


def lost(reason: str) -> Failure:
    return failure(exit_code=None, reason=reason, message="")


def past(failure: Failure | None) -> list[PastAttempt]:
    """A history that ends with this failure."""
    return [PastAttempt(attempt=0, end_time=NOW, reason=failure.reason, failure=failure)] if failure else []


def disruption(reason: str) -> RestartDecision:
    return RestartDecision("RestartUncounted", "a disruption, not a failure of the program", reason)


# Sentence, failure of this attempt, failure of the attempt before it, decision.
DEFAULTS = [
    ("preemption is a disruption: restarted, and not counted", lost("Preempted"), None, disruption("Preempted")),
    ("eviction is a disruption: restarted, and not counted", lost("Evicted"), None, disruption("Evicted")),
    ("a lost node is a disruption: restarted, and not counted", lost("NodeLost"), None, disruption("NodeLost")),
    ("a pod deleted by someone is not counted", lost("Deleted"), None, disruption("Deleted")),
    ("an unlisted disruption is not counted either", lost("Disrupted"), None, disruption("Disrupted")),
    (
        "a disruption is not counted even if it is the second of its kind",
        lost("Preempted"),
        lost("Preempted"),
        disruption("Preempted"),
    ),
    (
        "OOMKilled is restarted the first time",
        failure(**OOM),
        None,
        RestartDecision("Restart", "out of memory for the first time", "OOMKilled"),
    ),
    (
        "OOMKilled fails after the second in a row",
        failure(**OOM, attempt=1),
        failure(**OOM),
        RestartDecision("Fail", "out of memory twice in a row", "OOMKilled"),
    ),
    (
        "OOMKilled after another failure is the first in a row",
        failure(**OOM, attempt=1),
        failure(),
        RestartDecision("Restart", "out of memory for the first time", "OOMKilled"),
    ),
    (
        "OOMKilled twice with another attempt in between is not in a row",
        failure(**OOM, attempt=2),
        failure(**OOM),
        RestartDecision("Restart", "out of memory for the first time", "OOMKilled"),
    ),
    (
        "OOMKilled of two ranks in two attempts is in a row",
        failure(**OOM, attempt=1, index=1),
        failure(**OOM),
        RestartDecision("Fail", "out of memory twice in a row", "OOMKilled"),
    ),
    (
        "OOMKilled twice fails even after hours of progress",
        failure(**OOM, attempt=1, ran_seconds=9000.0),
        failure(**OOM, ran_seconds=9000.0),
        RestartDecision("Fail", "out of memory twice in a row", "OOMKilled"),
    ),
    ("exit 1 restarts while the budget lasts", failure(exit_code=1), None, PROGRAM_FAILED),
    ("exit 125 restarts while the budget lasts", failure(exit_code=125), None, PROGRAM_FAILED),
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
    ("a signal restarts", failure(exit_code=137, signal=9), None, KILLED),
    ("an exit code of a signal restarts", failure(exit_code=137), None, SIGNAL),
    ("exit 138 is the program's own 'retry me'", failure(exit_code=138), None, SIGNAL),
    (
        "exit 138 twice before any progress is still 'retry me'",
        failure(attempt=1, exit_code=138),
        failure(exit_code=138),
        SIGNAL,
    ),
    *(
        (
            f"{name} twice of the same rank before any progress is a bug",
            failure(attempt=1, **ended),
            failure(**ended),
            SAME_SIGNAL,
        )
        for name, ended in (
            ("SIGSEGV", {"exit_code": 139, "signal": 11}),
            ("SIGSEGV as an exit code", {"exit_code": 139}),
            ("SIGABRT", {"exit_code": 134, "signal": 6}),
            ("SIGBUS", {"exit_code": 135, "signal": 7}),
        )
    ),
    (
        "SIGSEGV of two ranks in two attempts may be a fault of their nodes",
        failure(attempt=1, index=1, exit_code=139, signal=11),
        failure(exit_code=139, signal=11),
        SEGFAULT,
    ),
    (
        "SIGSEGV after another last line is another place",
        failure(attempt=1, exit_code=139, signal=11, message="loading the model"),
        failure(exit_code=139, signal=11, message="loading the data"),
        SEGFAULT,
    ),
    (
        "SIGSEGV twice after progress is a fault, not a bug",
        failure(attempt=1, exit_code=139, signal=11, ran_seconds=3600.0),
        failure(exit_code=139, signal=11, ran_seconds=3600.0),
        SEGFAULT,
    ),
    (
        "SIGKILL twice is not a bug: something else sends it",
        failure(attempt=1, exit_code=137, signal=9),
        failure(exit_code=137, signal=9),
        KILLED,
    ),
    (
        "a container that cannot be started for a reason of its node restarts",
        failure(**BROKEN_NODE),
        None,
        RestartDecision("Restart", "its container could not be started", "StartError"),
    ),
    (
        "a container that cannot be started twice in the same way fails the job",
        failure(**BROKEN_NODE, attempt=1),
        failure(**BROKEN_NODE),
        RestartDecision("Fail", "failed the same way twice before any progress", "StartError"),
    ),
    ("exit 255 restarts", failure(exit_code=255), None, SIGNAL),
    (
        "a pod that failed before its program ran is restarted while the budget lasts",
        failure(exit_code=None, reason="InitContainerFailed"),
        None,
        RestartDecision("Restart", "the pod failed before its program ran", "InitContainerFailed"),
    ),
    ("a pod that its kubelet rejects is not counted", lost("OutOfcpu"), None, disruption("OutOfcpu")),
    (
        "a pod that waits for a device plugin is not counted",
        lost("UnexpectedAdmissionError"),
        None,
        disruption("UnexpectedAdmissionError"),
    ),
    ("a node that shuts down is not counted", lost("NodeShutdown"), None, disruption("NodeShutdown")),
    (
        "a container that the kubelet lost is not counted",
        lost("ContainerStatusUnknown"),
        None,
        disruption("ContainerStatusUnknown"),
    ),
    (
        "a pod that exceeds a limit of its own counts",
        failure(exit_code=137, reason="LimitExceeded"),
        None,
        RestartDecision("Restart", "the pod exceeded a limit of its own", "LimitExceeded"),
    ),
]


@table(*DEFAULTS)
def test_default_rule(case):
    now, before, decision = case
    # `attempt_failure` is the failure of the previous attempt only.
    ended = before if before and before.attempt == now.attempt - 1 else None
    status = Status(attempt=now.attempt, history=past(ended))
    assert restart_policy.decide_restart(job(), status, now) == decision


# Sentence, maxRestarts, restarts so far (counted, disruptions), failure, decision.
BUDGETS = [
    ("the last restart of the budget is granted", 3, (2, 0), failure(), PROGRAM_FAILED),
    (
        "a used budget ends the job",
        3,
        (3, 0),
        failure(),
        RestartDecision("Fail", "all 3 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    (
        "maxRestarts 0 ends the job at the first failure",
        0,
        (0, 0),
        failure(),
        RestartDecision("Fail", "restart.maxRestarts is 0", "MaxRestartsExceeded"),
    ),
    (
        "a budget that was lowered below what is used ends the job",
        1,
        (2, 0),
        failure(),
        RestartDecision("Fail", "all 1 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    ("disruptions use none of the budget", 3, (2, 50), failure(), PROGRAM_FAILED),
    ("a disruption is restarted though the budget is used", 3, (3, 0), lost("Evicted"), disruption("Evicted")),
    (
        "a signal counts against the budget",
        3,
        (3, 0),
        failure(exit_code=137, signal=9),
        RestartDecision("Fail", "all 3 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    (
        "out of memory counts against the budget",
        3,
        (3, 0),
        failure(**OOM),
        RestartDecision("Fail", "all 3 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
]


@table(*BUDGETS)
def test_budget(case):
    allowed, (counted, disruptions), now, decision = case
    status = Status(restarts=RestartCounts(counted=counted, disruptions=disruptions))
    assert restart_policy.decide_restart(job(restart={"maxRestarts": allowed}), status, now) == decision


def user(*rules: dict[str, object]) -> dict[str, object]:
    return {"rules": list(rules), "maxRestarts": 1}


# Sentence, restart block, restarts counted so far, failure, (action, why, reason).
USER_RULES = [
    (
        "a user's rule comes before the default ones",
        user({"exitCodes": [1], "action": "Fail"}),
        0,
        failure(),
        RestartDecision("Fail", "restart.rules[0] says Fail", "Error"),
    ),
    (
        "first match wins",
        user({"exitCodes": [7], "action": "Fail"}, {"exitCodes": [1, 2], "action": "RestartUncounted"})
        | {"maxRestarts": 0},
        0,
        failure(exit_code=2),
        RestartDecision("RestartUncounted", "restart.rules[1] says RestartUncounted", "Error"),
    ),
    (
        "the first of two matching rules applies",
        user({"exitCodes": [1], "action": "Restart"}, {"exitCodes": [1], "action": "Fail"}),
        0,
        failure(),
        RestartDecision("Restart", "restart.rules[0] says Restart", "Error"),
    ),
    ("without a match the default rules apply", user({"exitCodes": [9], "action": "Fail"}), 0, failure(), None),
    (
        "a rule for a signal is for the signal that ended the rank",
        user({"signals": [9], "action": "RestartUncounted"}),
        0,
        failure(exit_code=137, signal=9),
        RestartDecision("RestartUncounted", "restart.rules[0] says RestartUncounted", "Error"),
    ),
    (
        "a rule for a signal also finds its exit code, which is all that a container runtime reports",
        user({"signals": [10], "action": "RestartUncounted"}),
        0,
        failure(exit_code=138),
        RestartDecision("RestartUncounted", "restart.rules[0] says RestartUncounted", "Error"),
    ),
    (
        "a rule for exit code 127 outweighs that a command was not found",
        user({"exitCodes": [127], "action": "Restart"}),
        0,
        failure(exit_code=127, message="sh: 1: torchrn: not found"),
        RestartDecision("Restart", "restart.rules[0] says Restart", "Error"),
    ),
    (
        "a rule for reason StartError outweighs that the program was not found",
        user({"reasons": ["StartError"], "action": "Restart"}),
        0,
        failure(exit_code=128, reason="StartError", message='exec: "torchrn": executable file not found in $PATH'),
        RestartDecision("Restart", "restart.rules[0] says Restart", "StartError"),
    ),
    (
        "a rule for a signal is not for the exit code of that number",
        user({"signals": [9], "action": "RestartUncounted"}),
        0,
        failure(exit_code=9),
        None,
    ),
    (
        "a rule for an exit code also finds 128 + signal",
        user({"exitCodes": [137], "action": "Fail"}),
        0,
        failure(exit_code=137, signal=9),
        RestartDecision("Fail", "restart.rules[0] says Fail", "Error"),
    ),
    (
        "a rule for a reason can make a disruption count",
        user({"reasons": ["Preempted"], "action": "Restart"}),
        0,
        lost("Preempted"),
        RestartDecision("Restart", "restart.rules[0] says Restart", "Preempted"),
    ),
    (
        "a rule's restart counts against the budget too",
        user({"reasons": ["Preempted"], "action": "Restart"}),
        1,
        lost("Preempted"),
        RestartDecision("Fail", "all 1 restarts of restart.maxRestarts are used", "MaxRestartsExceeded"),
    ),
    (
        "RestartUncounted needs no budget",
        user({"exitCodes": [1], "action": "RestartUncounted"}),
        1,
        failure(),
        RestartDecision("RestartUncounted", "restart.rules[0] says RestartUncounted", "Error"),
    ),
    (
        "ignore needs no budget",
        user({"exitCodes": [1], "action": "Ignore"}),
        1,
        failure(),
        RestartDecision("Ignore", "restart.rules[0] says Ignore", "Error"),
    ),
    (
        "a rule with restart outweighs 'twice the same way'",
        user({"exitCodes": [1], "action": "Restart"}),
        0,
        failure(attempt=1),
        RestartDecision("Restart", "restart.rules[0] says Restart", "Error"),
    ),
]


@table(*USER_RULES)
def test_users_rule(case):
    restart, counted, now, decision = case
    of = job(restart=restart)
    before = failure() if now.attempt else None
    status = Status(attempt=now.attempt, history=past(before), restarts=RestartCounts(counted=counted))
    assert restart_policy.decide_restart(of, status, now) == (decision or PROGRAM_FAILED)


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
    now, before, decision = case
    alone = ReplicaRestarts(count=1, restart_time=at(0), failure=before)
    status = Status(last_failure=before, replica_restarts={f"ps-{before.index}": alone})
    assert restart_policy.decide_restart(job(**PS_JOB), status, now) == decision


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


def idle(restarts: int, **progress: int | None) -> Status:
    """After this number of restarts in a row without progress, in an attempt that has been running for ten seconds."""
    made = ProgressStatus(first_step_time=at(55), **progress) if progress else None
    return Status(restarts=RestartCounts(without_progress=restarts), running_time=at(50), progress=made)


@table(
    ("the last uncounted restart without progress is granted", idle(299), lost("Evicted"), "RestartUncounted"),
    ("a row that is too long fails the job", idle(300), lost("Evicted"), "Fail"),
    ("also if a rule says RestartUncounted", idle(300), failure(exit_code=5), "Fail"),
    ("counted restarts have their own bound", idle(300), failure(exit_code=9), "Restart"),
    ("a step breaks the row", idle(300, step=1), lost("Evicted"), "RestartUncounted"),
    (
        "so do two minutes without reports",
        idle(300),
        failure(reason="Evicted", exit_code=None, ran_seconds=120.0),
        "RestartUncounted",
    ),
)
def test_restarts_without_progress_are_bounded(case):
    status, cause, action = case
    of = job(restart={"rules": [{"exitCodes": [5], "action": "RestartUncounted"}]})
    decision = restart_policy.decide_restart(of, status, cause)
    assert decision.action == action
    if action == "Fail":
        assert (decision.reason, decision.explanation) == ("NoProgress", "300 restarts in a row without progress")


@table(
    ("the first step of all", [], {"step": 1}, True),
    ("a step beyond those of the attempts before", [5, 7], {"step": 8}, True),
    ("the steps of an attempt before again", [5, 7], {"step": 7}, False),
    ("the first step again", [1, 1, 1], {"step": 1}, False),
    (
        "a new checkpoint, as of a program that counts from one in each attempt",
        [7],
        {"step": 3, "checkpoint_time": NOW},
        True,
    ),
    ("no step in this attempt", [], {"step": 3, "first_step_time": None}, False),
)
def test_progress_is_a_step_beyond_those_of_all_attempts_or_a_checkpoint(case):
    earlier, fields, made = case
    history = [PastAttempt(end_time=NOW, reason="Evicted", first_step=1, last_step=step) for step in earlier]
    status = Status(history=history, progress=ProgressStatus(**{"first_step_time": at(1), **fields}))
    assert comparison.made_progress(status) is made


def test_two_minutes_without_a_step_are_no_progress_of_a_program_that_reports_steps():
    before = Status(restarts=RestartCounts(without_progress=3), progress=ProgressStatus(step=7))
    cause = failure(reason="Evicted", ran_seconds=600.0)
    assert comparison.idle_restarts(before, cause, alone=False) == 4


def test_an_elastic_worker_that_restarts_alone_never_ends_the_job():
    entry = ReplicaRestarts(count=999, restart_time=at(50), without_progress=999)
    status = Status(replica_restarts={"worker-1": entry})
    cause = replace(lost("Evicted"), index=1)
    for framework, action in (("horovod", "RestartUncounted"), ("tensorflow", "Fail")):
        elastic = ELASTIC if framework == "horovod" else {"restart": {"scope": "Pod"}}
        assert restart_policy.decide_restart(job(framework, **elastic), status, cause).action == action


def test_after_too_many_restarts_without_progress_consequences_count():
    """A parameter server that is evicted in each attempt, and a chief that fails because of it."""
    ps = failure(**PS, reason="Evicted", exit_code=None)
    entry = ReplicaRestarts(count=1, restart_time=at(60), failure=ps)
    chief = failure(role="chief", time=at(61))
    for restarts, found in ((299, entry), (300, None)):
        status = Status(restarts=RestartCounts(without_progress=restarts), replica_restarts={"ps-0": entry})
        assert EarlierFailures(job(**PS_JOB), status).upstream_of(chief) == found


@pytest.mark.parametrize(
    ("base", "counted", "number", "seconds"),
    [
        *((10, None, 1, 0), (10, None, 2, 10), (10, None, 3, 20), (10, None, 99, 300)),
        *((0, None, 2, 1), (0, None, 3, 2), (0, None, 99, 300)),
        *((10, 1, 3, 20), (10, 3, 1, 20), (0, 3, 9, 0)),
    ],
)
def test_the_delay_is_that_of_counted_restarts_or_of_those_without_progress(base, counted, number, seconds):
    of = job(restart={"backoffSeconds": base})
    assert restart_policy.delay(of, counted, number).total_seconds() == seconds


ELASTIC = {"roles": {"worker": 2}, "elastic": {"minReplicas": 1, "maxReplicas": 3}}

# Sentence, job, role, scope.
SCOPES = [
    ("PyTorch's master restarts with its group", {"roles": {"master": 1, "worker": 1}}, "master", "Group"),
    ("PyTorch's workers restart with their group", {"roles": {"master": 1, "worker": 1}}, "worker", "Group"),
    ("TensorFlow's chief restarts with its group", PS_JOB, "chief", "Group"),
    ("TensorFlow's workers restart with their group", PS_JOB | {"roles": {"worker": 2}}, "worker", "Group"),
    ("a chief's workers restart with it", PS_JOB | {"roles": {"chief": 1, "worker": 2}}, "worker", "Group"),
    ("workers of a chief with parameter servers restart alone", PS_JOB, "worker", "Pod"),
    ("parameter servers restart alone", PS_JOB, "ps", "Pod"),
    ("PyTorch's elastic workers restart with their group", ELASTIC, "worker", "Group"),
    ("Horovod's elastic workers restart alone", ELASTIC | {"framework": "horovod"}, "worker", "Pod"),
    ("evaluators restart alone", PS_JOB, "evaluator", "Pod"),
    ("Horovod's workers restart with their group", {"framework": "horovod", "roles": {"worker": 2}}, "worker", "Group"),
    ("restart.scope says Pod for all", {"restart": {"scope": "Pod"}}, "worker", "Pod"),
    ("restart.scope says Group for all", PS_JOB | {"restart": {"scope": "Group"}}, "ps", "Group"),
]


@table(*SCOPES)
def test_scope(case):
    fields, role, scope = case
    assert topology.scope(job(**fields), role, 1) == scope


def test_elastic_horovods_first_worker_restarts_all_because_it_is_their_rendezvous():
    assert topology.scope(job(**ELASTIC, framework="horovod"), "worker", 0) == "Group"
