"""Documents of other kinds: misspelt ones, and jobs of other operators."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from allranks.api.job import GROUP, KIND
from allranks.api.pool import KIND as POOL
from allranks.api.sweep import KIND as SWEEP
from allranks.cli.checks.problem import Problem

MIGRATION = "docs/guides/migrate.md"
OTHER_JOBS = frozenset({"PyTorchJob", "TFJob", "MPIJob", "JAXJob", "TrainJob", "RayJob"})
"""Kinds that `allranks convert` converts."""


def misspelt(document: Mapping[str, Any]) -> Problem | None:
    """The problem of a document whose kind is probably meant as one of ours."""
    kind = str(document.get("kind"))
    ours = {name.lower(): name for name in (KIND, POOL, SWEEP)}
    if kind in ours.values():
        return None
    if near := difflib.get_close_matches(kind.lower(), ours, n=1, cutoff=0.8):
        return Problem("kind", f"there is no kind {kind}, did you mean {ours[near[0]]}?")
    if str(document.get("apiVersion", "")).partition("/")[0] == GROUP:
        return Problem("kind", f"there is no kind {kind} in {GROUP}: use {KIND}, {SWEEP} or {POOL}")
    return None


def instead_of_jobs(kinds: list[str]) -> str:
    """What to say of input that has no job but documents of these kinds."""
    if not kinds:
        return f"contains no {KIND}"
    found = ", ".join(dict.fromkeys(kinds))
    if other := next((kind for kind in kinds if kind in OTHER_JOBS), None):
        return (
            f"contains no {KIND}, only {found}: `allranks convert FILE > job.yaml` converts {_article(other)} {other} "
            f"and comments on each line that means something else ({MIGRATION})"
        )
    return f"contains no {KIND}, only {found}"


def _article(kind: str) -> str:
    return "an" if kind.startswith("MPI") else "a"
