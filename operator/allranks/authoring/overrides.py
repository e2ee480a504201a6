"""Changes of manifests by the command line: --set PATH=VALUE, and arguments and variables of every job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from allranks.api.validation_messages import similar
from allranks.authoring.checks.problem import below
from allranks.errors import InvalidManifest

_STEP = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")
Step = str | int
"""A name, or the number of an item in brackets."""
Override = tuple[list[Step], Any]
"""(path, value)"""


def parsed(item: str) -> Override:
    """Return the override in `path=value`; `spec.` may be left out. Raise InvalidManifest."""
    path, equals, text = item.partition("=")
    steps: list[Step] = [
        (int(bracketed) if bracketed.isdigit() else bracketed) if bracketed else plain
        for bracketed, plain in _STEP.findall(path)
    ]
    if not equals or not steps:
        raise InvalidManifest([(f"--set {item}", "must be path=value, for example roles.worker.replicas=2")])
    first = str(steps[0])
    if first in ("metadata", "spec"):
        prefix, steps = steps[:1], steps[1:]
    elif len(steps) > 1 and (near := similar(first, ("metadata", "spec"))):
        meant = near + path[path.index(first) + len(first) :]
        raise InvalidManifest([(f"--set {item}", f"there is no field {first}, did you mean {meant}?")])
    else:
        prefix = ["spec"]
    try:
        return prefix + steps, yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise InvalidManifest([(f"--set {item}", "the value is not YAML")]) from error


def apply(document: dict[str, Any], overrides: Sequence[Override]) -> None:
    """Set each value at its path, and create missing maps.

    Raise InvalidManifest if a path leads through a value that is not a map, or to a missing list item.
    """
    for path, value in overrides:
        _set(document, path, value)


def _set(document: dict[str, Any], path: list[Step], value: Any) -> None:
    node: Any = document
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(node, list):
            number = int(step) if str(step).isdigit() else len(node)
            if number >= len(node):
                raise InvalidManifest([(_text(path), f"--set: the list has no item {step}")])
            if last:
                node[number] = value
            else:
                node = node[number]
        elif isinstance(node, dict):
            key = str(step)
            if last:
                node[key] = value
            else:
                if node.get(key) is None:
                    if isinstance(path[depth + 1], int):
                        message = f"--set: there is no list {_text(path[: depth + 1])}: set the whole list"
                        raise InvalidManifest([(_text(path), message)])
                    node[key] = {}
                node = node[key]
        else:
            raise InvalidManifest([(_text(path), f"--set: {_text(path[:depth])} is not a map")])


def _text(path: Sequence[Step]) -> str:
    out = ""
    for step in path:
        out = below(out, step)
    return out


@dataclass(frozen=True, slots=True)
class Additions:
    """Arguments and variables of the command line, for every job."""

    arguments: tuple[str, ...] = ()
    """Appended to `spec.args`."""
    env: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs for `spec.env`; they replace variables of the same name."""

    def apply(self, document: dict[str, Any]) -> None:
        """Add them to a job. Fields of a wrong type stay as they are; validation reports them."""
        spec = document.get("spec")
        if not isinstance(spec, dict):
            return
        if self.arguments and isinstance(spec.get("args") or [], list):
            spec["args"] = [*(spec.get("args") or []), *self.arguments]
        if self.env and isinstance(spec.get("env") or [], list):
            names = {name for name, _ in self.env}
            kept = [
                item for item in spec.get("env") or [] if not (isinstance(item, dict) and item.get("name") in names)
            ]
            spec["env"] = [*kept, *({"name": name, "value": value} for name, value in self.env)]
