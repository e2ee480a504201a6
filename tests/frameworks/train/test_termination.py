"""SIGTERM in a rank whose peers do not stop: what it saves, and its exit status."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .launch import ROOT

PROGRAM = """
import os, pathlib, signal, sys, time
from common.termination import Termination

def save_alone():
    began.write_text("")
    time.sleep(0.5)
    print("saved", flush=True)

began = pathlib.Path(sys.argv[1])
termination = Termination(save_alone, agree_within=float(sys.argv[2]))
os.kill(os.getpid(), signal.SIGTERM)
while not termination.requested:
    time.sleep(0.01)
"""
STUCK = "time.sleep(60)"
WHILE_IT_SAVES = "while not began.exists(): time.sleep(0.01)\n"
FAILS = "raise RuntimeError('connection closed by peer')"


@pytest.mark.parametrize(
    ("then", "agree_within", "output", "code"),
    [
        (STUCK, 0.1, "saved\n", 143),
        (WHILE_IT_SAVES + FAILS, 0.1, "saved\n", 143),
        (WHILE_IT_SAVES, 0.1, "saved\n", 143),
        (FAILS, 60, "saved\n", 143),
        ("termination.agreed(); termination.exit()", 60, "", 143),
        ("termination.agreed(); " + FAILS, 60, "", 1),
        ("", 60, "", 0),
    ],
    ids=[
        "stuck",
        "its peer ends while it saves",
        "its program ends while it saves",
        "its peer ends first",
        "all agree",
        "fails after the agreement",
        "the training had just ended",
    ],
)
def test_a_rank_that_gets_SIGTERM_saves_in_any_order_of_events(tmp_path, then, agree_within, output, code) -> None:
    command = [sys.executable, "-c", PROGRAM + then, str(tmp_path / "began"), str(agree_within)]
    done = subprocess.run(command, cwd=ROOT / "train", capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == (output, code), done.stderr
    assert ("connection closed" in done.stderr) is (FAILS in then)
