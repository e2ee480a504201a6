"""Nodes: the GPUs that jobs hold there, what was lost there, and which jobs avoid them. Pure. The sentences below
fields describe them in the OpenAPI document as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict

from allranks.api.status import FINISHED, Failure
from allranks.cli.format.json_form import CONFIG
from allranks.core import gpu_count
from allranks.core.naming import JOB_LABEL, TRAINER
from allranks.ui.entries import Entry

MOST_JOBS = 20
"""Names of jobs that a node lists."""


@dataclass
class Node:
    """A node: the GPUs that jobs hold there, what was lost there, and which jobs avoid it."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    name: str
    gpus: int | None = None
    """Allocatable; null without the right to list Nodes."""
    gpus_used: int = 0
    """Of the pods of jobs."""
    unschedulable: bool = False
    jobs: list[str] = field(default_factory=list)
    """NAMESPACE/NAME of jobs with pods there, the first 20."""
    failures: Counter[str] = field(default_factory=Counter)
    """Root causes of failures there, by reason."""
    lost_seconds: float = 0.0
    """Work that was lost by them."""
    avoided_by: list[str] = field(default_factory=list)
    """NAMESPACE/NAME of jobs whose pods prefer other nodes, the first 20."""


def nodes(
    entries: Iterable[Entry], pods: Iterable[Mapping[str, Any]], manifests: Sequence[Mapping[str, Any]] | None
) -> list[Node]:
    """`pods`: those of jobs. `manifests`: the Nodes of the cluster, None if they cannot be read. Nodes with trouble
    come first, then those in use."""
    found: dict[str, Node] = {}

    def node(name: str) -> Node:
        return found.setdefault(name, Node(name))

    for manifest in manifests or ():
        one = node(manifest["metadata"]["name"])
        one.gpus = _gpus(((manifest.get("status") or {}).get("allocatable")) or {})
        one.unschedulable = (manifest.get("spec") or {}).get("unschedulable") is True
    for pod in pods:
        _add_pod(pod, node)
    for entry in entries:
        _add_job(entry, node)
    return sorted(
        found.values(), key=lambda one: (-sum(one.failures.values()), not one.avoided_by, -one.gpus_used, one.name)
    )


def _add_pod(pod: Mapping[str, Any], node: Any) -> None:
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    name = spec.get("nodeName")
    if not name or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return
    one: Node = node(name)
    containers = [each for each in spec.get("containers") or () if each.get("name") == TRAINER]
    one.gpus_used += sum(gpu_count.gpus(each.get("resources")) for each in containers)
    job = f"{metadata.get('namespace', '')}/{(metadata.get('labels') or {}).get(JOB_LABEL, '')}"
    if job not in one.jobs and len(one.jobs) < MOST_JOBS:
        one.jobs.append(job)


def _add_job(entry: Entry, node: Any) -> None:
    status = entry.status
    for past in status.history:
        if past.failure and past.failure.node:
            _add_failure(node(past.failure.node), past.failure, past.lost_seconds or 0.0)
    recorded = {past.failure.attempt for past in status.history if past.failure}
    alone = [one.failure for one in status.replica_restarts.values() if one.failure]
    last = [status.last_failure] if status.last_failure and status.last_failure.attempt not in recorded else []
    found_failures = set()
    for failure in [*alone, *last]:
        key = (failure.pod, failure.time)
        if failure.node and key not in found_failures:
            found_failures.add(key)
            _add_failure(node(failure.node), failure, 0.0)
    for name in status.avoided_nodes if status.phase not in FINISHED else ():
        avoided = node(name).avoided_by
        if len(avoided) < MOST_JOBS:
            avoided.append(f"{entry.group}/{entry.name}")


def _add_failure(node: Node, failure: Failure, lost: float) -> None:
    node.failures[failure.reason] += 1
    node.lost_seconds += lost


def _gpus(amounts: Mapping[str, Any]) -> int:
    return gpu_count.gpus({"limits": amounts})
