"""Generates the table of docs/reference/frameworks.md: each framework and strategy with real ranks on this machine, one
of which is killed."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transcripts import replaced

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "frameworks.md"
EPILOG = """examples:
  PATH=$(tools/frameworks.sh pytorch tensorflow horovod jax libraries)/bin:$PATH .venv/bin/python tools/strategies.py
  .venv/bin/python tools/strategies.py --only FSDP2 --only 'RPC, sync'
  .venv/bin/python tools/strategies.py --none --pods pods.xml    # only the column of nodes, from a run of tools/e2e.sh

Runs the manifests of examples/ with `allranks run`, kills a rank with SIGKILL after some epochs, and checks that the
job restarts once, names that rank, resumes from its checkpoint and succeeds. Rows that were run are updated in the
page, the others are kept. The programs come from PATH.

exit status: 0, or 1 if a row is wrong
"""
SECONDS = 900
"""Timeout of a run, on a busy machine."""


@dataclass(frozen=True)
class Case:
    """A row."""

    framework: str
    strategy: str
    manifest: str
    arguments: str = ""
    """Of the program; otherwise those of the manifest."""
    settings: tuple[str, ...] = ()
    """Further changes of the manifest."""
    ranks: int = 2
    """Lines that match `end`."""
    victim: str = "worker-0"
    variables: tuple[str, ...] = ()
    """Of the environment of the killed rank, instead of those of its pod."""
    program: str = "train/"
    """A part of the path of the program that is killed."""
    progress: str = r"epoch 2/\d+ "
    """The rank is killed after this line."""
    resumed: str = r"resumed from epoch (\d+)"
    code: int = 128 + signal.SIGKILL
    """The exit code in the status: that of the rank, unless the launcher has its own."""
    alone: bool = False
    """The killed rank restarts alone, and the others go on."""
    end: str = r"(?:rank \d+ of \d+|chief): test accuracy (\d\.\d+)"

    @property
    def key(self) -> tuple[str, str]:
        return self.framework, self.strategy


LM = "--epochs=6, --steps-per-epoch=5, --width=32, --context=32, --sample=20, --pause=1"
STEPS = {"progress": r"step [2-9]0/", "resumed": r"resuming from \S+/checkpoint-(\d+)"}
PENGUINS = "--epochs=12, --pause=0.5"
ONE = ("roles.worker.replicas=1",)
FOUR = ("roles.worker.replicas=4",)
CASES = (
    Case("PyTorch", "DDP", "penguins-pytorch", PENGUINS, ranks=3),
    Case("PyTorch", "DDP, early stopping, CIFAR-10", "digits-pytorch", "--epochs=8, --pause=0.5"),
    Case("PyTorch", "DDP, elastic", "penguins-pytorch-elastic", PENGUINS, victim="worker-1"),
    Case("PyTorch", "DDP, language model", "lm-pytorch", f"--parallel=ddp, {LM}", victim="worker-1"),
    Case("PyTorch", "FSDP2", "lm-pytorch", f"--parallel=fsdp, {LM}", victim="worker-1"),
    Case("PyTorch", "tensor parallel", "lm-pytorch", f"--parallel=tensor, {LM}", victim="worker-1"),
    Case("PyTorch", "2-D: FSDP2 x tensor", "lm-pytorch", f"--parallel=2d, {LM}", FOUR, 4, "worker-3"),
    Case("PyTorch", "pipeline", "lm-pytorch", f"--parallel=pipeline, {LM}", victim="worker-1"),
    Case("PyTorch", "RPC parameter server, sync", "rpc-parameter-server", f"--updates=sync, {PENGUINS}", ranks=3),
    Case("PyTorch", "RPC parameter server, async", "rpc-parameter-server", f"--updates=async, {PENGUINS}", ranks=3),
    Case("PyTorch", "RPC, RRef, distributed autograd", "rpc-model-parallel", PENGUINS, ranks=1),
    Case(
        "PyTorch",
        "Lightning",
        "penguins-lightning",
        PENGUINS,
        victim="worker-1",
        resumed=r"resuming from \S+step-(\d+)",
    ),
    Case(
        "PyTorch",
        "Accelerate",
        "penguins-accelerate",
        PENGUINS,
        victim="worker-1",
        resumed=r"resuming from \S+epoch-(\d+)",
        code=1,  # of `accelerate launch`
    ),
    Case(
        "PyTorch",
        "Transformers' Trainer",
        "lm-transformers",
        "--epochs=4, --samples=160",
        victim="worker-1",
        end=r"test loss (\d\.\d+)",
        **STEPS,
    ),
    Case(
        "PyTorch",
        "TRL and LoRA",
        "lora-trl",
        "--epochs=4, --samples=160",
        victim="worker-1",
        end=r"training loss (\d\.\d+)",
        **STEPS,
    ),
    Case("TensorFlow", "MultiWorkerMirrored", "penguins-tensorflow", PENGUINS, victim="worker-1"),
    Case(
        "TensorFlow",
        "MultiWorkerMirrored, fit",
        "penguins-tensorflow-fit",
        PENGUINS,
        victim="worker-1",
        progress=r"Epoch 3/\d+",
    ),
    Case("TensorFlow", "MultiWorkerMirrored, CIFAR-10", "digits-tensorflow", "--epochs=8, --pause=0.5"),
    Case("TensorFlow", "Mirrored", "penguins-tensorflow", f"--strategy=mirrored, {PENGUINS}", ONE, 1),
    Case("TensorFlow", "CentralStorage", "penguins-tensorflow", f"--strategy=central, {PENGUINS}", ONE, 1),
    Case("TensorFlow", "OneDevice", "penguins-tensorflow", f"--strategy=onedevice, {PENGUINS}", ONE, 1),
    Case("TensorFlow", "tf.device", "penguins-tensorflow-model", f"--parallel=layers, {PENGUINS}", ranks=1),
    Case("TensorFlow", "DTensor", "penguins-tensorflow-model", f"--parallel=tensors, {PENGUINS}", ranks=1),
    Case("TensorFlow", "ParameterServer", "penguins-tensorflow-ps", PENGUINS, ranks=1, alone=True),
    Case("Horovod", "gloo, PyTorch", "penguins-horovod", PENGUINS, victim="worker-1"),
    Case("Horovod", "gloo, Keras", "penguins-horovod-keras", PENGUINS, victim="worker-1"),
    Case(
        "Horovod",
        "MPI",
        "penguins-horovod-mpi",
        PENGUINS,
        victim="launcher-0",
        variables=("OMPI_COMM_WORLD_RANK=1",),
    ),
    Case("Horovod", "elastic", "penguins-horovod-elastic", PENGUINS, victim="worker-1", alone=True),
    Case("JAX", "data parallel", "digits-jax", "--epochs=8, --pause=0.5", victim="worker-1"),
    # The Ray node of a worker, with its rank: Ray Train itself replaces a rank that is killed alone.
    Case("Ray", "Ray Train", "penguins-ray", PENGUINS, victim="worker-1", program="ray_node.py", alone=True),
    Case("MPI", "mpi4py", "penguins-mpi", PENGUINS, victim="launcher-0", variables=("OMPI_COMM_WORLD_RANK=1",)),
    Case("SPMD", "data service beside the ranks", "penguins-spmd", PENGUINS, victim="worker-1"),
)


@dataclass
class Row:
    """What became of a case."""

    case: Case
    run: str = ""
    killed: str = ""
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    options = arguments()
    chosen = [case for case in CASES if not options.only or {case.framework, case.strategy} & set(options.only)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="strategies-") as folder:
        for case in [] if options.none else chosen:
            row = run(case, Path(folder) / uuid.uuid4().hex)
            rows.append(row)
            verdict = f"WRONG: {'; '.join(row.wrong)}" if row.wrong else f"{row.run}; {row.killed}"
            print(f"strategies: {case.framework}, {case.strategy}: {verdict}", file=sys.stderr, flush=True)
            if not options.no_page:
                write([row])
    if options.pods:
        write([], passed_in_pods(options.pods))
    return 1 if any(row.wrong for row in rows) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="a framework or a strategy")
    parser.add_argument("--none", action="store_true", help="run nothing")
    parser.add_argument("--pods", type=Path, metavar="XML", help="results of `tools/e2e.sh --junit-xml=XML`")
    parser.add_argument("--no-page", action="store_true", help="do not change docs/reference/frameworks.md")
    return parser.parse_args()


def run(case: Case, directory: Path) -> Row:
    """Runs one job and kills a rank."""
    directory.mkdir(parents=True)
    row, marker = Row(case), f"STRATEGIES_RUN={uuid.uuid4().hex}"
    sets = [*case.settings, "restart.backoffSeconds=0", f"args=[{case.arguments}]"]
    command = [sys.executable, "-m", "allranks", "run", str(ROOT / "examples" / f"{case.manifest}.yaml")]
    command += ["-o", "json", "--run-dir", str(directory / "run")]
    command += [word for text in sets for word in ("--set", text)]
    environment = os.environ | dict([marker.split("=")])
    with (directory / "status").open("w") as out, (directory / "log").open("w") as err:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)

    def said() -> str:
        return (directory / "log").read_text(errors="replace")

    try:
        if not until(lambda: re.search(case.progress, said()), process):
            row.wrong.append(f"no {case.progress!r}: {said()[-1000:]}")
            return row
        victims = programs(case.program, marker, *(case.variables or of_pod(case.victim)))
        if len(victims) != 1:
            row.wrong.append(f"{len(victims)} processes of {case.victim}")
            return row
        os.kill(victims[0], signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
    finally:
        stop(process, marker)
    judge(row, said(), json.loads((directory / "status").read_text() or "{}").get("status", {}))
    shutil.rmtree(directory)
    return row


def judge(row: Row, log: str, status: dict[str, Any]) -> None:
    case = row.case
    if status.get("phase") != "Succeeded":
        row.wrong.append(f"{status.get('phase')}: {log[-1500:]}")
        return
    failure, ends = status.get("lastFailure") or {}, re.findall(case.end, log)
    named = f"{failure.get('role')}-{failure.get('index')}"
    if named != case.victim or failure.get("exitCode") != case.code:
        row.wrong.append(f"the status names {named}, exit code {failure.get('exitCode')}")
    if status["restarts"]["counted"] != 1:
        row.wrong.append(f"{status['restarts']['counted']} restarts")
    if len(ends) != case.ranks:
        row.wrong.append(f"{len(ends)} ranks printed their result: {log[-1500:]}")
    back = re.findall(case.resumed, log)
    if not back and not case.alone:
        row.wrong.append("no checkpoint was resumed")
    if row.wrong:
        return
    pods = sum(replicas(status))
    row.run = "1 process" if pods == 1 else f"{pods} pods"
    unit = "epoch" if "epoch" in case.resumed else "step"
    how = f"restart from {unit} {int(back[-1])}" if back else "restarted alone, nothing lost"
    row.killed = f"its pod alone; {how}" if case.alone and back else how


def replicas(status: dict[str, Any]) -> list[int]:
    return [role.get("desired", 0) for role in status["roles"].values()]


def of_pod(pod: str) -> tuple[str, ...]:
    role, _, index = pod.rpartition("-")
    return f"ALLRANKS_ROLE={role}", f"ALLRANKS_INDEX={index}"


def programs(path: str, *variables: str) -> list[int]:
    """The processes of a Python program with these variables: not its launchers, which also have the program's name."""
    return [
        pid
        for pid, argv in processes(*variables)
        if Path(argv[0]).name.startswith("python")
        and path in next((word for word in argv[1:] if not word.startswith("-") and word != "mpi4py"), "")
    ]


