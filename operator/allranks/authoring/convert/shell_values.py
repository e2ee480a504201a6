"""Values of variables in the script of a shell, as far as the manifest determines them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks.frameworks.command_line import Call, calls, script_of

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<braces>\w+)(?::?[-=](?P<default>[^{}]*))?\}|\((?P<kubelet>\w+)\))")
_EXPANSION = re.compile(r'"?\$(?:\{(?P<array>\w+)(?:\[[@*]\])?\}|(?P<plain>\w+))"?')
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_DEPTH = 8
"""Variables in variables that are followed."""


@dataclass(frozen=True)
class Values:
    """The variables of a command line."""

    variables: Mapping[str, str | None]
    """Of the container. None: the manifest does not determine the value."""
    assigned: dict[str, str | None] = field(default_factory=dict)
    """Of the script. None: it has several values, or one that depends on a condition."""
    shell: bool = False
    readable: bool = True
    """False for a script that cannot be read."""

    def value(self, text: str, open_names: frozenset[str] = frozenset()) -> str | None:
        """Return a text with the values of its variables; None if it is not determined.

        `open_names`: the variables whose value the text is part of. They have the value of the container there.
        """
        out, end = "", 0
        for match in _REFERENCE.finditer(text):
            name = match["plain"] or match["braces"] or match["kubelet"]
            if self.shell and name in self.assigned and name not in open_names and not match["kubelet"]:
                written = self.assigned[name]
                value = None if written is None else self.value(written, open_names | {name})
            elif name in self.variables:
                value = self.variables[name]
            else:
                value = match["default"] or None
            if value is None:
                return None
            out += text[end : match.start()] + value
            end = match.end()
        out = (out + text[end:]).strip().strip("\"'")
        return None if "$" in out or "`" in out else out

    def raw(self, text: str) -> str:
        """Return a text with the texts of its variables, also where they are outputs of commands."""
        names = [match["plain"] or match["braces"] for match in _REFERENCE.finditer(text)]
        return " ".join([text, *(self.assigned.get(name) or "" for name in names if name)])

    def words(self, text: str, depth: int = _DEPTH) -> list[str] | None:
        """Return the words that a variable expands to: `$ARGS`, `"${ARGS[@]}"`. None for any other text, and where the
        words are not determined. Variables in the words are as written."""
        match = _EXPANSION.fullmatch(text)
        if match is None or not depth:
            return None
        name = match["array"] or match["plain"]
        value = self.assigned.get(name) if name in self.assigned else self.variables.get(name)
        if value is None:
            return None
        inner = value.strip()
        if inner[:1] + inner[-1:] in ("()", '""', "''"):
            inner = inner[1:-1]
        of_value = calls(["sh", "-c", inner])
        if inner.strip() and not of_value:
            return None
        out: list[str] = []
        for word in (word.text for call in of_value for word in call.words):
            nested = self.words(word, depth - 1)
            out += [word] if nested is None else nested
        return out


def of_command(command: Sequence[str], variables: Mapping[str, str | None]) -> Values:
    """Return the variables of a command line. `variables`: of its container."""
    script = script_of(command)
    if script is None:
        return Values(variables)
    of_script = calls(command)
    values = Values(variables, {}, shell=True, readable=bool(of_script) or not command[script].strip())
    for call in of_script:
        _assign(values.assigned, call)
    return values


def _assign(assigned: dict[str, str | None], call: Call) -> None:
    words = call.words[1:] if call.words[0].text in _DECLARES else call.words
    matches = [_ASSIGNMENT.fullmatch(word.text) for word in words]
    if call.words[0].text not in _DECLARES and not all(matches):
        return  # variables of one command
    for match in filter(None, matches):
        name, adds, value = match[1], match[2], match[3]
        if call.nested:
            assigned[name] = None
        elif name not in assigned:
            assigned[name] = value
        elif adds and (before := assigned[name]) is not None:
            lists = before.startswith("(") and value.startswith("(")
            assigned[name] = f"{before[:-1]} {value[1:]}" if lists else before + value
        else:
            assigned[name] = None
