"""The page of queues: quota, and who runs and waits."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from allranks.cli.format.duration import age, human
from allranks.core.quantity import quantity
from allranks.errors import ClusterError
from allranks.ui.routes.pages import render, stream_address
from allranks.ui.routes.rest import StateOf

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/queues")
async def queues(state: StateOf, namespace: str = "") -> Response:
    """Quota, and who runs and waits."""
    found, note, namespaces = [], state.no_cluster, []
    if state.jobs:
        namespace = namespace or state.jobs.namespace or state.jobs.cluster.namespace
        namespaces = sorted({namespace, *(entry.group for entry in state.jobs.all())})
        try:
            found = await state.jobs.queues(namespace)
        except ClusterError as error:
            note = str(error)
    now = state.now()
    return render(
        "queues",
        live=stream_address(source="jobs", namespace=namespace) if state.jobs else "",
        warning=state.problem if state.jobs else "",
        queues=found,
        note=note,
        namespace=namespace,
        namespaces=namespaces,
        share=_share,
        running=lambda queue: [(one.job, one.priority, _human(one.eta_seconds)) for one in queue.running],
        waiting=lambda queue: [
            (
                one.job,
                "" if one.position is None else one.position + 1,
                age(one.since, now) if one.since else "",
                _human(one.starts_in_seconds),
                one.message or one.reason or "not considered yet",
            )
            for one in queue.waiting
        ],
        preempted=lambda queue: [(one.job, age(one.time, now), one.by or one.message) for one in queue.preempted],
    )


def _human(seconds: float | None) -> str:
    return "" if seconds is None else human(seconds)


def _share(used: str, of: str) -> float | None:
    """The share of a quota that is in use."""
    try:
        whole = float(quantity(of))
        return min(1.0, float(quantity(used)) / whole) if whole > 0 else None
    except (ValueError, TypeError):
        return None
