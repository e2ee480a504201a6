"""Says in our own words why a kubeconfig is not YAML, where, and what to change."""

from __future__ import annotations

import yaml

_CAUSES = (
    ("character '\\t'", "a tab is in the indentation: YAML allows only spaces there"),
    ("cannot start any token", "a value begins with a character that has a meaning in YAML: put the value in quotes"),
    (
        "mapping values are not allowed",
        "a second ': ' is in this line: check the indentation, or put the value in quotes",
    ),
    ("could not find expected ':'", "a key has no ': ' behind it: add it"),
    ("<block end>", "the line does not fit those above: keys of a mapping, and items of a list, begin in one column"),
    ("end of stream", "a quotation mark has no counterpart: add it"),
    ("quoted scalar", "a quotation mark has no counterpart: add it"),
    ("<stream end>", "a bracket or brace is not closed: add the other one"),
    ("expected ','", "a bracket or brace is not closed, or a comma is missing: add it"),
    ("undefined alias", "a value begins with *, which has a meaning in YAML: put the value in quotes"),
    ("constructor for the tag", "a value begins with !, which has a meaning in YAML: put the value in quotes"),
    ("special characters are not allowed", "a control character is in the file: remove it"),
)
"""Part of PyYAML's message -> cause and cure."""
_OTHER = "its structure cannot be read there: correct it, or get a new kubeconfig of the cluster"


def describe(error: yaml.YAMLError | ValueError | RecursionError, text: str) -> str:
    """`:LINE:COLUMN: is not YAML: ...` without the place if that is unknown. `text` is the content of the file."""
    message = str(error)
    cause = next((cause for part, cause in _CAUSES if part in message), _OTHER)
    if isinstance(error, RecursionError):
        cause = "it is nested too deeply: get a new kubeconfig of the cluster"
    elif isinstance(error, ValueError):  # for example month 13
        cause = "a value looks like a date and is none: put the value in quotes"
    place = ""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := _mark(error)):
        place = f":{mark.line + 1}:{mark.column + 1}:"
    elif isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        place = f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}:"
    return f"{place} is not YAML: {cause}"


def _mark(error: yaml.MarkedYAMLError) -> yaml.Mark | None:
    """Where something began that does not end, else where the parser stopped."""
    unfinished = error.context and any(part in error.context for part in ("simple key", "quoted", "flow"))
    return (error.context_mark if unfinished else None) or error.problem_mark or error.context_mark
