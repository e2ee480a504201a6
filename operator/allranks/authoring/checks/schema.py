"""Checks parts of a manifest that Kubernetes defines, such as a pod template, against the types of Kubernetes.

`pod_schema.json` holds the types of one version of Kubernetes (`tools/pod_schema.py` writes it). A newer API server may
have further fields and values: what is not in the file is an error only if it is probably a misspelling of something
that is, or belongs elsewhere; anything else is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from allranks.api.validation_messages import json_type, quotes_hint, similar
from allranks.authoring.checks.problem import Problem, below, last_key
from allranks.core.facts.quantity import quantity
from allranks.core.facts.strategic_merge import MERGE_KEYS

_FROM_ELSEWHERE = {"PodSpec": frozenset({"containers"})}
"""Required fields that other parts of the manifest provide: the training container."""


_CONTAINER = re.compile(r"\.(containers|initContainers)\[\d+\]$")
_OTHER_PLACES = {
    "PodTemplateSpec": (
        ("PodSpec", "belongs under {path}.spec.{name}"),
        ("Container", "belongs to a container: {path}.spec.containers: [{{name: trainer, {name}: ...}}]"),
        ("ObjectMeta", "belongs under {path}.metadata.{name}"),
    ),
    "PodSpec": (("Container", "belongs to a container: {path}.containers: [{{name: trainer, {name}: ...}}]"),),
    "Container": (
        ("ResourceRequirements", "belongs under {path}.resources.{name}"),
        ("PodSpec", "belongs to the pod: {pod}.{name}"),
    ),
    "PodSecurityContext": (("SecurityContext", "belongs to the securityContext of a container"),),
    "SecurityContext": (("PodSecurityContext", "belongs to the securityContext of the pod"),),
    "VolumeMount": (("Volume", "belongs to the volume of this name, under volumes of the pod"),),
    "Volume": (("VolumeMount", "belongs to the mount of this volume, under volumeMounts of a container"),),
}
"""Type -> (type that has a field of this name, the place of such a field)."""


class Kubernetes(NamedTuple):
    """The types of a version of Kubernetes."""

    version: str
    """For example `1.37`."""
    types: dict[str, dict[str, Any]]

    def fields(self, kind: str) -> dict[str, str]:
        """Return the fields of a type such as `PodSpec` with their types; empty for scalars."""
        fields: dict[str, str] = self.types.get(kind, {}).get("fields", {})
        return fields


@cache
def kubernetes() -> Kubernetes:
    """Return the types in `pod_schema.json`, which is read once."""
    document = json.loads(files(__package__).joinpath("pod_schema.json").read_text())
    return Kubernetes(".".join(document["kubernetes"].split(".")[:2]), document["types"])


def problems(value: Any, kind: str, path: str, merged: Sequence[Any] | None = None) -> Iterator[Problem]:
    """Yield everything wrong in `value`, a value of the type `kind` such as `PodTemplateSpec`.

    `merged`: the same part in the results of merging all layers of the manifest; a required field that a layer does not
    have may come from another one. Without it, `value` must be complete.
    """
    yield from _problems(value, kind, path, [value] if merged is None else list(merged))


def _problems(value: Any, kind: str, path: str, merged: list[Any]) -> Iterator[Problem]:
    if value is None:
        return  # a null is an absent field
    if kind.startswith("[]"):
        yield from _list(value, kind[2:], path, merged)
    elif kind.startswith("{}"):
        yield from _map(value, kind[2:], path, merged)
    elif kind in kubernetes().types:
        yield from _object(value, kind, path, merged)
    else:
        yield from _scalar(value, kind, path)


def _list(value: Any, item: str, path: str, merged: list[Any]) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield Problem(path, f"must be a list, not {json_type(value)}")
        return
    key = MERGE_KEYS.get(path.rpartition(".")[2])
    for index, element in enumerate(value):
        yield from _problems(element, item, below(path, index), _same_items(element, index, key, merged))


def _same_items(element: Any, index: int, key: str | None, merged: list[Any]) -> list[Any]:
    """Return the items of the merged lists that hold `element`."""
    matching = []
    for items in merged:
        if not isinstance(items, list):
            continue
        if key and isinstance(element, dict):
            matching += [item for item in items if isinstance(item, dict) and item.get(key) == element.get(key)]
        elif index < len(items):
            matching.append(items[index])
    return matching


def _map(value: Any, item: str, path: str, merged: list[Any]) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"must be a mapping, not {json_type(value)}")
        return
    for key, member in value.items():
        yield from _problems(member, item, below(path, str(key)), _members(merged, key))


def _object(value: Any, kind: str, path: str, merged: list[Any]) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"must be a mapping, not {json_type(value)}")
        return
    fields = kubernetes().fields(kind)
    for name, member in value.items():
        if name in fields:
            yield from _problems(member, fields[name], below(path, name), _members(merged, name))
        else:
            yield _unknown(str(name), kind, path)
    for name in kubernetes().types[kind].get("required", ()):
        if name not in _FROM_ELSEWHERE.get(kind, ()) and any(_absent(node, name) for node in merged):
            yield Problem(below(path, name), "is required")
    if kind == "ResourceRequirements":
        yield from resource_names(path, value)


def _absent(node: Any, name: str) -> bool:
    return isinstance(node, dict) and node.get(name) is None


def _members(merged: list[Any], name: Any) -> list[Any]:
    return [node[name] for node in merged if isinstance(node, dict) and node.get(name) is not None]


def _scalar(value: Any, kind: str, path: str) -> Iterator[Problem]:
    match kind:
        case "any":
            return
        case "boolean":
            if not isinstance(value, bool):
                yield Problem(path, f"must be true or false, not {json_type(value)}{quotes_hint(value, 'boolean')}")
        case "integer" | "number":
            if isinstance(value, bool) or not isinstance(value, int):
                hint = quotes_hint(value, "integer")
                yield Problem(path, f"must be a whole number, not {json_type(value)}{hint}")
        case "intOrString":
            if isinstance(value, bool) or not isinstance(value, int | str):
                yield Problem(path, f"must be a whole number or a string, not {json_type(value)}")
        case "quantity":
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                yield Problem(path, f"must be a number or a string, not {json_type(value)}")
            else:
                yield from quantity_problems(path, last_key(path), value)
        case _:
            if not isinstance(value, str):
                yield Problem(path, f"must be a string, not {json_type(value)}{quotes_hint(value, 'string')}")
            elif "|" in kind and value not in kind.split("|"):
                yield _unknown_value(value, kind.split("|"), path)


def _unknown_value(value: str, allowed: list[str], path: str) -> Problem:
    listed = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
    if near := similar(value, allowed):
        return Problem(path, f"must be {listed}, not {value!r}: did you mean {near}?")
    version = kubernetes().version
    message = f"Kubernetes {version} has no value {value!r} here, and its API server refuses it: use {listed}"
    return Problem(path, message, "warning")


def _unknown(name: str, kind: str, path: str) -> Problem:
    at = below(path, name)
    types = kubernetes()
    if kind == "ResourceRequirements" and (name in STANDARD or "/" in name):
        return Problem(at, f"unknown field: belongs under {path}.limits", meant="limits")
    for other, place in _OTHER_PLACES.get(kind, ()):
        if name in types.fields(other):
            return Problem(at, f"unknown field: {place.format(path=path, pod=_CONTAINER.sub('', path), name=name)}")
    if near := similar(name, types.fields(kind)):
        return Problem(at, f"unknown field, did you mean {near}?", meant=near)
    message = f"Kubernetes {types.version} has no such field here, and its API server ignores it"
    return Problem(at, message, "warning")


# --- quantities -------------------------------------------------------------------------------------------------------

# As the API server checks them: ValidateResourceRequirements in pkg/apis/core/validation of Kubernetes.

_BYTES = re.compile(r"memory|ephemeral-storage|hugepages-.*|sizeLimit|storage|sharedMemory")
STANDARD = ("cpu", "memory", "ephemeral-storage")
"""Resources of containers without a vendor, beside hugepages-SIZE."""
_MIN_MEMORY = 1024 * 1024


def quantity_problems(path: str, name: str, amount: Any) -> Iterator[Problem]:
    """Yield problems of an amount at `path`. `name`: the resource or the field that it belongs to, for the advice."""
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        return  # a matter of types
    try:
        number = quantity(str(amount))
    except ValueError:
        yield Problem(path, f"{str(amount)!r} is not a quantity: write {_example(name)}")
        return
    if number < 0:
        yield Problem(path, f"must not be negative, is {amount}")
    elif is_bytes(name) and 0 < number < _MIN_MEMORY:
        yield Problem(path, _too_few_bytes(str(amount), number), "warning")
    elif "/" in name and number % 1:
        yield Problem(path, f"must be a whole number, not {amount}: a device is not divided")


def resource_names(path: str, resources: dict[str, Any]) -> Iterator[Problem]:
    """Yield problems of the names in the `limits` and `requests` of one container."""
    for part in ("limits", "requests"):
        amounts = resources.get(part)
        for name in amounts if isinstance(amounts, dict) else ():
            yield from _name_problems(below(f"{path}.{part}", str(name)), str(name))


def is_bytes(name: str) -> bool:
    """Return whether amounts of a resource or field are bytes."""
    return _BYTES.fullmatch(name) is not None


def _name_problems(path: str, name: str) -> Iterator[Problem]:
    if name in STANDARD or re.fullmatch(r"hugepages-\w+", name):
        return
    if "/" in name:
        near = similar(name, _VENDORS, 0.85)
        if near and name not in _VENDORS and not name.startswith(tuple(f"{vendor}." for vendor in _VENDORS)):
            yield Problem(path, f"is not a usual device, did you mean {near}?", "warning")
        return
    if near := similar(name, STANDARD, 0.7):
        yield Problem(path, f"is not a resource, did you mean {near}?", meant=near)
    else:
        yield Problem(path, "is not a resource: use cpu, memory, ephemeral-storage or a device, such as nvidia.com/gpu")


_VENDORS = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/xe",
    "gpu.intel.com/i915",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "vpc.amazonaws.com/efa",
)


def _example(name: str) -> str:
    if name == "cpu":
        return "a number of cores, such as 4, or 500m for half a core"
    if is_bytes(name):
        return "a number with a unit, such as 64Gi or 500M"
    return "a whole number, such as 1" if "/" in name else "a number, such as 1, 500m or 64Gi"


def _too_few_bytes(text: str, number: float) -> str:
    if text.endswith("m"):
        return f"{text} is less than one byte (m is a thousandth): did you mean {text[:-1]}Mi?"
    return f"{text} is only {int(number)} bytes: write a unit, such as Gi or Mi"
