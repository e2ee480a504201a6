"""Runs the tests in parts, fast ones first, and prints what each part took: `make test`, `make test-all`.

    tools/test.py                      what runs for every change (`make test`, and what CI runs)
    tools/test.py all                  everything, for a night and before a release (`make test-all`)
    tools/test.py unit apiserver       these parts alone
    tools/test.py --list               the parts, as the table of docs/dev/testing.md

Each part sets up what it needs. Seeds are fixed for every change, random for `all`: a failure prints the command that
repeats it. Options for pytest come from PYTEST_ADDOPTS.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv" / "bin"
RESULTS = ROOT / "build" / "tests"
PAGE = ROOT / "docs" / "dev" / "testing.md"
ROOT_ONLY = "needs root, because it starts containers: run it again with sudo -E"

Command = Sequence[str | Path]


def pytest(part: str, *options: str) -> Command:
    """A run of pytest that records how long each test took."""
    return [BIN / "python", "-m", "pytest", "-q", f"--junit-xml={RESULTS / part}.xml", *options]


@dataclass(frozen=True)
class Part:
    """A part of the tests that can be run alone."""

    name: str
    minutes: float
    """The budget on two cores, with everything built."""
    protects: str
    commands: Sequence[Command]
    environment: dict[str, str] = field(default_factory=dict)
    prepares: Sequence[str] = ()
    """Scripts of tools/ that build what the part needs. A second call of each takes a fraction of a second."""
    root: bool = False
    """Runs containers."""


class Result(NamedTuple):
    """What became of a part. `seconds` is None if it was skipped."""

    part: Part
    seconds: float | None
    note: str
    failed: bool = False


TWO_AT_A_TIME = ("-n", "2", "--dist", "worksteal")
BY_MODULE = ("-n", "2", "--dist", "loadscope")
FRAMEWORKS = "frameworks.sh"
HELM = ("helm.sh", "go-tools.sh untt")
GANGS = "go-tools.sh scheduler"
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Images often set it. With bytecode a command starts in four fifths of the time, and tests are collected in half."""
RANDOM = str(int.from_bytes(os.urandom(4), "big"))

ON_EVERY_KUBERNETES = [
    f"tests/apiserver/test_{name}.py"
    for name in (
        *("scenarios", "rules", "policies", "operator", "leader_election", "foreign_hands", "reports", "controlplane"),
        *("cli_doctor", "cli_get", "cli_logs", "cli_output", "cli_submit", "cli_top", "cli_wait"),
    )
] + ["tests/faults/test_lagging_server.py"]
"""What depends on the version of the API server."""


def on_kubernetes(version: str, which: str) -> Part:
    """The tests on the API server of another version, a folder of tools/kubernetes."""
    name = f"kubernetes-{version}"
    return Part(
        name,
        6,
        f"scenarios, rules of the CRD, the operator, its Lease and the commands on {which}",
        [pytest(name, "-m", "cluster and not nightly", *BY_MODULE, *ON_EVERY_KUBERNETES)],
        {"KUBERNETES_VERSION": version},
        prepares=(f"controlplane.sh {version}",),
    )


EVERY_CHANGE = (
    Part(
        "static",
        1,
        "style, types, layers, wording, generated files",
        [
            [BIN / "ruff", "check", "--no-cache", "."],
            [BIN / "ruff", "format", "--check", "."],
            [BIN / "mypy"],
            [BIN / "lint-imports", "--no-cache"],
            [BIN / "python", "tools/language.py"],
            ["make", "--no-print-directory", "verify"],
        ],
    ),
    Part(
        "unit",
        7,
        "each rule and module in memory; golden manifests; scenarios with a poor watch and killed after each fourth "
        "write; 1,500 generated histories",
        [pytest("unit", "-m", "not slow and not cluster and not e2e and not nightly", *TWO_AT_A_TIME)],
    ),
    Part(
        "frameworks",
        2.5,
        "PyTorch, TensorFlow, Horovod, JAX, Ray, MPI and SPMD programs with real ranks: one each, one killed rank, "
        "reports",
        [pytest("frameworks", "-m", "slow and not nightly", *TWO_AT_A_TIME)],
        prepares=("system-packages.sh horovod", FRAMEWORKS, "helm.sh"),
    ),
    Part(
        "apiserver",
        9.5,
        "each scenario, the operator, its Lease, reports, gangs, the chart and the commands on a real API server; "
        "20 runs with faults",
        [pytest("apiserver", "-m", "cluster and not nightly", *BY_MODULE)],
        prepares=("controlplane.sh", *HELM, GANGS),
    ),
)

