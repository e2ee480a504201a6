"""A rule with a deadline wakes the job up at that deadline."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from allranks.api.status import PastAttempt, ProgressStatus, ReplicaRestarts, RoleStatus
from allranks.core import reconcile as core
from allranks.core.facts.contenders import Contender, Contention
from allranks.core.facts.model import Exit, Observed, Pod
from allranks.core.facts.processes import PodProcess, Processes
from allranks.core.facts.rank_reports import Reports
from allranks.core.facts.stage import Stage
from allranks.core.outcomes import Act, WaitUntil
from allranks.core.reconcile import RULES as TABLE
from allranks.core.reconcile import Rule, reconcile
from allranks.core.rules import failure as failure_rules
from allranks.core.rules import gang, lifecycle, placement, resize, restarts_in_pods, utilization
from allranks.core.rules.failure import handle_failures
from allranks.core.snapshot import Snapshot
from support.builders import Life, at, failed, failure, job, observed, pending, pod, rank, started

RULES = {rule for rules in TABLE.values() for rule in rules}
ELASTIC = {"roles": {"worker": 3}, "elastic": {"minReplicas": 1, "maxReplicas": 3, "waitSeconds": 60}}


def active_deadline() -> Observed:
    return started(job(activeDeadlineSeconds=100)).look(10)


def cannot_start() -> Observed:
    life = Life(job(startupDeadlineSeconds=300))
    life.settle(0)
    life.put(pending(waiting_reason="ImagePullBackOff", placed_at=at(20)), pod("worker", 1))
    life.settle(25)
    return life.look(30)


def stalled(now: float) -> Callable[[], Observed]:
    def look() -> Observed:
        life = started(job(hang={"timeoutSeconds": 60}))
        status = replace(life.status, progress=ProgressStatus(first_step_time=at(5), reporting=2))
        reports = Reports(at(0), (rank(0, 3, stepped=10), rank(1, 3, stepped=20)))
        return replace(observed(life.job, status, life.pods.values(), now), reports=reports)

    return look


def no_room() -> Observed:
    life = Life(job(**ELASTIC))
    life.settle(0)
    life.put(pod(index=0), pod(index=1), pending(index=2, waiting_reason="Unschedulable"))
    life.settle(1)
    return life.look(10)


def waiting_for_room(placeholder: dict[str, Any] | None = None, **status: Any) -> Observed:
    """Two of three workers run; a placeholder probes for room for each of the others."""
    life = started(job(**ELASTIC))
    size = RoleStatus(desired=1, active=1, ready=1, waiting=2)
    life.status = replace(life.status, **{"roles": {"worker": size}, "running_time": at(0), **status})
    pods = [life.pods["job-worker-0-0"]]
    for index in (1, 2):
        fields = placeholder if index == 1 else None
        pods.append(pending("placeholder", index, **(fields or {})))
    named = [replace(p, name=f"job-worker-{p.index}-0") for p in pods]
    return observed(life.job, life.status, named, 30)


def room_for_one() -> Observed:
    return waiting_for_room({"phase": "Running", "started_at": at(25), "node": "node-1"})


def finished() -> Observed:
    life = started(job(ttlSecondsAfterFinished=50))
    status = replace(life.status, phase="Succeeded", completion_time=at(20))
    return observed(life.job, status, [], 30)


def settling() -> Observed:
    life = started(job())
    life.put(replace(pod(), exit=Exit(1, at(60)), settling=True))
    return life.look(61)


def half_placed() -> Observed:
    life = Life(job(scheduling={"gangTimeoutSeconds": 90}))
    life.settle(0)
    life.put(pod(placed_at=at(10)), pending(index=1, waiting_reason="Unschedulable"))
    life.settle(20)
    older = Contender(("team", "older"), 0, at(-100), at(0), 300)
    return replace(life.look(30), contention=Contention((older,)))


def in_a_window() -> Observed:
    return started(job(utilization={"minProductivePercent": 50, "windowSeconds": 100})).look(30)


def without_other_nodes() -> Observed:
    life = started(job())
    life.put(failed("worker", 1, after=10, message="RuntimeError: CUDA error: uncorrectable ECC error encountered"))
    life.settle(11)
    assert life.status.restart_time is None
    life.put(pending(attempt=1, waiting_reason="Unschedulable"))
    return life.look(30)


def restarting_in_pods() -> Observed:
    """Attempt 1 is to begin in the pods of attempt 0, whose processes have not ended yet."""
    life = started(job(progress={}))
    status = replace(
        life.status,
        phase="Restarting",
        attempt=1,
        pods_of_attempt=0,
        running_time=None,
        attempt_time=at(10),
        history=[PastAttempt(attempt=0, start_time=at(0), end_time=at(10), reason="Error", failure=failure())],
    )
    by_pod = {each.uid: PodProcess(0, "Running", connected=True) for each in life.pods.values()}
    return replace(observed(life.job, status, life.pods.values(), 20), processes=Processes(at(0), by_pod))


def restarting_alone() -> Observed:
    """Worker 0 is to restart alone in its pod, from 30 s on, and its helper has not answered yet."""
    life = started(job(progress={}, restart={"scope": "Pod"}))
    entry = ReplicaRestarts(count=1, in_pod=1, restart_time=at(30), failure=failure())
    status = replace(life.status, replica_restarts={"worker-0": entry})
    return replace(observed(life.job, status, life.pods.values(), 20), processes=Processes(at(0)))


# Rule, an observation in which it waits, until when.
WAITS: list[tuple[Rule, Callable[[], Observed], datetime]] = [
    (lifecycle.exceed_active_deadline, active_deadline, at(100)),
    (handle_failures, settling, at(75)),
    (failure_rules.startup_failure, cannot_start, at(320)),
    (failure_rules.handle_hang, stalled(30), at(80)),
    (failure_rules.handle_hang, stalled(85), at(90)),
    (failure_rules.handle_hang, stalled(200), at(3620)),
    (failure_rules.handle_hang, stalled(4000), at(4120)),
    (resize.shrink_to_capacity, no_room, at(60)),
    (resize.grow_to_capacity, room_for_one, at(35)),
    (lifecycle.expire, finished, at(70)),
    (gang.give_up_pods, half_placed, at(100)),
    (restarts_in_pods.fall_back, restarting_in_pods, at(60)),
    (restarts_in_pods.fall_back_alone, restarting_alone, at(30)),
    (placement.accept_excluded_nodes, without_other_nodes, at(311)),
    (utilization.judge, in_a_window, at(100)),
]


@pytest.mark.parametrize(("rule", "look", "due"), WAITS)
def test_a_rule_that_waits_wakes_the_job_up_exactly_then(
    rule: Rule, look: Callable[[], Observed], due: datetime
) -> None:
    observation = look()
    before = Snapshot(observation)
    assert rule(before) == WaitUntil(due)
    assert reconcile(observation).wake_at == due
    after = replace(observation, now=due)
    outcome = rule(Snapshot(after))
    assert isinstance(outcome, Act) or (isinstance(outcome, WaitUntil) and outcome.time > due), "it is due"


def test_every_rule_that_can_wait_is_in_the_table() -> None:
    can_wait = {rule for rule in RULES if "WaitUntil(" in inspect.getsource(rule)}
    assert can_wait == {rule for rule, _, _ in WAITS}


def test_the_earliest_wait_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: list[Rule] = [lambda _: WaitUntil(at(900)), lambda _: None, lambda _: WaitUntil(at(300))]
    monkeypatch.setitem(core.RULES, Stage.ACTIVE, tuple(rules))
    observation = started(job()).look(10)
    assert reconcile(observation).wake_at == at(300)


def test_the_first_rule_that_acts_decides() -> None:
    """Success comes before the deadline, which is exceeded too."""
    life = started(job(activeDeadlineSeconds=100))
    done = [replace(p, phase="Succeeded") for p in life.pods.values()]
    plan = reconcile(observed(life.job, life.status, done, 500))
    assert plan.next
    assert (plan.next.phase, plan.wake_at) == ("Succeeded", None)


# --- waits of sync_objects -------------------------------------------------------------------------------------------


def backoff_of_all() -> Observed:
    life = started(job())
    status = replace(life.status, attempt=1, launched=False, restart_time=at(40))
    return observed(life.job, status, [], 30)


def backoff_of_one() -> Observed:
    life = started(job("tensorflow", {"chief": 1, "ps": 2}))
    entry = ReplicaRestarts(count=1, restart_time=at(45), failure=failure(role="ps"))
    status = replace(life.status, replica_restarts={"ps-0": entry})
    pods: list[Pod] = [p for p in life.pods.values() if p.name != "job-ps-0-0"]
    return observed(life.job, status, pods, 30)


def failed_growth() -> Observed:
    reasons = ("Grown", "Shrunk")
    history = [PastAttempt(attempt=n, end_time=at(n), reason=reason) for n, reason in enumerate(reasons)]
    return waiting_for_room(history=history, running_time=at(10))


def ended_placeholder() -> Observed:
    return waiting_for_room({"phase": "Failed", "created_at": at(12)})


@pytest.mark.parametrize(
    ("look", "due"),
    [
        (backoff_of_all, at(40)),
        (backoff_of_one, at(45)),
        (failed_growth, at(10) + timedelta(minutes=4)),
        (ended_placeholder, at(72)),
    ],
)
def test_what_is_not_created_yet_wakes_the_job_up(look: Callable[[], Observed], due: datetime) -> None:
    assert reconcile(look()).wake_at == due