def processes(*variables: str) -> Iterator[tuple[int, list[str]]]:
    wanted = {variable.encode() for variable in variables}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                yield int(entry.name), argv


def until(done: Any, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def stop(process: subprocess.Popen[bytes], marker: str) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
    process.wait()
    for pid, _ in processes(marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# The page

HEAD = ("strategy", "manifest", "options", "on a laptop", "on nodes", "a killed rank")


def write(rows: list[Row], in_pods: frozenset[str] = frozenset()) -> None:
    """Updates the rows that were run, one table for each framework."""
    text = PAGE.read_text()
    for framework in dict.fromkeys(case.framework for case in CASES):
        section = framework.lower()
        recorded = {cells[0]: cells for cells in table(text, section)}
        for case in (case for case in CASES if case.framework == framework):
            link = f"[`{case.manifest}`](../../examples/{case.manifest}.yaml)"
            cells = recorded.get(case.strategy, [case.strategy, link, "", "not run", "not run", "not run"])
            cells[1:3] = link, f"`{first_option(case)}`" if first_option(case) else ""
            name = case.manifest if is_of_manifest(case) else case.strategy
            cells[4] = "trains" if name in in_pods else cells[4]
            for row in rows:
                if row.case == case:
                    cells[3], cells[5] = ("WRONG", "WRONG") if row.wrong else (row.run, row.killed)
            recorded[case.strategy] = cells
        order = [recorded[case.strategy] for case in CASES if case.framework == framework]
        lines = [HEAD, ["---"] * len(HEAD), *order]
        text = replaced(text, section, "\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    PAGE.write_text(text)


def first_option(case: Case) -> str:
    """The option that chooses the strategy."""
    option = case.arguments.partition(",")[0]
    return option if option.startswith(("--parallel", "--updates", "--strategy")) else ""


def is_of_manifest(case: Case) -> bool:
    """Whether the manifest itself chooses this strategy."""
    return not case.settings and first_option(case) in (ROOT / "examples" / f"{case.manifest}.yaml").read_text()


def table(text: str, section: str) -> list[list[str]]:
    inside = text.partition(f"<!-- {section} -->")[2].partition(f"<!-- /{section} -->")[0]
    rows = [line for line in inside.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def passed_in_pods(file: Path) -> frozenset[str]:
    """The examples and strategies that trained in pods on nodes, from the results of tests/e2e."""
    name = re.compile(r"(?:test_an_example_trains_to_its_end|test_a_strategy_trains_in_pods)\[(.+)\]")
    passed = (case for case in ET.parse(file).iter("testcase") if not list(case))
    found = (name.fullmatch(case.get("name", "")) for case in passed)
    return frozenset(match[1] for match in found if match)


if __name__ == "__main__":
    sys.exit(main())
