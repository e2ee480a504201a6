"""Root causes that are detected later: a lost node, or the exit of a pod that was already deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.status import PastAttempt, Status
from allranks.core.diagnosis import correlation
from allranks.core.facts.model import Disruption, Exit, Pod
from support.builders import CLUSTER, NOW, at, failure, job, pod, table


def past(**fields: Any) -> PastAttempt:
    defaults = {"attempt": 0, "end_time": at(100), "reason": "Error", "counted": True, "failure": failure()}
    return PastAttempt(**{**defaults, **fields})


def left(seconds: float = 180, reason: str = "DeletionByTaintManager") -> Pod:
    """worker-1 of attempt 0, deleted with its attempt, with a disruption afterwards."""
    return replace(pod("worker", 1), deleted_at=at(100), disruption=Disruption(reason, at(seconds)))


def by_kubelet(seconds: float, code: int = 143) -> Pod:
    """The node shuts down: the kubelet sets the condition when the containers have ended."""
    ended = Exit(code, at(seconds - 1), "Error" if code else "Completed")
    return replace(left(seconds, "TerminationByKubelet"), phase="Failed", exit=ended)


def rebooted(seconds: float, code: int = 255) -> Pod:
    return replace(left(), disruption=None, exit=Exit(code, at(seconds), "ContainerStatusUnknown"))


def over_limit(lost: bool = False) -> Pod:
    ended = None if lost else Exit(137, at(99), "LimitExceeded")
    waiting = "LimitExceeded" if lost else ""
    return replace(left(), phase="Failed", disruption=None, exit=ended, waiting_reason=waiting)


# Sentence, history, remaining pod, the reason if it shows the root cause.
CASES = [
    ("a node declared lost a minute after the end is the cause", past(), left(), "NodeLost"),
    ("a node that is lost long after the end is not", past(), left(seconds=400), ""),
    ("an uncounted end is not corrected", past(counted=False), left(), ""),
    ("a counted disruption is not corrected", past(reason="Evicted"), left(), ""),
    ("a pod explains only its own attempt", past(attempt=3), left(), ""),
    ("a pod with an exit was not lost", past(), replace(left(), exit=Exit(0, at(101))), ""),
    ("an eviction is not the loss of a node", past(), left(reason="EvictionByEvictionAPI"), ""),
    ("the end by a kubelet for its node is", past(), by_kubelet(100), "Evicted"),
    ("also if the program exited with 0", past(), by_kubelet(100, code=0), "Evicted"),
    ("but not one that began after the failure of the peer", past(), by_kubelet(110), ""),
    ("a reboot of the node is", past(), rebooted(140), "ContainerStatusUnknown"),
    ("but not a late one", past(), rebooted(400), ""),
    ("a container that the kubelet lost track of is not", past(), rebooted(140, code=137), ""),
    ("an eviction for the pod's own limit is", past(), over_limit(), "LimitExceeded"),
    ("also if the kubelet lost the end of the container", past(), over_limit(lost=True), "LimitExceeded"),
    ("a recorded one is not replaced", past(reason="LimitExceeded"), over_limit(), ""),
    ("the pod's name decides, not its labels", past(), replace(left(), role="ps", attempt=7), "NodeLost"),
]


@table(*CASES)
def test_cause(case):
    history, remaining, reason = case
    status = Status(attempt=4, history=[history])
    found = correlation.corrected_cause(job(roles={"worker": 2}), status, [remaining], NOW, CLUSTER)
    assert (found.reason if found else "") == reason
    if found:
        assert (found.attempt, found.role, found.index) == (0, "worker", 1)
        assert found.exit_code == (137 if remaining.exit and reason == "LimitExceeded" else None)


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
    """torchrun's report, printed some time after the end of the process."""
    return REPORT % (f"{at(reported):%Y-%m-%d_%H:%M:%S}", code)


def ended(seconds: float, code: int = 1, message: str = "", **how: Any) -> Pod:
    """worker-1 of attempt 0, deleted with its attempt, with an exit."""
    gone = how.pop("gone", 100)
    return replace(pod("worker", 1), deleted_at=at(gone), exit=Exit(code, at(seconds), message=message, **how))


# Sentence, exit code of worker-0 (the recorded cause, at 99 s), remaining pod, whether its exit is the root cause.
ENDS = [
    ("a report of a signal in the same second is the cause", 1, ended(102, 1, killed(99)), True),
    ("a report of a later signal is not", 1, ended(102, 1, killed(100)), False),
    ("a report of the same exit code in the same second is not", 1, ended(102, 1, killed(99, 1)), False),
    ("a report of an earlier failure is, whatever it was", 1, ended(102, 1, killed(98, 1)), True),
    ("a recorded kill is not replaced by another in the same second", 137, ended(102, 1, killed(99)), False),
    ("an earlier exit without a report is", 1, ended(98, 1), True),
    ("an exit in the same second may be due to the deletion", 1, ended(99, 137), False),
    ("unless it is OOMKilled", 1, ended(99, 137, reason="OOMKilled"), True),
    ("exit code 0 is no failure", 1, ended(98, 0), False),
    ("an exit after the deletion, by any clock, is a consequence of it", 1, ended(98, 1, gone=97), False),
    ("also in the second of the deletion", 1, ended(98, 143, gone=98), False),
    ("a launcher's report of the deletion's SIGTERM is no failure", 1, ended(102, 1, killed(98, -15)), False),
    ("an exit with unknown status is no failure", 1, ended(0, 137, reason="ContainerStatusUnknown"), False),
    ("a report of an invalid signal is ignored", 1, ended(102, 1, killed(99, -500)), False),
]


