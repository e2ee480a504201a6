"""Recovery of an elastic PyTorch job after the loss of a pod: torchrun's elasticity compared with a restart.

make bench                       # installs PyTorch if needed
python bench/elastic.py --rounds 3

Both train the unmodified penguins program on two ranks, with a checkpoint per epoch; then all processes of one pod are
killed. Prints the seconds until the next epoch is complete, or `null` if training did not continue. The first agent of
torchrun runs the rendezvous, as without a separate server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PROGRAM = ("train/penguins_pytorch.py", "--epochs=200", "--pause=0.25")
BEFORE = 3
"""Epochs before a pod is lost."""
SECONDS = 120.0
"""Timeout of the recovery."""
_EPOCH = re.compile(r"^epoch \d+/\d+ loss", re.MULTILINE)


def torchrun(folder: Path, lost: int) -> float | None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agent = ("torchrun", "--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=bench")
    command = [*agent, f"--rdzv-endpoint=127.0.0.1:{port}", "--max-restarts=3", *PROGRAM, f"--checkpoint-dir={folder}"]
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(started(command, folder / f"agent-{number}.log")) for number in range(2)]
        return recovery(folder, lambda: kill_tree(agents[lost].pid))


def allranks(folder: Path, lost: int) -> float | None:
    run = folder / "run"
    command = [sys.executable, "-m", "allranks", "run", "examples/penguins-pytorch-elastic.yaml", "--quiet"]
    command += ["--set", f"command=[torchrun, {PROGRAM[0]}]", "--set", f"args=[{', '.join(PROGRAM[1:])}]"]
    command += ["--run-dir", str(run), "--volume", f"penguins-pytorch-elastic={folder}"]
    with started(command, folder / "allranks.txt"):
        return recovery(run / "logs", lambda: kill(folder, lost))


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command in its own process group until the end of the block."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill(folder: Path, index: int) -> None:
    """Kills every process of a pod, as in a power loss of its node."""
    wanted = {f"ALLRANKS_CHECKPOINT_DIR={folder}".encode(), f"ALLRANKS_INDEX={index}".encode()}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                os.kill(int(entry.name), signal.SIGKILL)


def kill_tree(root: int) -> None:
    """Kills an agent and its ranks, which have their own sessions."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    for pid in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def recovery(logs: Path, lose: Callable[[], None]) -> float | None:
    """Seconds from the loss to the next complete epoch."""
    until(lambda: epochs(logs) >= BEFORE)
    done = epochs(logs)
    lose()
    began = time.monotonic()
    # One more epoch may have been complete but not yet printed.
    return time.monotonic() - began if until(lambda: epochs(logs) >= done + 2, SECONDS) else None


def epochs(logs: Path) -> int:
    return sum(len(_EPOCH.findall(log.read_text(errors="replace"))) for log in logs.glob("*.log"))


def until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each case (default 1); prints the median")
    rounds = parser.parse_args().rounds
    out: dict[str, float | None] = {}
    for which, lost in (("the second pod", 1), ("the first pod", 0)):
        for name, run in (("torchrun", torchrun), ("allranks", allranks)):
            found = []
            for _ in range(rounds):
                with tempfile.TemporaryDirectory(prefix="bench-elastic-") as folder:
                    found.append(run(Path(folder), lost))
            seconds = [one for one in found if one is not None]
            out[f"{name}, {which} is lost"] = round(median(seconds), 1) if len(seconds) == rounds else None
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
