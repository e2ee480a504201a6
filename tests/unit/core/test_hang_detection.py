"""Hangs: when a job counts as stuck, and which ranks are named."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from allranks.api.status import PastAttempt, ProgressStatus, Status
from allranks.core.diagnosis import hang_detection, restart_policy
from allranks.core.facts.model import Observed, Platform
from allranks.core.facts.rank_reports import Reports
from allranks.core.outcomes import Act, WaitUntil
from allranks.core.rules import failure as failure_rules
from allranks.core.snapshot import Snapshot
from support.builders import NOW, at, failure, job, rank, table

JOB = job(hang={"timeoutSeconds": 60}, startupDeadlineSeconds=300)
RUNNING = Status(start_time=NOW, attempt_time=NOW, running_time=NOW, phase="Running")
PLATFORM = Platform(helper_image="helper")
STEPPED = replace(RUNNING, progress=ProgressStatus(first_step_time=at(5)))


@table(
    ("the last step of any rank counts", STEPPED, [rank(0, 3, stepped=10), rank(1, 9, stepped=40)], 0, 100),
    ("the wait starts over with a new operator", STEPPED, [rank(0, 3, stepped=10)], 500, 560),
    ("without a first step it is the startup deadline", RUNNING, [rank(0), rank(1)], 0, 300),
    ("ranks that are done do not count", STEPPED, [rank(0, 3, done=True), rank(1, 9, done=True)], 0, None),
    ("no rank reports", STEPPED, [], 0, None),
    ("the job is not running yet", replace(RUNNING, running_time=None), [rank(0)], 0, None),
)
def test_when_ranks_are_asked_for_stack_dumps(case: Any) -> None:
    status, ranks, since, stuck = case
    stall = hang_detection.detect_stall(JOB, status, Reports(at(since), tuple(ranks)))
    assert (stall and stall.stuck_at) == (at(stuck) if stuck is not None else None)
    if stall:
        assert stall.due_at - stall.stuck_at == timedelta(seconds=10)


HEARD = at(100)
SILENT = at(0)


@table(
    ("all ranks say so", [HEARD, HEARD, HEARD], at(100), "Hang"),
    ("half of the ranks say so; a silent one may hold the interpreter lock", [HEARD, SILENT], at(100), "Hang"),
    ("most ranks are silent", [HEARD, SILENT, SILENT], at(100), None),
    ("all ranks were silent before the timeout", [at(59), at(59)], at(100), None),
    ("all ranks are silent for a long time, others report", [SILENT, SILENT], at(3605), "Hang"),
    ("all ranks are silent for a long time, and so is every other job", [SILENT, SILENT], None, None),
    ("all ranks are silent for less than an hour", [SILENT, SILENT], at(3604), None),
)
def test_only_messages_are_evidence_of_a_hang(case: Any) -> None:
    heard, any_job_at, reason = case
    now = max(any_job_at or at(5000), at(100))
    ranks = tuple(rank(number, 3, received_at=time) for number, time in enumerate(heard))
    observed = Observed(JOB, STEPPED, (), now, PLATFORM, reports=Reports(NOW, ranks, any_job_at))
    outcome = failure_rules.handle_hang(Snapshot(observed))
    if reason is None:
        assert isinstance(outcome, WaitUntil)
        assert outcome.time > now
    else:
        assert isinstance(outcome, Act)
        assert outcome.plan.next
        assert outcome.plan.next.attempt == 1
        assert outcome.plan.next.last_failure
        assert outcome.plan.next.last_failure.reason == reason
        silent = all(time == SILENT for time in heard)
        assert ("frozen, or hold the interpreter lock" in outcome.plan.next.last_failure.message) == silent


@table(
    ("a message of any job after the timeout shows that messages can arrive", at(66), "Hang"),
    ("no message of any job since the timeout", at(64), None),
    ("no message of any job at all", None, None),
)
def test_a_trainer_that_only_sends_its_status_after_steps_hangs_when_it_is_silent(case: Any) -> None:
    any_job_at, reason = case
    ranks = (rank(0, 3, stepped=5, received_at=at(5), heartbeat=False),)
    observed = Observed(JOB, STEPPED, (), at(76), PLATFORM, reports=Reports(NOW, ranks, any_job_at))
    outcome = failure_rules.handle_hang(Snapshot(observed))
    if reason is None:
        assert isinstance(outcome, WaitUntil)
        assert outcome.time > at(3600)
        return
    assert isinstance(outcome, Act)
    assert outcome.plan.next
    assert outcome.plan.next.last_failure
    assert outcome.plan.next.last_failure.reason == reason
    assert outcome.plan.next.last_failure.message == (
        "no rank has completed a step since 10:00:05 UTC: "
        "the trainer of rank 0 (worker-0 on node-0) has sent no status after step 3"
    )


def test_the_silence_of_a_trainer_proves_nothing_while_other_ranks_say_that_they_step() -> None:
    ranks = (rank(0, 3, stepped=5, heartbeat=False), rank(1, 9, stepped=70, received_at=at(70)))
    observed = Observed(JOB, STEPPED, (), at(76), PLATFORM, reports=Reports(NOW, ranks, at(76)))
    assert failure_rules.handle_hang(Snapshot(observed)) == WaitUntil(at(130))


def test_a_long_timeout_makes_silence_a_hang_later() -> None:
    stall = hang_detection.detect_stall(job(hang={"timeoutSeconds": 7200}), STEPPED, Reports(NOW, (rank(0, 3),)))
    assert stall
    assert stall.silent_due_at == at(5) + timedelta(seconds=72_000)


def test_a_job_without_hang_is_never_stuck_after_its_first_step() -> None:
    assert hang_detection.detect_stall(job(), STEPPED, Reports(NOW, (rank(0, 1),))) is None


@table(
    ("the program reported the number of its steps", [rank(0), rank(1, total_steps=100)], True),
    ("the program measures its steps", [rank(0, waiting=False), rank(1)], True),
    ("the helper of logPattern found nothing", [rank(0), rank(1)], False),
    ("the program reports epochs, and no steps", [rank(0, total_steps=100), rank(1, epoch=1)], False),
    ("the program reports metrics, and no steps", [rank(0, waiting=False, metrics={"loss": 1.0})], False),
    ("a rank has stepped, which the status does not show yet", [rank(0, 1, total_steps=100)], False),
    ("a trainer sent its status at the start", [rank(0, total_steps=100, heartbeat=False)], False),
    ("no rank reports", [], False),
)
def test_which_programs_have_a_limit_for_the_first_step_without_hang(case: Any) -> None:
    ranks, limited = case
    stall = hang_detection.detect_stall(job(startupDeadlineSeconds=300), RUNNING, Reports(NOW, tuple(ranks)))
    assert (stall and stall.stuck_at) == (at(300) if limited else None)


def test_silence_is_no_missing_first_step_without_hang() -> None:
    ranks = tuple(rank(number, total_steps=100, received_at=at(1)) for number in range(2))
    observed = Observed(
        job(startupDeadlineSeconds=300), RUNNING, (), at(9000), PLATFORM, reports=Reports(NOW, ranks, at(9000))
    )
    assert failure_rules.handle_hang(Snapshot(observed)) is None


LATE = failure(reason="NoFirstStep", exit_code=None, ran_seconds=600.0)
WHY = "no first step for 600 s (startupDeadlineSeconds)"
AGAIN = [PastAttempt(attempt=0, end_time=NOW, reason="NoFirstStep", failure=LATE)]


@table(
    ("it restarts, and counts", {}, [], False, "Restart", WHY),
    ("the second time in a row fails the job", {}, AGAIN, False, "Fail", f"{WHY}, twice in a row"),
    (
        "a local run does not restart it",
        {},
        [],
        True,
        "Fail",
        "not restarted: no rank has reported a step (--restarts 3 restarts it)",
    ),
    ("a local run restarts it on request", {"restart": {"maxRestarts": 3}}, [], True, "Restart", WHY),
    (
        "a rule of the user comes first",
        {"restart": {"rules": [{"reasons": ["NoFirstStep"], "action": "RestartUncounted"}]}},
        AGAIN,
        True,
        "RestartUncounted",
        "restart.rules[0] says RestartUncounted",
    ),
    ("with hang, its action applies", {"hang": {"timeoutSeconds": 60, "action": "Ignore"}}, AGAIN, True, "Ignore", WHY),
)
def test_what_a_missing_first_step_leads_to(case: Any) -> None:
    fields, history, local, action, why = case
    decision = restart_policy.decide_after_hang(job(**fields), Status(history=history), LATE, Platform("", local=local))
    assert (decision.action, decision.explanation) == (action, why)


@table(
    ("after the timeout", JOB, RUNNING, Reports(NOW), 60),
    ("a new operator listens for the whole timeout", JOB, RUNNING, Reports(at(500)), 560),
    ("a rank reports", JOB, RUNNING, Reports(NOW, (rank(0),)), None),
    (
        "ranks reported to an earlier operator",
        JOB,
        replace(RUNNING, progress=ProgressStatus(reporting=2)),
        Reports(at(500)),
        None,
    ),
    ("the job does not run yet", JOB, replace(RUNNING, running_time=None), Reports(NOW), None),
    ("hang is not set", job(), RUNNING, Reports(NOW), None),
    ("there is no report server", JOB, RUNNING, None, None),
)
def test_when_it_is_said_that_hang_has_no_effect(case: Any) -> None:
    of, status, reports, seconds = case
    expected = None if seconds is None else at(seconds)
    assert hang_detection.unreported_at(of, status, reports) == expected


@table(
    (
        "a rank is behind",
        [rank(0, 9), rank(1, 8), rank(2, 9)],
        1,
        "rank 1 (worker-1 on node-1) at step 8, the others at 9",
    ),
    (
        "a rank still works while the others wait",
        [rank(0, 9, waiting=True), rank(1, 9, waiting=True), rank(2, 9, waiting=False)],
        2,
        "rank 2 (worker-2 on node-2) did not complete step 10; ranks 0 and 1 wait for it",
    ),
    (
        "all have the same step",
        [rank(0, 9), rank(1, 9)],
        None,
        "all 2 ranks are at step 9; their stack dumps show where they",
    ),
    ("the others are done", [rank(0, 60, done=True), rank(1, 45)], 1, "rank 1 (worker-1 on node-1) at step 45, the"),
)
def test_who_is_named(case: Any) -> None:
    ranks, named, sentence = case
    reports = Reports(NOW, tuple(ranks))
    stall = hang_detection.detect_stall(JOB, STEPPED, reports)
    assert stall
    found = hang_detection.failure(JOB, STEPPED, reports, stall, at(100))
    node = None if named is None else f"node-{named}"
    assert (found.reason, found.index, found.rank, found.node) == ("Hang", named or 0, named, node)
    assert sentence in found.message


def test_many_lagging_ranks_are_counted() -> None:
    reports = Reports(NOW, (rank(0, 9), *(rank(number, 8) for number in range(1, 12))))
    stall = hang_detection.detect_stall(JOB, STEPPED, reports)
    assert stall
    assert "and 3 more at step 8" in hang_detection.failure(JOB, STEPPED, reports, stall, at(100)).message
