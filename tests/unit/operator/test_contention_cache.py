"""The operator's memory of jobs that are placed in part."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.status import PastAttempt
from allranks.core.facts.contenders import Contention
from allranks.core.facts.policy import Policy
from allranks.core.reconcile import reconcile
from allranks.operator.other_jobs import Contenders
from support.builders import CLUSTER, Life, at, job, pending, pod

ONE, OTHER = ("team", "one"), ("team", "other")


def half_placed(now: float = 20) -> Life:
    life = Life(job(creation_timestamp=at(0)))
    life.settle(0)
    life.put(pod(placed_at=at(10)), pending(index=1, waiting_reason="Unschedulable"))
    life.settle(now)
    return life


def test_each_job_gets_the_others_and_they_are_enqueued_when_one_changes() -> None:
    enqueued: list[tuple[str, str]] = []
    contenders = Contenders(enqueued.append)
    life = half_placed()
    assert contenders.observe(ONE, life.look(30)) == Contention()
    assert enqueued == []
    assert [each.placed_at for each in contenders.observe(OTHER, life.look(31)).others] == [at(10)]
    assert enqueued == [ONE]
    contenders.observe(OTHER, life.look(32))
    assert enqueued == [ONE], "nothing changed"
    life.run(40)
    assert contenders.observe(OTHER, life.look(41)) == Contention(), "a job that runs needs no rival"
    assert enqueued == [ONE, ONE]
    assert contenders.observe(ONE, half_placed().look(42)).others == ()


def test_when_a_job_gave_its_pods_up_the_others_wait_for_the_room() -> None:
    contenders = Contenders(lambda key: None)
    life = half_placed()
    own = contenders.observe(ONE, life.look(30))
    contenders.observe(OTHER, life.look(30))
    older = replace(contenders.observe(ONE, life.look(30)).others[0], created_at=at(-100))
    life.step(30)
    given_up = replace(life.look(400), contention=Contention((older,)))
    status = reconcile(given_up).next
    assert status
    assert status.history[-1].reason == "GangTimeout"
    contenders.observe(OTHER, replace(life.look(401), persisted=status, pods=()))
    assert contenders.observe(ONE, life.look(402)).given_up_at == at(400)
    assert own.given_up_at is None


def test_a_deleted_job_is_no_rival() -> None:
    contenders = Contenders(lambda key: None)
    contenders.observe(ONE, half_placed().look(30))
    contenders.forget(ONE)
    assert contenders.observe(OTHER, half_placed().look(30)) == Contention()


def test_jobs_of_another_namespace_neither_appear_nor_are_enqueued_without_a_common_pool() -> None:
    enqueued: list[tuple[str, str]] = []
    contenders = Contenders(enqueued.append)
    foreign = ("foreign", "job")
    contenders.observe(ONE, half_placed().look(30))
    contenders.observe(foreign, half_placed().look(30))
    given_up = PastAttempt(attempt=0, end_time=at(29), reason="GangTimeout")
    waits = half_placed().look(31)
    contenders.observe(foreign, replace(waits, persisted=replace(waits.persisted, history=[given_up]), pods=()))
    assert contenders.observe(OTHER, half_placed().look(31)).given_up_at is None
    assert enqueued == [ONE]
    in_pool = [("team", "a"), ("foreign", "b")]
    for key in in_pool:
        with_pool = replace(CLUSTER, policy=Policy(default_pool="a100"))
        contention = contenders.observe(key, replace(half_placed().look(32), platform=with_pool))
    assert [other.pools for other in contention.others] == [{"a100"}]
