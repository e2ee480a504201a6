"""Progress in the status, derived from the reports of ranks."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.api.status import MetricRecord, ProgressStatus, Status
from allranks.core.accounting import progress
from allranks.core.diagnosis.stragglers import newly_slow
from allranks.core.facts.model import Exit
from allranks.core.facts.rank_reports import Position, RankReport, Reports
from allranks.core.reconcile import reconcile
from support.builders import NOW, at, job, observed, pod, rank, started, table

BEGUN = Status(start_time=NOW, attempt_time=NOW)


def progress_of(*ranks: RankReport, status: Status = BEGUN) -> ProgressStatus:
    found = progress.observe(job(), status, Reports(NOW, ranks)).progress
    assert found
    return found


def test_step_is_the_furthest_ranks_and_throughput_the_sum_over_all_ranks() -> None:
    found = progress_of(
        rank(0, 40, total_steps=100, metrics={"loss": 0.51234567}, samples_per_second=10.0, step_seconds=2.0),
        rank(1, 41, total_steps=100, metrics={"loss": 9.0}, samples_per_second=12.0, step_seconds=2.0),
    )
    assert (found.step, found.total_steps, found.summary) == (41, 100, "41/100 41%")
    assert (found.samples_per_second, found.eta_seconds, found.eta) == (22.0, 118.0, "118s")
    assert found.metrics == {"loss": 0.5123}
    assert [(of.rank, of.step, of.lag) for of in found.ranks] == [(0, 40, 1), (1, 41, 0)]


def test_steps_within_a_second_have_times_of_their_own() -> None:
    status = progress.observe(job(), BEGUN, Reports(NOW, (rank(0, 42, stepped=8),)))
    assert [(point.step, point.time) for point in progress_of(rank(0, 60, stepped=8.9), status=status).curve] == [
        (42, at(8)),
        (60, at(8.9)),
    ]


def test_metrics_that_follow_the_last_step_are_in_the_status_and_in_the_curve() -> None:
    status = progress.observe(job(), BEGUN, Reports(NOW, (rank(0, 30, stepped=8, metrics={"accuracy": 0.1}),)))
    last = rank(0, 30, stepped=8, received_at=at(20), metrics={"accuracy": 0.95}, done=True)
    found = progress_of(last, status=status)
    assert found.metrics == {"accuracy": 0.95}
    assert [(point.step, point.value) for point in found.curve] == [(30, 0.95)]


@table(
    ("steps without an end", {"step": 7}, "step 7"),
    ("epochs alone", {"epoch": 3}, "epoch 3"),
    ("nothing yet", {}, ""),
)
def test_summary(case: Any) -> None:
    fields, summary = case
    assert progress_of(rank(0, **fields)).summary == summary


def test_nothing_new_is_the_same_object() -> None:
    first = progress.observe(job(), BEGUN, Reports(NOW, (rank(0, 3, stepped=10),)))
    later = rank(0, 3, stepped=10.4, received_at=at(30))  # the age in a repeated report varies with its delay
    assert progress.observe(job(), first, Reports(NOW, (later,))) is first
    assert progress.observe(job(), first, Reports(NOW)) is first
    assert progress.observe(job(), first, None) is first


def test_where_an_attempt_resumed_and_what_it_saved_last() -> None:
    found = progress_of(rank(0, 21, stepped=8, checkpoint_step=20, checkpoint_at=at(7)), rank(1, 21, stepped=9))
    assert (found.first_step_time, found.first_step) == (at(8), 21)
    assert (found.checkpoint_time, found.checkpoint_step) == (at(7), 20)


def test_a_checkpoint_that_soon_follows_another_one_is_the_newest() -> None:
    first = progress.observe(job(), BEGUN, Reports(NOW, (rank(0, 21, checkpoint_step=20, checkpoint_at=at(7)),)))
    again = progress.observe(job(), first, Reports(NOW, (rank(0, 21, checkpoint_step=20, checkpoint_at=at(7.4)),)))
    assert again is first  # the age in a repeated report varies with its delay
    found = progress_of(rank(0, 22, checkpoint_step=22, checkpoint_at=at(7.4)), status=first)
    assert (found.checkpoint_time, found.checkpoint_step) == (at(7.4), 22)


def test_a_new_attempt_keeps_the_curve_and_forgets_its_ranks() -> None:
    before = progress_of(rank(0, 21, metrics={"loss": 0.5}))
    after = progress.reset_for_attempt(before)
    assert after
    assert (after.step, after.curve, after.metrics) == (21, before.curve, {"loss": 0.5})
    assert (after.first_step_time, after.ranks, after.reporting) == (None, [], 0)


def test_the_ranks_that_lag_most_are_listed_when_there_are_many() -> None:
    found = progress_of(*(rank(number, 100 - number % 3, busy_seconds=1.0) for number in range(30)))
    assert len(found.ranks) == progress.RANKS
    assert [of.lag for of in found.ranks] == [2] * 10 + [1] * 6


def test_a_report_without_a_rank_gets_the_rank_of_its_replica() -> None:
    tensorflow = job("tensorflow", {"chief": 1, "worker": 2})
    found = progress.with_ranks(tensorflow, BEGUN, Reports(NOW, (replace(rank(0), rank=None), rank(1))))
    assert found
    assert [of.rank for of in found.ranks] == [1, 1], "worker-0 comes after the chief; who says its own is believed"
    unknown = Reports(NOW, (replace(rank(0), rank=None),))
    assert progress.with_ranks(job(), BEGUN, unknown) is unknown, "a pod of PyTorch's may run several"


SLOW = {"step_seconds": 0.3, "busy_seconds": 0.3}
FAST = {"step_seconds": 0.3, "busy_seconds": 0.1}


@table(
    ("own work shows the slow rank", [FAST, SLOW, FAST], [(1, 3.0)]),
    (
        "without it step times are compared",
        [{"step_seconds": 0.1}, {"step_seconds": 0.2}, {"step_seconds": 0.1}],
        [(1, 2.0)],
    ),
    ("one alone has no peers", [SLOW], []),
    ("two are no statistics", [FAST, SLOW], []),
    ("ranks that are done are not peers", [SLOW, FAST, {**FAST, "done": True}], []),
    ("a millisecond is noise", [{"busy_seconds": 0.001}, {"busy_seconds": 0.002}, {"busy_seconds": 0.001}], []),
    ("if some do not report their own work, step times are compared", [FAST, SLOW, {"step_seconds": 0.3}], []),
)
def test_stragglers(case: Any) -> None:
    ranks, expected = case
    found = progress_of(*(rank(number, 5, **fields) for number, fields in enumerate(ranks)))
    assert [(of.rank, of.slowdown) for of in found.stragglers] == expected


@table(
    ("slow in all of them", [(0.4, 0.3), (0.4, 0.4), (0.4, 0.3)], [(1, 3.0)]),
    ("slow in one, which has an evaluation", [(0.4, 0.1), (0.4, 0.1), (5.0, 5.0)], []),
    ("slow at the start", [(9.0, 9.0), (0.4, 0.1), (0.4, 0.1)], []),
    ("too few reports", [(0.4, 0.4), (0.4, 0.4)], []),
    ("without busy times, step times are compared", [(0.4, None), (0.4, None), (0.4, None)], [(1, 4.0)]),
)
def test_a_straggler_is_slow_in_three_reports_with_new_steps(case: Any) -> None:
    windows, expected = case
    own = windows[-1][1]
    peers = ((0.1 if own is None else 0.4, None if own is None else 0.1),) * 3
    ranks = [rank(0, 5, windows=peers), rank(1, 5, windows=tuple(windows)), rank(2, 5, windows=peers)]
    measured = [
        replace(one, step_seconds=one.windows[-1][0], busy_seconds=one.windows[-1][1]) for one in ranks if one.windows
    ]
    assert [(of.rank, of.slowdown) for of in progress_of(*measured).stragglers] == expected


def test_a_new_operator_keeps_the_stragglers_until_it_has_enough_reports() -> None:
    def after(count: int, seconds: float, status: Status) -> Status:
        times = {0: 0.1, 1: seconds, 2: 0.1}
        ranks = [rank(of, 5, step_seconds=took, windows=((took, None),) * count) for of, took in times.items()]
        return progress.observe(job(), status, Reports(NOW, tuple(ranks)))

    def named(status: Status) -> list[tuple[int | None, float]]:
        return [(of.rank, of.slowdown) for of in status.progress.stragglers] if status.progress else []

    slow = after(3, 0.3, BEGUN)
    assert named(slow) == [(1, 3.0)]
    assert [named(after(count, 0.4, slow)) for count in (0, 1, 2, 3)] == [[(1, 3.0)]] * 3 + [[(1, 4.0)]]
    assert [named(after(count, 0.1, slow)) for count in (2, 3)] == [[(1, 3.0)], []]
    assert [named(after(2, 0.4, BEGUN))] == [[]]


def test_a_straggler_stays_one_until_it_is_clearly_faster() -> None:
    def with_slow(seconds: float, status: Status) -> Status:
        ranks = (rank(0, 5, busy_seconds=0.1), rank(1, 5, busy_seconds=seconds), rank(2, 5, busy_seconds=0.1))
        return progress.observe(job(), status, Reports(NOW, ranks))

    def named(status: Status) -> int:
        return len(status.progress.stragglers) if status.progress else 0

    fast = with_slow(0.14, BEGUN)
    slow = with_slow(0.16, fast)
    assert [named(fast), named(slow), named(with_slow(0.14, slow)), named(with_slow(0.12, slow))] == [0, 1, 1, 0]
    assert newly_slow(fast.progress, slow.progress) == [
        "rank 1 (worker-1 on node-1) takes 1.6 times as long as its peers"
    ]
    assert newly_slow(slow.progress, with_slow(0.17, slow).progress) == []


def test_the_curve_does_not_go_back_when_a_new_operator_receives_reports_one_by_one() -> None:
    slow, fast = rank(0, 5, stepped=0), rank(1, 6, stepped=10)
    status = BEGUN
    for reports in ((rank(0, 5, stepped=0), rank(1, 5, stepped=0)), (slow, fast)):
        status = progress.observe(job(), status, Reports(NOW, reports))
    assert status.progress
    before = [(point.step, point.time) for point in status.progress.curve]
    assert before == [(5, at(0)), (6, at(10))]
    for repeated in ((slow,), (slow, fast)):
        status = progress.observe(job(), status, Reports(at(11), repeated))
        assert status.progress
        assert [(point.step, point.time) for point in status.progress.curve] == before


@pytest.mark.parametrize("moved", [timedelta(0), timedelta(seconds=0.4)])
def test_a_new_operator_takes_nothing_back_until_it_has_received_newer_reports(moved: timedelta) -> None:
    """All ranks reported at the same time, as far as the status can tell."""
    lagging = rank(0, 10)
    furthest = replace(rank(1, 11, saves_on_request=True), stepped_at=NOW + moved)
    before = progress.observe(job(), BEGUN, Reports(NOW, (lagging, furthest))).progress
    status = Status(start_time=NOW, attempt_time=NOW, progress=before)
    assert before
    for repeated in ((lagging,), (lagging, furthest)):
        status = progress.observe(job(), status, Reports(at(11), repeated))
        assert status.progress
        assert (status.progress.step, status.progress.last_report) == (11, before.last_report)
        assert (status.progress.curve, status.progress.saves_on_request) == (before.curve, True)
    newer = progress.observe(job(), status, Reports(at(11), (rank(0, 5, stepped=20), rank(1, 5, stepped=20)))).progress
    assert newer
    assert (newer.step, newer.saves_on_request) == (5, True), "processes restarted from a checkpoint in their pods"
    done = (lagging, replace(furthest, done=True))
    ended = progress.observe(job(), status, Reports(at(11), done)).progress
    assert ended
    assert ended.saves_on_request is None


def test_pods_that_are_on_their_way_out_do_not_bring_back_what_only_applies_to_a_running_job() -> None:
    report = rank(0, 40, total_steps=100, step_seconds=2.0, samples_per_second=9.0, saves_on_request=True)
    status = progress.observe(job(), BEGUN, Reports(NOW, (report,)))
    assert status.progress
    assert (status.progress.eta, status.progress.reporting) == ("2m", 1)
    for phase in ("Suspended", "Queued"):
        suspended = Status(phase=phase, start_time=NOW, attempt_time=NOW, progress=progress.finalize(status.progress))
        assert progress.observe(job(), suspended, Reports(NOW, (report,))) is suspended
        last = progress.observe(job(), suspended, Reports(NOW, (replace(report, step=100),))).progress
        assert last
        assert (last.step, last.eta_seconds, last.eta, last.samples_per_second) == (100, None, "", None)
        assert (last.reporting, last.saves_on_request) == (0, None)


def test_a_suspended_job_keeps_its_ranks_when_their_pods_go_one_after_the_other() -> None:
    both = rank(0, 40), rank(1, 40)
    status = progress.observe(job(), BEGUN, Reports(NOW, both))
    assert status.progress
    suspended = Status(phase="Suspended", start_time=NOW, attempt_time=NOW, progress=progress.finalize(status.progress))
    assert progress.observe(job(), suspended, Reports(NOW, both[:1])) is suspended
    further = progress.observe(job(), suspended, Reports(NOW, (rank(0, 41), both[1]))).progress
    assert further
    assert [each.step for each in further.ranks] == [41, 40]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 600)), min_size=1, max_size=300))
def test_the_curve_is_bounded_in_order_and_ends_at_the_newest(moves: list[tuple[int, int]]) -> None:
    status, step, second = BEGUN, 0, 0
    for steps, seconds in moves:
        step, second = step + steps, second + seconds
        report = rank(0, step, stepped=second, metrics={"loss": 1 / step})
        status = progress.observe(job(), status, Reports(NOW, (report,)))
    assert status.progress
    curve = status.progress.curve
    assert len(curve) <= progress.POINTS
    assert curve[-1].step == step
    assert at(second) - curve[-1].time <= timedelta(seconds=1)  # ranks report ages: times are compared with a tolerance
    assert [point.step for point in curve] == sorted(point.step for point in curve)
    assert curve[0].step == moves[0][0]
    if len(moves) >= 200:
        assert len(curve) >= progress.POINTS // 4


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (61, "61s"), (7800, "130m"), (273600, "3d4h")])
def test_eta(seconds: int, text: str) -> None:
    assert progress_of(rank(0, 0, total_steps=10, step_seconds=seconds / 10)).eta == text


# Sentence, the pod of rank 1, whether its report says done, result: None if the report is dropped, else `done`.
STALE = [
    ("a rank with a running pod is kept", pod("worker", 1), False, False),
    ("a rank without a pod is dropped", None, False, None),
    ("a rank that reported its end is done", None, True, True),
    ("a rank of a terminated pod is done", replace(pod("worker", 1), exit=Exit(0, NOW)), False, True),
    ("a pod of another owner does not count", replace(pod("worker", 1), owned=False), False, None),
]


@table(*STALE)
def test_drop_stale(case):
    existing, said, done = case
    pods = [pod("worker", 0), *([existing] if existing else [])]
    reports = progress.drop_stale(Reports(NOW, (rank(0, 5), rank(1, 5, done=said))), pods)
    assert reports
    assert [of.done for of in reports.ranks if of.rank == 1] == ([] if done is None else [done])
    assert [of.done for of in reports.ranks if of.rank == 0] == [False]


def test_a_point_of_the_curve_has_the_step_and_the_value_of_the_same_rank():
    found = progress_of(rank(0, 40, metrics={"loss": 40.0}), rank(1, 43, metrics={"loss": 43.0}))
    assert (found.step, found.metrics_step, found.metrics) == (43, 40, {"loss": 40.0})
    assert [(point.step, point.value) for point in found.curve] == [(40, 40.0)]


def test_the_throughput_is_absent_while_a_rank_does_not_report_its_own_or_is_done():
    assert progress_of(rank(0, 4, samples_per_second=40.0), rank(1, 4)).samples_per_second is None
    done = rank(1, 4, samples_per_second=40.0, done=True)
    assert progress_of(rank(0, 4, samples_per_second=40.0), done).samples_per_second is None


def test_a_metric_that_is_not_finite_does_not_keep_its_last_value_and_is_said_once():
    finite = progress_of(rank(0, 19, metrics={"loss": 0.5}))
    lost = progress_of(rank(0, 21, not_finite={"loss": 20}), status=replace(BEGUN, progress=finite))
    assert (lost.metrics, lost.not_finite) == ({}, {"loss": 20})
    assert [point.value for point in lost.curve] == [0.5, None]
    assert progress.newly_not_finite(finite, lost) == ["loss is not finite since step 20"]
    assert progress.newly_not_finite(lost, lost) == []


def test_ranks_of_the_same_number_in_several_pods_are_independent_copies_and_said_once():
    first, second = rank(0), replace(rank(1), rank=0)
    copied = progress_of(first, second)
    sentence = "worker-0 and worker-1 have a rank 0 each: they are 2 independent copies that do not train together"
    assert copied.copies == sentence
    assert progress.newly_copied(None, copied) == sentence
    assert progress.newly_copied(copied, copied) == ""
    assert progress_of(rank(0), replace(rank(0), local_rank=1)).copies is None
    assert progress_of(rank(0), rank(1)).copies is None
    elastic = progress.observe(job("horovod"), BEGUN, Reports(NOW, (first, second))).progress
    assert elastic
    assert elastic.copies is None


REDUCE, EVALUATE = Position("train.py:88", "step", "all_reduce", collective=True), Position("train.py:120", "evaluate")
LOAD = Position("data.py:7", "load", activity="data")
EARLY = rank(1, 10, total_steps=20, done=True)
SENTENCE = (
    "no rank has completed a step since 10:00:00 UTC: rank 1 (worker-1 on node-1) completed at step 10 of 20; "
    "rank 0 waits for it in all_reduce, train.py:88"
)


def stalled(seconds: float, *ranks: RankReport, before: ProgressStatus | None = None) -> tuple[str | None, list[str]]:
    """What is said of a job some seconds after its last step, and the Events."""
    after, events = after_silence(seconds, *ranks, before=before)
    return after.stalled, events


def after_silence(
    seconds: float, *ranks: RankReport, before: ProgressStatus | None = None
) -> tuple[ProgressStatus, list[str]]:
    life = started(job())
    o = observed(job(), replace(life.status, progress=before), life.pods.values(), seconds)
    heard = tuple(replace(each, received_at=at(seconds)) for each in ranks)
    plan = reconcile(replace(o, reports=Reports(NOW, heard)))
    after = (plan.next or o.persisted).progress
    assert after
    return after, [event.message for event in plan.events if event.reason == "Stalled"]


def test_a_stalled_job_has_no_eta() -> None:
    ranks = (rank(0, 10, position=REDUCE, step_seconds=2.0, total_steps=20), replace(EARLY, total_steps=20))
    before, _ = after_silence(39, *ranks)
    after, _ = after_silence(41, *ranks)
    assert (before.stalled, before.eta_seconds) == (None, 20.0)
    pace = SENTENCE.replace("UTC", "UTC (usually one in 2 s)")
    assert (after.stalled, after.eta_seconds, after.eta) == (pace, None, "")


@table(
    ("gone, after half a minute", 31, (rank(0, 10, position=REDUCE), EARLY), SENTENCE),
    ("gone, before", 29, (rank(0, 10, position=REDUCE), EARLY), None),
    ("gone, within the time of twenty steps", 100, (rank(0, 10, position=REDUCE, step_seconds=6.0), EARLY), None),
    (
        "present, after half a minute",
        31,
        (rank(0, 10, position=REDUCE), rank(1, 10, position=EVALUATE)),
        "no rank has completed a step since 10:00:00 UTC: rank 1 (worker-1 on node-1) is in evaluate(), train.py:120; "
        "rank 0 waits for it in all_reduce, train.py:88",
    ),
    (
        "all wait for data",
        31,
        (rank(0, 10, position=LOAD), rank(1, 10, position=LOAD)),
        "no rank has completed a step since 10:00:00 UTC: all 2 ranks are at step 10: they wait for data in load(), "
        "data.py:7",
    ),
    ("no rank differs", 900, (rank(0, 10, position=REDUCE), rank(1, 10, position=REDUCE)), None),
    ("no rank waits", 900, (rank(0, 10, position=EVALUATE), rank(1, 10, done=True)), None),
    (
        "all steps are made",
        900,
        (rank(0, 20, total_steps=20, position=REDUCE), rank(1, 20, total_steps=20, done=True)),
        None,
    ),
)
def test_for_which_rank_the_others_wait_is_said_once_in_each_stall(case: Any) -> None:
    seconds, ranks, sentence = case
    assert stalled(seconds, *ranks) == (sentence, [sentence] if sentence else [])
    if sentence:
        recorded = ProgressStatus(step=10, total_steps=20, first_step_time=NOW, last_report=NOW, stalled=sentence)
        assert stalled(seconds + 60, *ranks, before=recorded) == (sentence, [])
        stepped = [replace(each, step=11, stepped_at=at(seconds + 50), done=False) for each in ranks]
        assert stalled(seconds + 60, *stepped, before=recorded) == (None, [])


def test_the_largest_float_stays_finite():
    largest = sys.float_info.max
    after = progress.observe(job(), BEGUN, Reports(NOW, (rank(0, 1, metrics={"best_loss": largest}),)))
    assert after.progress
    assert after.progress.metrics == {"best_loss": largest}


def test_the_share_of_a_step_that_waits_for_data_is_the_mean_of_the_ranks_that_measure_it() -> None:
    found = progress_of(
        rank(0, 5, step_seconds=2.0, load_seconds=0.5),
        rank(1, 5, step_seconds=2.0, load_seconds=1.0),
        rank(2, 5, step_seconds=2.0),
    )
    assert found.loading == 0.38
    assert progress_of(rank(0, 5, step_seconds=2.0)).loading is None
    assert progress_of(rank(0, 5, step_seconds=2.0, load_seconds=9.0)).loading == 1.0


@table(
    ("its data come late", [0.1, 0.1, 2.0], True),
    ("its own work is slow", [0.1, 0.1, 0.1], None),
    ("less than half is the wait for data", [0.1, 0.1, 0.8], None),
    ("all wait for data alike", [0.9, 0.9, 0.9], None),
    ("it does not measure it", [0.1, 0.1, None], None),
)
def test_a_straggler_that_waits_for_data_is_named_as_such(case: Any) -> None:
    loads, expected = case
    busy = (1.0, 1.0, 3.0)
    ranks = [
        rank(number, 5, step_seconds=3.0, busy_seconds=busy[number], load_seconds=load)
        for number, load in enumerate(loads)
    ]
    found = progress_of(*ranks)
    assert [(one.rank, one.loading) for one in found.stragglers] == [(2, expected)]
    [sentence] = newly_slow(None, found)
    assert sentence.endswith("as its peers, because it waits for data" if expected else "as its peers")


# --- the record of metrics -------------------------------------------------------------------------------------------


def entry(first: tuple[int, float], low: tuple[int, float], high: tuple[int, float], last: int) -> MetricRecord:
    return MetricRecord(
        first_step=first[0],
        first=first[1],
        last_step=last,
        lowest_step=low[0],
        lowest=low[1],
        highest_step=high[0],
        highest=high[1],
    )


def test_the_record_of_a_metric_has_all_values_of_all_attempts() -> None:
    reports = Reports(NOW, (rank(0, 60, metrics={"accuracy": 0.1}),))
    first = {"accuracy": entry((10, 0.5), (60, 0.1), (20, 0.98765), 60)}
    status = progress.observe(job(), BEGUN, replace(reports, metrics=first))
    begun = replace(status, attempt=1, progress=progress.reset_for_attempt(status.progress))
    second = {"accuracy": entry((50, 0.3), (70, 0.05), (50, 0.3), 70)}
    resumed = Reports(NOW, (rank(0, 70, stepped=9, metrics={"accuracy": 0.05}),), metrics=second)
    found = progress.observe(job(), begun, resumed).progress
    assert found
    assert found.records == {"accuracy": entry((10, 0.5), (70, 0.05), (20, 0.9877), 70)}


def test_of_a_library_without_records_the_values_that_it_sends_are_recorded() -> None:
    status = BEGUN
    for step, loss in ((10, 3.0), (20, 0.5), (30, 0.7)):
        ranks = (rank(0, step, stepped=step, metrics={"loss": loss}), rank(1, 99, metrics={"loss": 9.0}))
        status = progress.observe(job(), status, Reports(NOW, ranks))
    assert status.progress
    assert status.progress.records == {"loss": entry((10, 3.0), (20, 0.5), (10, 3.0), 30)}


def test_a_metric_that_was_never_finite_has_a_record() -> None:
    lost = MetricRecord(first_step=3, first=None, last_step=9, not_finite_step=3)
    reports = Reports(NOW, (rank(0, 9, not_finite={"loss": 3}),), metrics={"loss": lost})
    found = progress.observe(job(), BEGUN, reports).progress
    assert found
    assert found.records == {"loss": lost}
