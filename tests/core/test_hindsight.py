"""Causes that show only later: which loss of a node explains which attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.status import PastAttempt, Status
from allranks.core import hindsight
from allranks.core.model import Disruption, Exit, Pod
from builders import CLUSTER, NOW, at, failure, job, pod, table


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
    found = hindsight.cause(job(roles={"worker": 2}), status, [there], NOW, CLUSTER)
    assert (found is not None) == explains
    if found:
        assert (found.attempt, found.role, found.index, found.reason) == (0, "worker", 1, "NodeLost")


def test_what_restarts_alone_has_been_told_already():
    of = job(framework="tensorflow", roles={"chief": 1, "worker": 2, "ps": 1})
    there = replace(pod("ps", 0), deleted_at=at(100), disruption=left().disruption)
    assert hindsight.cause(of, Status(attempt=1, history=[past()]), [there], NOW, CLUSTER) is None


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
    assert hindsight.counts(job(restart=rules), failure(reason="NodeLost", exit_code=None)) is counts
