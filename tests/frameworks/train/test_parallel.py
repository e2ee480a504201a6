"""The language model by each kind of parallelism, with real ranks: they compute the same, and resume each other's
checkpoints with other numbers of ranks."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from .launch import ROOT, Launcher, Rank, send

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

KINDS = ("ddp", "fsdp", "tensor", "2d", "pipeline")
SMALL = ("--epochs", "6", "--steps-per-epoch", "5", "--width", "32", "--layers", "4", "--context", "32")
SMALL += ("--batch-size", "12", "--sample", "20")
LONG = 600


def torchrun(launcher: Launcher, ranks: int, *command: str | Path, **environment: str) -> Rank:
    start = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
    return launcher.start([*start, *command], environment)


def lm(launcher: Launcher, ranks: int, kind: str, folder: str, *options: str) -> Rank:
    directory = launcher.folder / folder
    program = ROOT / "train/lm_pytorch.py"
    return torchrun(launcher, ranks, program, "--parallel", kind, "--checkpoint-dir", directory, *SMALL, *options)


def losses(launcher: Launcher, folder: str) -> list[float]:
    lines = (launcher.folder / folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_every_kind_of_parallelism_makes_the_same_steps_and_continues_from_the_others(launcher: Launcher) -> None:
    run = torchrun(launcher, 4, Path(__file__).with_name("same_steps.py"), launcher.folder / "checkpoints")
    assert run.exit_code(LONG) == 0, run.text
    results = [json.loads(line) for line in re.findall(r"RESULT (.*)", run.text)]
    assert [result["kind"] for result in results] == list(KINDS)
    for result in results[1:]:
        assert result["fresh"] == [pytest.approx(step, rel=1e-4) for step in results[0]["fresh"]], result["kind"]
        assert result["resumed"] == pytest.approx(results[0]["resumed"], rel=1e-4), result["kind"]
    first, *_, last = (scored for _, _, scored in results[0]["fresh"])
    assert last < first - 0.5


def test_a_training_resumes_at_other_numbers_of_ranks_as_if_nothing_had_happened(launcher: Launcher) -> None:
    run = lm(launcher, 2, "fsdp", "moved", "--pause", "2")
    run.wait_for("epoch 2/6", LONG)
    for pid in launcher.alive(RANK="1"):
        send(pid, signal.SIGTERM)  # to one rank: all of them save
    assert run.exit_code(LONG) == 1, run.text  # torchrun's exit code for any failure
    stopped = re.search(r"rank 0 of 2: SIGTERM: stopped after epoch (\d), step (\d+), saved in", run.text)
    assert stopped, run.text

    run = lm(launcher, 3, "pipeline", "moved", "--pause", "2")
    resumed = run.wait_for(r"resumed from epoch (\d) of \S+ \(loss", LONG)
    assert resumed[1] == stopped[1]
    run.wait_for("epoch 4/6", LONG)
    for pid in launcher.alive(RANK="2"):
        send(pid, signal.SIGKILL)
    assert run.exit_code(LONG) == 1, run.text

    newest = sorted((launcher.folder / "moved").glob("step-*"))[-1]
    [damaged, *_] = sorted(newest.glob("*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    run = lm(launcher, 1, "ddp", "moved")
    assert run.exit_code(LONG) == 0, run.text
    assert f"checkpoint {newest} is damaged" in run.text
    assert "rank 0 of 1: test accuracy 0." in run.text
    assert "sample: The " in run.text
    assert [line.name[:12] for line in sorted((launcher.folder / "moved").glob("step-*"))] == [
        "step-0000025",
        "step-0000030",
    ]

    straight = lm(launcher, 1, "ddp", "straight")
    assert straight.exit_code(LONG) == 0, straight.text
    assert losses(launcher, "moved") == [pytest.approx(loss, rel=2e-3) for loss in losses(launcher, "straight")]


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (3, ("--parallel", "2d"), "--parallel 2d: 3 ranks are not divisible by --tensor-size 2"),
        (
            3,
            ("--parallel", "tensor"),
            "--parallel tensor: --heads 4 is not divisible by the 3 ranks",
        ),
        (2, ("--parallel", "pipeline", "--layers", "1"), "--parallel pipeline: --layers 1 are fewer than the 2 ranks"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_a_sentence(launcher: Launcher, ranks, options, message) -> None:
    run = torchrun(launcher, ranks, ROOT / "train/lm_pytorch.py", *options)
    assert run.exit_code(LONG) == 1
    assert message in run.text


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_a_parameter_server_over_rpc_resumes_after_a_lost_trainer_and_after_sigterm(
    launcher: Launcher, updates: str
) -> None:
    directory = launcher.folder / "server"
    command = [ROOT / "train/rpc_parameter_server.py", "--updates", updates, "--checkpoint-dir", directory]
    run = torchrun(launcher, 3, *command, "--pause", "2")
    run.wait_for("epoch 2/20", LONG)
    for pid in launcher.alive(RANK="2"):
        send(pid, signal.SIGKILL)
    assert run.exit_code(LONG) == 1, run.text

    run = torchrun(launcher, 3, *command, "--pause", "2")
    run.wait_for(r"resumed from epoch [23] of \S+ \(loss", LONG)
    run.wait_for("epoch 5/20", LONG)
    for pid in launcher.alive(RANK="1"):
        send(pid, signal.SIGTERM)  # a trainer's: all ranks stop together
    assert run.exit_code(LONG) == 1, run.text
    stopped = re.search(r"rank 0 of 3: SIGTERM: stopped after epoch (\d+)", run.text)
    assert stopped, run.text

    run = torchrun(launcher, 3, *command)
    assert run.exit_code(LONG) == 0, run.text
    assert f"resumed from epoch {stopped[1]} of" in run.text
    accuracies = re.findall(r"rank \d of 3: test accuracy (\S+)", run.text)
    assert len(accuracies) == 3
    assert float(min(accuracies)) >= 0.97
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 21))
    updates_in_epoch = 8 * (1 if updates == "sync" else 2)
    repeated = lines[-1]["step"] - 20 * updates_in_epoch  # of the epoch that the SIGTERM interrupted
    assert 0 <= repeated < updates_in_epoch
