"""Rewrites manifests of version 0.1 in today's form, and keeps comments and layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from allranks.api import old_form
from allranks.api.job import KIND
from allranks.cli import manifest_files


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in the text of a manifest."""

    path: str
    line: int
    """From 1."""
    old: str
    new: str
    begin: int
    end: int
    """Positions of the old text."""


def applied(text: str, changes: list[Change]) -> str:
    for change in sorted(changes, key=lambda change: change.begin, reverse=True):
        text = text[: change.begin] + change.new + text[change.end :]
    return text


def found(text: str) -> list[Change]:
    """The changes that bring the jobs in a YAML text into today's form. Raises yaml.YAMLError."""
    # An alias is the same place as its anchor, which must be replaced once.
    return sorted({change.begin: change for change in _changes(text)}.values(), key=lambda change: change.begin)


def _changes(text: str) -> Iterator[Change]:
    documents = yaml.compose_all(text, Loader=yaml.SafeLoader)
    for document in (item for node in documents for item in manifest_files.item_nodes(node)):
        kind = _child(document, "kind")
        spec = _child(document, "spec")
        if kind is None or kind.value != KIND or spec is None:
            continue
        for path, names in old_form.values().items():
            for where, node in _at(spec, path, "spec"):
                if isinstance(node, yaml.ScalarNode) and node.value in names:
                    yield _change(text, where, node, names[node.value])
        section, name = old_form.STRAGGLERS
        for key, value in _pairs(_child(spec, section)):
            if key.value == name and isinstance(value, yaml.ScalarNode):
                number = str(old_form.percent(yaml.safe_load(value.value)))
                yield _change(text, f"spec.{section}.{name}", key, old_form.PERCENT)
                yield _change(text, f"spec.{section}.{old_form.PERCENT}", value, number)


def _change(text: str, path: str, node: yaml.Node, new: str) -> Change:
    # The node begins with its anchor, tag and quotes, which stay.
    old = str(node.value)
    begin = text.rindex(old, node.start_mark.index, node.end_mark.index)
    return Change(path, node.start_mark.line + 1, old, new, begin, begin + len(old))


def _at(node: yaml.Node | None, path: old_form.Path, where: str) -> Iterator[tuple[str, yaml.Node]]:
    """(path, node) of every node at this path."""
    if node is None:
        return
    if not path:
        yield where, node
    elif path[0] != old_form.ITEMS:
        yield from _at(_child(node, path[0]), path[1:], f"{where}.{path[0]}")
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _at(item, path[1:], f"{where}[{index}]")


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    return next((value for key, value in _pairs(node) if key.value == name), None)


def _pairs(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    return list(node.value) if isinstance(node, yaml.MappingNode) else []
