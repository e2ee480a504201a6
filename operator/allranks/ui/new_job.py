"""A new job: from a manifest, or from that of another job. With the user's rights, as everything else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from allranks.api.job import API_VERSION, KIND
from allranks.api.validation import parse
from allranks.client.actions import Changed
from allranks.code import ship
from allranks.errors import ClusterError, InvalidManifest
from allranks.kube.paths import job_path
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry, Manifest
from allranks.ui.problems import Problem

MOST_BYTES = 512 * 1024
EXAMPLE = """\
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata:
  name: my-job
spec:
  framework: pytorch
  image: registry.example.com/me/train:1
  command: [torchrun, train.py]
  roles:
    worker:
      replicas: 2
"""
_OF_OTHERS = ("kubectl.kubernetes.io/", "kueue.x-k8s.io/", "allranks.dev/")
"""Labels and annotations that belong to one object, and not to a copy."""
_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d{1,4})")


def copy_of(entry: Entry, taken: Iterable[str]) -> Manifest:
    """The manifest of a job as that of a new one, with a name that no job has. It is not suspended."""
    metadata = entry.metadata
    made: Manifest = {"name": next_name(entry.name, taken), "namespace": entry.group}
    for part in ("labels", "annotations"):
        own = {key: value for key, value in (metadata.get(part) or {}).items() if not key.startswith(_OF_OTHERS)}
        if own:
            made[part] = own
    spec = {key: value for key, value in (entry.manifest.get("spec") or {}).items() if key != "suspend"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": made, "spec": spec}


def next_name(name: str, taken: Iterable[str]) -> str:
    """`penguins-2` for penguins, `penguins-3` for penguins-2."""
    used = set(taken)
    found = _NUMBERED.fullmatch(name)
    base, number = (found["name"], int(found["number"])) if found else (name, 1)
    while True:
        number += 1
        candidate = f"{base}-{number}"
        if candidate not in used:
            return candidate


def read(text: str) -> Manifest:
    """The job in a text in YAML. Raises Problem with the line, or InvalidManifest with the fields."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.CSafeLoader)):
            raise Problem(422, "the manifest has an alias (*NAME): write its value instead")
        documents = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Problem(422, f"{place}this is not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Problem(422, f"this is not YAML: {' '.join(str(error).split())}") from error
    if len(documents) != 1:
        raise Problem(422, f"the text has {len(documents)} documents: write one job")
    document: Manifest = documents[0]
    return document


async def create(jobs: ClusterJobs, namespace: str | None, document: Any, *, dry_run: bool = False) -> Changed:
    """Creates the job, or only asks the API server whether it would. Raises InvalidManifest, Problem and ClusterError.

    `namespace` None: that of the manifest, else that of the user.
    """
    parse(document)  # all mistakes at once, as `allranks validate`
    own = document["metadata"].get("namespace")
    if own and namespace and own != namespace:
        raise Problem(422, f"metadata.namespace: it is {own}, and the request is for namespace {namespace}")
    place = str(own or namespace or jobs.cluster.namespace)
    if jobs.namespace not in (None, place):
        raise Problem(422, f"metadata.namespace: it is {place}, and this page shows namespace {jobs.namespace}")
    cluster = jobs.within(place)
    query = {"fieldManager": "allranks", "fieldValidation": "Strict", "dryRun": "All" if dry_run else None}
    made = await cluster.request("POST", job_path(place), query, document)
    name = made["metadata"]["name"]
    if dry_run:
        return Changed(f"{name} can be created in namespace {place}", made)
    jobs.add(made)
    return Changed(f"{name} created{await _share_code(jobs, place, made)}", made)


async def _share_code(jobs: ClusterJobs, namespace: str, job: Manifest) -> str:
    """Keeps the code that the job shares with another one, which may be deleted earlier. A sentence if it cannot."""
    config_map = ship.config_map_of(job)
    if not config_map:
        return ""
    try:
        await ship.add_owner(jobs.within(namespace), namespace, config_map, job)
    except ClusterError as error:
        return f"; its code in ConfigMap {config_map} is deleted with the other jobs that have it: {error}"
    return ""


def sentences(error: Exception) -> list[str]:
    """Each mistake, for the page."""
    if isinstance(error, InvalidManifest):
        return [f"{path}: {text}" if path else text for path, text in error.problems]
    return str(error).splitlines()
