"""A new job: templates, copies of other jobs, the checks of its manifest, and its creation with the user's rights."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import dropwhile
from typing import Any

import yaml

from allranks.api.job import API_VERSION, KIND
from allranks.api.validation import parse
from allranks.authoring import manifest_files
from allranks.authoring.checks.problem import Problem as Mistake
from allranks.authoring.manifests import Finding, InvalidManifests, load_documents
from allranks.authoring.script_job import Script
from allranks.authoring.starter_manifest import make_starter
from allranks.client.jobs import Changed
from allranks.code import ship
from allranks.errors import AllranksError, ClusterError, InvalidManifest
from allranks.frameworks import FRAMEWORKS
from allranks.kube.paths import job_path
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry, Manifest
from allranks.ui.problems import Problem

MOST_BYTES = 512 * 1024
TEMPLATES = tuple(FRAMEWORKS)
_SEVERITIES = ("error", "warning", "note")
_SOURCE = "manifest"
"""Name of the text in findings."""
_OF_OTHERS = ("kubectl.kubernetes.io/", "kueue.x-k8s.io/", "allranks.dev/")
"""Labels and annotations that belong to one object, and not to a copy."""
_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{1,4})")
_KEY = re.compile(r"\[([^\]]*)\]|[^.\[\]]+")
"""A key of a field path: `[0]`, `[nvidia.com/gpu]` or `limits`."""


def template(framework: str) -> str:
    """Return the starter manifest of a framework, as `allranks init` writes it. Raises Problem."""
    if framework not in TEMPLATES:
        raise Problem(404, f"there is no template {framework}: choose one of {', '.join(TEMPLATES)}")
    starter = make_starter(Script("train.py", {}, frozenset()), "", file="job.yaml", framework=framework)
    return "".join(dropwhile(lambda line: line.startswith("#"), starter.text.splitlines(keepends=True)))


def copy_of(entry: Entry, taken: Iterable[str]) -> Manifest:
    """Return the manifest of a new job like this one, with the next free name. It is not suspended."""
    metadata = entry.metadata
    copied: Manifest = {"name": next_name(entry.name, taken), "namespace": entry.group}
    for part in ("labels", "annotations"):
        kept = {key: value for key, value in (metadata.get(part) or {}).items() if not key.startswith(_OF_OTHERS)}
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
    root = yaml.compose(text, yaml.CSafeLoader)
    placed = [replace(finding, line=_line(root, finding.problem.path)) for finding in findings]
    return sorted(placed, key=lambda finding: (_SEVERITIES.index(finding.problem.severity), finding.line))


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
