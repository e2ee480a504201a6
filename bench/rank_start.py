"""How much later a rank starts under `allranks run` than under bare torchrun, rounds interleaved in one run.

Run with torch on PATH:  PATH=$(tools/frameworks.sh pytorch)/bin:$PATH .venv/bin/python bench/rank_start.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = "import time; print('STARTED', time.time(), flush=True)\n"
MANIFEST = """\
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata: {name: start}
spec:
  framework: pytorch
  image: none
  command: [torchrun, program.py]
  roles: {worker: {replicas: 1}}
"""
WAYS = {
    "bare torchrun": ["torchrun", "--nnodes=1", "--nproc-per-node=1", "program.py"],
    "allranks run": [sys.executable, "-m", "allranks", "run", "job.yaml", "--run-dir", "run"],
}


def seconds_to_start(command: list[str], directory: Path) -> float:
    """From the command's start to the first line of the rank's program."""
    begin = time.time()
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    for line in done.stdout.splitlines():
        if "STARTED" in line:
            return float(line.split()[-1]) - begin
    raise SystemExit(f"{command[0]} did not start the program:\n{done.stdout}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "program.py").write_text(PROGRAM)
        (directory / "job.yaml").write_text(MANIFEST)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        for _ in range(rounds):
            for way, command in WAYS.items():
                times[way].append(seconds_to_start(command, directory))
    medians = {way: statistics.median(found) for way, found in times.items()}
    for way, found in times.items():
        print(f"{way:<14} median {medians[way]:.2f} s  (from {min(found):.2f} to {max(found):.2f}, {rounds} rounds)")
    print(f"overhead       {medians['allranks run'] - medians['bare torchrun']:.2f} s")


if __name__ == "__main__":
    main()
