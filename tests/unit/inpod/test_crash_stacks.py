"""A rank that a signal such as SIGSEGV ends shows where it was, and the program's own `faulthandler` is not changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from allranks.pod_bundle import copy_startup

CRASH = """
import ctypes
def load_sample():
    ctypes.string_at(0)
load_sample()
"""


def run(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    copy_startup(folder / "startup")
    (folder / "train.py").write_text(program)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(folder / "startup")} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_crash_shows_the_line_of_the_program(tmp_path: Path) -> None:
    done = run(tmp_path, CRASH)
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr.startswith("Fatal Python error: Segmentation fault\n")
    assert 'train.py", line 4 in load_sample\n' in done.stderr


def test_the_variable_of_the_program_comes_first(tmp_path: Path) -> None:
    done = run(tmp_path, CRASH, PYTHONFAULTHANDLER="")
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")


def test_the_program_can_send_the_stacks_elsewhere(tmp_path: Path) -> None:
    done = run(tmp_path, 'import faulthandler\nfaulthandler.enable(open("stacks", "w"))\n' + CRASH)
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")
    assert "in load_sample\n" in (tmp_path / "stacks").read_text()


def test_the_program_can_turn_it_off(tmp_path: Path) -> None:
    done = run(tmp_path, "import faulthandler\nfaulthandler.disable()\n" + CRASH)
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")
