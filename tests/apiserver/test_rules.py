"""The rules of the CRD on a real API server: each refuses at creation and at changes, names the field and the cure.

The cases are those of the unit tests, which evaluate the single rules; the API server has them merged.
"""

from __future__ import annotations

import copy
from typing import Any

from allranks.api.job import KIND
from support.api import ApiError, path
from support.controlplane import ControlPlane
from unit.api.test_changes import CHANGEABLE, FIXED, NEW_JOB, stored
from unit.api.test_validation import RULES, build


def refusal(control_plane: ControlPlane, namespace: str, manifest: dict[str, Any]) -> str:
    """What the API server says about a job; empty if it accepts the job."""
    document = copy.deepcopy(manifest)
    document["metadata"].pop("namespace", None)
    try:
        control_plane.api.request("POST", f"{path(KIND, namespace)}?dryRun=All", document)
    except ApiError as error:
        return error.message
    return ""


def names(said: str, field: str) -> bool:
    """Whether a message names the field. The API server itself names the role, `spec.roles[worker]: ...: env: ...`, and
    the item of a list, `spec.inputs[0]: ...: from: ...`."""
    role, _, below = field.partition("roles.")[2].partition(".")
    item, _, of_item = field.rpartition("].")
    in_role = bool(below) and f"roles[{role}]: " in said and f" {below}: " in said
    in_item = bool(item) and f"{item}]: " in said and f" {of_item}: " in said
    return field in said or in_role or in_item


def test_every_rule_refuses_at_creation_with_its_field(control_plane: ControlPlane, namespace: str) -> None:
    faults = []
    for name, bad, (field, message), good in RULES:
        said = refusal(control_plane, namespace, build(bad))
        if message not in said or not names(said, field):
            faults.append(f"{name}: {said!r} does not say {field}: {message}")
        if said := refusal(control_plane, namespace, build(good)):
            faults.append(f"{name}: a valid job is refused: {said}")
    assert not faults, "\n".join(faults)


def test_every_rule_refuses_a_change_with_its_field(control_plane: ControlPlane, namespace: str) -> None:
    api, faults = control_plane.api, []
    cases = [(name, before, after, field) for name, before, after, field in FIXED]
    cases += [(name, before, after, "") for name, before, after in CHANGEABLE]
    for number, (name, before, after, field) in enumerate(cases):
        document = {**build({}), "metadata": {"name": f"j{number}"}}
        there = api.create({**document, "spec": {**stored(before), "suspend": before.get("suspend", True)}}, namespace)
        changed = {**there, "spec": {**stored(after), "suspend": after.get("suspend", True)}}
        said = ""
        try:
            api.request("PUT", f"{path(KIND, namespace, f'j{number}')}?dryRun=All", changed)
        except ApiError as error:
            said = error.message
        if bool(said) != bool(field) or (field and not (names(said, field) and NEW_JOB in said)):
            faults.append(f"{name}: {said!r} does not say {field}: {NEW_JOB}")
    assert not faults, "\n".join(faults)


def test_two_broken_rules_are_named_in_one_answer(control_plane: ControlPlane, namespace: str) -> None:
    manifest = build({"success": "chief", "elastic": {"minReplicas": 1, "maxReplicas": 1}})
    said = refusal(control_plane, namespace, manifest)
    assert (
        "spec.success: names a role that this job does not have: use one of its roles, or All. "
        "spec.roles.worker.replicas: must be between" in said
    )
