"""Reads YAML documents from files or stdin, and describes what is not YAML with the line of the file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SHOWN_COLUMNS = 100
_HINTS = {
    "did not find expected key": "keys of the same mapping must begin in the same column",
    "mapping values are not allowed in this context": "check the indentation, and put text with ': ' in quotes",
    "did not find expected '-' indicator": "items of the same list must begin in the same column",
    "could not find expected ':'": "a key is followed by ': '",
}
"""libyaml's message -> what is usually the cause."""


class _Loader(_FastLoader):  # type: ignore[misc]
    """Rejects duplicate keys: YAML forbids them, but PyYAML silently drops the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in names and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
            names.add(name)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a file has no documents. `line` and `column` count from 1; 0 is an unknown place."""

    message: str
    line: int = 0
    column: int = 0
    excerpt: str = ""
    """The line, the one before it, and a caret below the column."""


def read(file: str) -> list[Any] | Unreadable:
    """The documents of a file; `-` is stdin. Empty documents are left out."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        return Unreadable(f"cannot be read: {(error.strerror or str(error)).lower()}")
    except UnicodeDecodeError:
        return Unreadable("is not a UTF-8 text file")
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        return _marked(error, text)
    except yaml.YAMLError as error:
        return Unreadable(f"is not YAML: {str(error).splitlines()[0]}")
    except ValueError as error:  # for example month 13 in a timestamp
        return Unreadable(f"is not YAML: {error}")
    except RecursionError:
        return Unreadable("is nested too deeply")


def _marked(error: yaml.MarkedYAMLError, text: str) -> Unreadable:
    message = f"is not YAML: {error.problem or error.context}"
    mark = error.problem_mark
    if mark is None:
        return Unreadable(message)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: mark.column + 1]:
        message += ": YAML allows no tabs in the indentation, use spaces"
    elif hint := _HINTS.get(str(error.problem)):
        message += f": {hint}"
    return Unreadable(message, mark.line + 1, mark.column + 1, "\n".join(_excerpt(lines, mark.line, mark.column)))


def _excerpt(lines: list[str], line: int, column: int) -> Iterator[str]:
    width = len(str(line + 1))
    start = max(0, column - _SHOWN_COLUMNS + 10)
    for number in range(max(0, line - 1), min(line + 1, len(lines))):
        shown = lines[number][start : start + _SHOWN_COLUMNS].replace("\t", " ")
        yield f"  {number + 1:>{width}} | {shown}".rstrip()
    yield f"  {'':>{width}} | {' ' * (column - start)}^"


def source_name(file: str) -> str:
    """How messages name a file."""
    return "stdin" if file == "-" else file


def sources(files: Iterable[str]) -> str:
    """How messages name several files."""
    return ", ".join(source_name(file) for file in files)
