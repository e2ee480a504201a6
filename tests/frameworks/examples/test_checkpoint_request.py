"""Ctrl-C asks real ranks for a checkpoint before it ends them, as a suspension does on a cluster.

And real ranks store the checkpoints that are due by `everySeconds`.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from frameworks.examples.conftest import TIMEOUT, Run
from frameworks.examples.test_recovery import job
from support.live import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = """
import os, time
from pathlib import Path
from allranks.report import checkpoint_requested, report

path = Path(os.environ["CHECKPOINTS"], os.environ["RANK"])
step = int(path.read_text()) if path.exists() else 0
print(f"begins after step {step}", flush=True)
while True:
    time.sleep(0.02)
    step += 1
    report(step=step, total_steps=10**6)
    if checkpoint_requested():
        path.write_text(str(step))
        print(f"stored step {step}", flush=True)
        report(checkpoint=True)
"""


def test_ctrl_c_waits_for_the_checkpoints_of_all_ranks(run_job, tmp_path: Path, monkeypatch) -> None:
    """The program does not handle SIGTERM, so without the request all steps are lost."""
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    (tmp_path / "count.py").write_text(PROGRAM)
    manifest = job(tmp_path, "pytorch", ["python3", "count.py"], "worker: {replicas: 2}")
    run = run_job(manifest, "--set", "progress={}", cwd=tmp_path)
    run.wait_for(r"begins after step 0")
    reached = wait_for_ranks(run, 2)
    run.process.send_signal(signal.SIGINT)
    run.wait_for(r"Ctrl-C: the ranks are asked for a checkpoint; when it is stored, or after 30 s, SIGTERM to 2 pods")
    run.finish(timeout=300)

    assert run.code == 130, run.output
    stored = [int(step) for step in re.findall(r"stored step (\d+)", run.output)]
    assert len(stored) == 2, run.output
    assert min(stored) >= reached
    assert run.status["phase"] == "Running"
    assert "checkpointRequest" not in run.status

    again = run_job(manifest, cwd=tmp_path)
    begins = [int(again.wait_for(r"begins after step (\d+)")[1]) for _ in range(2)]
    assert sorted(begins) == sorted(stored)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("manifest", "arguments", "saved"),
    [
        ("lm-pytorch", "--steps-per-epoch=200", r"saved on request after epoch 0, step (\d+)"),
        ("penguins-pytorch", "--epochs=500, --batch-size=1", r"saved on request after epoch \d+, step (\d+)"),
        ("penguins-tensorflow", "--epochs=500, --batch-size=1", r"saved on request after epoch \d+, step (\d+)"),
        (
            "digits-jax",
            "--epochs=500, --patience=500, --batch-size=2",
            r"saved on request after epoch \d+, step (\d+)",
        ),
        ("penguins-horovod", "--epochs=500, --batch-size=1", r"saved on request after epoch \d+, step (\d+)"),
    ],
)
def test_training_programs_save_on_request_and_resume(manifest, arguments, saved, run_job, tmp_path: Path) -> None:
    """The epochs are long: the checkpoint at the end of one answers a request too."""
    options = ("--set", f"args=[{arguments}, --work=0.5]", "--volume", f"{manifest}={tmp_path / 'claim'}")
    run = run_job(f"examples/{manifest}.yaml", *options)
    wait_for_ranks(run)
    run.process.send_signal(signal.SIGINT)
    run.wait_for(r"Ctrl-C: the ranks are asked for a checkpoint")
    run.wait_for(saved)
    run.finish(timeout=300)
    assert run.code == 130, run.output
    assert len(re.findall(saved, run.output)) == 1, run.output

    run_job(f"examples/{manifest}.yaml", *options).wait_for(r"resumed from epoch \d+")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("manifest", "longer"), [("lm-transformers", "--samples=20000"), ("penguins-lightning", "--batch-size=1")]
)
def test_callbacks_save_on_request_with_all_ranks(manifest, longer, libraries, run_job, tmp_path: Path) -> None:
    """The epochs are long, because nothing is requested just after the checkpoint at the end of one."""
    claim = tmp_path / "claim"
    options = ("--set", f"args=[--epochs=500, {longer}]", "--volume", f"{manifest}={claim}")
    run = run_job(f"examples/{manifest}.yaml", *options)
    wait_for_ranks(run)
    run.process.send_signal(signal.SIGINT)
    run.wait_for(r"Ctrl-C: the ranks are asked for a checkpoint")
    run.finish(timeout=300)
    assert run.code == 130, run.output
    saved = {"lm-transformers": "run-*/checkpoint-*", "penguins-lightning": "run-*/*.ckpt"}[manifest]
    assert list(claim.glob(saved)), run.output


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("manifest", "longer", "saved"),
    [
        ("lm-transformers", "--samples=20000", "run-*/checkpoint-*"),
        ("penguins-lightning", "--batch-size=1", "run-*/*.ckpt"),
    ],
)
def test_callbacks_save_when_a_checkpoint_is_due(manifest, longer, saved, libraries, run_job, tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    options = ("--set", f"args=[--epochs=500, {longer}]", "--volume", f"{manifest}={claim}")
    run = run_job(f"examples/{manifest}.yaml", *options, "--set", "checkpoint.everySeconds=5")
    eventually(lambda: (recorded(run).get("checkpointSchedule") or {}).get("saveSeconds"), TIMEOUT)
    assert list(claim.glob(saved)), run.finish().output


DUE = """
import os, random, time
from datetime import timedelta
from pathlib import Path
from allranks.report import report
{imports}

