"""Admission by the CRD, as in the API server: schema, rules, and rules for changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from allranks.api import job, pool, validation
from allranks.api.crd import Schema, root_schema
from allranks.core.facts.model import Manifest
from allranks.errors import InvalidManifest

from .store import Invalid


def admit(before: Manifest | None, after: Manifest) -> None:
    """Raises Invalid with every problem. `before` is None on creation."""
    kind = after.get("kind")
    if kind not in _PARSE:
        return
    problems: list[tuple[str, str]] = []
    try:
        new_spec = _stored(after)
    except InvalidManifest as error:
        problems += error.problems
    else:
        if before is not None:
            problems += broken_transitions(root_schema(kind)["properties"]["spec"], new_spec, _stored(before), "spec")
    if problems:
        text = ", ".join(f"{path}: Invalid value: {message}" for path, message in problems)
        raise Invalid(f'{kind} "{after["metadata"]["name"]}" is invalid: {text}')


_PARSE: dict[str, Callable[[Any], Any]] = {job.KIND: validation.parse, pool.KIND: validation.parse_pool}


def _stored(manifest: Manifest) -> Any:
    """The spec as the API server stores it. Raises InvalidManifest."""
    parsed: Any = _PARSE[manifest["kind"]]({**manifest, "metadata": {"name": manifest["metadata"]["name"]}})
    return validation.with_defaults(manifest, parsed)["spec"]


def broken_transitions(schema: Schema, new: Any, old: Any, path: str) -> Iterator[tuple[str, str]]:
    """Violated rules that refer to `oldSelf`, which apply only where there was an old value."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"] and not _program(rule["rule"]).execute({"self": new, "oldSelf": old}):
            yield path + rule.get("fieldPath", ""), rule["message"]
    if isinstance(new, dict) and isinstance(old, dict):
        for name, child in schema.get("properties", {}).items():
            if name in new and name in old:
                yield from broken_transitions(child, new[name], old[name], f"{path}.{name}")
        for name, value in new.items() if "additionalProperties" in schema else ():
            if name in old:
                yield from broken_transitions(schema["additionalProperties"], value, old[name], f"{path}.{name}")


@cache
def _program(rule: str) -> Any:
    import cel

    return cel.compile(rule)
