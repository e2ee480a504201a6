"""Reconcile: pods that the API server does not allow to be deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from allranks.core.facts.model import Plan, Pod, RejectedDelete
from allranks.core.reconcile import reconcile
from support.builders import Life, at, failed, job, pod

from .reconcile_helpers import GROUP, condition, names


def rejected(pods: Iterable[Pod]) -> tuple[RejectedDelete, ...]:
    return tuple(RejectedDelete(p.name, p.uid, "Forbidden", "change freeze") for p in pods)


def restarted() -> tuple[Life, list[Pod]]:
    """A job that decided to restart, with the pods of attempt 0 that still run."""
    life = Life(job(**GROUP))
    life.settle(0)
    life.run(5)
    life.pods["job-worker-1-0"] = failed("worker", 1, uid=life.pods["job-worker-1-0"].uid)
    life.step(60)
    assert life.status.attempt == 1
    return life, [p for p in life.pods.values() if not p.ended]


def step(life: Life, refused: Iterable[Pod], now: float = 120) -> Plan:
    plan = reconcile(replace(life.look(now), refused_deletions=rejected(refused)))
    life.status = plan.next or life.status
    return plan


def test_pods_of_a_new_attempt_wait_for_old_ones_whose_deletion_was_rejected():
    life, old = restarted()
    plan = step(life, old)
    assert not plan.create
    assert {ref.uid for ref in plan.delete} >= {p.uid for p in old}, "the deletion is tried again"
    assert condition(life, "Running") == (
        "False",
        "DeletionRefused",
        "pod job-master-0-0 of attempt 0 still runs, because its deletion was rejected: change freeze; the pods of "
        "attempt 1 wait for it",
    )
    assert life.status.phase == "Restarting"
    assert "Pod job-master-0-1" in names(step(life, [])), "they are created when the deletion is accepted"
    assert condition(life, "Running")[1] != "DeletionRefused"


def test_one_such_pod_suffices():
    life, old = restarted()
    assert not step(life, old[:1]).create


def test_no_pod_waits_for_one_that_is_terminating_or_has_ended():
    life, old = restarted()
    for index, one in enumerate(old):
        life.pods[one.name] = replace(one, deleted_at=at(61)) if index else failed("master", 0, uid=one.uid)
    assert "Pod job-master-0-1" in names(step(life, old))


def test_a_suspended_job_says_which_pod_still_runs():
    life = Life(job(**GROUP))
    life.settle(0)
    life.run(5)
    life.job = job(**GROUP, suspend=True)
    assert life.step(60).write_ahead
    since = life.status.condition("Suspended")
    step(life, life.pods.values())
    assert condition(life, "Suspended") == (
        "True",
        "DeletionRefused",
        "pod job-master-0-0 still runs, because its deletion was rejected: change freeze",
    )
    now = life.status.condition("Suspended")
    assert since
    assert now
    assert now.last_transition_time == since.last_transition_time
    life.pods = {name: replace(p, deleted_at=at(90)) for name, p in life.pods.items()}
    step(life, [pod("worker", 9)])
    assert condition(life, "Suspended") == ("True", "Suspended", "spec.suspend is true")


def test_a_replica_that_restarts_alone_restores_what_its_pods_need():
    life = Life(job("tensorflow", {"chief": 1, "worker": 1, "ps": 1}))
    life.settle(0)
    life.run(5)
    assert life.status.launched
    life.pods["job-ps-0-0"] = failed("ps", 0, uid=life.pods["job-ps-0-0"].uid, message="x")
    life.step(60)
    later = 60 + 3600.0
    plan = reconcile(life.look(later))
    assert names(plan) == ["Pod job-ps-0-0-1"]
    assert [made["kind"] for made in plan.restore][:1] == ["Service"]


def test_what_the_pods_need_is_restored_when_the_driver_asks_for_it():
    life = Life(job(**GROUP))
    life.settle(0)
    life.run(5)
    assert not reconcile(life.look(60)).restore
    plan = reconcile(replace(life.look(60), check_companions=True))
    assert [made["kind"] for made in plan.restore] == ["Service"]
    assert not plan.create
