"""Mistakes in a job's `scheduling` that its schema cannot find."""

from __future__ import annotations

from allranks.api.job import Job
from allranks.core.facts import queue
from allranks.core.objects.gangs import members
from allranks.core.objects.gangs.registry import requested


def problems(job: Job) -> list[tuple[str, str]]:
    """(field path, message) of each."""
    backend = requested(job)
    if backend is None:
        return []
    out = []
    if backend.name == "Kueue" and not queue.queue_of(job):
        out.append(("spec.scheduling.gang", "Kueue admits the jobs of a queue: set spec.scheduling.queue as well"))
    parts = [("spec", job.spec.template), *((f"spec.roles.{role}", of.template) for role, of in job.spec.roles.items())]
    for place, template in parts:
        if own := members.own_gang(template or {}):
            what = f"is set by allranks with scheduling.gang: {backend.name}: remove it, or set scheduling.gang: None"
            out.append((f"{place}.template.{own}", what))
    return out
