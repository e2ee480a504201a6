"""When ranks are killed."""

from __future__ import annotations

from allranks.local.verify.plan import plan
from allranks.local.verify.records import Line, Save, Start, starts


def steps(last: int) -> Start:
    return Start(0, 0.0, {step: {} for step in range(1, last + 1)}, {step: float(step) for step in range(1, last + 1)})


def save(step: int, seconds: float = 0.5) -> Save:
    return Save(step, float(step), seconds, {"step-#.pt": 10_000, "step-#.pt.tmp": 10_000, "events.log": 20})


SAVES = [save(step) for step in range(10, 101, 10)]
LEFT = {"step-#.pt", "events.log"}


def test_the_same_seed_gives_the_same_kills_and_another_one_others() -> None:
    assert plan([steps(100)], SAVES, LEFT, 4, 7) == plan([steps(100)], SAVES, LEFT, 4, 7)
    assert plan([steps(100)], SAVES, LEFT, 4, 7).aims != plan([steps(100)], SAVES, LEFT, 4, 8).aims


def test_half_of_the_kills_are_in_saves_and_all_are_in_order_and_possible() -> None:
    for seed in range(50):
        aims = plan([steps(100)], SAVES, LEFT, 4, seed).aims
        assert sorted(aim.kind for aim in aims) == ["save", "save", "step", "step"]
        assert [aim.step for aim in aims] == sorted(aim.step for aim in aims)
        assert all(10 < aim.step < 100 for aim in aims)
        assert all(aim.step <= 90 for aim in aims if aim.kind == "save"), "a save follows"


def test_a_program_that_saves_only_at_its_end_is_killed_in_steps() -> None:
    assert {aim.kind for aim in plan([steps(100)], [save(100)], LEFT, 4, 7).aims} == {"step"}


def test_a_program_of_one_step_cannot_be_killed() -> None:
    assert plan([steps(1)], [save(1)], LEFT, 4, 7).aims == ()


def test_small_files_are_logs_and_files_that_do_not_stay_are_no_checkpoints() -> None:
    result = plan([steps(100)], SAVES, LEFT, 4, 7)
    assert result.logs == {"events.log"}
    assert result.checkpoints == {"step-#.pt"}
    assert (result.step_seconds, result.save_seconds) == (1.0, 0.5)


def line(time: float, step: int, *, process: str = "a", rank: int | None = 0, **metrics: float) -> Line:
    return Line(process, 1, "worker-0", 0, time, step, rank, metrics)


def test_a_start_begins_with_a_new_process_or_an_earlier_step() -> None:
    lines = [line(1, 1), line(2, 2), line(3, 2, process="b"), line(4, 3, process="b"), line(5, 1, process="b")]
    (of_rank,) = starts(lines).values()
    assert [(start.first, start.last) for start in of_rank] == [(1, 2), (2, 3), (1, 1)]


def test_the_lowest_rank_with_metrics_comes_first_and_reports_of_a_step_are_joined() -> None:
    result = starts([line(1, 1, rank=0), line(2, 1, rank=1, process="b", loss=2), line(3, 1, rank=1, process="b", f=3)])
    assert list(result) == ["rank 1", "rank 0"]
    assert result["rank 1"][0].steps == {1: {"loss": 2, "f": 3}}
