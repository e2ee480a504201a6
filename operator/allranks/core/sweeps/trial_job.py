"""The DistributedTraining of a trial: the template with the values of the parameters."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from allranks.api import job, sweep, sweep_values
from allranks.api.job import API_VERSION
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import Trial
from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import SWEEP_LABEL

TRIAL_LABEL = "allranks.dev/trial"
_REFERENCE = re.compile(r"\$\$|\$\(([^()$]+)\)")
"""Kubernetes' own syntax: $(NAME), and $$ for a dollar sign."""


def name(of: Sweep, number: int, runs: int) -> str:
    """The name of a trial's job in its first or in a later run."""
    return f"{of.name}-{number}" + (f"-r{runs}" if runs else "")


def manifest(of: Sweep, trial: Trial) -> Manifest:
    """The job of a trial, owned by the sweep. All runs of a trial share a folder for checkpoints."""
    metadata = {**_metadata(of, trial), "ownerReferences": [_owner(of)]}
    return _document(metadata, _spec(of, trial.parameters, name(of, trial.number, 0)))


def best(of: Sweep, parameters: Mapping[str, str]) -> Manifest:
    """A job with the parameters of the best trial, ready to run. It starts without checkpoints, in its own folder."""
    called = f"{of.name}-best"
    return _document(_named(of, called), _spec(of, parameters, called))


def promoted(of: Sweep, trial: Trial, called: str) -> Manifest:
    """A job that continues a trial from its checkpoints, in a folder of its own."""
    spec = _spec(of, trial.parameters, called)
    return _document(_named(of, called), {**spec, "resumeFrom": trial.job})


def continued(of: Sweep, trial: Trial, called: str) -> Manifest:
    """A job that continues a trial in the folder of the trial, for a trial whose job is deleted."""
    return _document(_named(of, called), _spec(of, trial.parameters, name(of, trial.number, 0)))


def _named(of: Sweep, called: str) -> Manifest:
    """The metadata of a job that does not belong to the sweep."""
    own = of.spec.template.metadata
    return {"name": called} | ({"labels": dict(own.labels)} if own and own.labels else {})


def _document(metadata: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": job.KIND, "metadata": metadata, "spec": spec}


def _spec(of: Sweep, parameters: Mapping[str, str], folder: str) -> Manifest:
    """The template with the values in `command`, `args` and `env`. `folder`: below that of the checkpoints."""
    spec = copy.deepcopy(of.template)
    for container in _containers(spec):
        _substitute(container, parameters)
    variables = {sweep_values.variable(key): value for key, value in parameters.items()}
    env = [{"name": key, "value": _escaped(value)} for key, value in variables.items()]
    spec["env"] = [*env, *(each for each in spec.get("env") or () if each.get("name") not in variables)]
    if isinstance(checkpoint := spec.get("checkpoint"), dict):
        below = "/".join(part for part in (checkpoint.get("subPath"), folder) if part)
        spec["checkpoint"] = {**checkpoint, "subPath": below}
    return spec


def _metadata(of: Sweep, trial: Trial) -> Manifest:
    own = of.spec.template.metadata
    labels = {**((own and own.labels) or {}), SWEEP_LABEL: of.name, TRIAL_LABEL: str(trial.number)}
    out: Manifest = {"name": trial.job, "namespace": of.metadata.namespace, "labels": labels}
    return out | ({"annotations": dict(own.annotations)} if own and own.annotations else {})


def _owner(of: Sweep) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": sweep.KIND,
        "name": of.name,
        "uid": of.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _containers(spec: Manifest) -> list[Manifest]:
    """The spec, its roles, and the containers of their templates, as far as they are mappings."""
    out = [spec, *(spec.get("roles") or {}).values()]
    for part in list(out):
        inner = ((part or {}).get("template") or {}).get("spec") or {}
        out += [*(inner.get("containers") or ()), *(inner.get("initContainers") or ())]
    return [part for part in out if isinstance(part, dict)]


def _substitute(container: Manifest, parameters: Mapping[str, str]) -> None:
    for field in ("command", "args"):
        if isinstance(container.get(field), list):
            container[field] = [_replaced(text, parameters) for text in container[field]]
    for variable in container.get("env") or ():
        if isinstance(variable, dict) and "value" in variable:
            variable["value"] = _replaced(variable["value"], parameters)


def _replaced(text: Any, parameters: Mapping[str, str]) -> Any:
    """References to other names stay for the kubelet."""

    def value(found: re.Match[str]) -> str:
        return _escaped(parameters[found[1]]) if found[1] in parameters else found[0]

    return _REFERENCE.sub(value, text) if isinstance(text, str) else text


def _escaped(value: str) -> str:
    return value.replace("$", "$$")
