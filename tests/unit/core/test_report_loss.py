"""Condition ReportsLost: when ranks that reported are silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.status import Status
from allranks.core.facts.model import Observed
from allranks.core.facts.rank_reports import RankReport, Reports
from allranks.core.reconcile import reconcile
from support.builders import Life, at, job, observed, rank, started, table


def look(seconds: float, *ranks: RankReport, life: Life | None = None, since: float = 0) -> Observed:
    life = life or started(job())
    observation = observed(life.job, life.status, life.pods.values(), seconds)
    return replace(observation, reports=Reports(at(since), ranks))


def of_worker(number: int, heard: float, **fields: Any) -> RankReport:
    return rank(number, 3, received_at=at(heard), pod=f"job-worker-{number}-0", **fields)


def life_with(*ranks: RankReport, seconds: float = 0) -> Life:
    """A job that received these reports."""
    life = started(job())
    status = reconcile(look(seconds, *ranks, life=life)).next
    assert status
    life.status = status
    return life


def lost(status: Status | None) -> str | None:
    found = status.condition("ReportsLost") if status else None
    return found and found.status


BOTH = (of_worker(0, 0), of_worker(1, 0))


def test_the_condition_names_who_is_silent_since_when_and_what_to_check() -> None:
    life = life_with(*BOTH)
    assert reconcile(look(0, *BOTH, life=life)).wake_at == at(120)
    plan = reconcile(look(120, *BOTH, life=life))
    assert plan.next
    condition = plan.next.condition("ReportsLost")
    assert condition
    assert (condition.status, condition.reason, condition.last_transition_time) == ("True", "RanksSilent", at(120))
    assert condition.message.startswith("no report of 2 of 2 ranks since 10:00:00 UTC")
    assert "NetworkPolicy" in condition.message
    assert [(event.reason, event.warning) for event in plan.events] == [("ReportsLost", True)]
    life.status = plan.next
    later = reconcile(look(600, *BOTH, life=life))
    assert later.events == ()
    assert later.next is None or later.next.conditions == life.status.conditions


@table(
    ("no rank is silent", [119, 119], "None"),
    ("half of the ranks are silent", [0, 119], "None"),
    ("all are silent", [0, 0], "True"),
)
def test_when_reports_are_lost(case: Any) -> None:
    heard, expected = case
    status = reconcile(look(120, *(of_worker(n, s) for n, s in enumerate(heard)), life=life_with(*BOTH))).next
    assert str(lost(status)) == expected


def test_ranks_that_are_done_are_not_missed() -> None:
    done = [of_worker(0, 0, done=True), of_worker(1, 0, done=True)]
    assert lost(reconcile(look(500, *done, life=life_with(*BOTH))).next) is None


def test_a_new_operator_does_not_end_the_condition_before_it_has_received_a_report() -> None:
    life = life_with(*BOTH)
    silent = reconcile(look(120, *BOTH, life=life)).next
    assert silent
    life.status = silent
    assert lost(reconcile(look(130, life=life, since=129)).next or silent) == "True"
    assert lost(reconcile(look(135, of_worker(0, 134), of_worker(1, 134), life=life, since=129)).next) == "False"


def test_a_new_operator_waits_before_it_says_that_reports_are_lost() -> None:
    life = life_with(*BOTH)
    assert lost(reconcile(look(1000, life=life, since=900)).next or life.status) is None
    assert lost(reconcile(look(1021, life=life, since=900)).next) == "True"


def test_the_wait_starts_at_the_last_report_of_half_of_the_ranks() -> None:
    ranks = [of_worker(0, 50), of_worker(1, 60)]
    plan = reconcile(look(70, *ranks, life=life_with(*BOTH)))
    assert plan.wake_at == at(180)


def test_a_trainer_that_sends_its_status_only_after_steps_is_never_lost() -> None:
    status = of_worker(0, 0, heartbeat=False)
    life = life_with(status)
    assert lost(reconcile(look(9000, status, life=life)).next or life.status) is None
