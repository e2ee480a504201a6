"""Measures a call of `report()`: microseconds per call, and the ratio to an empty call.

Run:  .venv/bin/python bench/report_call.py [CALLS]

Measured outside a job, in a job, and in a job whose operator is unreachable. The best of five rounds is the cost of the
code; the slowest call also depends on the load of the machine.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "operator"))

from allranks import report as reports
from support.fake_report_server import hub_in, ok

ROUNDS = 5


def empty(step: int = 0, total_steps: int = 0, epoch: int = 0, samples: int = 0, **metrics: float) -> None:
    """The cost of any call."""


def measure(call: Callable[..., None], calls: int) -> tuple[float, float]:
    """Microseconds per call in the best round, and of the slowest single call."""
    best, worst = float("inf"), 0.0
    for turn in range(ROUNDS):
        first = turn * calls
        began = time.perf_counter()
        for step in range(first, first + calls):
            call(step=step, total_steps=1_000_000, epoch=1, samples=32, loss=0.5, accuracy=0.9)
        best = min(best, (time.perf_counter() - began) / calls)
    for step in range(calls):
        began = time.perf_counter()
        call(step=step, total_steps=1_000_000, epoch=1, samples=32, loss=0.5, accuracy=0.9)
        worst = max(worst, time.perf_counter() - began)
    return best * 1e6, worst * 1e6


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    nothing, _ = measure(empty, calls)
    print(f"{'an empty call':<28} {nothing:7.3f} us")
    with tempfile.TemporaryDirectory() as folder, hub_in(Path(folder)) as hub:
        hub.answers = [ok(interval=1.0)]
        away = {**hub.environment, "ALLRANKS_REPORT_URL": "http://127.0.0.1:9/v1/report"}
        for name, environment in (("outside of a job", {}), ("in a job", hub.environment), ("operator away", away)):
            os.environ.update(environment)
            importlib.reload(reports)
            took, worst = measure(reports.report, calls)
            print(f"{name:<28} {took:7.3f} us  {took / nothing:6.1f} times an empty call  (worst {worst:.0f} us)")
            reports.finish()
    sent = len(hub.messages)
    print(f"{(2 * ROUNDS + 2) * calls} calls in a job, {sent} messages")


if __name__ == "__main__":
    main()
