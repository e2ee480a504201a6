"""The CustomResourceDefinitions have a structural schema with bounds and descriptions, and `crds/` is up to date."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.api.crd import RESOURCES, crd, root_schema
from allranks.api.sweep_validation import parse_sweep
from allranks.api.validation import parse, parse_pool

FILES = Path(__file__).parents[3] / "crds"
Node = tuple[str, dict[str, Any]]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[Node]:
    """Every schema inside the schema, with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


ALL = [node for kind in RESOURCES for node in nodes(root_schema(kind))]
OWN = [(path, node) for path, node in ALL if path.startswith((".spec", ".status"))]


def opaque(node: dict[str, Any]) -> bool:
    return bool(node.get("x-kubernetes-preserve-unknown-fields"))


def test_each_file_in_crds_is_up_to_date_and_marked_as_generated():
    assert {file.stem for file in FILES.glob("*.yaml")} == {resource.plural for resource in RESOURCES.values()}
    for kind, resource in RESOURCES.items():
        text = (FILES / f"{resource.plural}.yaml").read_text()
        assert yaml.safe_load(text) == crd(kind), "run 'make generate'"
        assert text.startswith("# Generated from operator/allranks/api by `make generate`. Do not edit.\n")


def test_names_and_scope():
    spec = crd()["spec"]
    assert crd()["metadata"]["name"] == "distributedtrainings.allranks.dev"
    assert (spec["group"], spec["scope"]) == ("allranks.dev", "Namespaced")
    assert spec["names"] == {
        "kind": "DistributedTraining",
        "listKind": "DistributedTrainingList",
        "plural": "distributedtrainings",
        "singular": "distributedtraining",
        "shortNames": ["dt"],
        "categories": ["all"],
    }


def test_a_pool_is_cluster_scoped_and_has_no_status():
    definition = crd("TrainingPool")
    assert definition["metadata"]["name"] == "trainingpools.allranks.dev"
    assert definition["spec"]["scope"] == "Cluster"
    assert definition["spec"]["names"] == {
        "kind": "TrainingPool",
        "listKind": "TrainingPoolList",
        "plural": "trainingpools",
        "singular": "trainingpool",
        "shortNames": ["tp"],
    }
    (version,) = definition["spec"]["versions"]
    assert "subresources" not in version
    assert "status" not in version["schema"]["openAPIV3Schema"]["properties"]


@pytest.mark.parametrize("kind", RESOURCES)
def test_one_version_is_served_and_stored(kind):
    versions = crd(kind)["spec"]["versions"]
    assert [(v["name"], v["served"], v["storage"]) for v in versions] == [("v1alpha1", True, True)]


def test_status_and_scale_are_subresources():
    (version,) = crd()["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.roles.worker.replicas",
            "statusReplicasPath": ".status.roles.worker.active",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_kubectl_get_prints_framework_phase_ready_restarts_progress_eta_age_reason():
    (version,) = crd()["spec"]["versions"]
    columns = version["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["Framework", "Phase", "Ready", "Restarts", "Progress", "ETA", "Age", "Reason"]
    assert all(column["description"] for column in columns)


def test_kubectl_get_prints_gpu_count_age_of_a_pool():
    (version,) = crd("TrainingPool")["spec"]["versions"]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == ["GPU", "Count", "Age"]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("DistributedTraining", "columns"),
        ("DistributedTraining", "scale"),
        ("TrainingPool", "columns"),
        ("TrainingSweep", "columns"),
    ],
)
def test_every_path_that_kubectl_reads_is_that_of_a_field(kind, place):
    (version,) = crd(kind)["spec"]["versions"]
    paths = (
        [column["jsonPath"] for column in version["additionalPrinterColumns"]]
        if place == "columns"
        else list(version["subresources"]["scale"].values())
    )
    for path in paths:
        if path.startswith(".metadata."):
            continue
        node = root_schema(kind)
        for step in re.sub(r"\[\?\(@\.(\w+)==.*?\)\]", r".\1!", path).removeprefix(".").split("."):
            if step.endswith("!"):  # selects an item of a list by one of its fields
                assert step.removesuffix("!") in node["items"]["properties"]
                node = node["items"]
                continue
            node = node.get("properties", {}).get(step) or node["additionalProperties"]
        assert node["type"] in ("string", "integer", "number")


def test_every_schema_has_a_type():
    """A structural schema needs `type` everywhere, except with int-or-string, and for values of any type."""
    for path, node in ALL:
        if re.fullmatch(r"\.spec\.parameters\{\}\.(values\[\]|(?!int\.)\w+\.(?!points)\w+)", path):
            assert set(node) - {"description"} == {"x-kubernetes-preserve-unknown-fields"}
        elif node.get("x-kubernetes-int-or-string"):
            assert "type" not in node, path
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        else:
            assert node.get("type") in {"object", "array", "string", "integer", "number", "boolean"}, path
            assert "anyOf" not in node, path


