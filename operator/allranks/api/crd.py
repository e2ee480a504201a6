"""Generates the CustomResourceDefinitions from the pydantic types: `python -m allranks.api.crd KIND` prints one.

Kubernetes wants a *structural* schema: no references, no unions but int-or-string, no `additionalProperties: false`
(unknown fields are pruned, and refused by strict clients), OpenAPI 3.0's boolean `exclusiveMinimum`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel

from allranks.api import cel_rules, job, pool, sweep
from allranks.api.job import API_VERSION, GROUP, VERSION
from allranks.api.status import Status
from allranks.api.sweep_status import SweepStatus
from allranks.fields import Rule, StatusPart, adapter

RULES = "x-kubernetes-validations"
Schema = dict[str, Any]
Column = tuple[str, str, str, str, int]
"""(name, type, JSON path, description, priority: 1 is only shown by `kubectl get -o wide`)"""

_AGE: Column = ("Age", "date", ".metadata.creationTimestamp", "Time since creation.", 0)


_JOB_EXAMPLE = f"""\
  apiVersion: {API_VERSION}
  kind: {job.KIND}
  metadata:
    name: penguins
  spec:
    framework: pytorch
    image: example.org/penguins:1.0
    command: [torchrun, train.py]
    roles:
      worker:
        replicas: 2
        resources:
          limits: {{nvidia.com/gpu: 8}}
"""
_POOL_EXAMPLE = f"""\
  apiVersion: {API_VERSION}
  kind: {pool.KIND}
  metadata:
    name: h200
  spec:
    nodeSelector: {{gpu: h200}}
    gpu: {{count: 8}}
    sharedMemory: 64Gi
"""
_SWEEP_EXAMPLE = f"""\
  apiVersion: {API_VERSION}
  kind: {sweep.KIND}
  metadata:
    name: penguins
  spec:
    parameters:
      lr: {{logUniform: {{min: 0.0001, max: 0.1}}}}
      batch: {{values: [16, 32, 64]}}
    objective: {{metric: loss, goal: Minimize}}
    trials: 20
    parallel: 4
    stop: {{rule: ASHA, minSteps: 100}}
    template:
      spec:
        framework: pytorch
        image: example.org/penguins:1.0
        command: [torchrun, train.py]
        args: [--lr=$(lr), --batch-size=$(batch)]
        roles:
          worker: {{replicas: 2}}
