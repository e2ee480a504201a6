"""The spelling of version 0.1: refused in manifests with what to write, read in stored objects."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from allranks.api import old_form
from allranks.api.crd import RESOURCES, root_schema
from allranks.api.validation import parse
from allranks.errors import InvalidManifest
from allranks.frameworks import FRAMEWORKS
from allranks.kube import job_codec
from support.builders import manifest

RULES = {"rules": [{"exitCodes": [1], "action": "restartUncounted"}]}
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"restart": RULES}, "spec.restart.rules[0].action", "restartUncounted is the old form: write RestartUncounted"),
    ({"restart": {"scope": "pod"}}, "spec.restart.scope", "pod is the old form: write Pod"),
    (
        {"hang": {"timeoutSeconds": 9, "action": "restart"}},
        "spec.hang.action",
        "restart is the old form: write Restart",
    ),
    ({"success": "all"}, "spec.success", "all is the old form: write All"),
    ({"scheduling": {"gang": "auto"}}, "spec.scheduling.gang", "auto is the old form: write Auto"),
    ({"pytorch": {"backend": "nccl"}}, "spec.pytorch.backend", "nccl is the old form: write NCCL"),
    ({"pytorch": {"processesPerNode": "auto"}}, "spec.pytorch.processesPerNode", "auto is the old form: write Auto"),
    (
        {"framework": "horovod", "horovod": {"controller": "gloo"}},
        "spec.horovod.controller",
        "gloo is the old form: write Gloo",
    ),
    (
        {"framework": "horovod", "horovod": {"slotsPerWorker": "auto"}},
        "spec.horovod.slotsPerWorker",
        "auto is the old form: write Auto",
    ),
    (
        {"progress": {"stragglerFactor": 2.5}},
        "spec.progress.stragglerFactor",
        "is the old form: write stragglerPercent: 250",
    ),
]
NAMES = [path for _, path, _ in CASES]


@pytest.mark.parametrize(("fields", "path", "message"), CASES, ids=NAMES)
def test_a_manifest_in_the_old_form_is_refused_with_what_to_write(fields, path, message):
    with pytest.raises(InvalidManifest) as refused:
        parse(manifest(**fields))
    assert refused.value.problems == [(path, f"{message} (allranks convert rewrites the file)")]


@pytest.mark.parametrize(("fields", "path", "message"), CASES, ids=NAMES)
def test_a_stored_job_in_the_old_form_is_read(fields, path, message):
    stored = manifest(**fields)
    before = copy.deepcopy(stored)
    job = job_codec.job(stored)
    assert stored == before
    assert job_codec.job_of(stored) == job
    today = parse({**stored, "spec": old_form.spec(stored["spec"])})
    assert job.spec == today.spec


def test_a_spec_in_todays_form_is_the_same_object():
    stored = manifest(restart={"rules": [{"exitCodes": [1], "action": "Fail"}]}, progress={})["spec"]
    assert old_form.spec(stored) is stored


@pytest.mark.parametrize("wrong", [None, 3, "x", [], {"restart": 5}, {"restart": {"rules": "x"}}, {"progress": []}])
def test_wrong_types_are_left_to_validation(wrong):
    assert old_form.spec(wrong) is wrong
    assert old_form.status({"times": wrong, "conditions": wrong}) is not None


def test_every_field_with_a_new_form_has_a_case_here():
    steps = {path.removeprefix("spec.").replace("[0]", ".[]") for path in NAMES} - {"progress.stragglerFactor"}
    assert {".".join(path) for path in old_form.values()} == steps


def enums(schema: dict[str, Any], path: str) -> list[tuple[str, str]]:
    """(path, value) of every value that the schema names."""
    found = [(path, value) for value in schema.get("enum", ())]
    for name, child in schema.get("properties", {}).items():
        found += enums(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += enums(schema[key], f"{path}.{key}")
    return found


def test_every_value_is_in_upper_camel_case_but_names_of_frameworks_and_roles():
    roles = {role for framework in FRAMEWORKS.values() for role in framework.roles}
    for kind in RESOURCES:
        for path, value in enums(root_schema(kind), ""):
            place = path.replace(".spec.template.spec", ".spec")  # the job of a sweep
            if place == ".spec.framework" or (place == ".spec.success" and value in roles):
                continue
            assert value[0].isupper(), path
            assert value.isalpha(), path


def test_no_field_of_a_spec_is_a_float():
    """Floats differ between encoders, so the API conventions forbid them in spec."""

    def floats(schema: dict[str, Any], path: str) -> list[str]:
        children = [(f"{path}.{name}", child) for name, child in schema.get("properties", {}).items()]
        children += [
            (path, schema[key]) for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)
        ]
        return [path] * (schema.get("type") == "number") + [
            each for at, child in children for each in floats(child, at)
        ]

    assert [floats(root_schema(kind)["properties"]["spec"], "spec") for kind in RESOURCES] == [[]] * len(RESOURCES)


def test_a_condition_needs_a_reason_and_a_message():
    [condition] = [root_schema()["properties"]["status"]["properties"]["conditions"]["items"]]
    assert {"reason", "message"} <= set(condition["required"])
    assert condition["properties"]["reason"]["minLength"] == 1


@pytest.mark.parametrize(
    ("given", "reason"), [({}, "Unknown"), ({"reason": ""}, "Unknown"), ({"reason": "Evicted"}, "Evicted")]
)
def test_a_stored_condition_without_reason_or_message_is_read(given, reason):
    condition = {"type": "Running", "status": "True", "lastTransitionTime": "2026-03-04T10:00:00Z", **given}
    job = {**manifest(), "status": {"conditions": [condition]}}
    [found] = job_codec.status(job).conditions
    assert (found.reason, found.message) == (reason, "")
