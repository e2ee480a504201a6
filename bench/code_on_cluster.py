"""Measures on a cluster the time from an edited file to the first line of all ranks: with `submit --code`, and with an
image that is built and pushed for the edit.

    python -m bench.code_on_cluster --image IMAGE --built REGISTRY/code:VERSION \\
        --build 'buildah build -t REGISTRY/code:VERSION . && buildah push REGISTRY/code:VERSION'

`--image` has Python, and is on the nodes already: the first round, which is not counted, pulls it. The build command
runs in the folder of the code, beside a Dockerfile that adds the files to that image; VERSION in it is another one each
time. Without --build only `submit --code` is measured. The cluster is that of the kubeconfig.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.code import write

TRAIN = """\
import os
import package
os.write(1, f"first line of rank {os.environ['RANK']} version {package.VERSION}\\n".encode())  # in one piece
"""
SECONDS = 1800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, help="Has Python.")
    parser.add_argument("--build", help="Command that builds and pushes the image --built.")
    parser.add_argument("--built", help="The image that --build makes.")
    parser.add_argument("--path", default="/app", help="Where that image has the code.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--files", type=int, default=200, help="Files in the repository.")
    given = parser.parse_args()
    if (given.build is None) != (given.built is None):
        parser.error("--build and --built belong together")
    run = f"{time.time():.0f}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.files)
        (folder / "train.py").write_text(TRAIN)
        (folder / "Dockerfile").write_text(f"FROM {given.image}\nCOPY . {given.path}\n")

        def shipped(version: str) -> float:
            began = edit(folder, version)
            return first_lines(folder, job(given.image, "train.py", given.ranks), ["--code", "."], version) - began

        def built(version: str) -> float:
            began = edit(folder, version)
            command = given.build.replace("VERSION", version)
            subprocess.run(command, shell=True, cwd=folder, check=True, stdout=sys.stderr)
            document = job(given.built.replace("VERSION", version), f"{given.path}/train.py", given.ranks)
            return first_lines(folder, document, [], version) - began

        ways: dict[str, Callable[[str], float]] = {"submit --code .": shipped}
        if given.build:
            ways["image build and push, then submit"] = built
        measured: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(given.times + 1):
            for way, measure in ways.items():
                seconds = measure(f"{run}-{number}-{'shipped' if measure is shipped else 'built'}")
                if number:
                    measured[way].append(seconds)
    print(f"{given.ranks} ranks, {given.files} files, {given.times} times each\n")
    print("| way | median | fastest | slowest |\n|---|---|---|---|")
    for way, all_seconds in measured.items():
        figures = (statistics.median(all_seconds), min(all_seconds), max(all_seconds))
        print(f"| {way} | {' | '.join(f'{one:.2f} s' for one in figures)} |")


def edit(folder: Path, version: str) -> float:
    """Returns the time of the edit."""
    (folder / "package" / "__init__.py").write_text(f"VERSION = {version!r}\n")
    return time.monotonic()


def job(image: str, program: str, ranks: int) -> dict[str, Any]:
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"generateName": "bench-code-"},
        "spec": {
            "framework": "spmd",
            "image": image,
            "command": ["python3", program],
            "roles": {"worker": {"replicas": ranks}},
        },
    }


def first_lines(folder: Path, document: dict[str, Any], options: list[str], version: str) -> float:
    """Submits the job, and deletes it at the end. Returns the time at which each rank had printed its first line."""
    ranks = document["spec"]["roles"]["worker"]["replicas"]
    missing = {f"first line of rank {rank} version {version}" for rank in range(ranks)}
    (folder / "job.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "allranks", "submit", "job.json", "--logs", "--detach", *options]
    lines: list[str] = []
    reached = 0.0
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            missing = {one for one in missing if one not in line}
            if not missing and not reached:
                reached = time.monotonic()
    name = next((word.rpartition("/")[2] for word in " ".join(lines[:5]).split() if "/bench-code-" in word), "")
    if name:
        delete = [sys.executable, "-m", "allranks", "delete", name, "--wait"]
        subprocess.run(delete, cwd=folder, check=False, stdout=subprocess.DEVNULL, timeout=SECONDS)
    if missing or process.returncode:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{''.join(lines[-20:])}")
    return reached


if __name__ == "__main__":
    main()
