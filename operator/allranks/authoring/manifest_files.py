"""Reads YAML documents from files or stdin, and describes what is not YAML with the line of the file.

The items of a `List`, which `kubectl get -o yaml` prints for several objects, count as documents.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from allranks.authoring import templates

_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LIST = "List"
_SHOWN_COLUMNS = 100


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
    """The reason why a file has no documents. `line` and `column` count from 1; 0 is an unknown place."""

    message: str
    line: int = 0
    column: int = 0
    excerpt: str = ""
    """The line, the one before it, and a caret below the column."""


def read(file: str) -> list[Any] | Unreadable:
    """Return the documents of a file; `-` is stdin. Empty documents are left out."""
    content = text(file)
    return content if isinstance(content, Unreadable) else documents(content)


def documents(text: str) -> list[Any] | Unreadable:
    """Return the documents of a YAML text. Empty documents are left out."""
    if templates.is_batch_script(text):
        return Unreadable("is a script of Slurm: `allranks convert FILE > job.yaml` converts it")
    try:
        loaded = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        unreadable = _marked(error, text)
        template = templates.in_text(text, "validate")
        return replace(unreadable, message=template) if template else unreadable
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: for example month 13 in a timestamp
        return Unreadable(f"is not YAML: {str(error).splitlines()[0]}")
    except RecursionError:
        return Unreadable("is nested too deeply")
    return [item for document in loaded for item in _items(document) if item is not None]


def text(file: str) -> str | Unreadable:
    """Return the text of a file; `-` is stdin."""
    if file.endswith((".py", ".ipynb")) and Path(file).is_file():
        kind = "a Python script" if file.endswith(".py") else "a notebook"
        return Unreadable(f"is {kind}: allranks run {file} --save job.yaml writes its manifest")
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        return Unreadable(f"cannot be read: {(error.strerror or str(error)).lower()}{did_you_mean(file)}")
    except UnicodeDecodeError:
        return Unreadable("is not a UTF-8 text file")


def did_you_mean(file: str) -> str:
    """Return `, did you mean job.yaml?` for a missing file if a file beside it has a similar name; else an empty
    text."""
    path = Path(file)
    if path.exists() or not path.name:
        return ""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == path.suffix]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f", did you mean {path.with_name(near[0])}?" if near else ""


def _items(document: Any) -> list[Any]:
    is_list = isinstance(document, dict) and document.get("kind") == _LIST and isinstance(document.get("items"), list)
    return document["items"] if is_list else [document]


def _marked(error: yaml.MarkedYAMLError, text: str) -> Unreadable:
    message = f"is not YAML: {error.problem or error.context}"
    mark = error.problem_mark
    if mark is None:
        return Unreadable(message)
    lines = text.splitlines()
    return Unreadable(message, mark.line + 1, mark.column + 1, "\n".join(_excerpt(lines, mark.line, mark.column)))


def _excerpt(lines: list[str], line: int, column: int) -> Iterator[str]:
    width = len(str(line + 1))
    start = max(0, column - _SHOWN_COLUMNS + 10)
    for number in range(max(0, line - 1), min(line + 1, len(lines))):
        shown = lines[number][start : start + _SHOWN_COLUMNS].replace("\t", " ")
        yield f"  {number + 1:>{width}} | {shown}".rstrip()
    yield f"  {'':>{width}} | {' ' * (column - start)}^"


def source_name(file: str) -> str:
    """Return the name of a file in messages."""
    return "stdin" if file == "-" else file


def sources(files: Iterable[str]) -> str:
    """Return the names of several files in messages."""
    return ", ".join(source_name(file) for file in files)
