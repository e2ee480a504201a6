"""Conventions of the Kubernetes API that the schemas keep."""

from __future__ import annotations

from typing import Any

from allranks.api.crd import RESOURCES, root_schema
from allranks.frameworks import FRAMEWORKS


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
