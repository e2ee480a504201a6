"""Documents of other kinds: misspelt ones, and jobs of other operators."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from allranks.api.job import GROUP, KIND
from allranks.api.pool import KIND as POOL
from allranks.cli.checks.problem import Problem

MIGRATION = "docs/guides/migrate.md"
OTHER_JOBS = {
    "PyTorchJob": "pytorchReplicaSpecs.Worker.replicas is spec.roles.worker.replicas",
    "TFJob": "tfReplicaSpecs.Worker.replicas is spec.roles.worker.replicas",
    "MPIJob": "mpiReplicaSpecs.Worker.replicas is spec.roles.worker.replicas",
    "TrainJob": "trainer.numNodes is spec.roles.worker.replicas",
    "RayJob": "there is no counterpart of a Ray cluster; the training program itself can run",
}
"""Kind -> the first thing to be aware of when it is rewritten."""


def misspelt(document: Mapping[str, Any]) -> Problem | None:
    """The problem of a document whose kind is probably meant as one of ours."""
    kind = str(document.get("kind"))
    ours = {name.lower(): name for name in (KIND, POOL)}
    if kind in ours.values():
        return None
    if near := difflib.get_close_matches(kind.lower(), ours, n=1, cutoff=0.8):
        return Problem("kind", f"there is no kind {kind}, did you mean {ours[near[0]]}?")
    if str(document.get("apiVersion", "")).partition("/")[0] == GROUP:
        return Problem("kind", f"there is no kind {kind} in {GROUP}: use {KIND} or {POOL}")
    return None


def instead_of_jobs(kinds: list[str]) -> str:
    """What to say of input that has no job but documents of these kinds."""
    if not kinds:
        return f"contains no {KIND}"
    found = ", ".join(dict.fromkeys(kinds))
    if other := next((kind for kind in kinds if kind in OTHER_JOBS), None):
        return (
            f"contains no {KIND}, only {found}: {'an' if other[0] in 'MA' else 'a'} {other} has to be rewritten by "
            f"hand, {MIGRATION} lists the fields ({OTHER_JOBS[other]})"
        )
    return f"contains no {KIND}, only {found}"
