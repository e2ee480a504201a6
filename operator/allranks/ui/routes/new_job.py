"""A new job: templates, copies of other jobs, the checks of its manifest, and its creation with the user's rights.

The page checks the manifest while it is typed, and on the API server before the job is created.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.api.job import API_VERSION, KIND
from allranks.api.validation import parse
from allranks.authoring import manifest_files
from allranks.authoring.checks.problem import Problem as Mistake
from allranks.authoring.manifests import Finding, InvalidManifests, load_documents
from allranks.authoring.script_job import Script
from allranks.authoring.starter_manifest import make_starter
from allranks.authoring.yaml_text import dump
from allranks.client.jobs import Changed
from allranks.code import ship
from allranks.errors import AllranksError, ClusterError, InvalidManifest
from allranks.frameworks import FRAMEWORKS
from allranks.kube.paths import job_path
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry, Manifest
from allranks.ui.openapi import Job
from allranks.ui.problems import RESPONSES, Problem, status_of
from allranks.ui.rendering import read_form, render
from allranks.ui.routes.rest import Answer, EntryOf, Item, StateOf, Uid, answer, job_of
from allranks.ui.state import State

TEMPLATES = tuple(FRAMEWORKS)
_SEVERITIES = ("error", "warning", "note")
_SOURCE = "manifest"
"""Name of the text in findings."""
_NOT_COPIED = ("kubectl.kubernetes.io/", "kueue.x-k8s.io/", "allranks.dev/")
"""Labels and annotations that belong to one object, and not to a copy."""
_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{1,4})")
_KEY = re.compile(r"\[([^\]]*)\]|[^.\[\]]+")
"""A key of a field path: `[0]`, `[nvidia.com/gpu]` or `limits`."""


def starter(framework: str) -> str:
    """Return the starter manifest of a framework, as `allranks init` writes it. Raises Problem."""
    if framework not in TEMPLATES:
        raise Problem(404, f"there is no template {framework}: choose one of {', '.join(TEMPLATES)}")
    manifest = make_starter(Script("train.py", {}, frozenset()), "", file="job.yaml", framework=framework)
    return "".join(dropwhile(lambda line: line.startswith("#"), manifest.text.splitlines(keepends=True)))


def copy_of(entry: Entry, taken: Iterable[str]) -> Manifest:
    """Return the manifest of a new job like this one, with the next free name. It is not suspended."""
    metadata = entry.metadata
    copied: Manifest = {"name": next_name(entry.name, taken), "namespace": entry.group}
    for part in ("labels", "annotations"):
        kept = {key: value for key, value in (metadata.get(part) or {}).items() if not key.startswith(_NOT_COPIED)}
        if kept:
            copied[part] = kept
    spec = {key: value for key, value in (entry.manifest.get("spec") or {}).items() if key != "suspend"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": copied, "spec": spec}


def next_name(name: str, taken: Iterable[str]) -> str:
    """Return `penguins-2` for penguins, `penguins-3` for penguins-2."""
    used = set(taken)
    numbered = _NUMBERED.fullmatch(name)
    base, number = (numbered["name"], int(numbered["number"])) if numbered else (name, 1)
    while True:
        number += 1
        candidate = f"{base}-{number}"
        if candidate not in used:
            return candidate


# --- checks ----------------------------------------------------------------------------------------------------------


def check(text: str) -> tuple[Manifest | None, list[Finding]]:
    """Return the job in a YAML text, None if it has errors, and what `allranks validate` says, with lines.

    No file of this machine is read, whatever the manifest names.
    """
    document, findings = _single_document(text)
    if not findings:
        findings = _with_lines(text, _document_findings(document))
    return None if any(finding.problem.severity == "error" for finding in findings) else document, findings


def _single_document(text: str) -> tuple[Any, list[Finding]]:
    if line := _line_of_alias(text):  # nested aliases can expand to any size
        return None, [_finding("an alias (*NAME) cannot be used here: write its value", line)]
    documents = manifest_files.documents(text)
    if isinstance(documents, manifest_files.Unreadable):
        return None, [_finding(f"the text {documents.message}", documents.line)]
    if len(documents) != 1:
        return None, [_finding(f"the text has {len(documents)} documents: write one job")]
    return documents[0], []


def _line_of_alias(text: str) -> int:
    """Return the line of the first alias; 0 if there is none before the first error of the text."""
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        for event in yaml.parse(text, yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent) and event.start_mark:
                return event.start_mark.line + 1
    return 0


def _finding(message: str, line: int = 0) -> Finding:
    return Finding(_SOURCE, Mistake("", message), line=line)


def _document_findings(document: Any) -> list[Finding]:
    try:
        if _is_loadable(document):
            return list(load_documents([(_SOURCE, document)]).findings)
        parse(document)  # says that the kind or the code is wrong
    except InvalidManifests as error:
        return error.findings
    except InvalidManifest as error:
        return [Finding(_SOURCE, Mistake(path, message)) for path, message in error.problems]
    return []


def _is_loadable(document: Any) -> bool:
    """Return whether it may be a job, and names no directory, which loading would read on this machine."""
    spec = document.get("spec") if isinstance(document, dict) and document.get("kind") in (KIND, None) else None
    return isinstance(spec, dict) and not isinstance(spec.get("code"), str)


def _with_lines(text: str, findings: Iterable[Finding]) -> list[Finding]:
    root = _root(text)
    placed = [replace(finding, line=_line(root, finding.problem.path)) for finding in findings]
    return sorted(placed, key=lambda finding: (_SEVERITIES.index(finding.problem.severity), finding.line))


def _root(text: str) -> yaml.Node | None:
    """Return the node of the only document that is not empty: of the item, if it is a list of one."""
    nodes = [node for node in yaml.compose_all(text, yaml.CSafeLoader) if not str(node.tag).endswith(":null")]
    root = nodes[0] if nodes else None
    fields = {key.value: value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    items = fields.get("items")
    if isinstance(items, yaml.SequenceNode) and items.value and "kind" in fields and fields["kind"].value == "List":
        [root, *_] = items.value
    return root


def _line(node: yaml.Node | None, path: str) -> int:
    """Return the line of a field, or of the object that should have it; 0 for the whole document."""
    line = 0
    for match in _KEY.finditer(path):
        key = match[0].strip("[]")
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == key), None)
        elif isinstance(node, yaml.SequenceNode) and key.isdigit() and int(key) < len(node.value):
            pair = (node.value[int(key)],) * 2
        else:
            pair = None
        if pair is None:
            break
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def findings_of(error: AllranksError) -> list[Finding]:
    """Return the answer of the API server as findings."""
    return [_finding(line) for line in str(error).splitlines()]


# --- creation --------------------------------------------------------------------------------------------------------


async def create(jobs: ClusterJobs, namespace: str | None, document: Manifest, *, dry_run: bool = False) -> Changed:
    """Create a job that was checked, or ask the API server whether it would. Raises Problem and ClusterError.

    `namespace` None: the namespace of the manifest, else the user's.
    """
    written = document["metadata"].get("namespace")
    if written and namespace and written != namespace:
        raise Problem(422, f"metadata.namespace: it is {written}, and the request is for namespace {namespace}")
    place = str(written or namespace or jobs.cluster.namespace)
    if jobs.namespace not in (None, place):
        raise Problem(422, f"metadata.namespace: it is {place}, and this page shows namespace {jobs.namespace}")
    cluster = jobs.within(place)
    query = {"fieldManager": "allranks", "fieldValidation": "Strict", "dryRun": "All" if dry_run else None}
    job = await cluster.request("POST", job_path(place), query, document)
    name = job["metadata"]["name"]
    if dry_run:
        return Changed(f"{name} can be created in namespace {place}", job)
    jobs.add(job)
    return Changed(f"{name} created{await _share_code(jobs, place, job)}", job)


async def _share_code(jobs: ClusterJobs, namespace: str, job: Manifest) -> str:
    """Keep the code that the job shares with jobs that may be deleted earlier. Return a sentence if that fails."""
    config_map = ship.config_map_of(job)
    if not config_map:
        return ""
    try:
        await ship.add_owner(jobs.within(namespace), namespace, config_map, job)
    except ClusterError as error:
        return f"; its code in ConfigMap {config_map} is deleted with the other jobs that have it: {error}"
    return ""


# --- routes ----------------------------------------------------------------------------------------------------------


api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@api.post("/jobs", status_code=201, response_model=Answer, summary="Create a job")
async def create_job(
    state: StateOf,
    body: Job,
    namespace: Annotated[str | None, Query(description="Default: the namespace in the manifest.")] = None,
    dry_run: Annotated[bool, Query(alias="dryRun", description="Only ask whether it could be created.")] = False,
) -> Any:
    """The body is the manifest, as JSON."""
    parse(body)
    return answer(await create(state.cluster(), namespace, body, dry_run=dry_run))


@api.post(Item + "/resubmit", status_code=201, response_model=Answer, summary="Create a job like this one")
async def resubmit_job(state: StateOf, entry: EntryOf, uid: Uid = None) -> Any:
    """The new job has the same spec, and the next free name: penguins-2 for penguins."""
    job_of(state, entry, uid)
    names = [other.name for other in state.cluster().all() if other.group == entry.group]
    copied = copy_of(entry, names)
    parse(copied)
    return answer(await create(state.cluster(), entry.group, copied))


@pages.get("/new")
async def editor(
    state: StateOf,
    namespace: str = "",
    template: str = TEMPLATES[0],
    source: Annotated[str, Query(alias="from", max_length=253)] = "",
) -> Response:
    """Show the template of a framework, or the manifest of another job."""
    if state.jobs is None:
        return render("new", live="", warning="", no_cluster=state.no_cluster)
    if not source:
        return await _checked_page(state, namespace, starter(template), template=template)
    entry = await state.find("jobs", namespace or state.jobs.cluster.namespace, source)
    names = [other.name for other in state.jobs.all() if other.group == entry.group]
    return await _checked_page(state, namespace, dump([copy_of(entry, names)]), source=source)


@pages.post("/new/problems")
async def problems(request: Request, state: StateOf) -> Response:
    """Return the list of problems, which a script shows while the user types."""
    _, findings = await state.compute(check, (await _form(request))["manifest"])
    return render("problems", findings=findings, verdict="")


@pages.post("/new")
async def check_or_create(request: Request, state: StateOf, namespace: str = "") -> Response:
    """Check the manifest, here and then on the API server, or create the job. With errors the page keeps the text."""
    jobs = state.cluster()
    form = await _form(request)
    text, dry_run = form["manifest"], form.get("action") != "create"
    job, findings = await state.compute(check, text)
    if job is None:
        return _page(state, namespace, text, findings, status=422)
    try:
        changed = await create(jobs, namespace or None, job, dry_run=dry_run)
    except AllranksError as error:
        return _page(state, namespace, text, [*findings_of(error), *findings], status=status_of(error))
    if dry_run:
        return _page(state, namespace, text, findings, verdict=changed.line)
    metadata = changed.job["metadata"]
    return RedirectResponse(f"/jobs/{metadata['namespace']}/{metadata['name']}", 303)


async def _form(request: Request) -> dict[str, str]:
    fields = await read_form(request)
    return fields | {"manifest": fields.get("manifest", "").replace("\r\n", "\n")}


async def _checked_page(state: State, namespace: str, text: str, *, template: str = "", source: str = "") -> Response:
    _, findings = await state.compute(check, text)
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
        no_cluster="",
        namespace=namespace or (state.jobs and state.jobs.namespace) or "",
        text=text,
        findings=findings,
        verdict=verdict,
        template=template,
        templates=TEMPLATES,
        source=source,
        typed=not template and not source,
    )
    page.status_code = status
    return page
