"""Nodes as the statuses of jobs describe them: what failed there, what was lost, and who avoids them. Pure.

A status keeps ten attempts, so this memory is bounded, and it is as old as the jobs. The failure of a job counts for
this job only: nothing that a tenant's program prints makes a node bad for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from pydantic import ConfigDict

from allranks.api.status import FINISHED, Failure, Status
from allranks.core.facts.bad_nodes import excluded_nodes
from allranks.views.format.json_form import CONFIG

MOST_JOBS = 20
"""Jobs that a node lists."""


@dataclass(frozen=True)
class JobStatus:
    """A job whose status is read."""

    name: str
    """NAMESPACE/NAME"""
    status: Status
    gpus: Callable[[], int] = lambda: 0
    """Return the GPUs of its pods. It is called if work was lost."""


@dataclass
class NodeFault:
    """The last root cause of a failure on a node."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    kind: str
    time: datetime
    job: str
    """NAMESPACE/NAME"""
    pod: str
    message: str


@dataclass
class Avoidance:
    """A job that avoids a node until it has ended, ten more attempts have, or the node is forgiven."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    job: str
    """NAMESPACE/NAME"""
    kind: str
    """The last root cause there; empty if the status keeps none any more."""
    excluded: bool
    """Its pods require other nodes; otherwise they prefer others."""


@dataclass
class NodeHistory:
    """What jobs met on a node."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    name: str
    failures: Counter[str] = field(default_factory=Counter)
    """Root causes of failures there, by their evidence, such as DeviceError; without evidence, by their reason."""
    last_failure: NodeFault | None = None
    lost_seconds: float = 0.0
    """Work that was lost by them."""
    lost_gpu_hours: float = 0.0
    """The same, times the GPUs of the jobs."""
    avoidances: list[Avoidance] = field(default_factory=list)
    """Jobs that avoid it, the first 20."""


def histories(jobs: Iterable[JobStatus]) -> dict[str, NodeHistory]:
    """Return the nodes that the statuses name: those with most failures first."""
    nodes: dict[str, NodeHistory] = {}
    for job in jobs:
        _add(job, nodes)
    ordered = sorted(nodes.values(), key=lambda node: (-sum(node.failures.values()), not node.avoidances, node.name))
    return {node.name: node for node in ordered}


def _add(job: JobStatus, nodes: dict[str, NodeHistory]) -> None:
    status = job.status
    kinds: dict[str, str] = {}
    for failure, lost in sorted(_failures(status), key=lambda pair: pair[0].time):
        assert failure.node
        kinds[failure.node] = failure.because or failure.reason
        node = nodes.setdefault(failure.node, NodeHistory(failure.node))
        node.failures[kinds[failure.node]] += 1
        node.lost_seconds += lost
        node.lost_gpu_hours += lost * job.gpus() / 3600 if lost else 0.0
        if node.last_failure is None or node.last_failure.time <= failure.time:
            node.last_failure = NodeFault(
                kinds[failure.node], failure.time, job.name, failure.pod, failure.message.split("\n", 1)[0]
            )
    excluded = excluded_nodes(status)
    for name in status.avoided_nodes if status.phase not in FINISHED else ():
        avoidances = nodes.setdefault(name, NodeHistory(name)).avoidances
        if len(avoidances) < MOST_JOBS:
            avoidances.append(Avoidance(job.name, kinds.get(name, ""), name in excluded))


def _failures(status: Status) -> Iterable[tuple[Failure, float]]:
    """Yield the failures with a node, each once, and the work that was lost by it in seconds."""
    for past in status.history:
        if past.failure and past.failure.node:
            yield past.failure, past.lost_seconds or 0.0
    recorded = {past.failure.attempt for past in status.history if past.failure}
    alone = [restarts.failure for restarts in status.replica_restarts.values() if restarts.failure]
    last = [status.last_failure] if status.last_failure and status.last_failure.attempt not in recorded else []
    counted = set()
    for failure in [*alone, *last]:
        key = (failure.pod, failure.time)
        if failure.node and key not in counted:
            counted.add(key)
            yield failure, 0.0
