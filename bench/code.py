"""Measures the time from an edited file to the first line of all ranks: torchrun by hand, `allranks run`, and with
`--code`. `python -m bench.code [--ranks N] [--times N] [--files N]`, with PyTorch in PATH.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from allranks.code.bundle import collect
from allranks.inpod.unpack import extract

TRAIN = """\
import os
import torch.distributed as dist
import package
dist.init_process_group("gloo")
os.write(1, f"first line of rank {os.environ['RANK']} version {package.VERSION}\\n".encode())  # in one piece
dist.barrier()  # a rank that ends while others still connect makes them fail
dist.destroy_process_group()
"""
MODULE = "VALUE = 1\n" * 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--files", type=int, default=200, help="Files in the repository.")
    parser.add_argument("--copy-only", action="store_true", help="Measure only what --code adds, without PyTorch.")
    given = parser.parse_args()
    allranks = [sys.executable, "-m", "allranks", "run", "train.py", "--replicas", str(given.ranks)]
    ways = {
        "torchrun by hand": ["torchrun", "--standalone", f"--nproc-per-node={given.ranks}", "train.py"],
        "allranks run": allranks,
        "allranks run --code .": [*allranks, "--code", "."],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.files)
        wall, cpu = copying(folder, given.times)
        print(f"choosing, hashing and copying {given.files} files: {wall:.2f} s, {cpu:.2f} s of CPU", flush=True)
        if given.copy_only:
            return
        measured: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(given.times + 1):  # the first round fills caches
            for way, command in ways.items():
                seconds = measure(folder, command, given.ranks, f"{way} {number}")
                if number:
                    measured[way].append(seconds)
    print(f"{given.ranks} ranks, {given.files} files, {given.times} times each, {os.cpu_count()} cores\n")
    print("| way | median | fastest | slowest |\n|---|---|---|---|")
    for way, seconds in measured.items():
        print(f"| {way} | {statistics.median(seconds):.2f} s | {min(seconds):.2f} s | {max(seconds):.2f} s |")


def write(folder: Path, files: int) -> None:
    """A repository with a package of many modules."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "package").mkdir()
    (folder / ".gitignore").write_text("__pycache__/\nruns/\n")
    for number in range(files):
        (folder / "package" / f"module_{number}.py").write_text(MODULE)
    (folder / "package" / "__init__.py").write_text('VERSION = "0"\n')
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.com")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run(("git", *identity, *words), cwd=folder, check=True)


def copying(folder: Path, times: int) -> tuple[float, float]:
    """Medians of the seconds, and of CPU seconds with those of git, that a run with --code needs for the code, of which
    one file was edited."""
    (folder / "package" / "__init__.py").write_text('VERSION = "edited"\n')
    walls, cpus = [], []
    for number in range(times):
        began, before = time.monotonic(), os.times()
        bundle = collect(folder)
        assert bundle.sha256
        assert bundle.differences
        with tempfile.TemporaryDirectory() as copy:
            extract(bundle.tar, Path(copy) / str(number))
            walls.append(time.monotonic() - began)
            after = os.times()
        cpus.append(sum(after[:4]) - sum(before[:4]))
    return statistics.median(walls), statistics.median(cpus)


def measure(folder: Path, command: list[str], ranks: int, version: str) -> float:
    """Seconds from the edit until each rank has printed that it runs the new version."""
    (folder / "package" / "__init__.py").write_text(f"VERSION = {version!r}\n")
    began = time.monotonic()
    missing = {f"first line of rank {rank} version {version}" for rank in range(ranks)}
    seconds = 0.0
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            missing = {one for one in missing if one not in line}
            if not missing and not seconds:
                seconds = time.monotonic() - began
    if missing or process.returncode:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{''.join(lines[-20:])}")
    return seconds


if __name__ == "__main__":
    main()
