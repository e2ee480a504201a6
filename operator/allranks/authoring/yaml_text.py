"""Prints objects as YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from allranks.control_sequences import INVISIBLE

_UNSAFE = re.compile(f"[\x85{INVISIBLE}]")
"""Characters that are removed from the output. PyYAML escapes all other control characters."""


class _Dumper(yaml.SafeDumper):
    """Prints texts of several lines as blocks, and shared parts without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _UNSAFE.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(documents: Iterable[Any]) -> str:
    """Return the objects as a stream of YAML documents."""
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True)
    # They are in double quotes, where an escape means the same.
    return _UNSAFE.sub(lambda match: f"\\U{ord(match[0]):08x}", text)


def without_empty(value: Any) -> Any:
    """Return a copy without empty texts, lists and maps."""
    if isinstance(value, dict):
        inner = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in ("", [], {})}
    return [without_empty(item) for item in value] if isinstance(value, list) else value
