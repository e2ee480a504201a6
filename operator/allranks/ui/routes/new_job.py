"""The page for a new job: a manifest that is checked while it is typed, and on the API server before it is created."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.authoring.manifests import Finding
from allranks.authoring.yaml_text import dump
from allranks.errors import AllranksError
from allranks.ui import new_job
from allranks.ui.problems import status_of
from allranks.ui.rendering import read_form, render
from allranks.ui.routes.rest import StateOf
from allranks.ui.state import State

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/new")
async def editor(
    state: StateOf,
    namespace: str = "",
    template: str = new_job.TEMPLATES[0],
    source: Annotated[str, Query(alias="from", max_length=253)] = "",
) -> Response:
    """Show the template of a framework, or the manifest of another job."""
    if state.jobs is None:
        return render("new", live="", warning="", note=state.no_cluster)
    if not source:
        return await _checked_page(state, namespace, new_job.template(template), template=template)
    entry = await state.find("jobs", namespace or state.jobs.cluster.namespace, source)
    names = [other.name for other in state.jobs.all() if other.group == entry.group]
    return await _checked_page(state, namespace, dump([new_job.copy_of(entry, names)]), source=source)


@router.post("/new/problems")
async def problems(request: Request, state: StateOf) -> Response:
    """Return the list of problems, which a script shows while somebody types."""
    _, findings = await asyncio.to_thread(new_job.check, (await _form(request))["manifest"])
    return render("problems", findings=findings, verdict="")


@router.post("/new")
async def submit(request: Request, state: StateOf, namespace: str = "") -> Response:
    """Check the manifest, here and then on the API server, or create the job. With errors the page keeps the text."""
    jobs = state.cluster()
    form = await _form(request)
    text, dry_run = form["manifest"], form.get("action") != "create"
    job, findings = await asyncio.to_thread(new_job.check, text)
    if job is None:
        return _page(state, namespace, text, findings, status=422)
    try:
        changed = await new_job.create(jobs, namespace or None, job, dry_run=dry_run)
    except AllranksError as error:
        return _page(state, namespace, text, [*new_job.findings_of(error), *findings], status=status_of(error))
    if dry_run:
        return _page(state, namespace, text, findings, verdict=changed.line)
    metadata = changed.job["metadata"]
    return RedirectResponse(f"/jobs/{metadata['namespace']}/{metadata['name']}", 303)


async def _form(request: Request) -> dict[str, str]:
    fields = await read_form(request, 6 * new_job.MOST_BYTES)  # a form needs up to three bytes for one
    return fields | {"manifest": fields.get("manifest", "").replace("\r\n", "\n")}


async def _checked_page(state: State, namespace: str, text: str, *, template: str = "", source: str = "") -> Response:
    _, findings = await asyncio.to_thread(new_job.check, text)
    return _page(state, namespace, text, findings, template=template, source=source)


def _page(
    state: State,
    namespace: str,
    text: str,
    findings: Sequence[Finding],
    *,
    verdict: str = "",
    template: str = "",
    source: str = "",
    status: int = 200,
) -> HTMLResponse:
    page = render(
        "new",
        live="",
        warning=state.problem,
        note="",
        namespace=namespace or (state.jobs and state.jobs.namespace) or "",
        text=text,
        findings=findings,
        verdict=verdict,
        template=template,
        templates=new_job.TEMPLATES,
        source=source,
        typed=not template and not source,
    )
    page.status_code = status
    return page
