"""Capacity: nodes with the GPUs that jobs hold and lose there, and queues with the jobs that run and wait.

The sentences below fields describe them in the OpenAPI document as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from allranks.core.facts.naming import JOB_LABEL
from allranks.core.facts.quantity import quantity
from allranks.errors import ClusterError
from allranks.kube.paths import core_path
from allranks.ui.entries import Entry
from allranks.ui.placed_pods import Allocatable, PlacedPod, allocatable, placed_pod
from allranks.ui.problems import RESPONSES
from allranks.ui.rendering import render, stream_address
from allranks.ui.routes.rest import StateOf, as_printed
from allranks.ui.state import State
from allranks.views.format.duration import age, elapsed, human
from allranks.views.format.json_form import as_json
from allranks.views.job_view import total_gpus
from allranks.views.nodes import MOST_JOBS, Avoidance, JobStatus, NodeHistory, histories

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
T = TypeVar("T")


@dataclass
class Node(NodeHistory):
    """A node: the GPUs that jobs hold there, what was lost there, and which jobs avoid it."""

    gpus: int | None = None
    """Allocatable; null without the right to list Nodes."""
    gpus_used: int = 0
    """Of the pods of jobs."""
    unschedulable: bool = False
    jobs: list[str] = field(default_factory=list)
    """NAMESPACE/NAME of jobs with pods there, the first 20."""
    avoided_by: list[str] = field(default_factory=list)
    """NAMESPACE/NAME of jobs whose pods prefer or require other nodes, the first 20."""


def nodes(entries: Iterable[Entry], pods: Iterable[PlacedPod], allocatables: Iterable[Allocatable]) -> list[Node]:
    """Return the nodes: first those with failures, then those in use."""
    by_name: dict[str, Node] = {}

    def node(name: str) -> Node:
        return by_name.setdefault(name, Node(name))

    for capacity in allocatables:
        shown = node(capacity.name)
        shown.gpus, shown.unschedulable = capacity.gpus, capacity.unschedulable
    for pod in pods:
        _add_pod(pod, node(pod.node))
    for name, history in histories(_job(entry) for entry in entries).items():
        shown = node(name)
        for part in fields(NodeHistory):
            setattr(shown, part.name, getattr(history, part.name))
        shown.avoided_by = [avoidance.job for avoidance in history.avoidances]
    return sorted(
        by_name.values(),
        key=lambda node: (-sum(node.failures.values()), not node.avoided_by, -node.gpus_used, node.name),
    )


def _job(entry: Entry) -> JobStatus:
    return JobStatus(f"{entry.group}/{entry.name}", entry.status, lambda: total_gpus(entry.manifest, entry.status))


def _add_pod(pod: PlacedPod, node: Node) -> None:
    node.gpus_used += pod.gpus
    if pod.job not in node.jobs and len(node.jobs) < MOST_JOBS:
        node.jobs.append(pod.job)


# --- routes ----------------------------------------------------------------------------------------------------------


async def _nodes(state: State) -> tuple[list[Node], str]:
    """Return the nodes, and sentences about what could not be read."""
    entries = await state.entries("jobs")
    if state.jobs is None:
        return [], ""
    notes: list[str] = []

    async def read(objects: Awaitable[list[T]]) -> list[T]:
        try:
            return await objects
        except ClusterError as error:
            notes.append(str(error))
            return []

    of_jobs = core_path(state.jobs.namespace, "pods"), {"labelSelector": JOB_LABEL}
    pods = await read(state.jobs.shared_items(*of_jobs, placed_pod))
    allocatables = await read(state.jobs.shared_items(core_path(None, "nodes"), None, allocatable))
    return nodes(entries, pods, allocatables), " ".join(notes)


@api.get("/nodes", response_model=list[Node], summary="Nodes: GPUs in use, failures, avoided")
async def list_nodes(state: StateOf) -> Response:
    state.cluster()
    return as_printed([as_json(node) for node in (await _nodes(state))[0]])


@pages.get("/nodes")
async def nodes_page(state: StateOf) -> Response:
    """Show the GPUs of each node, what was lost there, and the jobs that avoid it."""
    shown, note = await _nodes(state)
    rows = [
        (
            node.name,
            f"{node.gpus_used} of {node.gpus}" if node.gpus is not None else str(node.gpus_used or ""),
            node.gpus_used / node.gpus if node.gpus else None,
            ", ".join(f"{reason} {count}" for reason, count in node.failures.most_common()),
            _last_failure(node),
            _lost(node),
            [(job.job, _cause(job)) for job in node.avoidances],
            node.jobs,
            node.unschedulable,
        )
        for node in shown
    ]
    return render(
        "nodes",
        live=stream_address(source="jobs") if state.jobs else "",
        warning=state.problem if state.jobs else "",
        rows=rows,
        note=note,
        no_cluster=state.no_cluster,
    )


def _last_failure(node: Node) -> str:
    last = node.last_failure
    return f"{last.time:%Y-%m-%d %H:%M} UTC, {last.pod}: {last.message}" if last else ""


def _lost(node: Node) -> str:
    hours = f", {node.lost_gpu_hours:.1f} GPUh" if node.lost_gpu_hours else ""
    return f"{elapsed(node.lost_seconds)}{hours}" if node.lost_seconds else ""


def _cause(avoidance: Avoidance) -> str:
    return ", ".join(filter(None, (avoidance.kind, "excluded" if avoidance.excluded else "")))


# --- queues ----------------------------------------------------------------------------------------------------------


@pages.get("/queues")
async def queues(state: StateOf, namespace: str = "") -> Response:
    """Show quota, and the jobs that run and wait."""
    shown, note, namespaces = [], "", []
    if state.jobs:
        namespace = namespace or state.jobs.namespace or state.jobs.cluster.namespace
        namespaces = sorted({namespace, *(entry.group for entry in state.jobs.all())})
        try:
            shown = await state.jobs.queues(namespace)
        except ClusterError as error:
            note = str(error)
    now = state.now()
    return render(
        "queues",
        live=stream_address(source="jobs", namespace=namespace) if state.jobs else "",
        warning=state.problem if state.jobs else "",
        queues=shown,
        note=note,
        no_cluster=state.no_cluster,
        namespace=namespace,
        namespaces=namespaces,
        share=_share,
        running=lambda queue: [(job.job, job.priority, _human(job.eta_seconds)) for job in queue.running],
        waiting=lambda queue: [
            (
                job.job,
                "" if job.position is None else job.position + 1,
                age(job.since, now) if job.since else "",
                _human(job.starts_in_seconds),
                job.message or job.reason or "not considered yet",
            )
            for job in queue.waiting
        ],
        preempted=lambda queue: [(job.job, age(job.time, now), job.by or job.message) for job in queue.preempted],
    )


def _human(seconds: float | None) -> str:
    return "" if seconds is None else human(seconds)


def _share(used: str, quota: str) -> float | None:
    """Return the share of a quota that is in use."""
    try:
        total = float(quantity(quota))
        return min(1.0, float(quantity(used)) / total) if total > 0 else None
    except (ValueError, TypeError):
        return None
