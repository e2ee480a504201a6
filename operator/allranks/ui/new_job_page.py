"""The page for a new job: fields and a manifest that say the same, a check by the API server, and the button that
creates the job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.api.validation import parse
from allranks.cli.format.yaml import dump
from allranks.errors import AllranksError, InvalidManifest
from allranks.ui import job_form, new_job
from allranks.ui.pages import read_form, render
from allranks.ui.problems import Problem, status_of
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
    """Writes fields into the manifest, checks it, or creates the job. With mistakes the page keeps the text."""
    jobs = state.cluster()
    given = await read_form(request, 6 * new_job.MOST_BYTES)  # a form needs up to three bytes for one
    text = given.get("manifest", "").replace("\r\n", "\n")
    action = given.get("action")
    if action in ("edit", "apply"):
        fields = {name: value for name, value in given.items() if name.startswith(job_form.PREFIX)}
        return await asyncio.to_thread(_edited, state, namespace, text, fields)
    dry_run = action != "create"
    late = set(given.get("pending", "").split())
    try:
        document = new_job.read(text)
        if isinstance(document, dict) and late:
            document, wrong = job_form.change(document, {name: given[name] for name in late & given.keys()})
            text = dump([document])
            if wrong:
                raise InvalidManifest(wrong)
        done = await new_job.create(jobs, namespace or None, document, dry_run=dry_run)
    except AllranksError as error:
        page = _page(state, namespace, text, error=error)
        page.status_code = status_of(error)
        return page
    if dry_run:
        return _page(state, namespace, text, valid=done.line)
    metadata = done.job["metadata"]
    return RedirectResponse(f"/jobs/{metadata['namespace']}/{metadata['name']}", 303)


def _edited(state: State, namespace: str, text: str, fields: dict[str, str]) -> HTMLResponse:
    """The page after a change: the fields in the manifest, and every mistake that can be found without a cluster."""
    try:
        document = new_job.read(text)
    except Problem as error:
        return _page(state, namespace, text, error=error)
    wrong: job_form.Problems = []
    if isinstance(document, dict) and fields:
        changed, wrong = job_form.change(document, fields)
        if changed != document:
            text = dump([changed])
        document = changed
    problems = [*wrong, *_mistakes(document)]
    kept = {name: fields[name] for name in (f"{job_form.PREFIX}{path}" for path, _ in wrong)}
    if problems:
        return _page(state, namespace, text, error=InvalidManifest(problems), given=kept)
    return _page(state, namespace, text, valid="The manifest has no mistakes")


def _mistakes(document: object) -> job_form.Problems:
    try:
        parse(document)
    except InvalidManifest as error:
        return error.problems
    return []


def _page(
    state: State,
    namespace: str,
    text: str,
    *,
    source: str = "",
    valid: str = "",
    error: AllranksError | None = None,
    given: Mapping[str, str] | None = None,
) -> HTMLResponse:
    namespace = namespace or (state.jobs and state.jobs.namespace) or ""
    problems = error.problems if isinstance(error, InvalidManifest) else ()
    try:
        sections, broken = job_form.form(new_job.read(text), problems, given), False
    except Problem:
        sections, broken = [], True
    return render(
        "new",
        live="",
        warning=state.problem,
        note="",
        source=source,
        namespace=namespace,
        text=text,
        valid=valid,
        problems=new_job.sentences(error) if error else None,
        sections=sections,
        broken=broken,
    )
