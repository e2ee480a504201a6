"""Records every report of this process in a file, for `allranks verify`, which compares the steps of two runs.

The first line says which process this is. Each line is written at once, so that a killed rank leaves all of its steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from allranks.report.state import RANK, number_in
from allranks.report.values import metric

DIRECTORY = "ALLRANKS_STEP_LOG"
"""Variable with the directory of the files."""


class StepLog:
    """The file of one process. It is created by the first report."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file: int | None = None

    def write(self, step: int | None, metrics: dict[str, Any], checkpoint: bool) -> None:
        """Add a report. Wait for numbers that a GPU still computes."""
        if step is None:
            return
        if self._file is None:
            self._file = self._open()
        line: dict[str, Any] = {"time": time.time(), "rank": number_in(RANK), "step": step}
        if metrics:
            line["metrics"] = {name: _number(value) for name, value in metrics.items()}
        if checkpoint:
            line["checkpoint"] = True
        self._append(self._file, line)

    def _open(self) -> int:
        environment = os.environ
        replica = f"{environment.get('ALLRANKS_ROLE', '')}-{environment.get('ALLRANKS_INDEX', '')}"
        path = os.path.join(self._directory, f"{replica}-{os.getpid()}-{time.time_ns()}.jsonl")  # noqa: PTH118
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        attempt = environment.get("ALLRANKS_ATTEMPT") or "0"
        header = {"pid": os.getpid(), "replica": replica, "attempt": int(attempt), "python": sys.executable}
        self._append(file, header)
        return file

    @staticmethod
    def _append(file: int, line: dict[str, Any]) -> None:
        os.write(file, json.dumps(line).encode() + b"\n")


def _number(value: Any) -> float | None:
    try:
        number = metric(value)
        return number() if callable(number) else number
    except Exception:  # `report` has warned of it
        return None
