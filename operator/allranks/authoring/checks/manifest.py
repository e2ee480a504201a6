"""Checks of one manifest beyond the CRD's schema and rules: parts that Kubernetes defines, and the pods of the job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allranks.api import validation
from allranks.api.job import GROUP, KIND, Job
from allranks.api.pool import KIND as POOL
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.api.sweep import KIND as SWEEP
from allranks.api.validation_messages import similar
from allranks.authoring.checks import schema
from allranks.authoring.checks.notes import notes_of
from allranks.authoring.checks.problem import Problem, below
from allranks.core.facts import pod_template, pool_template
from allranks.core.facts.model import ANY_PLATFORM, Manifest, Platform
from allranks.core.facts.naming import ROLE_LABEL
from allranks.core.objects import commands
from allranks.core.objects import pods as job_pods


def written(document: Mapping[str, Any], job: Job | None = None) -> list[Problem]:
    """Return problems inside the parts that Kubernetes defines: templates, resources, the sources of variables and
    volumes.

    Reads the raw document, so that these are reported with all other problems. `job` is the parsed document, None if
    it has errors.
    """
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return []
    roles: Any = spec.get("roles")
    named = roles.items() if isinstance(roles, dict) else ()
    parts = [("spec", spec), *((f"spec.roles.{role}", part) for role, part in named if isinstance(part, dict))]
    merged = pod_template.role_templates(job, ANY_PLATFORM) if job else None
    layers = sum(isinstance(part.get("template"), dict) for _, part in parts)
    out: list[Problem] = []
    for path, part in parts:
        complete: list[Manifest] | None
        if merged is not None:
            complete = list(merged.values()) if path == "spec" else [merged[path.rpartition(".")[2]]]
        else:
            complete = None if layers == 1 else []  # what one layer does not have, another one may have
        out += _container(part, path, complete)
    checkpoint = spec.get("checkpoint")
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("volume"), dict):
        volume = {"name": "checkpoint", **checkpoint["volume"]}
        out += schema.problems(volume, "Volume", "spec.checkpoint.volume")
    return out


def written_pool(document: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a TrainingPool, as `written` does for a job."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return []
    out = list(_container(spec, "spec", []))  # what a pool does not have, its jobs may have
    if spec.get("sharedMemory") is not None:
        out += schema.quantity_problems("spec.sharedMemory", "sharedMemory", spec["sharedMemory"])
    for name, amount in spec["rdma"].items() if isinstance(spec.get("rdma"), dict) else ():
        out += schema.quantity_problems(below("spec.rdma", str(name)), str(name), amount)
    return out


@dataclass(frozen=True, slots=True)
class Beside:
    """Objects in the files besides a job."""

    pools: Mapping[str, PoolSpec] = field(default_factory=dict)
    claim_templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """ResourceClaimTemplates by name."""


def finished(job: Job, beside: Beside) -> list[Problem]:
    """Return problems of the pods, and notes, of a job that has no other errors."""
    platform = replace(ANY_PLATFORM, pools=beside.pools)
    notes = notes_of(job, beside.claim_templates, platform)
    # Without its pools, which may add GPUs, the number of ranks of a job was not compared with its command.
    compared = job.spec.pools and not pool_template.missing(job, platform)
    of_commands = [Problem(*problem) for problem in commands.problems(job, platform)] if compared else []
    return [*_about_pools(job, beside.pools), *_of_pods(job, beside.pools), *of_commands, *notes]


def _about_pools(job: Job, pools: Mapping[str, PoolSpec]) -> Iterator[Problem]:
    """Yield a warning for a pool that no role uses, and if a pool in the files has a similar name. The pools of a job
    may be on the cluster only."""
    if job.spec.pool and "spec.pool" not in job.spec.pools:
        yield Problem("spec.pool", "no role uses it: each role names a pool of its own", "warning")
    for path, name in job.spec.pools.items():
        if name not in pools and (near := similar(name, list(pools))):
            message = f"no TrainingPool in these files is named {name}, did you mean {near}?"
            yield Problem(path, message, "warning")


def beside_errors(document: Mapping[str, Any], wrong: Sequence[Problem]) -> list[Problem]:
    """Return problems of the pods of a job that has other errors, without the consequences of these errors.

    A value with an error is left out, so it may be missing elsewhere: problems of fields with its name are dropped."""
    if any(problem.path in ("spec.framework", "spec.roles", "kind", "apiVersion") for problem in wrong):
        return []  # little of what follows would be true
    reported = {name for problem in wrong for name in (_field(problem.path), problem.meant)}
    problems: list[Problem] = []
    if job := validation.without_errors(document):
        with contextlib.suppress(Exception):  # the checks expect a job that violates no rule
            problems += [Problem(*problem) for problem in job_pods.problems(job)]
            # A pool may have what is missing here, and so may fields with errors, for what is only a warning.
            problems += [problem for problem in _of_pods(job, {}) if problem.severity == "error"]
    return [problem for problem in problems if _field(problem.path) not in reported]


def _field(path: str) -> str:
    """Return the field of a path: `env` for `spec.roles.worker.env[0]`."""
    return path.rpartition(".")[2].partition("[")[0]


def _container(part: dict[str, Any], path: str, merged: Sequence[Manifest] | None) -> Iterator[Problem]:
    """Yield problems of the spec, a role or a pool."""
    yield from schema.problems(part.get("resources"), "ResourceRequirements", f"{path}.resources")
    if (content := part.get("template")) is not None:
        yield from schema.problems(content, "PodTemplateSpec", f"{path}.template", merged)
    variables = part.get("env")
    for number, variable in enumerate(variables if isinstance(variables, list) else ()):
        if isinstance(variable, dict):
            yield from schema.problems(variable.get("valueFrom"), "EnvVarSource", f"{path}.env[{number}].valueFrom")


# --- the pods of a job -----------------------------------------------------------------------------------------------

CONTAINER_LISTS = ("initContainers", "containers")


def _of_pods(job: Job, pools: Mapping[str, PoolSpec]) -> Iterator[Problem]:
    """Yield problems of the first pod of each role of a job that has no other errors.

    A role may have a pool that is not in the files. The pool may have what is missing here, so such problems are
    warnings.
    """
    platform = Platform(helper_image="helper", report_url="http://localhost", pools=pools)
    first = {(role, 0) for role, _ in job.spec.roles.items()}
    pods = job_pods.objects(job, Status(), platform, first).pods
    reported = set()
    for pod in pods:
        pool = job.spec.pool_of(pod["metadata"]["labels"][ROLE_LABEL])
        for problem in _of_pod(job, pod):
            if pool and pool not in pools:
                unless = f"unless pool {pool} has it, which is not in these files"
                problem = problem._replace(message=f"{problem.message} ({unless})", severity="warning")
            if problem not in reported:
                reported.add(problem)
                yield problem


def _of_pod(job: Job, pod: Manifest) -> Iterator[Problem]:
    """Yield problems at the places of the manifest that the parts of a pod come from."""
    role = pod["metadata"]["labels"][ROLE_LABEL]
    volumes = [volume["name"] for volume in pod["spec"].get("volumes") or ()]
    containers = {(kind, item["name"]): item for kind in CONTAINER_LISTS for item in pod["spec"].get(kind) or ()}
    for layer, part in ((f"spec.roles.{role}", job.spec.roles[role]), ("spec", job.spec)):
        written: Any = (part.template or {}).get("spec") or {}
        path = f"{layer}.template.spec"
        for number, volume in enumerate(written.get("volumes") or ()):
            if volumes.count(volume["name"]) > 1:
                message = f"allranks adds a volume named {volume['name']}: rename this one"
                yield Problem(f"{path}.volumes[{number}].name", message)
        for kind in CONTAINER_LISTS:
            for number, container in enumerate(written.get(kind) or ()):
                merged = containers[kind, container["name"]]
                yield from _of_container(container, merged, volumes, f"{path}.{kind}[{number}]")


def _of_container(written: Manifest, merged: Manifest, volumes: list[str], path: str) -> Iterator[Problem]:
    if not merged.get("image"):  # the image of the training container is checked before
        yield Problem(
            f"{path}.image", f"an image is needed: container {merged['name']} runs beside the training container"
        )
    mounted = {mount["name"] for mount in merged.get("volumeMounts") or ()}
    for number, mount in enumerate(written.get("volumeMounts") or ()):
        if mount["name"] in mounted and mount["name"] not in volumes:
            yield Problem(f"{path}.volumeMounts[{number}].name", _no_volume(mount["name"], volumes))


def _no_volume(name: str, volumes: list[str]) -> str:
    names = [volume for volume in volumes if not volume.startswith("allranks-")]
    if near := similar(name, names):
        return f"no volume is named {name}, did you mean {near}?"
    existing = f"; the pod has {', '.join(names)}" if names else ""
    return f"no volume is named {name}: add it under volumes of the pod template{existing}"


# --- documents of other kinds ----------------------------------------------------------------------------------------


def misspelt_kind(document: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a document whose kind is probably a misspelt kind of allranks; None for other kinds."""
    kind = str(document.get("kind"))
    ours = (KIND, POOL, SWEEP)
    if kind in ours:
        return None
    if near := similar(kind, ours):
        return Problem("kind", f"there is no kind {kind}, did you mean {near}?")
    if str(document.get("apiVersion", "")).partition("/")[0] == GROUP:
        return Problem("kind", f"there is no kind {kind} in {GROUP}: use {KIND}, {SWEEP} or {POOL}")
    return None
