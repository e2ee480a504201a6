"""Defaults of fields: the same in the types and in the CRD."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.crd import root_schema
from allranks.api.validation import parse, with_defaults
from support.builders import manifest

MPI = {"implementation": "OpenMPI", "slotsPerWorker": "Auto"}
SPMD = {"ranks": ["worker"], "services": None, "scope": None, "processesPerPod": "Auto", "port": 29500}
SMALLEST = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "DistributedTraining",
    "metadata": {"name": "penguins"},
    "spec": {"framework": "pytorch", "image": "me/train:1", "roles": {"worker": {}}},
}


def test_the_smallest_job_with_its_defaults():
    assert with_defaults(SMALLEST, parse(SMALLEST))["spec"] == {
        "framework": "pytorch",
        "image": "me/train:1",
        "roles": {"worker": {"replicas": 1}},
        "restart": {"maxRestarts": 3, "backoffSeconds": 10},
        "suspend": False,
        "cleanPodPolicy": "Running",
        "startupDeadlineSeconds": 600,
        "scheduling": {},
    }


def test_a_job_without_a_namespace_is_in_default():
    assert parse(SMALLEST).namespace == "default"


@pytest.mark.parametrize(
    ("fields", "block", "expected"),
    [
        ({}, "pytorch", {"backend": "Auto", "processesPerNode": "Auto", "port": 29500}),
        ({"framework": "tensorflow"}, "tensorflow", {"port": 2222}),
        ({"framework": "jax"}, "jax", {"port": 8476}),
        (
            {"framework": "ray", "roles": {"head": 1}},
            "ray",
            {"port": 6379, "dashboardPort": 8265, "clientPort": 10001, "headRunsTasks": False, "idleSeconds": None},
        ),
        ({"framework": "mpi", "roles": {"worker": 1, "launcher": 1}}, "mpi", MPI),
        ({"framework": "spmd"}, "spmd", SPMD),
        ({"framework": "horovod"}, "horovod", {"controller": "Gloo", "slotsPerWorker": "Auto", "port": 29400}),
    ],
    ids=["pytorch", "tensorflow", "jax", "ray", "mpi", "spmd", "horovod"],
)
def test_options_of_a_framework_have_defaults_with_an_empty_block_and_without_one(fields, block, expected):
    without, empty = parse(manifest(**fields)), parse(manifest(**fields, **{block: {}}))
    assert without.spec.options.model_dump(by_alias=True) == expected
    assert empty.spec.options.model_dump(by_alias=True) == expected


@pytest.mark.parametrize(
    ("fields", "place", "expected"),
    [
        ({"checkpoint": {"claim": "a"}}, ("checkpoint",), {"claim": "a", "path": "/checkpoints"}),
        ({"restart": {"maxRestarts": 1}}, ("restart",), {"maxRestarts": 1, "backoffSeconds": 10}),
        ({"scheduling": {"priorityClassName": "a"}}, ("scheduling",), {"priorityClassName": "a"}),
        ({"roles": {"worker": {"image": "a"}}}, ("roles", "worker"), {"image": "a", "replicas": 1}),
    ],
    ids=["checkpoint", "restart", "scheduling", "a role"],
)
def test_a_partly_filled_block_has_defaults_for_the_rest(fields, place, expected):
    document = manifest(**fields)
    found: Any = with_defaults(document, parse(document))["spec"]
    for step in place:
        found = found[step]
    assert found == expected


def api_server(schema: dict[str, Any], value: Any) -> Any:
    """Sets defaults as the API server does: the default of an absent field first, then those of the fields below."""
    if isinstance(value, dict):
        out = dict(value)
        for name, child in schema.get("properties", {}).items():
            if name not in out and "default" in child:
                out[name] = child["default"]
            if name in out:
                out[name] = api_server(child, out[name])
        if "additionalProperties" in schema:
            out = {name: api_server(schema["additionalProperties"], inner) for name, inner in out.items()}
        return out
    if isinstance(value, list) and "items" in schema:
        return [api_server(schema["items"], item) for item in value]
    return value


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pytorch": {}, "checkpoint": {"claim": "a"}},
        {"framework": "tensorflow", "tensorflow": {}, "roles": {"chief": {}, "ps": {}}},
        {"framework": "horovod", "horovod": {}, "restart": {"rules": [{"exitCodes": [1], "action": "Fail"}]}},
    ],
    ids=["the smallest job", "pytorch", "tensorflow", "horovod"],
)
def test_the_API_server_sets_the_same_defaults_as_the_types(fields):
    document = manifest(**fields)
    stored = api_server(root_schema(), document)
    assert stored["spec"] == with_defaults(document, parse(document))["spec"]
    assert with_defaults(stored, parse(stored)) == stored, "parsing a stored object changes nothing"