rank = int(os.environ["RANK"])
stored = Path(os.environ["CHECKPOINTS"], f"rank-{{rank}}")
{begin}
step = 0
while step < 100_000 and not Path(os.environ["CHECKPOINTS"], "end").exists():
    time.sleep(random.uniform(0.005, 0.02))
    step += 1
    report(step=step, total_steps=100_000)
    if checkpoint_due():
        time.sleep(0.5)
        with stored.open("a") as file:
            print(step, file=file)
        {together}
        report(checkpoint=True)
os._exit(0)
"""
PLAIN = DUE.format(imports="from allranks.report import checkpoint_due", begin="", together="")
TORCH = DUE.format(
    imports="import torch.distributed as dist\nfrom allranks.report.pytorch import checkpoint_due",
    begin="dist.init_process_group('gloo', timeout=timedelta(seconds=60))",
    together="dist.barrier()",
)
"""A rank that stores a checkpoint after another step than its peers waits in the barrier, and fails after a minute."""


@pytest.mark.parametrize("program", [PLAIN, TORCH], ids=["plain", "torch"])
def test_real_ranks_store_the_checkpoints_that_are_due_after_the_same_steps(program, run_job, tmp_path, monkeypatch):
    """The plain ranks do not wait for each other, so they are at different steps when they learn of the next one."""
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    (tmp_path / "due.py").write_text(program)
    manifest = job(tmp_path, "pytorch", ["python3", "due.py"], "worker: {replicas: 3}")
    checkpoint = "checkpoint={claim: mine, everySeconds: 5}"
    options = ("--set", "progress={}", "--set", checkpoint, "--volume", f"mine={tmp_path / 'claim'}")
    run = run_job(manifest, *options, cwd=tmp_path)

    def steps() -> list[list[str]]:
        assert run.process.poll() is None, run.finish().output
        files = [tmp_path / f"rank-{rank}" for rank in range(3)]
        return [file.read_text().split()[:2] if file.exists() else [] for file in files]

    eventually(lambda: all(len(stored) == 2 for stored in steps()), TIMEOUT)
    first, *others = steps()
    assert others == [first, first]
    schedule = eventually(lambda: recorded(run).get("checkpointSchedule"), TIMEOUT)
    assert schedule["saveSeconds"] >= 0.5
    assert schedule["ranks"] == 3
    (tmp_path / "end").touch()
    run.finish()


def recorded(run: Run) -> dict:
    """The status that the run has recorded last."""
    file = run.directory / "run" / "job.json"
    return json.loads(file.read_text())["status"] if file.exists() else {}


def wait_for_ranks(run: Run, ranks: int = 1) -> int:
    """Waits until the run knows that ranks save on request. Returns the slowest rank's step at that time."""

    def reported() -> int:
        if run.process.poll() is not None:
            pytest.fail(f"the run has ended:\n{run.finish().output}")
        progress = recorded(run).get("progress")
        ready = progress and progress.get("savesOnRequest") and len(progress.get("ranks", ())) >= ranks
        return min(rank.get("step", 0) for rank in progress["ranks"]) if ready else 0

    return eventually(reported, TIMEOUT)
