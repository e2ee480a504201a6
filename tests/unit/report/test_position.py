"""Where the main thread of a program is, in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.builders import table

ROOT = Path(__file__).resolve().parents[3] / "operator"
ASK = """
import sys, threading, time
sys.path.insert(0, {root!r})
from allranks.report.position import position

def ask():
    time.sleep(0.3)
    print(position(), flush=True)
    import os
    os._exit(0)

threading.Thread(target=ask).start()
"""
WAITING = "import queue\nqueue.Queue().get()\n"
RAISING = "try:\n    raise ValueError('sample 4711 is broken')\nfinally:\n    import queue\n    queue.Queue().get()\n"
ENDED = "raise ValueError('sample 4711 is broken')\n"


@table(
    ("a call into a library", WAITING, {"where": "train.py:17", "call": "get"}),
    (
        "a finally",
        RAISING,
        {"where": "train.py:20", "call": "get", "raising": "ValueError: sample 4711 is broken"},
    ),
    ("a main thread that has ended", ENDED, {"call": "ended", "raising": "ValueError: sample 4711 is broken"}),
)
def test_position(case, tmp_path):
    program, expected = case
    if "raising" in expected and sys.version_info < (3, 10):
        pytest.skip("the interpreter does not say which exception a thread handles")
    (tmp_path / "train.py").write_text(ASK.format(root=str(ROOT)) + program)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    found = eval(done.stdout)
    assert {**found, "where": ""} == {**expected, "where": ""}
    assert found.get("where", "").split(":")[0] == expected.get("where", "").split(":")[0]
