"""The complete status that each transition writes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import Condition, Failure, PastAttempt, ReplicaRestarts, RestartCounts, RoleStatus, Status
from allranks.core import transitions
from allranks.core.diagnosis import reasons
from allranks.core.facts import status_summary
from allranks.core.facts.model import Pod
from allranks.fields import decode, encode
from support.builders import NOW, at, failed, failure, job, observed, pending, pod, started, succeeded, table

GROUP = {"roles": {"master": 1, "worker": 2}}
BY_RANK = {"master": RoleStatus(desired=1), "worker": RoleStatus(desired=2)}
LABELS = "allranks.dev/job-name=job,allranks.dev/role=worker"


def condition(kind: Any, status: Any, reason: str, message: str, since: float = 0, generation: int = 1) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=at(since),
        observed_generation=generation,
    )


CREATED = condition("Running", "False", "Created", "the pods are being created")


def over(reason: str, end: float, counted: bool = False, cause: Failure | None = None, attempt: int = 0) -> PastAttempt:
    """The history entry of the attempt of `running()` after its end."""
    was = running()
    return PastAttempt(
        attempt=attempt,
        start_time=was.attempt_time,
        running_time=was.running_time,
        end_time=at(end),
        reason=reason,
        counted=counted,
        failure=cause,
    )


def begun(**fields: Any) -> Status:
    """Status after the first reconcile."""
    defaults = {
        "phase": "Pending",
        "conditions": [CREATED],
        "observed_generation": 1,
        "roles": BY_RANK,
        "ready": "0/3",
        "start_time": NOW,
        "attempt_time": NOW,
        "active_since": NOW,
    }
    return Status(**defaults | fields)


def test_begin():
    assert transitions.begin(job(**GROUP), Status(), NOW) == begun()


def test_begin_suspended():
    assert transitions.begin(job(**GROUP, suspend=True), Status(), NOW) == begun(
        phase="Suspended",
        conditions=[condition("Suspended", "True", "Suspended", "created with suspend: true")],
        attempt_time=None,
        active_since=None,
    )


def running() -> Status:
    return begun(
        phase="Running",
        conditions=[condition("Running", "True", "AllRanksRunning", "all 3 pods run", since=5)],
        roles={"master": RoleStatus(desired=1, active=1, ready=1), "worker": RoleStatus(desired=2, active=2, ready=2)},
        ready="3/3",
        launched=True,
        running_time=at(5),
        selector=LABELS,
    )


def test_running():
    life = started(job(**GROUP))
    assert life.status == replace(
        running(),
        times=life.status.times,
        conditions=[condition("Running", "True", "AllRanksRunning", "all 3 pods run")],
        running_time=NOW,
        first_running_time=NOW,
    )


def test_suspend_stops_the_active_time():
    assert transitions.suspend(running(), at(60)) == replace(
        running(),
        phase="Suspended",
        conditions=[
            condition("Running", "False", "Suspended", "", since=60),
            condition("Suspended", "True", "Suspended", "spec.suspend is true", since=60),
        ],
        running_time=None,
        active_since=None,
        active_seconds=60.0,
        history=[over("Suspended", 60)],
    )


def test_resume_begins_the_next_attempt_and_continues_the_active_time():
    suspended = transitions.suspend(running(), at(60))
    assert transitions.resume(job(**GROUP), suspended, at(100)) == replace(
        running(),
        phase="Pending",
        conditions=[
            condition("Running", "False", "Resumed", "spec.suspend is false", since=60),
            condition("Suspended", "False", "Pending", "", since=100),
        ],
        attempt=1,
        attempt_time=at(100),
        running_time=None,
        launched=False,
        active_since=at(100),
        active_seconds=60.0,
        history=[over("Suspended", 60)],
        roles=BY_RANK,
        ready="0/3",
    )


def test_restart():
    first = failure(role="master", rank=0)
    assert transitions.restart(job(**GROUP), running(), first, True, "the program failed", at(61)) == replace(
        running(),
        phase="Restarting",
        conditions=[
            condition(
                "Running",
                "False",
                "Error",
                "master-0 failed with exit code 1 (Error): the program failed",
                since=61,
            ),
            condition(
                "Restarting",
                "True",
                "Error",
                "master-0 failed with exit code 1 (Error): the program failed",
                since=61,
            ),
        ],
        attempt=1,
        attempt_time=at(61),
        launched=False,
        running_time=None,
        restarts=RestartCounts(counted=1, by_reason={"Error": 1}, without_progress=1),
        last_failure=first,
        history=[over("Error", 61, True, first)],
        restart_time=None,
        roles=BY_RANK,
        ready="0/3",
    )


def test_a_new_attempt_resets_the_state_of_the_old_one():
    old = replace(
        running(),
        replica_restarts={"worker-0": ReplicaRestarts(count=1, restart_time=NOW)},
        ignored=["worker-1"],
        done={"worker": "2"},
        restart_time=at(1),
    )
    new = transitions.restart(job(**GROUP), old, failure(reason="Preempted"), False, "", at(61))
    assert (new.replica_restarts, new.ignored, new.launched, new.running_time) == ({}, [], False, None)
    assert new.done == {}
    assert new.restart_time is None, "the first restart without progress has no backoff"


def test_restart_of_one_replica():
    lost = failure(role="worker", index=1, pod="job-worker-1-0")
    before = replace(running(), restarts=RestartCounts(counted=1, by_reason={"Error": 1}))
    assert transitions.restart_replica(job(**GROUP), before, lost, True, at(61)) == replace(
        before,
        restarts=RestartCounts(counted=2, by_reason={"Error": 2}),
        last_failure=lost,
        replica_restarts={
            "worker-1": ReplicaRestarts(count=1, counted=True, restart_time=at(71), failure=lost, without_progress=1)
        },
    )


NONE_READY = {
    "ready": "0/3",
    "roles": {"master": RoleStatus(desired=1, active=1), "worker": RoleStatus(desired=2, active=2)},
}
"""As in the status of a Kubernetes Job: `kubectl get dt` shows Succeeded 0/3."""


def test_success():
    assert transitions.succeed(running(), at(90)) == replace(
        running(),
        phase="Succeeded",
        conditions=[
            condition("Running", "False", "Completed", "", since=90),
            condition("Complete", "True", "Completed", "training completed", since=90),
        ],
        completion_time=at(90),
        history=[over("Completed", 90)],
        **NONE_READY,
    )


def test_failure():
    first = failure()
    assert transitions.fail(running(), "Error", "why", at(90), first) == replace(
        running(),
        phase="Failed",
        conditions=[
            condition("Running", "False", "Error", "", since=90),
            condition("Failed", "True", "Error", "why", since=90),
        ],
        completion_time=at(90),
        last_failure=first,
        history=[over("Error", 90, False, first)],
        **NONE_READY,
    )


def test_the_last_ten_attempts_are_on_record():
    status = running()
    for number in range(12):
        status = transitions.restart(job(**GROUP), status, failure(attempt=number), True, "", at(90 + number))
    assert [past.attempt for past in status.history] == list(range(2, 12))
    assert [past.end_time for past in status.history] == [at(90 + number) for number in range(2, 12)]


def test_a_failure_without_a_rank_keeps_last_failure():
    before = replace(running(), last_failure=failure())
    assert transitions.fail(before, "DeadlineExceeded", "", at(90)).last_failure == failure()


PHASES = ["Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]


def _next(phase: str, of: Any, now: Any, before: Status) -> Status:
    life = {
        "Pending": lambda: transitions.resume(of, before, now),
        "Running": lambda: status_summary.summarise(of, before, _all_run(of), (), now),
        "Restarting": lambda: transitions.restart(of, before, failure(), True, "", now),
        "Suspended": lambda: transitions.suspend(before, now),
        "Succeeded": lambda: transitions.succeed(before, now),
        "Failed": lambda: transitions.fail(before, "Error", "", now),
    }
    return life[phase]()


def _all_run(of: Any) -> dict[tuple[str, int], Pod]:
    return {(role, i): pod(role, i) for role, spec in of.spec.roles.items() for i in range(spec.replicas)}


@pytest.mark.parametrize("after", PHASES)
@pytest.mark.parametrize("before", PHASES)
def test_conditions_follow_the_phase(before, after):
    """Complete and Failed are never both; each phase has its condition, and no other is true."""
    of = job(**GROUP)
    one = _next(before, of, at(10), transitions.begin(of, Status(), NOW))
    two = _next(after, of, at(20), one)
    true = {c.type for c in two.conditions if c.status == "True"}
    assert two.phase == after
    assert true == {"Pending": set(), "Succeeded": {"Complete"}}.get(after, {after})
    assert len({c.type for c in two.conditions}) == len(two.conditions)
    for now in two.conditions:
        was = one.condition(now.type)
        same = was is not None and was.status == now.status
        assert now.last_transition_time == (was.last_transition_time if same and was else at(20)), now.type
        assert now.reason, "Kubernetes wants a reason in every condition"


@table(
    ("an exit", failure(), "worker-0 failed with exit code 1 (Error)"),
    ("a signal", failure(exit_code=137, signal=9), "worker-0 was ended by signal 9 (Error)"),
    (
        "out of memory",
        failure(exit_code=137, signal=9, reason="OOMKilled"),
        "worker-0 was ended by signal 9 (OOMKilled)",
    ),
    ("a preemption", failure(exit_code=None, reason="Preempted"), "worker-0 was lost (Preempted)"),
    ("a deletion", failure(exit_code=None, reason="Deleted"), "worker-0 was lost (Deleted)"),
    (
        "a rejection by kubelet",
        failure(exit_code=None, reason="OutOfcpu"),
        "worker-0 was rejected by its node (OutOfcpu)",
    ),
)
def test_a_failure_is_described_in_one_line(case):
    cause, line = case
    assert reasons.describe_failure(cause) == line


# Sentence, workers' pods, the role's status.
ROLES = [
    ("a missing pod does not count", [], RoleStatus(desired=2)),
    ("a pending pod is active, not ready", [pending()], RoleStatus(desired=2, active=1)),
    ("a running pod is active and ready", [pod(), pod(index=1)], RoleStatus(desired=2, active=2, ready=2)),
    (
        "a pod that succeeded is ready, not active",
        [succeeded(), pod(index=1)],
        RoleStatus(desired=2, active=1, ready=2, succeeded=1),
    ),
    (
        "a pod that failed is neither",
        [failed(), pod(index=1)],
        RoleStatus(desired=2, active=1, ready=1, failed=1),
    ),
    (
        "a pod that is being deleted is neither",
        [pod(deleted_at=at(1)), pod(index=1)],
        RoleStatus(desired=2, active=1, ready=1),
    ),
]


@table(*ROLES)
def test_roles(case):
    pods, expected = case
    held = {(p.role, p.index): p for p in pods}
    summary = status_summary.summarise(job(), Status(), held, (), NOW)
    assert summary.roles == {"worker": expected}
    assert summary.ready == f"{expected.ready}/2"


def test_a_long_message_is_truncated_to_the_limit_of_the_schema():
    of = job()
    over = transitions.fail(transitions.begin(of, Status(), NOW), "Error" * 100, "x" * 9000, at(1))
    assert decode(Status, encode(over)) == over


def test_reasons_of_restarts_are_bounded():
    of, now = job(), transitions.begin(job(), Status(), NOW)
    for number in range(100):
        now = transitions.restart(of, now, failure(reason=f"Reason{number}"), True, "", at(number))
    assert now.restarts.counted == 100
    assert decode(Status, encode(now)) == now


def test_status_survives_being_written_and_read_back():
    over = transitions.restart(job(**GROUP), running(), failure(), True, "why", at(61))
    assert decode(Status, json.loads(json.dumps(encode(over)))) == over


def test_the_first_status_is_small():
    """Null fields are omitted."""
    first = transitions.begin(job(**GROUP), Status(), NOW)
    written = encode(first)
    assert "lastFailure" not in written
    assert written["startTime"] == "2026-03-04T10:00:00Z"
    assert observed(job(**GROUP), first).persisted == first