"""


@dataclass(frozen=True)
class Resource:
    """A CustomResourceDefinition without the schema of its spec."""

    kind: str
    plural: str
    short_name: str
    scope: Literal["Namespaced", "Cluster"]
    description: str
    example: str
    """A manifest, which `kubectl explain` prints."""
    spec: type[BaseModel]
    columns: tuple[Column, ...]
    categories: tuple[str, ...] = ()
    status: type[StatusPart] | None = None
    subresources: Mapping[str, Schema] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    """Rules of the object as a whole."""


RESOURCES: Mapping[str, Resource] = {
    job.KIND: Resource(
        kind=job.KIND,
        plural=job.PLURAL,
        short_name="dt",
        scope="Namespaced",
        description="A distributed training job",
        example=_JOB_EXAMPLE,
        spec=job.Spec,
        columns=(
            ("Framework", "string", ".spec.framework", "Framework of the job.", 0),
            ("Phase", "string", ".status.phase", "State of the job.", 0),
            ("Ready", "string", ".status.ready", "Pods that run or have succeeded, and all pods.", 0),
            ("Restarts", "string", ".status.restartSummary", "All restarts, and how many disruptions caused.", 0),
            ("Progress", "string", ".status.progress.summary", "Completed and total steps.", 0),
            ("ETA", "string", ".status.progress.eta", "Estimated time to the last step.", 0),
            _AGE,
            ("Reason", "string", '.status.conditions[?(@.type=="Running")].reason', "Reason of the phase.", 0),
            ("Goodput", "number", ".status.goodput", "Productive time divided by all time but queued.", 1),
            ("Cost", "string", ".status.cost.summary", "GPU-hours and their price.", 1),
        ),
        categories=("all",),
        status=Status,
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.roles.worker.replicas",
                "statusReplicasPath": ".status.roles.worker.active",
                "labelSelectorPath": ".status.selector",
            },
        },
        rules=(*cel_rules.NAME, *cel_rules.ROLE_NAMES),
    ),
    pool.KIND: Resource(
        kind=pool.KIND,
        plural=pool.PLURAL,
        short_name="tp",
        scope="Cluster",
        description="A pool of GPU nodes, described by a platform team for jobs that name it",
        example=_POOL_EXAMPLE,
        spec=pool.PoolSpec,
        columns=(
            ("GPU", "string", ".spec.gpu.resource", "Name of the GPU resource.", 0),
            ("Count", "integer", ".spec.gpu.count", "GPUs of each pod that holds ranks.", 0),
            _AGE,
        ),
        rules=cel_rules.POOL_NAME,
    ),
    sweep.KIND: Resource(
        kind=sweep.KIND,
        plural=sweep.PLURAL,
        short_name="tsw",
        scope="Namespaced",
        description="A search for the parameters with which a training gives the best result",
        example=_SWEEP_EXAMPLE,
        spec=sweep.SweepSpec,
        columns=(
            ("Algorithm", "string", ".spec.algorithm", "How values are chosen.", 0),
            ("Phase", "string", ".status.phase", "State of the sweep.", 0),
            ("Trials", "string", ".status.summary", "Trials that have ended, and all trials.", 0),
            ("Stopped", "integer", ".status.counts.stopped", "Trials that were stopped early.", 0),
            ("Best", "string", ".status.bestSummary", "The best value and its trial.", 0),
            _AGE,
            ("Reason", "string", '.status.conditions[?(@.type=="Running")].reason', "Reason of the phase.", 1),
        ),
        categories=("all",),
        status=SweepStatus,
        subresources={"status": {}},
        rules=cel_rules.SWEEP_NAME,
    ),
}
"""Kind -> its definition."""


def crd(kind: str = job.KIND) -> Schema:
    """Return the CustomResourceDefinition as JSON."""
    resource = RESOURCES[kind]
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": text} | ({"priority": prio} if prio else {})
        for name, kind, path, text, prio in resource.columns
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": merged(root_schema(resource.kind))},
    }
    names = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "shortNames": [resource.short_name],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": resource.scope,
            "names": names | ({"categories": list(resource.categories)} if resource.categories else {}),
            "versions": [version | ({"subresources": dict(resource.subresources)} if resource.subresources else {})],
        },
    }


@cache
def root_schema(kind: str = job.KIND) -> Schema:
    """Return the structural schema of the whole object."""
    resource = RESOURCES[kind]
    status = {}
    if resource.status:
        status["status"] = _without_defaults(structural(adapter(resource.status).json_schema(by_alias=True)))
    schema: Schema = {
        "description": f"{resource.description} ({API_VERSION}).\n\nExample:\n\n{resource.example}",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"Version of the API: {API_VERSION}.", "type": "string", "maxLength": 64},
            "kind": {"description": f"Kind of the object: {resource.kind}.", "type": "string", "maxLength": 64},
            "metadata": {"type": "object"},  # the API server allows no more here, and adds its own schema
            "spec": _spec(resource),
            **status,
        },
    }
    return schema | (
        {"x-kubernetes-validations": [rule.as_schema() for rule in resource.rules]} if resource.rules else {}
    )


def _spec(resource: Resource) -> Schema:
    """Return the schema of the spec. A sweep contains the schema of the job without rules for changes, because its
    template cannot be changed."""
    schema = structural(resource.spec.model_json_schema(by_alias=True))
    if resource.kind == sweep.KIND:
        template = schema["properties"]["template"]["properties"]
        inner = _without_rules_for_changes(structural(job.Spec.model_json_schema(by_alias=True)))
        template["spec"] = inner | {"description": template["spec"]["description"]}
    return schema


def _without_rules_for_changes(schema: Schema) -> Schema:
    out = dict(schema)
    rules = [rule for rule in out.pop(RULES, ()) if "oldSelf" not in rule["rule"]]
    if "properties" in out:
        out["properties"] = {name: _without_rules_for_changes(child) for name, child in out["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = _without_rules_for_changes(out[key])
    return out | ({RULES: rules} if rules else {})


def structural(schema: Schema) -> Schema:
    """Turn pydantic's JSON schema into a structural one."""
    definitions: dict[str, Schema] = schema.get("$defs", {})
    return _convert({key: value for key, value in schema.items() if key != "$defs"}, definitions)


