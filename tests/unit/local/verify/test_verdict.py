"""What two runs, without and with kills, say about the resumption of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from allranks.local.verify.records import Evidence, FileResult, Kill, Run, Start
from allranks.local.verify.verdict import Verdict, decide, relative


def loss_of(step: int) -> float:
    return 1.0 / step


def start(first: int, last: int, began: float, loss: Callable[[int], float] = loss_of, attempt: int = 0) -> Start:
    """Return a start with a step in each second."""
    steps = {step: {"loss": loss(step)} for step in range(first, last + 1)}
    return Start(attempt, began, steps, {step: began + step - first for step in steps})


def run(*starts: Start, **fields: object) -> Run:
    return Run(**{"ending": "Succeeded", "ranks": {"rank 0": starts} if starts else {}, "saves": 4, **fields})


KILL = Kill("save", 25, 125.5, ("rank 0",), 0.001, stored=True)
UNBROKEN = run(start(1, 40, 0))
SAME = FileResult("last.pt", "last.pt", "same")
DIFFERENT = FileResult("last.pt", "last.pt", "differs", "2 of 9 values", 0.3)


def resumed(loss: Callable[[int], float] = loss_of, first: int = 21) -> Run:
    """Return a run that was killed after step 25."""
    return run(start(1, 25, 101), start(first, 40, 200, loss, attempt=1))


def verdict(killed: Run | None = None, **fields: object) -> Verdict:
    evidence = {"unbroken": UNBROKEN, "killed": killed or resumed(), "kills": (KILL,), "files": (SAME,), **fields}
    return decide(Evidence(**evidence))


def test_a_program_whose_losses_and_checkpoints_are_the_same_can_be_trusted() -> None:
    result = verdict()
    assert result.answer == "Yes"
    assert result.losses.compared == 20
    assert result.losses.worst == 0.0
    assert "bit by bit" in result.reasons[0]
    (resumption,) = result.resumptions
    assert (resumption.first, resumption.repeated) == (21, 5)


def test_a_loss_that_differs_in_the_first_step_points_at_weights_batch_or_random_numbers() -> None:
    result = verdict(resumed(lambda step: loss_of(step) * 1.5))
    assert result.answer == "No"
    assert result.losses.first
    assert (result.losses.first.start, result.losses.first.step) == (1, 21)
    assert "the position of the sampler" in result.hint


def test_a_loss_that_differs_from_the_second_step_on_points_at_the_state_of_the_optimizer() -> None:
    result = verdict(resumed(lambda step: loss_of(step) * (1.0 if step == 21 else 1.5)))
    assert result.answer == "No"
    assert result.losses.first
    assert result.losses.first.step == 22
    assert "optimizer" in result.hint


def test_rounding_is_accepted_and_said_unless_every_bit_counts() -> None:
    nearly = resumed(lambda step: loss_of(step) * (1 + 1e-7))
    near = replace(DIFFERENT, worst=1e-7)
    assert verdict(nearly, files=(near,)).answer == "Yes"
    assert "bit by bit" not in " ".join(verdict(nearly, files=(near,)).reasons)
    assert verdict(nearly, files=(near,), tolerance=0.0).answer == "No"


def test_a_small_difference_is_no_and_names_the_option() -> None:
    nearly = resumed(lambda step: loss_of(step) * (1 + 1e-4))
    assert verdict(nearly).answer == "No"
    assert "--tolerance" in verdict(nearly).hint
    assert verdict(nearly, tolerance=1e-3).answer == "Yes"


def test_a_program_that_starts_again_is_not_trusted_although_its_results_are_the_same() -> None:
    result = verdict(resumed(first=1))
    assert result.answer == "No"
    assert "started again with step 1" in result.reasons[0]


def test_a_rank_that_starts_again_alone_may_have_had_no_checkpoint_of_its_own() -> None:
    ranks = {"rank 0": resumed().starts, "rank 1": resumed(first=1).starts}
    both = replace(UNBROKEN, ranks={"rank 0": UNBROKEN.starts, "rank 1": UNBROKEN.starts})
    result = verdict(replace(resumed(), ranks=ranks), unbroken=both, kills=(replace(KILL, ranks=("rank 1",)),))
    assert result.answer == "Yes"


def test_a_start_at_the_beginning_is_right_before_the_first_checkpoint() -> None:
    result = verdict(resumed(first=1), kills=(replace(KILL, stored=False),))
    assert result.answer == "Unknown"
    assert "no checkpoint was stored before a kill" in result.reasons[0]


def test_a_start_at_the_beginning_after_a_torn_checkpoint_names_it() -> None:
    torn = replace(KILL, stored=False, torn=("last.pt: the end of the zip archive is missing",))
    result = verdict(resumed(first=1), kills=(torn,))
    assert result.answer == "No"
    assert "torn" in result.reasons[0]
    assert "rename" in result.hint


def test_a_run_that_cannot_load_its_torn_checkpoint_is_not_trusted() -> None:
    torn = replace(KILL, torn=("last.pt: it is empty",))
    failed = run(start(1, 25, 101), ending="Failed", failures=((1, "worker-0 failed: EOFError"),))
    result = verdict(failed, kills=(torn,))
    assert result.answer == "No"
    assert result.reasons == (
        "the run with kills failed: worker-0 failed: EOFError",
        "a kill left a torn checkpoint, last.pt: it is empty",
    )


def test_a_torn_checkpoint_that_the_program_gets_over_is_no_fault() -> None:
    assert verdict(kills=(replace(KILL, torn=("step-25.pt: it is empty",)),)).answer == "Yes"


def test_a_run_that_ends_early_is_not_trusted() -> None:
    result = verdict(run(start(1, 25, 101), start(21, 30, 200)))
    assert result.answer == "No"
    assert "ended at step 30" in result.reasons[0]


def test_final_checkpoints_that_differ_while_losses_are_the_same_are_no() -> None:
    result = verdict(files=(SAME, DIFFERENT))
    assert result.answer == "No"
    assert "2 of 9 values" in result.reasons[0]


def test_a_program_that_differs_before_any_kill_cannot_be_judged() -> None:
    varying = run(start(1, 25, 101, lambda step: step + 0.5), start(21, 40, 200, lambda step: step + 0.7))
    result = verdict(varying, files=(DIFFERENT,))
    assert result.answer == "Unknown"
    assert "differ before any kill" in result.reasons[0]
    assert "seeds" in result.hint


def test_small_differences_before_any_kill_allow_larger_ones_later() -> None:
    noisy = run(start(1, 25, 101, lambda s: loss_of(s) * (1 + 1e-6)), start(21, 40, 200, lambda s: loss_of(s) * 1.001))
    result = verdict(noisy, files=(replace(DIFFERENT, worst=1e-3),))
    assert result.answer == "Yes"
    assert result.losses.metrics == {"loss": 1e-2}


def test_a_rate_that_differs_anyway_is_no_evidence() -> None:
    killed = resumed()
    for run_, rate in ((UNBROKEN, 100.0), (killed, 90.0)):
        for item in run_.starts:
            item.steps = {step: {**metrics, "rate": rate} for step, metrics in item.steps.items()}
    result = verdict(killed)
    assert result.answer == "Yes"
    assert result.losses.varying == {"rate": pytest.approx(0.1)}


def test_without_a_loss_equal_checkpoints_are_enough_and_different_ones_say_nothing() -> None:
    def without(loss_run: Run) -> Run:
        starts = [Start(s.attempt, s.began, {step: {} for step in s.steps}, s.times) for s in loss_run.starts]
        return run(*starts)

    assert verdict(without(resumed()), unbroken=without(UNBROKEN)).answer == "Yes"
    result = verdict(without(resumed()), unbroken=without(UNBROKEN), files=(DIFFERENT,))
    assert result.answer == "Unknown"
    assert "report(step=..., loss=...)" in result.hint


@pytest.mark.parametrize(
    ("unbroken", "kills", "text"),
    [
        (run(start(1, 9, 0), ending="Failed", failures=((0, "worker-0 failed"),)), (KILL,), "worker-0 failed"),
        (run(), (KILL,), "no rank reported a step"),
        (run(start(1, 40, 0), saves=0), (KILL,), "stored no file in the checkpoint directory"),
        (UNBROKEN, (), "too short"),
    ],
)
def test_a_run_without_evidence_says_what_is_missing(unbroken: Run, kills: tuple[Kill, ...], text: str) -> None:
    result = verdict(unbroken=unbroken, kills=kills)
    assert result.answer == "Unknown"
    assert text in result.reasons[0]
    assert result.hint


def test_a_learning_rate_that_is_the_same_does_not_show_that_a_program_is_reproducible() -> None:
    def rate_only(loss_run: Run) -> Run:
        return run(*(Start(s.attempt, s.began, {k: {"lr": 0.1} for k in s.steps}, s.times) for s in loss_run.starts))

    result = verdict(rate_only(resumed()), unbroken=rate_only(UNBROKEN), files=(DIFFERENT,))
    assert result.answer == "Unknown"
    assert verdict(rate_only(resumed()), unbroken=rate_only(UNBROKEN), files=()).answer == "Unknown"


def test_a_run_with_kills_that_does_not_end_is_unknown() -> None:
    assert verdict(run(start(1, 25, 101), ending="TimedOut", seconds=600)).answer == "Unknown"


def test_every_rank_is_compared() -> None:
    unbroken = replace(UNBROKEN, ranks={"rank 0": UNBROKEN.starts, "rank 1": UNBROKEN.starts})
    wrong = resumed(lambda step: loss_of(step) * 1.5).starts
    result = verdict(replace(resumed(), ranks={"rank 0": resumed().starts, "rank 1": wrong}), unbroken=unbroken)
    assert result.answer == "No"
    assert result.losses.first
    assert result.losses.first.rank == "rank 1"


def test_two_losses_that_are_not_a_number_are_the_same() -> None:
    assert relative(math.nan, math.nan) == 0.0
    assert relative(math.nan, 1.0) == math.inf
    assert relative(1.0, 2.0) == 0.5
