"""Nodes that a user forgives: a job does not avoid them any more for what happened there before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from allranks.api.job import GROUP, Job
from allranks.api.status import Failure, Status

FORGIVEN_ANNOTATION = f"{GROUP}/forgiven-nodes"
"""On a job, written with the right to change it: NODE=TIME,..., for failures on the node until then."""
LONGEST = 4096
"""Characters of the annotation. A longer one is not ours."""


def forgiven_nodes(text: str) -> dict[str, datetime]:
    """Return the nodes of an annotation, with the time until which they are forgiven. Other text is left out."""
    out = {}
    for entry in text.split(","):
        node, _, written = entry.partition("=")
        try:
            time = datetime.fromisoformat(written)
        except ValueError:
            continue
        if node and time.tzinfo:
            out[node] = time
    return out


def as_text(nodes: Mapping[str, datetime]) -> str:
    """Return the text of the annotation."""
    return ",".join(f"{node}={time.isoformat()}" for node, time in nodes.items())


def without_forgiven(job: Job, failures: Iterable[Failure]) -> list[Failure]:
    """Return the failures that are not forgiven."""
    nodes = forgiven_nodes(job.metadata.annotations.get(FORGIVEN_ANNOTATION, ""))
    return [f for f in failures if not (f.node and f.node in nodes and f.time <= nodes[f.node])]


def newly_forgiven(job: Job, status: Status) -> list[str]:
    """Return the avoided nodes on which nothing failed since they were forgiven."""
    forgiven = forgiven_nodes(job.metadata.annotations.get(FORGIVEN_ANNOTATION, ""))
    if not forgiven:
        return []
    failures = [past.failure for past in status.history if past.failure]
    failures += [entry.failure for entry in status.replica_restarts.values() if entry.failure]
    bad = {failure.node for failure in without_forgiven(job, failures)}
    return [node for node in status.avoided_nodes if node in forgiven and node not in bad]
