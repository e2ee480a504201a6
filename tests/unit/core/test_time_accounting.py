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


def accounted(before: Status, now: float, **changes: Any) -> Status:
    """Return the status after a look at the job some seconds after NOW."""
    after = replace(before, **changes)
    snapshot = Snapshot(Observed(job(), before, (), at(now), ANY_PLATFORM, reports=Reports(NOW)).with_current(after))
    return time_accounting.account(snapshot, after)


def trained(step: int, last: float, saved: float | None = None, stalled: str | None = None) -> ProgressStatus:
    saved_at = None if saved is None else at(saved)
    return ProgressStatus(
        step=step, first_step_time=at(10), last_report=at(last), stalled=stalled, checkpoint_time=saved_at
    )


RUNNING = Status(
    start_time=NOW,
    attempt_time=NOW,
    running_time=at(5),
    phase="Running",
    times=Times(
        starting=10, productive=90, category="Productive", measured=True, since=at(100), productive_since=at(10)
    ),
    progress=trained(90, 100),
)
ENDED = {
    "attempt": 1,
    "phase": "Restarting",
    "history": [PastAttempt(attempt=0, start_time=NOW, end_time=at(200), reason="Hang")],
}


def test_the_time_since_the_last_step_of_a_stalled_job_is_lost() -> None:
    noticed = accounted(RUNNING, 140, progress=trained(91, 95, stalled="rank 1 waits"))
    assert noticed.times
    assert (noticed.times.productive, noticed.times.lost) == (85, 45)
    assert noticed.times.by_reason == {"Stalled": 45}
    shown = time_accounting.up_to(noticed, at(200))
    assert shown
    assert (shown.productive, shown.lost) == (85, 105)


def test_a_stall_that_ends_stays_lost_and_the_rest_of_the_attempt_is_kept() -> None:
    noticed = accounted(RUNNING, 140, progress=trained(91, 95, stalled="rank 1 waits"))
    resumed = accounted(noticed, 162, progress=trained(92, 160))
    assert resumed.times
    assert (resumed.times.category, resumed.times.productive, resumed.times.lost) == ("Productive", 87, 65)
    over = accounted(
        resumed, 200, phase="Succeeded", completion_time=at(200), history=[*resumed.history, *ENDED["history"]]
    )
    assert over.times
    assert (over.times.productive, over.times.lost, over.times.by_reason) == (125, 65, {"Stalled": 65})
    assert over.history[-1].productive_seconds == 125


@table(
    ("without a checkpoint all is lost", None, 0, 190),
    ("a checkpoint before the stall keeps what it has", 50, 40, 150),
)
def test_a_restart_that_ends_a_stall_loses_the_work_since_the_checkpoint_and_the_stall(case: Any) -> None:
    saved, kept, lost = case
    noticed = accounted(RUNNING, 140, progress=trained(91, 95, saved, stalled="rank 1 waits"))
    after = accounted(noticed, 200, progress=trained(91, 95, saved, stalled="rank 1 waits"), **ENDED)
    assert after.times
    assert (after.times.productive, after.times.lost, after.times.by_reason) == (kept, lost, {"Hang": lost})
    assert (after.history[-1].productive_seconds, after.history[-1].lost_seconds) == (kept, lost)


@table(
    ("saved before an earlier stall", 50, 40),
    ("saved after it", 165, 90),
)
def test_work_that_a_restart_loses_has_no_earlier_stall_in_it(case: Any) -> None:
    saved, kept = case
    first = min(saved, 95)
    noticed = accounted(RUNNING, 140, progress=trained(91, 95, first, stalled="rank 1 waits"))
    resumed = accounted(noticed, 162, progress=trained(92, 160, first))
    later = accounted(resumed, 170, progress=trained(99, 170, saved))
    after = accounted(later, 200, **ENDED)
    assert after.times
    assert (after.times.productive, after.times.by_reason) == (kept, {"Stalled": 65, "Hang": 125 - kept})
