"""The results table of README.md: every program, alone and as several ranks on this machine, with several seeds.

example, in the environment that has the frameworks:
  python train/measure.py --ranks 1 2 3 4 --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
PROGRAMS = {
    "penguins_pytorch.py": "torchrun",
    "penguins_tensorflow.py": "TF_CONFIG",
    "penguins_tensorflow_ps.py": "TF_CONFIG with ps",
    "penguins_horovod.py": "horovodrun",
    "penguins_horovod_keras.py": "horovodrun",
    "digits_pytorch.py": "torchrun",
    "digits_tensorflow.py": "TF_CONFIG",
}
Command = tuple[list[str], dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), help="default: all")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    print("| program | ranks | test accuracy | epochs | s per epoch | s in total |")
    print("|---|---|---|---|---|---|", flush=True)
    for program in options.programs:
        for ranks in options.ranks:
            results = [measure(program, ranks, seed) for seed in options.seeds]
            accuracies = ", ".join(f"{accuracy:.4f}" for accuracy, *_ in results)
            epochs = ", ".join(sorted({str(count) for _, count, *_ in results}))
            per_epoch, whole = (max(result[index] for result in results) for index in (2, 3))
            print(f"| `{program}` | {ranks} | {accuracies} | {epochs} | {per_epoch:.2f} | {whole:.0f} |", flush=True)


def measure(program: str, ranks: int, seed: int) -> tuple[float, int, float, float]:
    """Accuracy, number of epochs, median seconds per epoch, and total seconds including imports and start-up."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(ranks + 2)]
        running = [
            subprocess.Popen(
                command,
                env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"} | environment,
                stdout=output.open("wb"),
                stderr=subprocess.STDOUT,
            )
            for (command, environment), output in zip(start(program, ranks, seed), outputs, strict=False)
        ]
        try:
            code = running[0].wait(600)
            seconds = time.monotonic() - started
            if "ps" not in PROGRAMS[program]:  # servers never end
                code = max([code, *(process.wait(60) for process in running[1:])])
        finally:
            for process in running:
                process.kill()
                process.wait()
        text = "".join(output.read_text() for output in outputs if output.exists())
    accuracies = {float(accuracy) for accuracy in re.findall(r"test accuracy (\S+)", text)}
    if code or len(accuracies) != 1:
        sys.exit(f"{program}, {ranks} ranks, seed {seed}: exit code {code}, accuracies {accuracies}\n{text}")
    epochs = sorted(map(float, re.findall(r"epoch \d+/\d+ loss .* \((\S+) s\)", text)))
    return accuracies.pop(), len(epochs), epochs[len(epochs) // 2], seconds


def start(program: str, ranks: int, seed: int) -> list[Command]:
    """The commands, each with its environment, that start `ranks` ranks (for parameter servers: workers)."""
    rest = [str(HERE / program), "--seed", str(seed)]
    kind = PROGRAMS[program]
    if kind == "torchrun":
        return [(["torchrun", "--standalone", "--nproc-per-node", str(ranks), *rest], {})]
    if kind == "horovodrun":
        return [(["horovodrun", "-np", str(ranks), "--gloo", "python", *rest], {})]
    tasks = [("worker", index) for index in range(ranks)]
    if kind == "TF_CONFIG with ps":
        tasks = [("chief", 0), ("ps", 0), *tasks]
    cluster: dict[str, list[str]] = {}
    for (role, _), port in zip(tasks, free_ports(len(tasks)), strict=True):
        cluster.setdefault(role, []).append(f"localhost:{port}")
    return [
        (["python", *rest], {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})})
        for role, index in tasks
    ]


def free_ports(count: int) -> list[int]:
    """Ports that are free at this moment."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    main()
