"""Prints objects as YAML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Prints texts of several lines as blocks, and shared parts without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dump(documents: Iterable[Any]) -> str:
    """Objects as a stream of YAML documents."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True)


def without_empty(value: Any) -> Any:
    """Removes empty texts, lists and maps."""
    if isinstance(value, dict):
        inner = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in ("", [], {})}
    return [without_empty(item) for item in value] if isinstance(value, list) else value
