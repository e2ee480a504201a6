"""Time accounting with numbers computed by hand. (A property test checks that they add up.)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.status import PastAttempt, ProgressStatus, Status, Times
from allranks.core.accounting import time_accounting
from allranks.core.facts.model import ANY_PLATFORM, Observed
from allranks.core.facts.rank_reports import Reports
from allranks.core.snapshot import Snapshot
from support.builders import NOW, at, job, table

RESTARTED = [PastAttempt(attempt=0, end_time=NOW, reason="OOMKilled")]


def test_up_to_adds_the_time_of_the_current_state() -> None:
    times = Times(queued=5, starting=10, productive=100, lost=1, category="Productive", since=at(116))
    now = time_accounting.up_to(Status(times=times), at(120.5))
    assert now
    assert (now.productive, now.since) == (104.5, at(120.5))


def test_lost_time_has_the_reason_of_the_last_restart() -> None:
    times = Times(productive=100, lost=3, category="Lost", since=at(0), by_reason={"Error": 3})
    now = time_accounting.up_to(Status(times=times, history=RESTARTED), at(7))
    assert now
    assert (now.lost, now.by_reason) == (10, {"Error": 3, "OOMKilled": 7})


def test_a_finished_job_accumulates_no_time() -> None:
    times = Times(productive=100, category="Finished", since=at(0))
    assert time_accounting.up_to(Status(times=times), at(1000)) == times


def test_goodput_leaves_out_the_queue() -> None:
    assert time_accounting.goodput(Times(queued=1000, starting=10, productive=85, lost=5, since=NOW)) == 0.85
    assert time_accounting.goodput(Times(queued=1000, since=NOW)) is None


@table(("the ranks report steps", True, 0.5), ("they report none", False, None))
def test_the_status_has_a_goodput_only_if_it_is_measured(case: Any) -> None:
    measured, expected = case
    before = Status(
        start_time=NOW,
        attempt_time=NOW,
        running_time=at(50),
        phase="Running",
        times=Times(starting=50, productive=40, category="Productive", measured=measured, since=at(90)),
        progress=ProgressStatus(step=9, first_step_time=at(50)) if measured else None,
    )
    observed = Observed(job(), before, (), at(100), ANY_PLATFORM, reports=Reports(NOW))
    assert time_accounting.account(Snapshot(observed), replace(before, attempt=0, ready="1/1")).goodput == expected


def test_a_clock_that_goes_back_subtracts_nothing() -> None:
    times = Times(queued=5, category="Queued", since=at(10))
    assert time_accounting.up_to(Status(times=times), at(3)) == times


def test_a_job_that_waited_for_its_operator_was_queued() -> None:
    created = job(creation_timestamp=at(-90))
    begun = Status(start_time=NOW, attempt_time=NOW)
    observed = Observed(created, begun, (), NOW, ANY_PLATFORM, reports=Reports(NOW))
    status = time_accounting.account(Snapshot(observed), begun)
    assert status.times == Times(queued=90, category="Queued", since=NOW)
