"""The page for a new job: a manifest as text, a check by the API server, and the button that creates it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.cli.format.yaml import dump
from allranks.errors import AllranksError
from allranks.ui import new_job
from allranks.ui.pages import read_form, render
from allranks.ui.problems import status_of
from allranks.ui.rest import StateOf
from allranks.ui.state import State

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/new")
async def form(
    state: StateOf, namespace: str = "", source: Annotated[str, Query(alias="from", max_length=253)] = ""
) -> Response:
    """An example, or the manifest of another job."""
    if state.jobs is None:
        return render("new", live="", warning="", note=state.no_cluster)
    text = new_job.EXAMPLE
    if source:
        entry = await state.find("jobs", namespace or state.jobs.cluster.namespace, source)
        taken = [one.name for one in state.jobs.all() if one.group == entry.group]
        text = dump([new_job.copy_of(entry, taken)])
    return _page(state, namespace, text, source=source)


@router.post("/new")
async def submit(request: Request, state: StateOf, namespace: str = "") -> Response:
    """Checks the manifest, or creates the job. With mistakes the page keeps the text."""
    jobs = state.cluster()
    given = await read_form(request, 3 * new_job.MOST_BYTES)  # a form needs up to three bytes for one
    text = given.get("manifest", "").replace("\r\n", "\n")
    dry_run = given.get("action") != "create"
    try:
        done = await new_job.create(jobs, namespace or None, new_job.read(text), dry_run=dry_run)
    except AllranksError as error:
        page = _page(state, namespace, text, problems=new_job.sentences(error))
        page.status_code = status_of(error)
        return page
    if dry_run:
        return _page(state, namespace, text, valid=done.line)
    metadata = done.job["metadata"]
    return RedirectResponse(f"/jobs/{metadata['namespace']}/{metadata['name']}", 303)


def _page(
    state: State, namespace: str, text: str, *, source: str = "", valid: str = "", problems: list[str] | None = None
) -> HTMLResponse:
    namespace = namespace or (state.jobs and state.jobs.namespace) or ""
    return render(
        "new",
        live="",
        warning=state.problem,
        note="",
        source=source,
        namespace=namespace,
        text=text,
        valid=valid,
        problems=problems,
    )
