"""Merges the CEL rules of an object in the CRD, because the API server evaluates all of them at every status write.

Reading a field of `self` costs the API server time in proportion to the number of fields that the object can have, so
most of the cost is in the forty rules of `spec`. Merged, an object has one rule for its content and one for changes.
Both first compare the object with the one before, which ends a status write: it does not change the spec. The messages
still name each wrong field and its cure. `allranks validate` evaluates the single rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

RULES = "x-kubernetes-validations"


_SOMEWHERE = "*"
"""The path below a list or map, where it is not fixed. The API server puts it before the message."""


def merged(schema: Mapping[str, Any], path: str = "", in_list: bool = False) -> dict[str, Any]:
    """The schema with at most two rules in each object. `path` is that of the schema; empty for the whole object.
    `in_list`: inside an item of a list, for which the API server has no earlier value."""
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
    """One rule for what an object may contain, evaluated when it is created or changes; in a list, always."""
    if in_list:
        return {"rule": _all(rules), **_messages(rules, path)}
    # The whole object cannot be compared. Of it, rules can read only the name, which never changes.
    same = "oldSelf.hasValue() && oldSelf.value() == self" if path else "oldSelf.hasValue()"
    return {"rule": f"{same} || ({_all(rules)})", "optionalOldSelf": True, **_messages(rules, path)}


def _changes(rules: list[dict[str, str]], path: str) -> dict[str, Any]:
    """One rule for how an object may change."""
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
    """The sentence of a rule as a CEL string. The API server removes the space at the end of the last one."""
    place = f"{path.removeprefix(_SOMEWHERE)}{rule.get('fieldPath', '')}".removeprefix(".")
    return json.dumps(f"{place}: {rule['message']}. " if place else f"{rule['message']}. ", ensure_ascii=False)
