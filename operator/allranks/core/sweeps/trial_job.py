"""The DistributedTraining of a trial: the template with the values of the parameters."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from allranks.api import job, sweep_values
from allranks.api.job import API_VERSION
from allranks.api.sweep import KIND as SWEEP_KIND
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import Trial
from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import SWEEP_LABEL, controller_reference

TRIAL_LABEL = "allranks.dev/trial"
_REFERENCE = re.compile(r"\$\$|\$\(([^()$]+)\)")
"""Kubernetes' own syntax: $(NAME), and $$ for a dollar sign."""


def name(sweep: Sweep, number: int, runs: int) -> str:
    """Return the name of a trial's job in its first or in a later run."""
    return f"{sweep.name}-{number}" + (f"-r{runs}" if runs else "")


def manifest(sweep: Sweep, trial: Trial) -> Manifest:
    """Return the job of a trial, owned by the sweep. All runs of a trial share a folder for checkpoints."""
    metadata = {
        **_metadata(sweep, trial),
        "ownerReferences": [controller_reference(SWEEP_KIND, sweep.name, sweep.metadata.uid)],
    }
    return _document(metadata, _spec(sweep, trial.parameters, name(sweep, trial.number, 0)))


def best(sweep: Sweep, parameters: Mapping[str, str]) -> Manifest:
    """Return a job with the parameters of the best trial, ready to run. It starts without checkpoints, in its own
    folder."""
    called = f"{sweep.name}-best"
    return _document(_named(sweep, called), _spec(sweep, parameters, called))


def promoted(sweep: Sweep, trial: Trial, called: str) -> Manifest:
    """Return a job that continues a trial from its checkpoints, in a folder of its own."""
    spec = _spec(sweep, trial.parameters, called)
    return _document(_named(sweep, called), {**spec, "resumeFrom": trial.job})


def continued(sweep: Sweep, trial: Trial, called: str) -> Manifest:
    """Return a job that continues a trial in the folder of the trial, for a trial whose job is deleted."""
    return _document(_named(sweep, called), _spec(sweep, trial.parameters, name(sweep, trial.number, 0)))


def _named(sweep: Sweep, called: str) -> Manifest:
    """Return the metadata of a job that does not belong to the sweep."""
    template = sweep.spec.template.metadata
    return {"name": called} | ({"labels": dict(template.labels)} if template and template.labels else {})


def _document(metadata: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": job.KIND, "metadata": metadata, "spec": spec}


def _spec(sweep: Sweep, parameters: Mapping[str, str], folder: str) -> Manifest:
    """Return the template with the values in `command`, `args` and `env`.

    `folder`: below the folder of the checkpoints.
    """
    spec = copy.deepcopy(sweep.template)
    for container in _containers(spec):
        _substitute(container, parameters)
    variables = {sweep_values.variable(key): value for key, value in parameters.items()}
    env = [{"name": key, "value": _escaped(value)} for key, value in variables.items()]
    spec["env"] = [*env, *(variable for variable in spec.get("env") or () if variable.get("name") not in variables)]
    if isinstance(checkpoint := spec.get("checkpoint"), dict):
        below = "/".join(part for part in (checkpoint.get("subPath"), folder) if part)
        spec["checkpoint"] = {**checkpoint, "subPath": below}
    return spec


def _metadata(sweep: Sweep, trial: Trial) -> Manifest:
    template = sweep.spec.template.metadata
    labels = {**((template and template.labels) or {}), SWEEP_LABEL: sweep.name, TRIAL_LABEL: str(trial.number)}
    out: Manifest = {"name": trial.job, "namespace": sweep.metadata.namespace, "labels": labels}
    return out | ({"annotations": dict(template.annotations)} if template and template.annotations else {})


def _containers(spec: Manifest) -> list[Manifest]:
    """Return the spec, its roles, and the containers of their templates, as far as they are mappings."""
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
    """Return the text with values of parameters. References to other names stay for the kubelet."""

    def value(reference: re.Match[str]) -> str:
        return _escaped(parameters[reference[1]]) if reference[1] in parameters else reference[0]

    return _REFERENCE.sub(value, text) if isinstance(text, str) else text


def _escaped(value: str) -> str:
    return value.replace("$", "$$")
