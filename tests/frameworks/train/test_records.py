"""The output of a run: metrics, curves, lines; and the rules that need no framework."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import pytest
from common.claims import Claim
from common.curves import draw_curve, save_picture
from common.early_stopping import EarlyStopping
from common.horovod import require_expected_size
from common.journal import Journal, Progress
from common.metrics import MetricsLog, read_metrics
from common.options import make_parser, parse_options
from common.schedules import cosine, warmup_cosine


def append(log: MetricsLog, epoch: int, **changes: float) -> None:
    values = {"step": 8 * epoch, "loss": 1 / epoch, "validation_loss": 2 / epoch, "accuracy": 0.5, "seconds": 2.0}
    values |= {"samples": 256, "world_size": 2}
    log.append(epoch=epoch, **(values | changes))


def epochs(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def test_an_epoch_is_one_line_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "made" / "metrics.jsonl"
    monkeypatch.delenv("ALLRANKS_ATTEMPT", raising=False)
    append(MetricsLog(Claim(path.parent), 0), 3)
    line: dict[str, object] = {
        "epoch": 3,
        "step": 24,
        "loss": 0.333333,
        "validation_loss": 0.666667,
        "accuracy": 0.5,
        "seconds": 2.0,
        "samples_per_second": 128.0,
    }
    assert json.loads(path.read_text()) == line | {"world_size": 2, "claim": 1}
    monkeypatch.setenv("ALLRANKS_ATTEMPT", "4")
    append(MetricsLog(Claim(path.parent), 0), 3)
    assert json.loads(path.read_text()) == line | {"world_size": 2, "claim": 2, "attempt": 4}


def test_epochs_that_are_trained_again_appear_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(Claim(path.parent), 0)
    for epoch in (1, 2, 3):
        append(log, epoch)
    with path.open("a") as file:
        file.write('{"epoch": 4, "lo')  # killed during the write
    log = MetricsLog(Claim(path.parent), 2)
    assert epochs(path) == [1, 2]
    for epoch in (3, 4):
        append(log, epoch)
    assert epochs(path) == [1, 2, 3, 4]


def test_a_new_start_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(MetricsLog(Claim(path.parent), 0), 1)
    MetricsLog(Claim(path.parent), 0)
    assert read_metrics(path) == []


def test_a_curve_falls_from_the_left_to_the_right() -> None:
    lines = draw_curve([1.0, 0.5, 0.25, 0.0], width=12, height=4).splitlines()
    assert [line.split("│")[0] for line in lines[:4]] == ["1.0000 ", "       ", "       ", "0.0000 "]
    assert lines[0][8] != " "
    assert lines[3][19] != " "
    assert lines[3][8:12].strip() == ""
    assert lines[5].split() == ["epoch", "1", "4"]
    assert max(map(len, lines)) == 20


@pytest.mark.parametrize(
    "losses",
    [[], [0.5], [0.5, 0.5, 0.5], [math.nan], [math.inf, 1.0], [1.0, math.nan, 0.5], [1e30, 1e-30], [0.1] * 5000],
    ids=["none", "one", "all the same", "NaN", "infinite", "a gap", "far apart", "more than columns"],
)
def test_a_curve_of_any_losses_can_be_drawn(losses: list[float], tmp_path: Path) -> None:
    text = draw_curve(losses)
    assert text == "no loss to draw" or len(text.splitlines()) == 12


def test_a_terminal_without_braille_gets_asterisks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr(sys, "stdout", Ascii())
    text = draw_curve([2.0, 1.0])
    assert text.isascii()
    assert "*" in text


def test_a_missing_matplotlib_is_reported_and_not_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not save_picture({"training": [1.0]}, tmp_path / "loss.png", "title")
    journal = Journal(options(tmp_path), 0, 1, ".pt", "cpu")
    journal.finish(Progress(1, 8, [1.0], [1.0]), 0.9767, "title")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "matplotlib is not installed: no loss.png",
        "rank 0 of 1: test accuracy 0.9767",
    ]


def options(checkpoint_dir: Path | None, every: int = 1) -> argparse.Namespace:
    return argparse.Namespace(
        epochs=20, checkpoint_dir=checkpoint_dir, checkpoint_every=every, output_dir=checkpoint_dir
    )


def test_rank_0_prints_the_training_and_the_others_their_own_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(7, 56, [0.9, 0.2310], [0.8, 0.31])
    for rank in (0, 1):
        journal = Journal(options(tmp_path), rank, 2, ".pt", "cpu (gloo)")
        journal.begin(progress)
        journal.end_epoch(progress, 0.91, 0.1234, 256, lambda: b"")
        journal.stop(progress, lambda: b"")
    assert capsys.readouterr().out.splitlines() == [
        "rank 0 of 2: started on cpu (gloo)",
        f"resumed from epoch 7 of {tmp_path} (loss 0.2310)",
        "epoch 7/20 loss 0.2310, validation loss 0.3100 accuracy 0.9100 (0.12 s)",
        f"rank 0 of 2: SIGTERM: stopped after epoch 7, step 56, saved in {tmp_path}",
        "rank 1 of 2: started on cpu (gloo)",
        "rank 1 of 2: resumed from epoch 7",
        "rank 1 of 2: SIGTERM: stopped after epoch 7, step 56",
    ]


def test_checkpoints_are_saved_when_due_and_always_at_the_end(tmp_path: Path) -> None:
    journal = Journal(options(tmp_path, every=3), 0, 1, ".pt", "cpu")
    saved = []
    for epoch in range(1, 21):
        before = {path.name for path in tmp_path.glob("epoch-*")}
        journal.end_epoch(Progress(epoch, epoch, [0.5], [0.5]), 0.5, 0.1, 8, lambda: b"")
        saved += [epoch] * ({path.name for path in tmp_path.glob("epoch-*")} != before)
    assert saved == [3, 6, 9, 12, 15, 18, 20]


def test_early_stopping_waits_for_its_patience() -> None:
    early = EarlyStopping(patience=2)
    progress = [early.update(loss, epoch) for epoch, loss in enumerate([0.9, 0.5, 0.6, 0.4, 0.4, math.nan], start=1)]
    assert progress == [True, True, False, True, False, False]
    assert early == EarlyStopping(patience=2, best=0.4, best_epoch=4, stale=2)
    assert early.exhausted
    assert not EarlyStopping(patience=3, **early.as_dict()).exhausted


def test_the_learning_rate_falls_to_nearly_zero() -> None:
    rates = [cosine(0.1, epoch, 10) for epoch in range(10)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 0.1
    assert 0 < rates[9] < 0.01
    assert cosine(0.1, 5, 10) == pytest.approx(0.05)


def parse(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    return parse_options(make_parser("does it", "program --epochs 3", epochs=20, batch_size=16, lr=0.01))


def test_the_checkpoint_directory_comes_from_the_option_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ALLRANKS_CHECKPOINT_DIR", raising=False)
    assert parse(monkeypatch=monkeypatch).checkpoint_dir is None
    assert parse(monkeypatch=monkeypatch).output_dir is None
    monkeypatch.setenv("ALLRANKS_CHECKPOINT_DIR", "")
    assert parse(monkeypatch=monkeypatch).checkpoint_dir is None
    monkeypatch.setenv("ALLRANKS_CHECKPOINT_DIR", "/checkpoints")
    assert parse(monkeypatch=monkeypatch).output_dir == Path("/checkpoints")
    chosen = parse("--checkpoint-dir", "here", "--output-dir", "there", monkeypatch=monkeypatch)
    assert (chosen.checkpoint_dir, chosen.output_dir) == (Path("here"), Path("there"))


@pytest.mark.parametrize("wrong", [["--epochs", "0"], ["--batch-size", "-1"], ["--pause", "-1"], ["--lr", "x"]])
def test_invalid_numbers_are_rejected(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*wrong, monkeypatch=monkeypatch)
    assert f"argument {wrong[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_horovod_of_another_size_than_its_launcher_ends_the_program(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    require_expected_size(1)
    monkeypatch.setenv(variable, "4")
    require_expected_size(4)
    with pytest.raises(SystemExit, match=rf"Horovod runs with 1 rank\(s\), {variable} says 4"):
        require_expected_size(1)


def test_the_learning_rate_rises_then_falls_to_a_tenth() -> None:
    rates = [warmup_cosine(1.0, step, 100, 10) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.1)