@table(*ENDS)
def test_exits_that_are_detected_later(case):
    code, remaining, explains = case
    history = past(failure=failure(time=at(99), exit_code=code, signal=code - 128 if code > 128 else None))
    status = Status(attempt=1, history=[history])
    found = correlation.corrected_cause(job(roles={"worker": 2}), status, [remaining], NOW, CLUSTER)
    assert (found is not None) == explains
    if found:
        assert (found.attempt, found.role, found.index) == (0, "worker", 1)
        assert found.reason != "Deleted"


def test_the_rank_that_ran_until_the_deletion_is_the_one_for_which_all_others_waited():
    timed_out = "RuntimeError: [../gloo/unbound_buffer.cc:84] Timed out waiting 8000ms for recv operation to complete"
    history = past(failure=failure(time=at(99), because="LostPeer", message=timed_out))
    status, of = Status(attempt=1, history=[history]), job(roles={"worker": 3})
    gave_up = replace(pod("worker", 2), deleted_at=at(100), exit=Exit(1, at(100), message=timed_out))
    found = correlation.corrected_cause(of, status, [gave_up, ended(130, 143)], NOW, CLUSTER)
    assert found is not None
    assert (found.attempt, found.role, found.index, found.because) == (0, "worker", 1, "Absent")
    assert correlation.corrected_cause(of, status, [ended(130, 143)], NOW, CLUSTER) is None, "one rank is still unknown"


def test_a_rank_that_lost_the_cause_does_not_replace_it_whatever_the_clocks_say():
    frame = f"{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n"
    lost = "Traceback (most recent call last):\nRuntimeError: [pair.cc:1] Connection closed by peer [10.0.0.1]:3\n"
    raised = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: sample 4711 is broken\n"
    first = replace(failure(time=at(98), because="LostPeer", message=lost), index=1, rank=1, pod="job-worker-1-0")
    remaining = [
        replace(pod("worker", 0), deleted_at=at(100), exit=Exit(1, at(102), message=raised + frame + killed(99, 1))),
        ended(102, 1, lost + frame + killed(98, 1)),
    ]
    of, status = job(roles={"worker": 2}), Status(attempt=1, history=[past(failure=first)])
    cause = correlation.corrected_cause(of, status, remaining, NOW, CLUSTER)
    assert cause is not None
    assert (cause.index, cause.rank, cause.because) == (0, 1, None)
    again = replace(status, history=[past(failure=cause)])
    assert correlation.corrected_cause(of, again, remaining, NOW, CLUSTER) is None


def test_times_are_compared_in_whole_seconds():
    """Kubelet rejected the recorded pod (time of the observation); its peer ended because of the deletion."""
    refused = failure(time=at(99.4), exit_code=None, reason="UnexpectedAdmissionError")
    status = Status(attempt=1, history=[past(failure=refused)])
    assert (
        correlation.corrected_cause(job(roles={"worker": 2}), status, [ended(99, 143, gone=99)], NOW, CLUSTER) is None
    )
    assert correlation.corrected_cause(job(roles={"worker": 2}), status, [ended(99, 1, gone=100)], NOW, CLUSTER) is None


def test_of_several_the_earliest_is_the_cause():
    status = Status(attempt=1, history=[past(failure=failure(time=at(99)))])
    pods = [replace(ended(seconds), name=f"job-worker-{index}-0") for index, seconds in ((1, 98), (2, 97), (3, 98))]
    found = correlation.corrected_cause(job(roles={"worker": 4}), status, pods, NOW, CLUSTER)
    assert found
    assert (found.index, found.time) == (2, at(97))


def test_replicas_that_restart_alone_are_not_considered():
    of = job(framework="tensorflow", roles={"chief": 1, "worker": 2, "ps": 1})
    remaining = replace(pod("ps", 0), deleted_at=at(100), disruption=left().disruption)
    assert correlation.corrected_cause(of, Status(attempt=1, history=[past()]), [remaining], NOW, CLUSTER) is None


def test_a_program_that_failed_counts_where_no_rule_says_otherwise():
    assert correlation.restart_counts(job(), failure(signal=9, exit_code=137)) is True


# Sentence, the user's rule for NodeLost, whether such a failure counts.
RULES = [
    ("the loss of a node does not count", None, False),
    ("it does where a rule says so", "Restart", True),
    ("if a rule would have failed the job, the decision stays", "Fail", None),
    ("also if a rule would have ignored the failure", "Ignore", None),
]


@table(*RULES)
def test_counts(case):
    action, counts = case
    rules = {"rules": [{"reasons": ["NodeLost"], "action": action}]} if action else {}
    assert correlation.restart_counts(job(restart=rules), failure(reason="NodeLost", exit_code=None)) is counts
