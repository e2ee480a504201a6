"""All checks of one manifest that the CRD's schema and rules do not contain."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.api import validation
from allranks.api.job import Job
from allranks.api.pool import PoolSpec
from allranks.cli.checks import pods, quantities, schema, template
from allranks.cli.checks.problem import Problem, below
from allranks.core.facts import pod_template
from allranks.core.facts.model import ANY_PLATFORM, Manifest
from allranks.core.objects import pods as job_pods
from allranks.core.objects.notes import notes_of


def written(document: Mapping[str, Any], job: Job | None = None) -> list[Problem]:
    """Problems inside the parts that Kubernetes defines: templates, resources, the sources of variables and volumes.

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
    """As `written`, for a TrainingPool."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return []
    out = list(_container(spec, "spec", []))  # what a pool does not have, its jobs may have
    out += template.tolerations(spec, "spec")
    if spec.get("sharedMemory") is not None:
        out += quantities.problems("spec.sharedMemory", "sharedMemory", spec["sharedMemory"])
    for name, amount in spec["rdma"].items() if isinstance(spec.get("rdma"), dict) else ():
        out += quantities.problems(below("spec.rdma", str(name)), str(name), amount)
    return out


@dataclass(frozen=True, slots=True)
class Beside:
    """What the files have beside a job."""

    pools: Mapping[str, PoolSpec] = field(default_factory=dict)
    claim_templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name."""
    parameters: Sequence[str] = ()
    """Names of the parameters of the sweep whose trials are this job."""


def finished(job: Job, beside: Beside) -> list[Problem]:
    """Problems of the pods, and notes, of a job that has no other errors."""
    notes = (Problem(note.path, note.message, note.severity) for note in notes_of(job, beside.claim_templates))
    pool = beside.pools.get(job.spec.pool or "")
    return [*_misspelt_pool(job, beside.pools), *pods.problems(job, pool, beside.parameters), *notes]


def _misspelt_pool(job: Job, pools: Mapping[str, PoolSpec]) -> Iterator[Problem]:
    """The pool of a job may be on the cluster only; a similar name in the files is probably the right one."""
    wanted = job.spec.pool
    if wanted and wanted not in pools and (near := schema.similar(wanted, list(pools))):
        what = f"no TrainingPool in these files is named {wanted}, did you mean {near}?"
        yield Problem("spec.pool", what, "warning")


def beside_errors(document: Mapping[str, Any], wrong: Sequence[Problem]) -> list[Problem]:
    """Problems of the pods of a job that has other errors, as far as these are not the reason: of fields with other
    names, because a value that is left out may be missing elsewhere."""
    if any(problem.path in ("spec.framework", "spec.roles", "kind", "apiVersion") for problem in wrong):
        return []  # little of what follows would be true
    reported = {name for problem in wrong for name in (_field(problem.path), *_meant(problem.message))}
    found: list[Problem] = []
    if job := validation.without_errors(document):
        with contextlib.suppress(Exception):  # the checks expect a job that violates no rule
            found += [Problem(*problem) for problem in job_pods.problems(job)]
            # Its pool may have what is missing here, and so may fields with errors, for what is only a warning.
            found += [] if job.spec.pool else [one for one in pods.problems(job, None) if one.severity == "error"]
    return [problem for problem in found if _field(problem.path) not in reported]


def _field(path: str) -> str:
    """`env` for `spec.roles.worker.env[0]`."""
    return path.rpartition(".")[2].partition("[")[0]


def _meant(message: str) -> list[str]:
    """The field that a misspelt or misplaced one is meant to be."""
    return re.findall(r"(?:did you mean |belongs under .*\.)(\w+)", message)


def _container(part: dict[str, Any], path: str, merged: Sequence[Manifest] | None) -> Iterator[Problem]:
    """The spec, a role or a pool."""
    yield from schema.problems(part.get("resources"), "ResourceRequirements", f"{path}.resources")
    if (content := part.get("template")) is not None:
        yield from schema.problems(content, "PodTemplateSpec", f"{path}.template", merged)
        yield from template.problems(content, f"{path}.template")
    variables = part.get("env")
    for number, variable in enumerate(variables if isinstance(variables, list) else ()):
        if isinstance(variable, dict):
            yield from schema.problems(variable.get("valueFrom"), "EnvVarSource", f"{path}.env[{number}].valueFrom")