NIGHT = (
    EVERY_CHANGE[0],
    Part(
        "unit-all",
        18,
        "the same with kills after every write and 20,000 histories from a random seed; mutants of the core, each of "
        "which a test must catch",
        [pytest("unit-all", "-m", "not slow and not cluster and not e2e", *TWO_AT_A_TIME)],
        {"HISTORIES": "20000", "HISTORIES_SEED": RANDOM},
    ),
    Part(
        "frameworks-all",
        55,
        "every training program and example, faults of every kind in each framework, building Horovod",
        [pytest("frameworks-all", "-m", "slow", *TWO_AT_A_TIME)],
        prepares=("system-packages.sh horovod", FRAMEWORKS, "controlplane.sh", *HELM),
    ),
    Part(
        "apiserver-all",
        45,
        "the same with 600 runs with faults and kills from a random seed; Kueue; Helm 3; the short benchmarks",
        [pytest("apiserver-all", "-m", "cluster", *BY_MODULE)],
        {"FAULTS": "600", "FAULTS_SEED": RANDOM},
        prepares=("controlplane.sh", *HELM, "helm.sh 3", GANGS, "go-tools.sh kueue", "go-tools.sh coscheduling"),
    ),
    on_kubernetes("1.30", "the oldest supported Kubernetes"),
    on_kubernetes("1.36", "the previous Kubernetes, that of the nodes"),
    Part(
        "nodes",
        5,
        "images, and nodes that run containers",
        [pytest("nodes", "-m", "e2e", "tests/images", "tests/nodes")],
        prepares=("e2e-prepare.sh",),
        root=True,
    ),
    Part(
        "pods",
        30,
        "every example and fault in real pods on three nodes, shutdowns, reboots and drains, gangs and queues, the "
        "chart installed by Helm",
        [[ROOT / "tools" / "e2e.sh"]],
        prepares=("e2e-prepare.sh",),
        root=True,
    ),
)

PARTS = {part.name: part for part in (*EVERY_CHANGE, *NIGHT)}


def main() -> None:
    """Runs the parts that are named; exits with 1 when one fails. After a failure no other part starts, but of `all`,
    which runs at night, every part runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or any of: {', '.join(PARTS)}")
    parser.add_argument("--list", action="store_true", help="print the table of parts and exit")
    parser.add_argument("--check", action="store_true", help=f"fail if the table in {PAGE.name} differs")
    parser.add_argument("--update", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    if options.list:
        print(table())
        return
    if options.check or options.update:
        sys.exit(page(write=options.update))
    unknown = [name for name in options.parts if name not in PARTS and name != "all"]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}: choose from all, {', '.join(PARTS)}")
    chosen = list(EVERY_CHANGE) if not options.parts else [PARTS[name] for name in options.parts if name in PARTS]
    if "all" in options.parts:
        chosen = list(NIGHT)
    sys.exit(run(chosen, keep_going="all" in options.parts))


def run(parts: Sequence[Part], keep_going: bool) -> int:
    """The exit status: 0 if every part passed. Parts that need root are skipped for other users.

    With `keep_going`, a second thread runs parts beside the others: first those with containers, because they mostly
    wait for nodes, backoffs and deadlines, and then whatever is left. Their output is kept in a file, and printed at
    the end.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    for old in RESULTS.glob("*.xml"):
        old.unlink()
    started = time.monotonic()
    containers = [part for part in parts if part.root] if keep_going else []
    left = deque(part for part in parts if part not in containers)
    # Beside containers, the others soon wait for what is built, and must not wait for time that the containers leave.
    builder = build_ahead(parts, idle=not containers) if len(parts) > 1 else None
    interrupted = threading.Event()
    try:
        with ThreadPoolExecutor(1) as beside, open(RESULTS / "beside.log", "w+") as log:
            if containers:
                names = ", ".join(part.name for part in containers)
                say(f"{names}, and what is left then: beside the others, with output in {log.name}")
            shared = left if keep_going else deque()
            later = beside.submit(run_parts, deque(containers), shared, keep_going, log, interrupted)
            try:
                taken = run_parts(deque(), left, keep_going, sys.stdout, interrupted) + later.result()
            except KeyboardInterrupt:
                interrupted.set()
                raise
            log.seek(0)
            shutil.copyfileobj(log, sys.stdout)
    finally:
        if builder:
            stop(builder)
    summary(taken, time.monotonic() - started)
    return 1 if any(result.failed for result in taken) else 0


def run_parts(
    own: deque[Part], left: deque[Part], keep_going: bool, output: TextIO, interrupted: threading.Event
) -> list[Result]:
    """Runs one part after the other, first its own, then from those that are `left` for all threads, until one fails
    unless `keep_going`, or until an interruption."""
    taken: list[Result] = []
    while part := _next(own) or _next(left):
        if part.root and os.geteuid() != 0:
            taken.append(Result(part, None, f"skipped: {ROOT_ONLY}"))
            continue
        start = time.monotonic()
        failed = run_part(part, output)
        note = f"FAILED: {failed}" if failed else part.protects
        taken.append(Result(part, time.monotonic() - start, note, bool(failed)))
        # Ctrl-C also ends the part of the other thread, shortly before the main thread sets the event.
        if failed and (not keep_going or interrupted.wait(1)):
            break
    return taken


