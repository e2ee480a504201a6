"""Jobs of every framework at any size, also of frameworks to come: every valid choice of roles and options.

As a program it reconciles the largest legal job until all of its pods exist, and prints what that needed:
`python -m support.largest FRAMEWORK SHAPE`.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.api.validation import parse
from allranks.core.facts.model import Observed, Pod
from allranks.core.reconcile import reconcile
from allranks.errors import InvalidManifest
from allranks.frameworks import FRAMEWORKS
from support.builders import CLUSTER, NOW, UID, manifest

MAX_REPLICAS = 10_000
"""Of a role, as the CRD says."""
LONGEST_NAME = "n" * 42
LONGEST_NAMESPACE = "s" * 63


@dataclass(frozen=True)
class Shape:
    """A job of one framework without its size."""

    framework: str
    roles: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()
    elastic: bool = False

    def __str__(self) -> str:
        words = [self.framework, *self.roles, *(f"{key}={value}" for key, value in self.options)]
        return "-".join([*words, *(["elastic"] if self.elastic else [])])

    def counts(self, n: int) -> dict[str, int]:
        kinds = FRAMEWORKS[self.framework].roles
        return {role: min(n, kinds[role].max_replicas or n) for role in self.roles}

    def job(self, n: int, name: str = "job", namespace: str = "team") -> Job:
        """The job with n replicas of each role, or as many as the role can have. Raises InvalidManifest."""
        fields: dict[str, Any] = {self.framework: dict(self.options)} if self.options else {}
        if self.elastic:
            fields["elastic"] = {"minReplicas": 1, "maxReplicas": n}
        made = manifest(self.framework, self.counts(n), name, **fields)
        made["metadata"]["namespace"] = namespace
        parsed = parse(made)
        return parsed.model_copy(update={"metadata": parsed.metadata.model_copy(update={"uid": UID})})


def shapes(framework: str) -> list[Shape]:
    """Every valid choice of roles, of options that are a list of names, and of elasticity."""
    kinds = FRAMEWORKS[framework]
    choices = [[(name, choice) for choice in found] for name, found in _choices(framework)]
    found = []
    for count in range(1, len(kinds.roles) + 1):
        for roles in itertools.combinations(kinds.roles, count):
            for options in itertools.product(*choices):
                for elastic in (False, True):
                    shape = Shape(framework, roles, options, elastic)
                    try:
                        shape.job(3)
                    except InvalidManifest:
                        continue
                    found.append(shape)
    return found


def _choices(framework: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, of in FRAMEWORKS[framework].options.model_fields.items():
        if get_origin(of.annotation) is Literal:
            yield of.alias or name, get_args(of.annotation)


ALL = [shape for framework in FRAMEWORKS for shape in shapes(framework)]
LARGEST = [
    shape
    for shape in ALL
    if not any(set(shape.roles) < set(other.roles) and replace(other, roles=shape.roles) == shape for other in ALL)
]
"""Shapes without those that have further roles."""


def first_life(job: Job) -> tuple[Status, list[Pod], int]:
    """Status, pods and number of looks when nothing is left to create, or the job has failed."""
    status, pods, looks = Status(), [], 0
    while True:
        plan = reconcile(Observed(job, status, tuple(pods), NOW, CLUSTER))
        looks += 1
        status = plan.next or status
        created = [made["metadata"] for made in plan.create if made["kind"] == "Pod"]
        for meta in created:
            labels = meta["labels"]
            role, index = labels["allranks.dev/role"], int(labels["allranks.dev/index"])
            pods.append(Pod(meta["name"], f"uid-{meta['name']}", role, index, int(labels["allranks.dev/attempt"])))
        if not created and not plan.write_ahead:
            return status, pods, looks


def main(name: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # a fault must not take the machine's memory
    [shape] = [shape for shape in ALL if str(shape) == name]
    status, pods, looks = first_life(shape.job(MAX_REPLICAS, LONGEST_NAME, LONGEST_NAMESPACE))
    # Not ru_maxrss, which begins with that of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
    print(json.dumps({"peak_mb": peak, "phase": status.phase, "pods": len(pods), "looks": looks}))


if __name__ == "__main__":
    main(sys.argv[1])
