"""Ctrl-C asks real ranks for a checkpoint before it ends them, as a suspension does on a cluster."""

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


def wait_for_ranks(run: Run, ranks: int = 1) -> int:
    """Waits until the run knows that ranks save on request. Returns the slowest rank's step at that time."""

    def reported() -> int:
        if run.process.poll() is not None:
            pytest.fail(f"the run has ended:\n{run.finish().output}")
        file = run.directory / "run" / "job.json"
        progress = json.loads(file.read_text())["status"].get("progress") if file.exists() else None
        ready = progress and progress.get("savesOnRequest") and len(progress.get("ranks", ())) >= ranks
        return min(rank.get("step", 0) for rank in progress["ranks"]) if ready else 0

    return eventually(reported, TIMEOUT)
