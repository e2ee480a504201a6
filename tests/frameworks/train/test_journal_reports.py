"""The reports of the journal, without a framework: a few lines take the place of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fake_report_server import FakeReportServer, hub_in, program

from .launch import ROOT

TRAINING = """
import io, sys, zipfile
sys.path.insert(0, {train!r})
{before}
from common.journal import Journal, Progress
from common.options import make_parser, parse_options
from common.report import finish
from common.termination import Termination
sys.argv[1:] = {options!r}
options = parse_options(make_parser("", "", epochs=3, batch_size=8, lr=0.1))
journal = Journal(options, {rank}, 2, ".zip", "cpu")
progress = Progress()
def checkpoint():
    content = io.BytesIO()
    zipfile.ZipFile(content, "w").close()
    return content.getvalue()
while progress.epoch < options.epochs:
    journal.begin_epoch(progress, 4)
    for step in range(4):
        journal.begin_step(progress)
        progress.step += 1
        journal.end_step(progress, 8, 1 / progress.step)
    progress.epoch += 1
    progress.losses.append(0.5)
    progress.validation_losses.append(0.4)
    journal.end_epoch(progress, 0.75, 1.0, 32, checkpoint)
    if progress.epoch == 2:
        {interruption}
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeReportServer]:
    with hub_in(tmp_path) as hub:
        yield hub


@pytest.fixture
def train(hub: FakeReportServer, tmp_path: Path) -> Callable[..., str]:
    """Runs the training as a rank; returns its output."""

    def run(*options: str, rank: int = 0, interruption: str = "pass", before: str = "", **env: str) -> str:
        text = TRAINING.format(
            train=str(ROOT / "train"),
            options=["--checkpoint-dir", str(tmp_path / "saved"), *options],
            rank=rank,
            interruption=interruption,
            before=before,
        )
        done = program(hub, text, RANK=str(rank), **env)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_a_whole_training(hub, train):
    train()
    last = hub.messages[-1]
    assert [last[key] for key in ("rank", "step", "totalSteps", "epoch", "done")] == [0, 12, 12, 3, True]
    assert last["metrics"] == {"loss": pytest.approx(1 / 12), "validation_loss": 0.4, "accuracy": 0.75}
    assert last["checkpoint"]["step"] == 12
    assert last["samplesPerSecond"] > 0


def test_a_rank_that_saves_nothing_reports_no_checkpoint(hub, train):
    train(rank=1)
    assert (hub.messages[-1]["epoch"], hub.messages[-1]["checkpoint"]) == (3, None)


def test_an_epoch_that_is_not_saved_is_no_checkpoint(hub, train):
    train("--checkpoint-every", "2", interruption="break")
    assert hub.messages[-1]["checkpoint"]["step"] == 8
    train("--checkpoint-every", "3", "--epochs", "4", interruption="break")
    assert hub.messages[-1]["checkpoint"] is None


def test_the_checkpoint_of_all_ranks_at_sigterm(hub, train):
    train("--checkpoint-every", "3", interruption="journal.stop(progress, checkpoint); break")
    assert hub.messages[-1]["checkpoint"]["step"] == 8


def test_a_rank_that_saves_alone_saves_its_last_whole_epoch(hub, train):
    save_alone = "progress.step += 1; journal.end_step(progress, 8, 0.1); journal.save_alone(); break"
    train("--checkpoint-every", "3", interruption=save_alone)
    last = hub.messages[-1]
    assert (last["checkpoint"]["step"], last["step"]) == (8, 8)  # step 9 is lost


def test_a_hung_program_that_gets_SIGTERM_sends_its_last_report(hub, train):
    """The thread that waits for SIGTERM calls `os._exit`."""
    interruption = (
        "import os, signal, time; Termination(lambda: None, 0.1); os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)"
    )
    with pytest.raises(AssertionError, match="143"):
        train(interruption=interruption)
    assert [hub.messages[-1][key] for key in ("step", "done")] == [8, True]


END_WHEN_STUCK = """
import os, threading, time
def end():
    while not os.path.exists({file!r}):
        time.sleep(0.05)
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
"""


@pytest.mark.parametrize(("attempt", "hangs"), [("0", True), ("", True), ("1", False)])
def test_a_rank_hangs_at_the_given_step(hub, train, attempt, hangs, tmp_path):
    stuck = tmp_path / "stuck"

    def answer(_message):
        if sum(message["step"] == 5 for message in hub.messages) >= 3:
            stuck.touch()
        return 200, {}, {"interval": 0.1}

    hub.answers = [answer]
    before = END_WHEN_STUCK.format(file=str(stuck)) if hangs else ""
    train("--hang-rank", "0", "--hang-at-step", "6", before=before, ALLRANKS_ATTEMPT=attempt)
    assert hub.messages[-1]["step"] == (5 if hangs else 12)


def test_a_slow_rank_sleeps_longer(hub, train):
    train("--work", "0.01", "--slow-rank", "1", "--slow-factor", "4", rank=1)
    assert hub.messages[-1]["stepSeconds"] > 0.04
    train("--work", "0.01", "--slow-rank", "1", "--slow-factor", "4", rank=0)
    assert hub.messages[-1]["stepSeconds"] > 0.01


def test_without_the_library_the_training_is_the_same(hub, train):
    output = train("--epochs", "2")
    count = len(hub.messages)
    assert train("--epochs", "2", before="sys.modules['allranks'] = None") == output
    assert len(hub.messages) == count