def _next(parts: deque[Part]) -> Part | None:
    with contextlib.suppress(IndexError):  # another thread may have taken the last one
        return parts.popleft()
    return None


def run_part(part: Part, output: TextIO) -> str:
    """Prepares and runs one part. Empty, or the command that failed."""
    environment = os.environ | BYTECODE | part.environment
    errors = sys.stderr if output is sys.stdout else output
    for script in part.prepares:
        say(f"{part.name}: tools/{script}", output)
        if subprocess.run(script_command(script), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors).returncode:
            return f"tools/{script}"
    for command in part.commands:
        shown = " ".join(str(word).removeprefix(f"{ROOT}/") for word in command)
        say(f"{part.name}: {shown}", output)
        if subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=errors).returncode:
            return shown
    return ""


def say(text: str, output: TextIO = sys.stdout) -> None:
    print(f"\n==> {text}", file=output, flush=True)


def script_command(script: str) -> Command:
    name, *arguments = script.split()
    return [ROOT / "tools" / name, *arguments]


def build_ahead(parts: Sequence[Part], idle: bool) -> subprocess.Popen[bytes]:
    """Builds in the background what later parts need, two scripts at a time, because each of them also downloads; if
    `idle`, only with the processor time that tests leave.

    A part that needs the result calls the same script, which waits for the other call.
    """
    scripts = dict.fromkeys(script for part in parts if not part.root or os.geteuid() == 0 for script in part.prepares)
    packages = [script for script in scripts if script.startswith("system-packages.sh")]
    others = shlex.join(script for script in scripts if script not in packages)  # they need the compilers
    # Linux shares processor time by session first, where it has autogroups: niceness holds within one session only.
    nice = 19 if idle else 0
    commands = [
        f"echo {nice} >/proc/self/autogroup",
        *(f"tools/{script}" for script in packages),
        f"printf '%s\\n' {others} | xargs -P 2 -I SCRIPT bash -c tools/SCRIPT",
    ]
    return subprocess.Popen(
        ["nice", "-n", str(nice), "bash", "-c", "; ".join(commands)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(builder: subprocess.Popen[bytes]) -> None:
    if builder.poll() is None:
        os.killpg(builder.pid, signal.SIGTERM)
    builder.wait()


def summary(taken: Sequence[Result], seconds: float) -> None:
    """Prints the time of each part beside its budget, the time of the whole run, and the ten slowest tests."""
    slowest = sorted((test for result in taken for test in durations(result.part.name)), reverse=True)[:10]
    if slowest:
        print("\nslowest tests:")
        for duration, name in slowest:
            print(f"{duration:7.1f} s  {name[:150]}")
    print(f"\n{'part':<15} {'took':>7} {'budget':>7}  what it protects")
    for result in taken:
        took = "-" if result.seconds is None else f"{result.seconds:.0f} s"
        print(f"{result.part.name:<15} {took:>7} {60 * result.part.minutes:>5.0f} s  {result.note}")
    print(f"{'total':<15} {seconds:>5.0f} s {60 * sum(result.part.minutes for result in taken):>5.0f} s")
    sys.stdout.flush()


def durations(part: str) -> Iterator[tuple[float, str]]:
    """(seconds with fixtures, test) of each test of a part that has run."""
    file = RESULTS / f"{part}.xml"
    if file.exists():
        for case in ET.parse(file).iter("testcase"):
            yield float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}"


def table() -> str:
    """The parts as a Markdown table."""
    rows = ["| part | budget | what it protects |", "|---|---|---|"]
    for parts in (EVERY_CHANGE, NIGHT[1:]):
        rows += [f"| `{part.name}` | {part.minutes:g} min | {part.protects} |" for part in parts]
        minutes = sum(part.minutes for part in (parts if parts is EVERY_CHANGE else NIGHT))
        name = "make test" if parts is EVERY_CHANGE else "make test-all"
        rows.append(f"| **`{name}`** | **{minutes:g} min** | |")
    return "\n".join(rows)


def page(write: bool) -> int:
    """Writes the table between the markers of the page, or compares it. The exit status."""
    text = PAGE.read_text()
    between = re.compile(r"(?<=<!-- parts -->\n).*?(?=<!-- /parts -->)", re.DOTALL)
    wanted = between.sub(lambda _: f"{table()}\n", text)
    if write:
        PAGE.write_text(wanted)
    elif text != wanted:
        print(f"{PAGE.relative_to(ROOT)}: the table differs from tools/test.py: run 'make generate'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
