"""Objects that contain the manifests of jobs: workflows of Argo, experiments of Katib, AppWrappers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from allranks.api.job import GROUP, VERSION
from allranks.core.facts.naming import INDEX_LABEL, ROLE_LABEL, TRAINER

_WORKFLOWS = frozenset({"Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"})


@dataclass
class Slot:
    """The manifest of a job inside of another object."""

    path: str
    manifest: dict[str, Any] | None
    """None: it cannot be read."""
    fill: Callable[[dict[str, Any], str], None]
    """Puts the converted job in its place. The second argument is its YAML with comments."""
    restore: Callable[[str], str] = str
    """Replaces what stands for placeholders of the outer object in a text."""
    remarks: list[str] = field(default_factory=list)
    """What a person has to do or look at, beside the job."""


def is_wrapper(document: Mapping[str, Any]) -> bool:
    group, _, _ = str(document.get("apiVersion", "")).rpartition("/")
    kind = document.get("kind")
    if group == "argoproj.io" and kind in _WORKFLOWS:
        return any("manifest" in template["resource"] for template in _resource_templates(document))
    return (group, kind) in {
        ("kubeflow.org", "Experiment"),
        ("workload.codeflare.dev", "AppWrapper"),
        ("mcad.ibm.com", "AppWrapper"),
    }


def slots(document: dict[str, Any]) -> list[Slot]:
    """Return the places of manifests in a wrapper. `fill` changes the document."""
    if document.get("kind") == "Experiment":
        return _of_experiment(document)
    return [slot for template in _resource_templates(document) if (slot := _of_template(template))]


def components(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects in an AppWrapper, with its labels that name a queue."""
    spec = document.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    resources = spec.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    listed = [*(spec.get("components") or ()), *(resources.get("GenericItems") or resources.get("Items") or ())]
    objects = [item.get("template") or item.get("generictemplate") for item in listed if isinstance(item, dict)]
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    labels = {key: text for key, text in (metadata.get("labels") or {}).items() if key.startswith("kueue.x-k8s.io/")}
    out = []
    for item in objects:
        if isinstance(item, dict):
            inner = dict(item.get("metadata") or {})
            inner.setdefault("namespace", metadata.get("namespace"))
            inner["labels"] = {**labels, **(inner.get("labels") or {})}
            out.append({**item, "metadata": {key: value for key, value in inner.items() if value}})
    return out


# --- Argo -------------------------------------------------------------------------------------------------------------


def _resource_templates(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    spec = document.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    spec = spec.get("workflowSpec") or spec
    for template in spec.get("templates") or ():
        if isinstance(template, dict) and isinstance(template.get("resource"), dict):
            yield template


_PLACEHOLDER = re.compile(r"\{\{.*?\}\}")
_OF_STATUS = re.compile(r"\bstatus\b")


def _of_template(template: dict[str, Any]) -> Slot | None:
    resource = template["resource"]
    path = f"template {template.get('name')}: resource.manifest"
    text = str(resource.get("manifest") or "")
    placeholders = list(dict.fromkeys(_PLACEHOLDER.findall(text)))
    tokens = {f"zz{number}zz": placeholder for number, placeholder in enumerate(placeholders)}
    for token, placeholder in tokens.items():
        text = text.replace(placeholder, token)

    def restore(converted: str) -> str:
        for token, placeholder in tokens.items():
            converted = converted.replace(token, placeholder)
        return converted

    try:
        manifest = yaml.safe_load(text)
    except yaml.YAMLError:
        manifest = None
    if isinstance(manifest, dict) and resource.get("action") in ("delete", "get") and "spec" not in manifest:
        return None

    def fill(_job: dict[str, Any], converted: str) -> None:
        resource["manifest"] = converted
        for name, phase in (("successCondition", "Succeeded"), ("failureCondition", "Failed")):
            if resource.get(name):
                resource[name] = f"status.phase == {phase}"

    remarks = ["the service account of the workflow needs permissions for distributedtrainings.allranks.dev"]
    outputs = template.get("outputs")
    for parameter in (outputs if isinstance(outputs, dict) else {}).get("parameters") or ():
        source = parameter.get("valueFrom") if isinstance(parameter, dict) else None
        expression = " ".join(map(str, source.values())) if isinstance(source, dict) else ""
        if _OF_STATUS.search(expression):
            name = parameter.get("name")
            remarks.append(f"the output {name} reads {expression}, a field of the other operator: write status.phase")
    return Slot(path, manifest if isinstance(manifest, dict) else None, fill, restore, remarks)


# --- Katib ------------------------------------------------------------------------------------------------------------


def _condition(kind: str) -> str:
    return f'status.conditions.#(type=="{kind}")#|#(status=="True")#'


def _of_experiment(document: dict[str, Any]) -> list[Slot]:
    spec = document.get("spec")
    template = spec.get("trialTemplate") if isinstance(spec, dict) else None
    if not isinstance(template, dict):
        return []
    trial = template.get("trialSpec")
    # A trial gets its name from Katib.
    manifest = {"metadata": {"name": "trial"}, **trial} if isinstance(trial, dict) else None

    def fill(job: dict[str, Any], _text: str) -> None:
        inner = dict(job)
        if isinstance(trial, dict) and "metadata" not in trial:
            del inner["metadata"]
        template["trialSpec"] = inner
        template["successCondition"], template["failureCondition"] = _condition("Complete"), _condition("Failed")
        template["primaryContainerName"] = TRAINER
        first = next(iter(job["spec"].get("roles") or {"worker": {}}))
        template["primaryPodLabels"] = {ROLE_LABEL: first, INDEX_LABEL: "0"}

    remarks = [
        f"Katib has to know DistributedTraining.{VERSION}.{GROUP}: add it to trialResources of its configuration and "
        "to the permissions of its controller, or write a TrainingSweep, which needs no Katib"
    ]
    return [Slot("spec.trialTemplate.trialSpec", manifest, fill, str, remarks)]