_KEPT = (
    *("description", "type", "format", "default", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum"),
    *("minItems", "maxItems", "maxProperties", "required"),
    *("x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"),
    "x-kubernetes-map-type",
)


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    node = _resolve(node, definitions)
    out = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        out["enum"] = [node["const"]]
    if out.get("default", ...) is None:
        del out["default"]
    if out.get("default", {}) != {} and "Default:" not in out["description"]:
        value = out["default"]
        out["description"] += f" Default: {str(value).lower() if isinstance(value, bool) else value}."
    if node.get("type") == "integer":
        out["format"] = "int64"
    if "exclusiveMinimum" in node:
        out |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if node.get("x-kubernetes-preserve-unknown-fields") and node.get("type") == "number":
        del out["type"]  # or a text
    if node.get("x-kubernetes-int-or-string"):
        return _int_or_string(out, node.get("anyOf", []))
    if "properties" in node:
        out["properties"] = {name: _convert(child, definitions) for name, child in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict) and not out.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = _convert(node["additionalProperties"], definitions)
    if out.get("x-kubernetes-preserve-unknown-fields"):
        out.pop("maxProperties", None)
    if "items" in node:
        out["items"] = _convert(node["items"], definitions)
    return out


def _resolve(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Follow references, and remove `null` from unions: Kubernetes represents None by an absent field."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[1]]
            node = target | {key: value for key, value in node.items() if key != "$ref"}
            continue
        choices = [choice for choice in node.get("anyOf", []) if choice.get("type") != "null"]
        if len(choices) == 1:
            node = choices[0] | {key: value for key, value in node.items() if key != "anyOf"}
            continue
        return node


def _int_or_string(out: Schema, choices: list[Schema]) -> Schema:
    for choice in choices:
        out |= {key: choice[key] for key in ("minimum", "maximum", "maxLength", "pattern") if key in choice}
        if "const" in choice:
            out |= {"pattern": f"^{choice['const']}$", "maxLength": len(choice["const"])}
    return out | {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def _without_defaults(schema: Schema) -> Schema:
    """Return the schema without defaults. The operator writes the whole status, so a default could only be wrong."""
    out = {key: value for key, value in schema.items() if key not in ("default", "x-default")}
    if "properties" in out:
        out["properties"] = {name: _without_defaults(child) for name, child in out["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = _without_defaults(out[key])
    return out


def differences(expected: dict[str, Any], installed: dict[str, Any], path: str) -> Iterator[str]:
    """Yield paths of fields, and of values of enumerations, that are in `expected` alone."""
    if installed.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "enum" in expected and "enum" in installed:
        yield from (f"{path}={value}" for value in expected["enum"] if value not in installed["enum"])
    for name, child in expected.get("properties", {}).items():
        if name not in installed.get("properties", {}):
            yield f"{path}.{name}"
        else:
            yield from differences(child, installed["properties"][name], f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(expected.get(inner), dict) and isinstance(installed.get(inner), dict):
            yield from differences(expected[inner], installed[inner], f"{path}[]")


# --- merged rules -----------------------------------------------------------------------------------------------------

# The API server evaluates all CEL rules of an object at every status write, and reading a field of `self` costs time in
# proportion to the number of fields that the object can have, so most of the cost is in the forty rules of `spec`.
# Merged, an object has one rule for its content and one for changes. Both first compare the object with the one before,
# which ends a status write: it does not change the spec. The messages still name each wrong field and its cure.
# `allranks validate` evaluates the single rules.

_SOMEWHERE = "*"
"""The path below a list or map, where it is not fixed. The API server puts it before the message."""


def merged(schema: Mapping[str, Any], path: str = "", in_list: bool = False) -> dict[str, Any]:
    """Return the schema with at most two rules in each object.

    `path`: path of the schema, empty for the whole object. `in_list`: the schema is inside an item of a list, for which
    the API server has no earlier value."""
    out = dict(schema)
    if len(out.get(RULES, ())) > 1:
        changes = [rule for rule in out[RULES] if "oldSelf" in rule["rule"]]
        content = [rule for rule in out[RULES] if "oldSelf" not in rule["rule"]]
        out[RULES] = ([_content(content, path, in_list)] if content else []) + (
            [_changes(changes, path)] if changes else []
        )
    if "properties" in out:
        out["properties"] = {
            name: merged(child, path if path == _SOMEWHERE else f"{path}.{name}".removeprefix("."), in_list)
            for name, child in out["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = merged(out[key], _SOMEWHERE, in_list or key == "items")
    return out


def _content(rules: list[dict[str, str]], path: str, in_list: bool) -> dict[str, Any]:
    """Return one rule for the content of an object. It is evaluated when the object is created or changes; in a list,
    always."""
    if in_list:
        return {"rule": _all(rules), **_messages(rules, path)}
    # The whole object cannot be compared. Of it, rules can read only the name, which never changes.
    same = "oldSelf.hasValue() && oldSelf.value() == self" if path else "oldSelf.hasValue()"
    return {"rule": f"{same} || ({_all(rules)})", "optionalOldSelf": True, **_messages(rules, path)}


def _changes(rules: list[dict[str, str]], path: str) -> dict[str, Any]:
    """Return one rule for how an object may change."""
    return {"rule": f"self == oldSelf || ({_all(rules)})", **_messages(rules, path)}


def _all(rules: list[dict[str, str]]) -> str:
    return " && ".join(f"({rule['rule']})" for rule in rules)


def _messages(rules: list[dict[str, str]], path: str) -> dict[str, str]:
    sentences = [f"(({rule['rule']}) ? '' : {_text(rule, path)})" for rule in rules]
    return {
        "messageExpression": " + ".join(sentences),
        "message": "the object is not valid: `allranks validate` names the field",
    }


def _text(rule: Mapping[str, str], path: str) -> str:
    """Return the sentence of a rule as a CEL string. The API server removes the space at the end of the last one."""
    place = f"{path.removeprefix(_SOMEWHERE)}{rule.get('fieldPath', '')}".removeprefix(".")
    return json.dumps(f"{place}: {rule['message']}. " if place else f"{rule['message']}. ", ensure_ascii=False)


def main() -> None:
    """Print the CRDs of the named kinds, or of all kinds, as YAML."""
    import yaml

    print("# Generated from operator/allranks/api by `make generate`. Do not edit.")
    kinds = sys.argv[1:] or RESOURCES
    print(yaml.safe_dump_all([crd(kind) for kind in kinds], sort_keys=False, width=140), end="")


if __name__ == "__main__":
    main()
