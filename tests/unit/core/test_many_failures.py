"""Many failures in one look: the decisions are those of one failure at a time, and the work is linear in the pods."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from allranks.api.job import Job
from allranks.api.status import Failure, ReplicaRestarts, Status
from allranks.core import transitions
from allranks.core.diagnosis import restart_policy, root_cause
from allranks.core.diagnosis.comparison import same_way
from allranks.core.diagnosis.reasons import describe_failure
from allranks.core.facts import naming, topology
from allranks.core.facts.model import Observed, Plan
from allranks.core.outcomes import Act
from allranks.core.reconcile import reconcile
from allranks.core.rules import failure
from allranks.core.snapshot import Snapshot
from support.builders import at, failed, job, preempted, started, succeeded

SCENES = 90
CODES = [(1, "ValueError: no data"), (1, "ConnectionError: peer 17 closed"), (137, ""), (3, "OSError: disk"), (139, "")]


@pytest.mark.parametrize("limit", [3, failure.MAX_DECISIONS])
def test_the_decisions_of_a_write_are_those_of_one_failure_at_a_time(limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure, "MAX_DECISIONS", limit)
    for module in (failure, restart_policy):  # test_verdict.py has the verdicts
        monkeypatch.setattr(module, "judged", lambda job, status, each: each)
    several = upstream = 0
    for seed in range(SCENES):
        snapshot = _scene(random.Random(seed))
        wanted = _one_by_one(snapshot, limit)
        outcome = failure.handle_failures(snapshot)
        assert (outcome.plan if isinstance(outcome, Act) else None) == wanted, seed
        several += wanted is not None and len(wanted.events) > 2
        upstream += wanted is not None and any("caused by an earlier failure" in each.message for each in wanted.events)
    assert several > SCENES / 6, "the scenes have several failures each"
    assert upstream > 2, "and some that an earlier failure caused"


def _scene(dice: random.Random) -> Snapshot:
    """A job whose replicas restart alone, or some of them, and of which several have failed in several ways."""
    rules = (
        [{"exitCodes": [3], "action": dice.choice(["Ignore", "RestartUncounted", "Fail"])}]
        if dice.random() < 0.5
        else []
    )
    restart: dict[str, Any] = {"maxRestarts": dice.choice([1, 3, 20]), "rules": rules}
    if dice.random() < 0.4:
        of = job(roles={"worker": 12}, restart=restart | {"scope": "Pod"})
    else:
        of = job("tensorflow", {"chief": 1, "ps": 3, "worker": 8, "evaluator": 1}, restart=restart)
    life = started(of)
    if dice.random() < 0.3:
        life.status = replace(life.status, progress=None, history=[])
    entries = {}
    for name, each in sorted(life.pods.items()):
        if dice.random() < 0.3:
            code, message = dice.choice(CODES)
            before = failed(each.role, each.index, after=dice.choice([5, 40, 90]), code=code, message=message)
            found = next(root_cause.failures(of, life.status, [before], (), at(95)))
            count, counted = dice.randint(1, 2), dice.random() < 0.5
            launched, restart_time = dice.random() < 0.8, at(95)
            entry = ReplicaRestarts(
                count=count, launched=launched, counted=counted, restart_time=restart_time, failure=found
            )
            entries[naming.replica_key(each.role, each.index)] = entry
            del life.pods[name]
            life.pods[f"{name}-{count}"] = replace(each, name=f"{name}-{count}", restart=count, started_at=at(96))
    life.status = replace(life.status, replica_restarts=entries)
    chief_first = dice.random() < 0.15
    for name, each in sorted(life.pods.items()):
        event, after = dice.random(), dice.choice([100, 101, 130, 150, 151])
        changes: dict[str, Any] = {"restart": each.restart, "name": each.name, "started_at": each.started_at}
        if each.role == "chief" and chief_first:
            # All other ranks restart with the chief, and a parameter server may have caused its failure.
            end = failed(each.role, each.index, after=99, code=1, message="ConnectionError: peer 17 closed")
        elif each.role == "chief" and dice.random() < 0.7:
            continue
        elif event < 0.5:
            code, message = dice.choice(CODES)
            reason = "OOMKilled" if code == 137 and dice.random() < 0.3 else "Error"
            end = failed(each.role, each.index, after=after, code=code, message=message, reason=reason)
        elif event < 0.65:
            end = preempted(each.role, each.index, after=after)
        elif event < 0.7:
            end = succeeded(each.role, each.index, after=after)
        elif event < 0.8:
            del life.pods[name]
            continue
        else:
            continue
        life.pods[name] = replace(end, uid=each.uid, **changes)
    look = life.look(152)
    return Snapshot(look)


def _one_by_one(snapshot: Snapshot, limit: int) -> Plan | None:
    """The plain evaluation: after each decision, everything is derived again from the new status."""
    before, decided, kinds = snapshot.persisted.restarts, None, list[str]()
    while len(kinds) < limit and (snapshot.failed or snapshot.deleted_replicas):
        kind, status, events = _first(snapshot)
        mixed = status.restarts.counted > before.counted and status.restarts.disruptions > before.disruptions
        if kinds and (mixed or (kinds[-1] == "ignored" and kind != "ignored")):
            break
        kinds.append(kind)
        decided = Plan(status, write_ahead=True, events=(*(decided.events if decided else ()), *events))
        if kind == "final":
            break
        snapshot = Snapshot(snapshot.observed.with_current(status))
    return decided


def _first(snapshot: Snapshot) -> tuple[str, Status, list[Any]]:
    o = snapshot.observed
    of, status, now = o.job, o.current, o.now
    first = next(root_cause.failures(of, status, snapshot.failed, snapshot.deleted_replicas, now, o.platform))
    described = describe_failure(first)

    def event(why: str) -> Any:
        return failure.Event("RankFailed", f"{described}: {why}", warning=True)

    upstream = _upstream(of, status, first)
    if upstream and upstream.failure:
        why = f"caused by an earlier failure: {describe_failure(upstream.failure)}"
        after = transitions.restart_after_upstream_failure(of, status, upstream, upstream.failure, now)
        return "final", after, [event(why), failure.Event("Restarting", why)]
    if _is_correlated(of, status, first):
        after = transitions.restart_replica(of, status, first, None, now)
        return "restarted", after, [event("same failure as another replica within 60 s; already counted")]
    decision = restart_policy.decide_restart(of, status, first)
    events = [event(decision.explanation)]
    if decision.action == "Fail":
        message = failure._with_last_line(f"{described}: {decision.explanation}", first)
        return "final", transitions.fail(snapshot.summarised, decision.reason, message, now, first), events
    if decision.action == "Ignore":
        return "ignored", transitions.ignore(status, first), events
    counted = decision.action == "Restart"
    places = [(pod.role, pod.index) for pod in snapshot.failed] + [(r.role, r.index) for r in snapshot.deleted_replicas]
    if any(topology.scope(of, role, index) == "Group" for role, index in places):
        after = transitions.restart(of, status, first, counted, decision.explanation, now)
        return "final", after, [*events, failure.Event("Restarting", decision.explanation)]
    return "restarted", transitions.restart_replica(of, status, first, counted, now), events


def _upstream(of: Job, status: Status, found: Failure) -> ReplicaRestarts | None:
    noticed = found.reason == "Error" and found.exit_code is not None and found.signal != 9
    if not noticed or topology.scope(of, found.role, found.index) != "Group":
        return None
    if status.attempt_failure and same_way(status.attempt_failure, found):
        return None
    roles = topology.framework_of(of).roles
    lost = [
        (each.failure.time, each.failure.role, each.failure.index, key)
        for key, each in status.replica_restarts.items()
        if each.failure
        and roles[each.failure.role].required_by_peers
        and timedelta(0) <= found.time - each.failure.time <= timedelta(seconds=60)
    ]
    return status.replica_restarts[min(lost)[-1]] if lost else None


def _is_correlated(of: Job, status: Status, found: Failure) -> bool:
    if found.reason != "Error" or topology.scope(of, found.role, found.index) == "Group":
        return False
    began = found.time - timedelta(seconds=found.ran_seconds or 0.0)
    own = naming.replica_key(found.role, found.index)
    return any(
        key != own
        and each.counted
        and each.failure is not None
        and began < each.failure.time
        and abs(found.time - each.failure.time) <= timedelta(seconds=60)
        and same_way(each.failure, found)
        for key, each in status.replica_restarts.items()
    )


def test_a_write_holds_a_bounded_number_of_decisions_and_the_next_look_continues(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure, "MAX_DECISIONS", 20)
    number = 47
    life = started(job(roles={"worker": number}, restart={"scope": "Pod", "maxRestarts": 9}))
    life.put(*(failed("worker", index, message="ValueError: no data") for index in range(number)))
    sizes = []
    while (plan := life.step(70)).write_ahead:
        sizes.append(len(plan.events))
    assert sizes == [20, 20, 7]
    assert (life.status.restarts.counted, len(life.status.replica_restarts)) == (1, number)
    life.settle(70)
    assert sorted(life.pods) == sorted(f"job-worker-{index}-0-1" for index in range(number))


def test_ignored_failures_are_written_together_until_another_decision_follows():
    restart = {"scope": "Pod", "rules": [{"exitCodes": [9], "action": "Ignore"}]}
    life = started(job(roles={"worker": 6}, restart=restart))
    life.put(*(failed("worker", index, after=60 + index, code=9) for index in (1, 2, 4)), failed("worker", 3, after=63))
    assert life.step(70).write_ahead
    assert (life.status.ignored, life.status.replica_restarts) == (["worker-1", "worker-2"], {})
    assert life.step(70).write_ahead
    assert (life.status.ignored, list(life.status.replica_restarts)) == (
        ["worker-1", "worker-2", "worker-4"],
        ["worker-3"],
    )


def _all_fail(number: int, one_way: bool) -> Observed:
    life = started(job("tensorflow", {"chief": 1, "ps": 2, "worker": number}, restart={"maxRestarts": 9999}))
    messages = [
        "ValueError: no data" if one_way else f"ValueError: {chr(97 + index % 13) * 9}" for index in range(number)
    ]
    life.put(*(failed("worker", index, message=messages[index], code=1 + index % 4) for index in range(number)))
    return life.look(70)


def _with_old_failures(number: int) -> Observed:
    """The status of an earlier version has the failure of each replica."""
    look = _all_fail(number, False)
    found = root_cause.failures(look.job, look.persisted, (p for p in look.pods if p.role == "worker"), (), look.now)
    entries = {
        f"{one.role}-{one.index}": ReplicaRestarts(
            count=1, launched=True, counted=True, restart_time=at(1), failure=one
        )
        for one in found
    }
    pods = [replace(p, name=f"{p.name}-1", restart=1) if p.role == "worker" else p for p in look.pods]
    return replace(look, pods=tuple(pods), persisted=replace(look.persisted, replica_restarts=entries))


def _chief_fails_after(number: int) -> Observed:
    look = _with_old_failures(number)
    pods = [
        failed("chief", 0, after=65) if p.role == "chief" else replace(p, phase="Running", exit=None) for p in look.pods
    ]
    return replace(look, pods=tuple(pods))


def _deleted(number: int) -> Observed:
    life = started(job(roles={"worker": number}, restart={"scope": "Pod"}))
    life.pods = {}
    return life.look(70)


def _ignored(number: int) -> Observed:
    rules = [{"exitCodes": [1], "action": "Ignore"}]
    life = started(job(roles={"worker": number}, restart={"scope": "Pod", "rules": rules}, success="All"))
    life.put(*(failed("worker", index) for index in range(number)))
    ignored = [f"worker-{index}" for index in range(number // 2)]
    return replace(life.look(70), persisted=replace(life.status, ignored=ignored))


def _group_ends(number: int) -> Observed:
    """The next attempt has begun, and all pods of the first one have failed."""
    life = started(job(roles={"worker": number}))
    life.put(failed("worker", number - 1, after=60))
    life.step(61)
    life.put(*(failed("worker", index, after=60 - index % 7) for index in range(number)))
    return life.look(62)


def _replaced(number: int) -> Observed:
    """All replicas have been restarted alone, and their first pods still run."""
    life = started(job(roles={"worker": number}, restart={"scope": "Pod"}))
    entries = {f"worker-{index}": ReplicaRestarts(count=1, restart_time=at(1)) for index in range(number)}
    return replace(life.look(70), persisted=replace(life.status, replica_restarts=entries))


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(lambda number: _all_fail(number, True), id="all fail in one way"),
        pytest.param(lambda number: _all_fail(number, False), id="all fail in many ways"),
        pytest.param(_with_old_failures, id="all fail again"),
        pytest.param(_chief_fails_after, id="the chief fails after all others"),
        pytest.param(_deleted, id="all were deleted"),
        pytest.param(_ignored, id="all are ignored"),
        pytest.param(_group_ends, id="all of the past attempt failed"),
        pytest.param(_replaced, id="all are replaced"),
    ],
)
def test_the_work_of_a_look_is_proportional_to_the_pods(scene: Callable[[int], Observed]):
    """Four times as many pods cost four times as much, not 16 times."""
    few, many = _calls(scene(100)), _calls(scene(400))
    assert many < 6 * few, f"{few} calls for 100 pods, {many} for 400"


def _calls(look: Observed) -> int:
    """Calls of functions, and of the bodies of generators, in one reconcile."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    reconcile(look)  # fills caches
    sys.setprofile(count)
    try:
        reconcile(look)
    finally:
        sys.setprofile(None)
    return calls


def test_a_failure_that_was_counted_counts_once_for_any_number_of_replicas():
    """The status keeps few of many failures, and the counted ones are among them."""
    life = started(job(roles={"worker": 400}, restart={"scope": "Pod", "maxRestarts": 3}))
    life.put(*(failed("worker", index, after=60 + index / 10, message="ValueError: no data") for index in range(400)))
    while life.step(110).write_ahead:
        pass
    assert (life.status.phase, life.status.restarts.counted, len(life.status.replica_restarts)) == ("Running", 1, 400)


def test_the_first_of_many_failures_stays_the_cause_of_what_follows():
    life = started(job("tensorflow", {"chief": 1, "ps": 1, "worker": 200}))
    life.put(preempted("ps", 0, after=60))
    life.put(*(failed("worker", index, after=61 + index / 10) for index in range(200)))
    life.settle(90)
    life.put(failed("chief", after=95))
    life.settle(96)
    found = life.status.last_failure
    assert found is not None
    assert (found.role, found.reason, life.status.attempt) == ("ps", "Preempted", 1)
