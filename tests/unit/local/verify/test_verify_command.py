"""`allranks verify` as a user runs it, with programs that resume well or make one mistake."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECONDS = 400.0

PROGRAM = """
import json, os, sys, time
from pathlib import Path
from allranks.report import report

mistake = sys.argv[1]
path = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"]) / f"{os.environ['RANK']}.json"  # ranks do not wait for each other
state = {"step": 0, "weight": 1.0, "momentum": 0.0}
if path.exists() and mistake != "starts again":
    state = json.loads(path.read_text())
    if mistake == "optimizer":
        state["momentum"] = 0.0
begin = state["step"]
while state["step"] < 60:
    batch = (state["step"] - (begin if mistake == "sampler" else 0)) * 7 % 11
    error = state["weight"] - batch
    state["momentum"] = 0.9 * state["momentum"] + 0.01 * error
    state["weight"] -= state["momentum"]
    state["step"] += 1
    time.sleep(0.02)
    if mistake != "silent":
        report(step=state["step"], loss=error**2)
    if state["step"] % 5 == 0:
        text = json.dumps({**state, "padding": "x" * 10_000})
        if mistake == "in place":
            with path.open("w") as file:
                file.write(text[:5_000])
                file.flush()
                time.sleep(0.3)
                file.write(text[5_000:])
        else:
            path.with_suffix(".tmp").write_text(text)
            path.with_suffix(".tmp").replace(path)
        report(checkpoint=True)
"""
JOB = """
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata: {{name: job}}
spec:
  framework: spmd
  image: mine
  command: [python3, program.py, {mistake}]
  roles: {{worker: {{replicas: 2, env: [{{name: TEST_OF_VERIFY, value: "{mark}"}}]}}}}
  checkpoint: {{claim: job}}
"""


class Verify:
    def __init__(self, directory: Path) -> None:
        self.directory, self.mark = directory, uuid.uuid4().hex
        (directory / "program.py").write_text(PROGRAM)

    def command(self, mistake: str, *options: str) -> list[str]:
        job = JOB.format(mistake=json.dumps(mistake), mark=self.mark)
        (self.directory / "job.yaml").write_text(job)
        return [sys.executable, "-m", "allranks", "verify", "job.yaml", "--run-dir", "result", "--seed", "1", *options]

    def __call__(self, mistake: str, *options: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            self.command(mistake, "-o", "json", *options),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.stderr == "", "quiet where it is not a terminal"
        assert self.processes() == []
        return done.returncode, json.loads(done.stdout)

    def processes(self) -> list[int]:
        """The ranks of this test that run."""
        mark, pids = f"TEST_OF_VERIFY={self.mark}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
            except OSError:
                continue
        return pids


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    return Verify(tmp_path)


def test_a_program_that_resumes_well_is_trusted(verify: Verify) -> None:
    status, page = verify("none")
    assert (status, page["trusted"]) == (0, "Yes"), page
    assert page["losses"]["worst"] == 0.0, "bit by bit"
    assert page["losses"]["compared"] > 0
    assert {file["result"] for file in page["checkpoints"]} == {"equal"}
    assert {kill["kind"] for kill in page["kills"]} == {"step", "save"}
    assert page["seed"] == 1


@pytest.mark.parametrize(
    ("mistake", "words"),
    [("optimizer", "the state of the optimizer"), ("sampler", "the position of the sampler")],
)
def test_a_program_that_does_not_restore_everything_is_not_trusted(verify: Verify, mistake: str, words: str) -> None:
    status, page = verify(mistake)
    assert (status, page["trusted"]) == (1, "No"), page
    assert page["losses"]["firstDifference"]["metric"] == "loss"
    assert words in page["hint"], page


def test_a_program_that_does_not_load_its_checkpoint_is_not_trusted(verify: Verify) -> None:
    status, page = verify("starts again")
    assert (status, page["trusted"]) == (1, "No"), page
    assert "started again with step 1" in page["reasons"][0]


def test_a_program_that_writes_in_place_leaves_a_torn_checkpoint(verify: Verify) -> None:
    status, page = verify("in place")
    assert (status, page["trusted"]) == (1, "No"), page
    assert "failed" in page["reasons"][0]
    assert any("it is not complete JSON" in reason for reason in page["reasons"]), page


def test_a_program_that_reports_no_step_reads_how_to_report(verify: Verify) -> None:
    status, page = verify("silent")
    assert (status, page["trusted"]) == (3, "Unknown"), page
    assert "report(step=..., loss=...)" in page["hint"]


def test_the_comparison_can_end_at_a_step(verify: Verify) -> None:
    status, page = verify("none", "--steps", "40")
    assert (status, page["trusted"]) == (0, "Yes"), page
    assert page["runs"]["unbroken"]["ending"] == "Stopped"
    assert page["checkpoints"] == []


def test_a_job_without_a_checkpoint_directory_says_what_to_add(verify: Verify) -> None:
    command = verify.command("none", "--set", "checkpoint=null")
    done = subprocess.run(command, cwd=verify.directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 3
    assert "spec.checkpoint" in done.stderr
    assert not (verify.directory / "result").exists()


def test_ctrl_c_leaves_nothing(verify: Verify) -> None:
    process = subprocess.Popen(
        verify.command("none"), cwd=verify.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: any((verify.directory / "result").glob("unbroken/steps/*")))
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert output == ""
    assert "interrupted" in errors
    assert verify.processes() == []
    assert not (verify.directory / "result").exists()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
