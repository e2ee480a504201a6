"""The short form of `python -m bench.soak`. It fails if memory or the number of objects grows without bound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(900)
def test_two_minutes_of_chaos_leave_nothing_behind(programs: Path) -> None:
    command = [sys.executable, "-m", "bench.soak", "--minutes", "2", "--jobs", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
