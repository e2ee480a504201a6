"""Reconcile: the request for a checkpoint, as an operator sees it that was restarted meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allranks.core.facts.model import Observed
from allranks.core.facts.rank_reports import RankReport, Reports
from allranks.core.reconcile import reconcile
from support.builders import Life, at, job, rank, started, succeeded

LISTENS_AT = 0
RESTARTED_AT = 65


def reported(life: Life, now: float, since: float, *ranks: RankReport) -> Observed:
    return replace(life.look(now), reports=Reports(at(since), ranks))


def saver(number: int, step: int, stored: float) -> RankReport:
    """A rank that stored a checkpoint of its step at `stored`."""
    return rank(number, step, stepped=stored, saves_on_request=True, checkpoint_step=step, checkpoint_at=at(stored))


def suspended_life() -> tuple[Life, RankReport, RankReport]:
    """A running job that is being suspended, with a request; its ranks before the request."""
    life = started(job(roles={"worker": 2}))
    ranks = tuple(replace(saver(number, 10, 50), step=20, stepped_at=at(59)) for number in (0, 1))
    life.job = job(roles={"worker": 2}, suspend=True)
    plan = reconcile(reported(life, 60, LISTENS_AT, *ranks))
    assert plan.next
    assert plan.next.checkpoint_request
    assert plan.next.checkpoint_request.ranks == 2
    life.status = plan.next
    return life, *ranks


def test_a_restarted_operator_waits_for_the_reports_of_all_ranks() -> None:
    """The first report that it receives is that of a rank that has stored its checkpoint."""
    life, _, other = suspended_life()
    for ranks in ((), (saver(0, 21, 64),), (saver(0, 21, 64), other)):
        plan = reconcile(reported(life, 66, RESTARTED_AT, *ranks))
        assert plan.next is None or plan.next.phase == "Running", ranks
        life.status = plan.next or life.status
        assert life.status.checkpoint_request
    plan = reconcile(reported(life, 67, RESTARTED_AT, saver(0, 21, 64), saver(1, 21, 66)))
    assert plan.next
    assert (plan.next.phase, plan.next.checkpoint_request) == ("Suspended", None)
    assert [event.message for event in plan.events] == ["suspended after a checkpoint of step 21: the pods are deleted"]


def test_a_rank_that_never_reports_again_does_not_delay_the_suspension_beyond_the_deadline() -> None:
    life, *_ = suspended_life()
    request = life.status.checkpoint_request
    assert request
    late = (request.deadline - at(0)).total_seconds()
    plan = reconcile(reported(life, late, RESTARTED_AT, saver(0, 21, 64)))
    assert plan.next
    assert plan.next.phase == "Suspended"


def test_an_operator_that_received_all_reports_does_not_wait_for_a_rank_whose_pod_was_deleted() -> None:
    life, *_ = suspended_life()
    plan = reconcile(reported(life, 66, LISTENS_AT, saver(0, 21, 64)))
    assert plan.next
    assert plan.next.phase == "Suspended"


def test_a_restarted_operator_asks_although_only_a_rank_that_stores_nothing_has_reported_to_it() -> None:
    life, first, second = suspended_life()
    other = replace(second, saves_on_request=False, checkpoint_at=None, checkpoint_step=None)
    life.job = job(roles={"worker": 2})
    life.status = replace(life.status, checkpoint_request=None, progress=None)
    found = reconcile(reported(life, 60, LISTENS_AT, first, other)).next
    assert found
    life.status, life.job = found, job(roles={"worker": 2}, suspend=True)
    plan = reconcile(reported(life, 66, RESTARTED_AT, other))
    assert plan.next
    assert plan.next.checkpoint_request
    assert plan.next.checkpoint_request.ranks == 2


def three() -> tuple[Life, list[RankReport]]:
    """A job of three ranks, of which only the chief decides about success."""
    life = started(job(roles={"worker": 3}, success="All"))
    return life, [replace(saver(number, 10, 50), step=20, stepped_at=at(59)) for number in range(3)]


def suspend(life: Life) -> None:
    life.job = job(roles={"worker": 3}, success="All", suspend=True)


def test_ranks_that_are_done_are_not_waited_for_by_a_restarted_operator() -> None:
    life, ranks = three()
    life.status = reconcile(reported(life, 59, LISTENS_AT, *ranks)).next or life.status
    assert life.status.progress
    assert life.status.progress.reporting == 3
    life.put(succeeded(index=2, after=58))
    suspend(life)
    life.status = reconcile(reported(life, 60, LISTENS_AT, *ranks)).next or life.status
    assert life.status.checkpoint_request
    assert life.status.checkpoint_request.ranks == 2
    plan = reconcile(reported(life, 67, RESTARTED_AT, saver(0, 21, 64)))
    assert plan.next is None or plan.next.phase == "Running"
    plan = reconcile(reported(life, 67, RESTARTED_AT, saver(0, 21, 64), saver(1, 21, 66)))
    assert plan.next
    assert [event.message for event in plan.events] == ["suspended after a checkpoint of step 21: the pods are deleted"]


@pytest.mark.parametrize("deleted", [False, True])
def test_an_operator_that_restarts_before_the_request_does_not_count_ranks_of_ended_pods(deleted: bool) -> None:
    life, ranks = three()
    life.status = reconcile(reported(life, 59, LISTENS_AT, *ranks)).next or life.status
    life.put(succeeded(index=2, after=58))
    if deleted:
        life.settle(59)
        del life.pods["job-worker-2-0"]
    suspend(life)
    life.status = reconcile(reported(life, 66, RESTARTED_AT, ranks[0])).next or life.status
    assert life.status.checkpoint_request
    assert life.status.checkpoint_request.ranks == 2


def test_a_rank_that_ends_after_the_request_is_not_waited_for_by_a_restarted_operator() -> None:
    life, ranks = three()
    suspend(life)
    life.status = reconcile(reported(life, 60, LISTENS_AT, *ranks)).next or life.status
    assert life.status.checkpoint_request
    assert life.status.checkpoint_request.ranks == 3
    life.put(succeeded(index=2, after=62))
    plan = reconcile(reported(life, 67, RESTARTED_AT, saver(0, 21, 64)))
    assert plan.next is None or plan.next.phase == "Running"
    plan = reconcile(reported(life, 67, RESTARTED_AT, saver(0, 21, 64), saver(1, 21, 66)))
    assert plan.next
    assert plan.next.phase == "Suspended"
