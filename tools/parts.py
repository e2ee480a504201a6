"""The parts of the tests: what each runs and protects, its budget, and what it needs. `tools/test.py` runs them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv" / "bin"
RESULTS = ROOT / "build" / "tests"

Command = Sequence[str | Path]


def pytest(part: str, *options: str) -> Command:
    """Return a run of pytest that records how long each test took."""
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
    waits: bool = False
    """Mostly waits, so that it runs beside a part that computes."""
    builds: bool = False
    """Gets the user's environment, because its command also builds."""


TWO_AT_A_TIME = ("-n", "2", "--dist", "worksteal")
BY_MODULE = ("-n", "2", "--dist", "loadscope")
IN_MEMORY = "not slow and not cluster and not e2e"
FRAMEWORKS = "frameworks.sh"
HELM = ("helm.sh", "go-tools.sh untt")
GANGS = "go-tools.sh scheduler"
KUEUE = ("go-tools.sh kueue", "go-tools.sh coscheduling")
SEED = os.environ.get("TEST_SEED") or str(int.from_bytes(os.urandom(4), "big"))
"""What the parts of the night draw from: random, if TEST_SEED is not set."""

ON_EVERY_KUBERNETES = [
    f"tests/apiserver/test_{name}.py"
    for name in (
        *("scenarios", "rules", "policies", "operator", "leader_election", "foreign_hands", "reports", "controlplane"),
        *("cli_doctor", "cli_get", "cli_logs", "cli_output", "cli_submit", "cli_top", "cli_wait"),
    )
] + ["tests/faults/test_lagging_server.py"]
"""What depends on the version of the API server."""


def on_kubernetes(version: str, which: str) -> Part:
    """Return the tests on the API server of another version, a folder of tools/kubernetes."""
    name = f"kubernetes-{version}"
    return Part(
        name,
        6,
        f"scenarios, rules of the CRD, the operator, its Lease and the commands on {which}",
        [pytest(name, "-m", "cluster and not kueue and (not nightly or scenario)", *BY_MODULE, *ON_EVERY_KUBERNETES)],
        {"KUBERNETES_VERSION": version},
        prepares=(f"controlplane.sh {version}",),
        waits=True,
    )


EVERY_CHANGE = (
    Part(
        "static",
        1,
        "style, types, layers, wording, generated files, workflows",
        [
            [BIN / "ruff", "check", "--no-cache", "."],
            [BIN / "ruff", "format", "--check", "."],
            [BIN / "mypy"],
            [BIN / "lint-imports", "--no-cache"],
            [BIN / "python", "tools/language.py"],
            ["make", "--no-print-directory", "verify"],
            [ROOT / "tools" / "actionlint.sh"],
        ],
        prepares=("go-tools.sh actionlint",),
    ),
    Part(
        "unit",
        5,
        "each rule and module in memory; golden manifests; scenarios with a poor watch and killed after each fourth "
        "write; 1,500 generated histories",
        [pytest("unit", "-m", f"{IN_MEMORY} and not nightly and not processes", *TWO_AT_A_TIME)],
    ),
    Part(
        "processes",
        1,
        "programs that tests start: local runs, functions, in-pod helpers, reports, transfers; one or two of each kind",
        [pytest("processes", "-m", f"{IN_MEMORY} and not nightly and processes", *TWO_AT_A_TIME, "tests/unit")],
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
        6,
        "one scenario for each rule, the operator, its Lease, reports, gangs, the chart and the commands on a real API "
        "server; 20 runs with faults",
        [pytest("apiserver", "-m", "cluster and not nightly", *BY_MODULE)],
        prepares=("controlplane.sh", *HELM, GANGS),
        waits=True,
    ),
)

AFTER_CHANGES = (
    Part(
        "more-processes",
        3,
        "all other programs that tests start",
        [pytest("more-processes", "-m", f"{IN_MEMORY} and nightly and processes", *TWO_AT_A_TIME, "tests/unit")],
    ),
    Part(
        "more-scenarios",
        5,
        "all other scenarios on a real API server",
        [pytest("more-scenarios", "-m", "nightly", *BY_MODULE, "tests/apiserver/test_scenarios.py")],
        prepares=("controlplane.sh",),
        waits=True,
    ),
    Part(
        "queueing",
        8,
        "Kueue and schedulers with gangs beside a real API server",
        [pytest("queueing", "tests/queueing")],
        prepares=("controlplane.sh", GANGS, *KUEUE),
        waits=True,
    ),
    Part(
        "browser",
        4,
        "the pages of `allranks ui` in Chromium",
        [pytest("browser", *TWO_AT_A_TIME, "tests/browser", "tests/unit/ui")],
    ),
)
"""What the nightly parts contain as well. `tools/test.py --since` picks them."""

NIGHT = (
    EVERY_CHANGE[0],
    Part(
        "unit-all",
        18,
        "unit and processes with kills after every write and 20,000 histories from a random seed; mutants of the core, "
        "each of which a test must catch",
        [pytest("unit-all", "-m", IN_MEMORY, *TWO_AT_A_TIME)],
        {"HISTORIES": "20000", "HISTORIES_SEED": SEED},
    ),
    Part(
        "traces",
        9,
        "unit and processes in a clone with runs of earlier commands, hostile variables, home, language and time zone",
        [[BIN / "python", "tools/traces.py"]],
        builds=True,
    ),
    Part(
        "frameworks-all",
        55,
        "every training program and example, faults of every kind in each framework, building Horovod",
        [pytest("frameworks-all", "-m", "slow", *TWO_AT_A_TIME)],
        prepares=(
            *("system-packages.sh horovod", FRAMEWORKS, "packages.sh trackers", "packages.sh installers"),
            *("controlplane.sh", *HELM),
        ),
    ),
    Part(
        "apiserver-all",
        45,
        "every scenario; 600 runs with faults and kills from a random seed; Kueue; Helm 3; the short benchmarks",
        [pytest("apiserver-all", "-m", "cluster", *BY_MODULE)],
        {"FAULTS": "600", "FAULTS_SEED": SEED},
        prepares=("controlplane.sh", *HELM, "helm.sh 3", GANGS, *KUEUE, "packages.sh airflow", "packages.sh prefect"),
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
        waits=True,
    ),
    Part(
        "pods",
        30,
        "every example and fault in real pods on three nodes, shutdowns, reboots and drains, gangs and queues, the "
        "chart installed by Helm",
        [[ROOT / "tools" / "e2e.sh"]],
        prepares=("e2e-prepare.sh",),
        root=True,
        waits=True,
        builds=True,
    ),
)

PARTS = {part.name: part for part in (*EVERY_CHANGE, *AFTER_CHANGES, *NIGHT)}
