"""Values for each field of a job's spec, valid and not: from the CRD's schema, and from a sample pod template for the
parts that have none."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "x:1",
                "command": ["run"],
                "args": ["--fast"],
                "env": [{"name": "A", "value": "1"}],
                "ports": [{"containerPort": 1234, "name": "p"}],
                "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "1"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "volumeDevices": [{"name": "w", "devicePath": "/d"}],
                "securityContext": {"runAsUser": 1},
            },
            {"name": "logs", "image": "y:1"},
        ],
        "initContainers": [{"name": "init", "image": "z:1"}],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "w"}}],
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "imagePullSecrets": [{"name": "s"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"},
        ],
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
                ]
            }
        },
        "terminationGracePeriodSeconds": 30,
        "restartPolicy": "Never",
        "securityContext": {"fsGroup": 1},
        "nodeSelector": {"a": "b"},
    },
}
"""Uses each field of a pod template that the core reads or merges."""

ODD = ([], {}, "²", -1, 10**30, None, ["a"], [{}], {"a": ["b"]}, [None])
"""Replacements for parts of a template."""


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all parts of a value, itself first."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def with_value(value: Any, place: Path, part: Any) -> Any:
    """A copy with one part replaced, or added to a mapping."""
    out: Any = {"": copy.deepcopy(value)}
    *above, last = ("", *place)
    parent = out
    for key in above:
        parent = parent.setdefault(key, {}) if isinstance(parent, dict) else parent[key]
    parent[last] = part
    return out[""]


@dataclass(frozen=True)
class Change:
    """A value for one field of the spec."""

    path: Path
    value: Any

    def __str__(self) -> str:
        text = repr(self.value)
        return f"spec.{'.'.join(map(str, self.path))} = {text if len(text) < 120 else text[:100] + '...'}"

    def applied(self, spec: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = with_value(spec, self.path, self.value)
        return changed


def changes(schema: dict[str, Any], random: random.Random) -> Iterator[Change]:
    """A few values for each field of the schema and, for a part without one, for each field of a pod template."""
    for path, field in _fields(schema, ()):
        name = str(path[-1])
        if name == "template":
            for place in list(places(TEMPLATE))[1:]:
                yield Change(path, with_value(TEMPLATE, place, random.choice(ODD)))
            yield Change(path, {"spec": _nested(random.choice((70, 300)))})
            yield Change(path, {"metadata": {"annotations": {"a": [{}] * 100_000}}})
            yield Change(path, TEMPLATE)
        for value in (*_valid(field, name, random), *_invalid(field)):
            yield Change(path, value)


def _fields(schema: dict[str, Any], path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield (*path, name), field
        if field.get("type") == "object":
            yield from _fields(field, (*path, name))


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


PATTERNS = (
    r"step (?P<step>\d+)",
    r"(?P<s>\d{99999999999})",
    "(",
    "no groups",
    "(?i)(?P<s>a)" + "[\u0100-\uffff]" * 200,
    "(" * 400 + ")" * 400,
)


def _valid(schema: dict[str, Any], name: str, random: random.Random, depth: int = 0) -> Iterator[Any]:
    if "enum" in schema:
        yield from schema["enum"]
    elif schema.get("x-kubernetes-int-or-string"):
        yield from (1, "1Gi", "²", "1.2.3", -1)
    elif schema.get("x-kubernetes-preserve-unknown-fields") and not schema.get("properties"):
        yield from ({}, {"a": [[], {"b": None}]}, _nested(90))
    elif schema.get("type") == "boolean":
        yield from (True, False)
    elif schema.get("type") in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 100)
        # Not ten thousand pods.
        yield from (max(low, 2), low, 3 if "eplicas" in name and name != "maxRestarts" else high)
    elif schema.get("type") == "string":
        if name == "logPattern":
            yield from PATTERNS
        elif "0-9a-f" in schema.get("pattern", ""):
            yield "0" * 64
        elif "pattern" in schema:
            yield from ("/a", "/" + "b" * 300)
        else:
            yield from ("a", "²\u202e ", "x" * min(int(schema.get("maxLength", 50)), 5_000))
    elif schema.get("type") == "array":
        for inner in list(_valid(schema["items"], name, random, depth + 1))[:6]:
            yield [inner]
        yield []
    elif schema.get("type") == "object":
        if "additionalProperties" in schema:
            for inner in _valid(schema["additionalProperties"], name, random, depth + 1):
                yield {random.choice(("cpu", "a/b", "²", "nvidia.com/gpu")): inner}
        elif depth < 4:
            for _ in range(4):
                yield {
                    key: random.choice(list(_valid(field, key, random, depth + 1)) or [None])
                    for key, field in schema.get("properties", {}).items()
                    if key in schema.get("required", ()) or random.random() < 0.4
                }


def _invalid(schema: dict[str, Any]) -> Iterator[Any]:
    wrong = {"string": 5, "integer": "5", "number": "5", "boolean": "yes", "array": {}, "object": []}
    yield wrong.get(str(schema.get("type")), [])
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "maxItems" in schema:
        yield [None] * (schema["maxItems"] + 1)
