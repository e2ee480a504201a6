"""The page of queues: quota, and the jobs that run and wait."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from allranks.core.facts.quantity import quantity
from allranks.errors import ClusterError
from allranks.ui.rendering import render, stream_address
from allranks.ui.routes.rest import StateOf
from allranks.views.format.duration import age, human

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/queues")
async def queues(state: StateOf, namespace: str = "") -> Response:
    """Show quota, and the jobs that run and wait."""
    shown, note, namespaces = [], state.no_cluster, []
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


def _share(used: str, of: str) -> float | None:
    """Return the share of a quota that is in use."""
    try:
        whole = float(quantity(of))
        return min(1.0, float(quantity(used)) / whole) if whole > 0 else None
    except (ValueError, TypeError):
        return None
