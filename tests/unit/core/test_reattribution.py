"""Causes that show only later: which loss of a node, or end of a pod, explains which attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.status import PastAttempt, Status
from allranks.core import reattribution
from allranks.core.model import Disruption, Exit, Pod
from support.builders import CLUSTER, NOW, at, failure, job, pod, table


def past(**fields: Any) -> PastAttempt:
    known = {"attempt": 0, "end_time": at(100), "reason": "Error", "counted": True, "failure": failure()}
    return PastAttempt(**{**known, **fields})


def left(seconds: float = 180, reason: str = "DeletionByTaintManager") -> Pod:
    """worker-1 of attempt 0, deleted when that ended and disrupted since then."""
    return replace(pod("worker", 1), deleted_at=at(100), disruption=Disruption(reason, at(seconds)))


# Sentence, history, pod that is left, whether its loss is the cause.
CASES = [
    ("a node found to be lost a minute after the end is the cause", past(), left(), True),
    ("a node that is lost long after the end is not", past(), left(seconds=400), False),
    ("an end that was not counted needs no other cause", past(counted=False), left(), False),
    ("a disruption that a rule counts is a cause already", past(reason="Evicted"), left(), False),
    ("a pod of one attempt says nothing of another", past(attempt=3), left(), False),
    ("a pod whose program is known to have ended was not lost", past(), replace(left(), exit=Exit(0, at(101))), False),
    ("an eviction is not the loss of a node", past(), left(reason="EvictionByEvictionAPI"), False),
    ("labels prove nothing: a pod's name says whose it is", past(), replace(left(), role="ps", attempt=7), True),
]


@table(*CASES)
def test_cause(case):
    history, there, explains = case
    status = Status(attempt=4, history=[history])
    found = reattribution.cause(job(roles={"worker": 2}), status, [there], NOW, CLUSTER)
    assert (found is not None) == explains
    if found:
        assert (found.attempt, found.role, found.index, found.reason) == (0, "worker", 1, "NodeLost")


REPORT = """
Root Cause (first observed failure):
[0]:
  time      : %s
  host      : job-worker-1-0
  rank      : 1 (local_rank: 0)
  exitcode  : %d (pid: 17)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 17
============================================================
"""


def killed(reported: float, code: int = -9) -> str:
    """torchrun's last words, which come a while after the process's end."""
    return REPORT % (f"{at(reported):%Y-%m-%d_%H:%M:%S}", code)


def ended(seconds: float, code: int = 1, message: str = "", **how: Any) -> Pod:
    """worker-1 of attempt 0, deleted when that ended, whose program has ended."""
    gone = how.pop("gone", 100)
    return replace(pod("worker", 1), deleted_at=at(gone), exit=Exit(code, at(seconds), message=message, **how))


# Sentence, exit code of worker-0, which is blamed and failed at 99 s, pod that is left, whether its end is the cause.
ENDS = [
    ("a report of a signal in the same second is the cause", 1, ended(102, 1, killed(99)), True),
    ("of a signal later is not", 1, ended(102, 1, killed(100)), False),
    ("of an exit code like the blamed one in the same second is not", 1, ended(102, 1, killed(99, 1)), False),
    ("of an earlier failure is, whatever that was", 1, ended(102, 1, killed(98, 1)), True),
    ("a killed rank stays blamed where another was as well", 137, ended(102, 1, killed(99)), False),
    ("an earlier end without a report is", 1, ended(98, 1), True),
    ("one in the same second may be by the deletion", 1, ended(99, 137), False),
    ("but for one out of memory", 1, ended(99, 137, reason="OOMKilled"), True),
    ("an end with 0 is no failure", 1, ended(98, 0), False),
    ("who was told to go, by whatever clock, did not end by itself", 1, ended(98, 1, gone=97), False),
    ("nor in the second in which it was told", 1, ended(98, 143, gone=98), False),
    ("a launcher's report of the signal that told it to go is none", 1, ended(102, 1, killed(98, -15)), False),
    ("an end of which kubelet knows nothing is none", 1, ended(0, 137, reason="ContainerStatusUnknown"), False),
    ("a report of a signal that there is not is no signal", 1, ended(102, 1, killed(99, -500)), False),
]


@table(*ENDS)
def test_an_end_that_shows_later(case):
    code, there, explains = case
    history = past(failure=failure(time=at(99), exit_code=code, signal=code - 128 if code > 128 else None))
    status = Status(attempt=1, history=[history])
    found = reattribution.cause(job(roles={"worker": 2}), status, [there], NOW, CLUSTER)
    assert (found is not None) == explains
    if found:
        assert (found.attempt, found.role, found.index) == (0, "worker", 1)
        assert found.reason != "Deleted"


def test_seconds_are_all_that_is_compared():
    """The blamed pod was refused by kubelet, and failed when that was seen; its peer ended because it was deleted."""
    refused = failure(time=at(99.4), exit_code=None, reason="UnexpectedAdmissionError")
    status = Status(attempt=1, history=[past(failure=refused)])
    assert reattribution.cause(job(roles={"worker": 2}), status, [ended(99, 143, gone=99)], NOW, CLUSTER) is None
    assert reattribution.cause(job(roles={"worker": 2}), status, [ended(99, 1, gone=100)], NOW, CLUSTER) is None


def test_of_several_the_earliest_is_the_cause():
    status = Status(attempt=1, history=[past(failure=failure(time=at(99)))])
    pods = [replace(ended(seconds), name=f"job-worker-{index}-0") for index, seconds in ((1, 98), (2, 97), (3, 98))]
    found = reattribution.cause(job(roles={"worker": 4}), status, pods, NOW, CLUSTER)
    assert found
    assert (found.index, found.time) == (2, at(97))


def test_what_restarts_alone_has_been_told_already():
    of = job(framework="tensorflow", roles={"chief": 1, "worker": 2, "ps": 1})
    there = replace(pod("ps", 0), deleted_at=at(100), disruption=left().disruption)
    assert reattribution.cause(of, Status(attempt=1, history=[past()]), [there], NOW, CLUSTER) is None


def test_a_program_that_failed_counts_where_no_rule_says_otherwise():
    assert reattribution.counts(job(), failure(signal=9, exit_code=137)) is True


# Sentence, the user's rule on NodeLost, whether such an end counts.
RULES = [
    ("the loss of a node does not count", None, False),
    ("it does where a rule says so", "restart", True),
    ("where a rule would have ended the job, what was decided stays", "fail", None),
    ("where a rule would have gone on without the pod, too", "ignore", None),
]


@table(*RULES)
def test_counts(case):
    action, counts = case
    rules = {"rules": [{"reasons": ["NodeLost"], "action": action}]} if action else {}
    assert reattribution.counts(job(restart=rules), failure(reason="NodeLost", exit_code=None)) is counts
