"""Measures what the start-up code of `allranks/inpod/startup` costs each Python process, and each import.

python bench/python_startup.py
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "operator"))

from allranks.pod_bundle import copy

STARTS = 50
IMPORT = """
import sys, time
finder = sys.meta_path[0]
began = time.process_time()
for _ in range(100_000):
    finder.find_spec("numpy.core", None)
print((time.process_time() - began) / 100_000)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder))
        library, startup = Path(folder) / "python", Path(folder) / "startup"
        inside = {"ALLRANKS_REPORT_URL": "http://127.0.0.1:1/v1/report", "ALLRANKS_REPORT_TOKEN_FILE": "/dev/null"}
        cases = {
            "the report library on PYTHONPATH": {"PYTHONPATH": str(library)},
            "and the start-up code, outside a job": {"PYTHONPATH": f"{startup}:{library}"},
            "and the start-up code, in a job": {"PYTHONPATH": f"{startup}:{library}", **inside},
        }
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(STARTS):
            for name, variables in cases.items():
                seconds[name].append(cpu_seconds(variables))
        for name, times in seconds.items():
            print(f"CPU time of a Python process, {name}: {1000 * statistics.median(times):.1f} ms")
        found = run(IMPORT, cases["and the start-up code, in a job"])
        print(f"each import: {1e6 * float(found):.2f} us")


def cpu_seconds(variables: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("pass", variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(program: str, variables: dict[str, str]) -> str:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-c", program], env=ours | variables, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    main()
