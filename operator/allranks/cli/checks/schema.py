"""Checks parts of a manifest that Kubernetes defines, such as a pod template, against the types of Kubernetes.

`pod_schema.json` holds the types of one version of Kubernetes (`tools/pod_schema.py` writes it). A newer API server may
have further fields and values: what is not in the file is an error only if it is probably a misspelling of something
that is, or belongs elsewhere; anything else is a warning.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from allranks.api.validation_messages import json_type, quotes_hint
from allranks.cli.checks import placement, quantities, undocumented
from allranks.cli.checks.problem import Problem, below, last_key
from allranks.core.facts.strategic_merge import MERGE_KEYS

_TYPO = 0.8
"""Similarity from which an unknown word is taken for a misspelling."""
_FROM_ELSEWHERE = {"PodSpec": frozenset({"containers"})}
"""Required fields that other parts of the manifest provide: the training container."""


class OneOf(NamedTuple):
    """A type of which at most one of some fields may be set, and with `needed` exactly one."""

    fields: frozenset[str]
    needed: bool


class Kubernetes(NamedTuple):
    """The types of a version of Kubernetes."""

    version: str
    """For example `1.37`."""
    types: dict[str, dict[str, Any]]

    def fields(self, kind: str) -> dict[str, str]:
        """Field -> type of a type such as `PodSpec`; empty for scalars."""
        found: dict[str, str] = self.types.get(kind, {}).get("fields", {})
        return found

    def one_of(self, kind: str) -> OneOf | None:
        """The API documents these unions in prose only (Source: pkg/apis/core/validation)."""
        if kind == "Volume":
            return OneOf(frozenset(self.fields(kind)) - {"name"}, False)  # none is an emptyDir
        if kind in ("EnvVarSource", "LifecycleHandler", "VolumeProjection"):
            return OneOf(frozenset(self.fields(kind)), kind != "VolumeProjection")
        if kind == "EnvFromSource":
            return OneOf(frozenset({"configMapRef", "secretRef"}), True)
        if kind == "Probe":
            return OneOf(frozenset({"exec", "grpc", "httpGet", "tcpSocket"}), True)
        return None


@cache
def kubernetes() -> Kubernetes:
    """Reads the file once."""
    document = json.loads(files(__package__).joinpath("pod_schema.json").read_text())
    return Kubernetes(".".join(document["kubernetes"].split(".")[:2]), document["types"])


def problems(value: Any, kind: str, path: str, merged: Sequence[Any] | None = None) -> Iterator[Problem]:
    """Everything wrong in `value`, a value of the type `kind` such as `PodTemplateSpec`.

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
    for index, one in enumerate(value):
        yield from _problems(one, item, below(path, index), _same_items(one, index, key, merged))


def _same_items(one: Any, index: int, key: str | None, merged: list[Any]) -> list[Any]:
    """The items of the merged lists that hold `one`."""
    found = []
    for items in merged:
        if not isinstance(items, list):
            continue
        if key and isinstance(one, dict):
            found += [item for item in items if isinstance(item, dict) and item.get(key) == one.get(key)]
        elif index < len(items):
            found.append(items[index])
    return found


def _map(value: Any, item: str, path: str, merged: list[Any]) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"must be a mapping, not {json_type(value)}")
        return
    for key, one in value.items():
        yield from _problems(one, item, below(path, str(key)), _members(merged, key))


def _object(value: Any, kind: str, path: str, merged: list[Any]) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"must be a mapping, not {json_type(value)}")
        return
    fields = kubernetes().fields(kind)
    for name, one in value.items():
        if name in fields:
            of = undocumented.VALUES.get((kind, name), fields[name])
            yield from _problems(one, of, below(path, name), _members(merged, name))
        else:
            yield _unknown(str(name), kind, path)
    for name in (*kubernetes().types[kind].get("required", ()), *undocumented.REQUIRED.get(kind, ())):
        if value.get(name) == "" and name not in undocumented.MAY_BE_EMPTY:
            yield Problem(below(path, name), "must not be empty")
        elif name not in _FROM_ELSEWHERE.get(kind, ()) and any(_absent(node, name) for node in merged):
            yield Problem(below(path, name), "is required")
    yield from undocumented.problems(value, kind, path)
    if union := kubernetes().one_of(kind):
        yield from _union(value, union, path, merged)
    if kind == "ResourceRequirements":
        yield from quantities.resource_names(path, value)


def _absent(node: Any, name: str) -> bool:
    return isinstance(node, dict) and node.get(name) is None


def _members(merged: list[Any], name: Any) -> list[Any]:
    return [node[name] for node in merged if isinstance(node, dict) and node.get(name) is not None]


def _union(value: dict[str, Any], union: OneOf, path: str, merged: list[Any]) -> Iterator[Problem]:
    given = [name for name in value if name in union.fields and value[name] is not None]
    if len(given) > 1:
        yield Problem(path, f"must have only one of {', '.join(given)}")
    elif not given and union.needed and not set(value) - set(union.fields) - _BESIDE_UNION:
        empty = [node for node in merged if isinstance(node, dict) and not union.fields & set(node)]
        if empty:
            yield Problem(path, f"must have one of {', '.join(sorted(union.fields))}")


_BESIDE_UNION = frozenset(
    {
        "prefix",
        "failureThreshold",
        "initialDelaySeconds",
        "periodSeconds",
        "successThreshold",
        "terminationGracePeriodSeconds",
        "timeoutSeconds",
    }
)
"""Other fields of these types. An unknown field may be the member of the union that a newer Kubernetes has."""


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
                yield from quantities.problems(path, last_key(path), value)
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
    what = f"Kubernetes {version} has no value {value!r} here, and its API server refuses it: use {listed}"
    return Problem(path, what, "warning")


def _unknown(name: str, kind: str, path: str) -> Problem:
    at = below(path, name)
    types = kubernetes()
    if place := placement.in_template(name, kind, path, types.fields):
        return Problem(at, f"unknown field: {place}")
    if near := similar(name, types.fields(kind)):
        return Problem(at, f"unknown field, did you mean {near}?")
    what = f"Kubernetes {types.version} has no such field here, and its API server ignores it"
    return Problem(at, what, "warning")


def similar(word: str, candidates: Sequence[str] | dict[str, str]) -> str | None:
    """The candidate of which `word` is probably a misspelling: other capitals, `_`, or a few other letters."""
    plain = {candidate.lower(): candidate for candidate in candidates}
    bare = word.lower().replace("_", "").replace("-", "")
    near = difflib.get_close_matches(bare, plain, n=1, cutoff=_TYPO)
    return plain[near[0]] if near else None