STRUCTURAL = {
    *("description", "type", "format", "default", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum"),
    *("exclusiveMinimum", "minItems", "maxItems", "maxProperties", "required", "properties", "items"),
    *("additionalProperties", "anyOf", "x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields"),
    *("x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
}


def test_the_schema_has_no_keyword_that_Kubernetes_rejects():
    """No references, unions, titles, constants, and no additionalProperties beside properties or as a boolean."""
    for path, node in ALL:
        assert set(node) <= STRUCTURAL, path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert isinstance(node.get("additionalProperties", {}), dict), path
        assert isinstance(node.get("exclusiveMinimum", False), bool), path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path


def test_the_schema_of_metadata_is_its_type_only():
    """The API server rejects a CRD that restricts more of metadata than its type, name and generateName."""
    assert all(set(root_schema(kind)["properties"]["metadata"]) == {"type"} for kind in RESOURCES)


def test_every_string_is_bounded():
    for path, node in ALL:
        if node.get("type") == "string" and "enum" not in node and node.get("format") != "date-time":
            assert node.get("maxLength"), path


def test_every_int_or_string_is_bounded():
    for path, node in ALL:
        if node.get("x-kubernetes-int-or-string"):
            assert node.get("maxLength"), path


def test_every_list_is_bounded():
    for path, node in ALL:
        if node.get("type") == "array":
            assert node.get("maxItems"), path
            assert node.get("items"), path


def test_every_map_is_bounded():
    for path, node in ALL:
        if node.get("type") == "object" and "additionalProperties" in node:
            assert node.get("maxProperties"), path


def test_every_whole_number_is_bounded():
    for path, node in ALL:
        if node.get("type") == "integer":
            assert {"minimum", "maximum"} <= set(node), path


def test_every_object_has_fields_or_is_a_map_or_is_opaque():
    for path, node in OWN:
        if node["type"] == "object" if "type" in node else False:
            assert "properties" in node or "additionalProperties" in node or opaque(node), path


def test_every_field_has_a_description_for_kubectl_explain():
    for path, node in ALL:
        if path.endswith(("[]", "{}")) or path == ".metadata":
            continue
        if path:  # that of the kind ends with an example
            assert node.get("description", "").endswith("."), path
            assert len(node["description"]) >= 25, f"{path}: {node['description']}"
        if node.get("default", {}) != {}:
            assert "Default: " in node["description"], path


@pytest.mark.parametrize("kind", RESOURCES)
def test_the_description_of_a_kind_has_an_example_that_is_valid(kind):
    """`kubectl explain` prints it."""
    example = yaml.safe_load(root_schema(kind)["description"].split("Example:")[1])
    {"DistributedTraining": parse, "TrainingPool": parse_pool, "TrainingSweep": parse_sweep}[kind](example)


def test_a_default_is_named_in_the_description_if_the_type_does_not_name_it():
    schema = root_schema()["properties"]["spec"]["properties"]
    assert schema["restart"]["properties"]["maxRestarts"]["description"].endswith("Default: 3.")
    assert schema["suspend"]["description"].endswith("Default: false.")


def test_status_has_no_defaults():
    assert [path for path, node in ALL if path.startswith(".status") and "default" in node] == []


def test_no_default_is_null():
    """The API server rejects a null default of a field that is not nullable."""
    assert [path for path, node in ALL if node.get("default", 0) is None] == []


def test_only_parts_of_the_Kubernetes_API_are_opaque():
    numbers = {"alpha", "beta", "max", "mean", "min", "mu", "scale", "shape", "sigma", "step"}  # or texts that are one
    assert sorted({path.rsplit(".", 1)[1] for path, node in ALL if opaque(node)} - numbers) == [
        "hostPath",
        "template",
        "valueFrom",
        "values[]",
        "volume",
    ]


def test_every_rule_is_one_sentence_and_points_at_a_field():
    for path, node in ALL:
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"].strip() == rule["message"], path
            assert "\n" not in rule["message"], path
            assert not rule["message"].endswith("."), path
            here = node
            for step in rule.get("fieldPath", "").removeprefix(".").split(".") if rule.get("fieldPath") else ():
                here = here.get("properties", {}).get(step) or here["additionalProperties"]


def test_rules_of_items_of_a_list_do_not_compare_with_an_earlier_value():
    """The API server refuses a CRD with such a rule: it cannot tell which item was which."""

    def items(schema, in_list=False):
        if in_list:
            yield from schema.get("x-kubernetes-validations", ())
        for child in schema.get("properties", {}).values():
            yield from items(child, in_list)
        if isinstance(schema.get("items"), dict):
            yield from items(schema["items"], schema.get("x-kubernetes-list-type") != "map" or in_list)
        if isinstance(schema.get("additionalProperties"), dict):
            yield from items(schema["additionalProperties"], in_list)

    for kind in RESOURCES:
        found = list(items(crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
        assert [rule for rule in found if "oldSelf" in rule["rule"]] == []
