"""What NCCL says about collectives: in the condition of a job without reports, and in the message of a hang."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from allranks.api.status import ProgressStatus, Status
from allranks.core.diagnosis import hang_detection
from allranks.core.facts.model import Observed
from allranks.core.facts.rank_reports import Collectives, Reports
from allranks.core.outcomes import Act
from allranks.core.reconcile import reconcile
from allranks.core.rules import failure
from allranks.core.snapshot import Snapshot
from support.builders import CLUSTER, NOW, at, job, observed, rank, started, table

JOB = job(hang={"timeoutSeconds": 60})
EVEN = Collectives(received_at=at(90), moved_at=at(30), launched=80, size=8)
BEHIND = replace(EVEN, operation="AllReduce", number=6650, behind=(5,), behind_count=1)


@table(
    ("all ranks are even", EVEN, "all 8 ranks of its largest group have launched the same collectives"),
    ("one is behind", BEHIND, "rank 5 of 8 has not launched AllReduce 6650, which others have"),
    (
        "several are behind",
        replace(BEHIND, behind=(1, 3, 7), behind_count=3),
        "ranks 1, 3 and 7 of 8 have not launched AllReduce 6650, which others have",
    ),
    (
        "many are behind",
        replace(BEHIND, size=64, behind=(0, 1, 2), behind_count=12),
        "ranks 0, 1, 2 and 9 more of 64 have not launched AllReduce 6650, which others have",
    ),
    ("one is gone", replace(EVEN, missing=(21,), missing_count=1), "rank 21 of 8 cannot be reached"),
    (
        "one is gone, another behind",
        replace(BEHIND, missing=(2,), missing_count=1),
        "rank 2 of 8 cannot be reached, and rank 5 of 8 has not launched AllReduce 6650, which others have",
    ),
)
def test_who_is_behind_in_which_collective_in_one_sentence(case: Any) -> None:
    given, expected = case
    assert hang_detection.collectives_sentence(given) == expected


def said(reports: Reports, seconds: float, message: str = "") -> tuple[str, list[str], Any]:
    """The message of condition Running, which was `message` before, the reasons of Events, and the next look."""
    life = started(JOB)
    status = life.status
    if message:
        said = {"message": message, "reason": hang_detection.COLLECTIVES_STOPPED}
        old = [replace(each, **said) if each.type == "Running" else each for each in status.conditions]
        status = replace(status, conditions=old)
    plan = reconcile(replace(observed(JOB, status, life.pods.values(), seconds), reports=reports))
    after = plan.next or status
    condition = after.condition("Running")
    assert condition
    assert (after.attempt, plan.delete) == (0, ())
    return condition.message, [event.reason for event in plan.events], plan.wake_at


STOPPED = (
    "hang: no rank has reported yet; no rank has launched a collective since 10:00:30 UTC; NCCL: "
    "rank 5 of 8 has not launched AllReduce 6650, which others have"
)


def test_collectives_that_stop_are_said_and_nothing_restarts() -> None:
    reports = Reports(NOW, (), at(90), BEHIND)
    message, events, _ = said(reports, 95)
    assert STOPPED in message
    assert events == ["CollectivesStopped"]


def test_it_is_said_once() -> None:
    reports = Reports(NOW, (), at(90), BEHIND)
    message, _, _ = said(reports, 95)
    assert said(reports, 100, message)[:2] == (message, [])


def test_a_new_operator_keeps_the_note_until_it_hears_of_nccl() -> None:
    message, events, _ = said(Reports(at(200)), 201, f"2/2 pods running; {STOPPED}")
    assert hang_detection.UNREPORTED in message
    assert events == ["NoReports"]


@table(
    ("collectives move", replace(BEHIND, moved_at=at(85)), 95, at(145)),
    ("the answer is old", BEHIND, 200, None),
)
def test_what_is_said_of_a_job_without_reports_stays_the_same_otherwise(case: Any) -> None:
    given, seconds, wake_at = case
    message, events, next_look = said(Reports(NOW, (), at(90), given), seconds)
    assert hang_detection.UNREPORTED in message
    assert events == ["NoReports"]
    if wake_at:
        assert next_look == wake_at


@table(
    ("NCCL was asked since", BEHIND, True),
    ("before the hang", replace(BEHIND, received_at=at(4)), False),
    ("nothing was heard from NCCL", None, False),
)
def test_a_hang_tells_what_nccl_says(case: Any) -> None:
    given, reported = case
    status = Status(
        start_time=NOW,
        attempt_time=NOW,
        running_time=NOW,
        phase="Running",
        progress=ProgressStatus(first_step_time=at(5)),
    )
    ranks = tuple(rank(number, 3, stepped=5, received_at=at(85)) for number in range(2))
    reports = Reports(NOW, ranks, at(85), given)
    outcome = failure.handle_hang(Snapshot(Observed(JOB, status, (), at(92), CLUSTER, reports=reports)))
    assert isinstance(outcome, Act)
    assert outcome.plan.next
    assert outcome.plan.next.last_failure
    message = outcome.plan.next.last_failure.message
    assert message.endswith(
        "; NCCL: rank 5 of 8 has not launched AllReduce 6650, which others have" if reported else "where they wait"
    )


def test_an_answer_is_recent_for_three_intervals() -> None:
    assert hang_detection.collectives_recent(EVEN, at(90) + timedelta(seconds=90))
    assert not hang_detection.collectives_recent(EVEN, at(90) + timedelta(seconds=91))


@table(
    ("a rank of the job is behind", replace(BEHIND, size=2, behind=(1,)), 1),
    ("a rank of the job is gone", replace(EVEN, size=2, missing=(0,), missing_count=1), 0),
    ("the numbers are not those of the job", BEHIND, None),
    ("all are even", replace(EVEN, size=2), None),
)
def test_if_nothing_else_distinguishes_a_rank_the_one_that_nccl_names_is_named(case: Any) -> None:
    collectives, number = case
    status = Status(start_time=NOW, attempt_time=NOW, running_time=NOW, progress=ProgressStatus(first_step_time=at(5)))
    reports = Reports(
        NOW, tuple(rank(number, 3, stepped=5, received_at=at(85)) for number in range(2)), at(85), collectives
    )
    stall = hang_detection.detect_stall(JOB, status, reports)
    assert stall
    assert hang_detection.failure(JOB, status, reports, stall, at(92)).rank == number
