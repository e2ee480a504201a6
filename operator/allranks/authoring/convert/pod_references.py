"""Labels, annotations and host names of the other operators in pod templates: what stands for them here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from allranks.authoring.convert.draft import Draft
from allranks.core.facts.naming import INDEX_LABEL, JOB_LABEL, ROLE_LABEL

_OPERATORS = (
    r"(?:(?:\w+\.)?training\.kubeflow\.org|kubeflow\.org|jobset\.sigs\.k8s\.io|batch\.kubernetes\.io|volcano\.sh|kubedl\.io|"
    r"ray\.io|leaderworkerset\.sigs\.k8s\.io)/"
)
_FRAMEWORKS = "(?:tf|pytorch|mpi|xgboost|paddle|jax)"
_LABELS = (
    (rf"{_OPERATORS}(?:job-name|jobset-name|cluster)|job-name|{_FRAMEWORKS}[-_]job[-_]name", JOB_LABEL),
    (rf"{_OPERATORS}(?:replica-index|job-completion-index|task-index)|{_FRAMEWORKS}-replica-index", INDEX_LABEL),
    (
        rf"{_OPERATORS}(?:replica-type|job-role|replicatedjob-name|task-spec|group|node-type)|{_FRAMEWORKS}-replica-type"
        "|mpi_role_type|mpi-job-role",
        ROLE_LABEL,
    ),
)
"""(label or annotation of another operator, label of allranks)"""
_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def replace(draft: Draft, path: str, values: list[Any]) -> None:
    """Replace references to labels that only the other operator sets, in variables, volumes and selectors.

    `values`: the pod template, and the fields of the training container. What has no counterpart is reported.
    """
    template = values[0] if isinstance(values[0], dict) else {}
    metadata = template.get("metadata") or {}
    users = {*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})}
    for reference in _field_references(values):
        _replace_field(draft, path, reference, users)
    for selector in _selectors(template.get("spec")):
        _replace_selector(draft, path, selector, users)


def counterpart(label: str) -> str | None:
    """Return the label of allranks that says the same as a label of another operator."""
    return next((ours for pattern, ours in _LABELS if re.fullmatch(pattern, label)), None)


def _replace_field(draft: Draft, path: str, reference: dict[str, Any], users: set[str]) -> None:
    match = _FIELD.fullmatch(str(reference.get("fieldPath")))
    if match is None or match[2] in users or match[2].startswith("allranks.dev/"):
        return
    if ours := counterpart(match[2]):
        reference["fieldPath"] = f"metadata.labels['{ours}']"
        text = f"{ours} here: the other operator set the {match[1].rstrip('s')} {match[2]}."
        draft.comment(("spec", "env"), text)
    else:
        text = (
            f"no pod has the {match[1].rstrip('s')} {match[2]} here, unless something else sets it: the value is empty"
        )
        draft.remark(("spec", "env"), f"{path}: {text}.")


def _field_references(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the `fieldRef` maps at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "fieldRef" and isinstance(item, dict):
                yield item
            else:
                yield from _field_references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _field_references(item)


def _replace_selector(draft: Draft, path: str, selector: dict[str, Any], users: set[str]) -> None:
    """Replace the labels of a selector of pods, such as in an anti-affinity."""
    labels = selector.get("matchLabels")
    labels = labels if isinstance(labels, dict) else {}
    expressions = [item for item in selector.get("matchExpressions") or () if isinstance(item, dict)]
    changed = False
    for label in [key for key in labels if key not in users]:
        if ours := counterpart(label):
            labels[ours] = _value(draft, ours, str(labels.pop(label)))
            changed = True
    for item in expressions:
        if (ours := counterpart(str(item.get("key")))) and item["key"] not in users:
            item["key"] = ours
            item["values"] = [_value(draft, ours, str(value)) for value in item.get("values") or ()]
            changed = True
    if changed:
        draft.comment(("spec", "template"), f"{path}: selectors of pods have the labels of allranks.")


def _value(draft: Draft, label: str, value: str) -> str:
    if label == JOB_LABEL:
        return draft.name
    return value.lower() if label == ROLE_LABEL else value


def _selectors(spec: Any) -> Iterator[dict[str, Any]]:
    if isinstance(spec, dict):
        for key, item in spec.items():
            if key == "labelSelector" and isinstance(item, dict):
                yield item
            else:
                yield from _selectors(item)
    elif isinstance(spec, list):
        for item in spec:
            yield from _selectors(item)


_HOSTS = r"(?:master|worker|ps|chief|launcher|evaluator|workers|node)-\d+\b"


def report_hosts(draft: Draft, path: str, texts: list[str]) -> None:
    """Report names of pods of the other operator in commands and variables: no pod has these names here."""
    name = draft.document["metadata"].get("name")
    if not name:
        return
    pattern = re.compile(rf"\b{re.escape(str(name))}-{_HOSTS}")
    for host in dict.fromkeys(match[0] for text in texts for match in pattern.finditer(text)):
        text = f"{path}: {host} was the name of a pod of the other operator, and no pod has it here: use $MASTER_ADDR"
        draft.remark(("spec", "roles"), f"{text}, or the names that `allranks render` shows.")
