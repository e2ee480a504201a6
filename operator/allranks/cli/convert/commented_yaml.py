"""Prints a converted job as YAML with its comments, as text lines above the fields."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from allranks.cli.convert.draft import Path
from allranks.cli.format import yaml

WIDTH = 118


def dump(document: Mapping[str, Any], head: Iterable[str], comments: Iterable[tuple[Path, str]]) -> str:
    """`head`: lines before the document. A comment on a field that does not exist is above the nearest field around
    it; one on an item of a list is above the list."""
    marker = "comment"
    while marker in json.dumps(document, default=str):
        marker += "_"
    texts: list[str] = []
    marked = _copy(document)
    for path, text in comments:
        if text not in texts:  # several roles can have the same remark
            _mark(marked, path, f"{marker}{len(texts)}")
            texts.append(text)
    out = [line for text in head for line in _lines(text, "")]
    for line in yaml.dump([marked]).splitlines():
        found = re.fullmatch(rf"( *){marker}(\d+): null", line)
        out += _lines(texts[int(found[2])], found[1]) if found else [line]
    return "\n".join(out) + "\n"


def _lines(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False, break_long_words=False
    )


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _mark(document: dict[str, Any], path: Path, marker: str) -> None:
    """Puts a marker before the last key of the path that exists."""
    here, name = document, ""
    parent = document
    for step in path:
        if not isinstance(here, dict) or step not in here:
            break
        parent, name, here = here, step, here[step]
    items = list(parent.items())
    parent.clear()
    for key, value in items:
        if key == name:
            parent[marker] = None
        parent[key] = value
