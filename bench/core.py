"""Measures the core with large jobs (`make bench`): median and maximum of several rounds, in milliseconds."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from allranks.api.status import Status
from allranks.api.validation import parse
from allranks.core.facts import naming
from allranks.core.facts.model import Exit, Observed, Platform, Pod
from allranks.core.reconcile import reconcile
from allranks.frameworks import FRAMEWORKS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDS = 21


def observed(framework: str, pods: int) -> Observed:
    """Return a job that has just started: its status is written, no pod exists."""
    document = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": "bench", "uid": "u"},
        "spec": {
            "framework": framework,
            "image": "x",
            "command": ["python3", "train.py"],
            "roles": {
                **{role: {"replicas": count} for role, count in FRAMEWORKS[framework].script.roles.items()},
                "worker": {"replicas": pods},
            },
            "checkpoint": {"claim": "c"},
        },
    }
    start = Observed(parse(document), Status(), (), NOW, Platform("operator:1"))
    return replace(start, persisted=reconcile(start).next)


def running(start: Observed) -> Observed:
    """Return the same job with all its pods running, its status up to date."""
    pods = tuple(
        Pod(name, name, role, index, 0, phase="Running", started_at=NOW, node="n")
        for role, status in start.persisted.roles.items()
        for index in range(status.desired)
        for name in [naming.pod_name("bench", role, index, 0)]
    )
    current = replace(start, pods=pods)
    return replace(current, persisted=reconcile(current).next)


def measure(work: Callable[[], object]) -> tuple[float, float]:
    """Return (median, maximum) of ROUNDS calls, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times), max(times)


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or [64, 1000]
    print(f"{'framework':<12}{'pods':>6}  {'step':<28}{'median ms':>10}{'worst ms':>10}")
    for framework in FRAMEWORKS:
        for size in sizes:
            start = observed(framework, size)
            settled = running(start)
            dead = replace(settled.pods[0], phase="Failed", exit=Exit(137, NOW))
            failed = replace(settled, pods=(dead, *settled.pods[1:]))
            cases = {"create all pods": start, "settled: empty plan": settled, "a rank failed: restart": failed}
            for step, case in cases.items():
                median, worst = measure(lambda case=case: reconcile(case))
                print(f"{framework:<12}{size:>6}  {step:<28}{median:>10.2f}{worst:>10.2f}")


if __name__ == "__main__":
    main()
