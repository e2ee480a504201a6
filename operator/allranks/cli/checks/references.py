"""References $(NAME) in commands, arguments and variables that nothing replaces: the program gets them as written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from allranks.api.job import Job
from allranks.api.sweep_values import VARIABLE_PREFIX
from allranks.cli.checks.problem import Problem
from allranks.cli.checks.schema import similar
from allranks.cli.checks.template import CONTAINER_LISTS
from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import ROLE_LABEL, TRAINER
from allranks.core.objects import command_notes
from allranks.frameworks import FRAMEWORKS

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
"""$(NAME), and $$ for a dollar sign."""
_SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})


class _Text(NamedTuple):
    """A text of a container in the manifest."""

    path: str
    value: str
    in_shell: bool
    """The program is a shell, for which $(NAME) is the output of a command."""


def problems(job: Job, pods: Sequence[Manifest], parameters: Sequence[str]) -> Iterator[Problem]:
    """A warning for each. `pods`: the first pod of each role, with the variables of allranks. `parameters`: names of
    the parameters of a sweep."""
    found: dict[Problem, None] = {}
    for pod in pods:
        for kind in CONTAINER_LISTS:
            for container in pod["spec"].get(kind) or ():
                if container.get("envFrom"):
                    continue  # the names are in a Secret or ConfigMap
                names = _names(job, container, parameters)
                for text in _written(job, pod["metadata"]["labels"][ROLE_LABEL], kind, container["name"]):
                    found.update(dict.fromkeys(_unknown(text, names, parameters)))
    yield from found


def _names(job: Job, container: Manifest, parameters: Iterable[str]) -> list[str]:
    """What a reference in this container may name. Not each pod has each variable of the framework."""
    own = [variable["name"] for variable in container.get("env") or ()]
    of_framework = FRAMEWORKS[job.spec.framework].reserved_env if container["name"] == TRAINER else ()
    return [*parameters, *own, *of_framework]


def _unknown(text: _Text, names: Sequence[str], parameters: Sequence[str]) -> Iterator[Problem]:
    for match in _REFERENCE.finditer(text.value):
        name = match[1]
        if name is None or name in names or (parameters and name.startswith(VARIABLE_PREFIX)):
            continue
        near = similar(name, parameters if text.in_shell else names)
        if text.in_shell and not near:
            continue
        what = "no parameter of the sweep and no variable" if parameters else "no variable"
        cure = f"did you mean $({near})?" if near else f"write $$({name}) if that is meant"
        yield Problem(text.path, f"$({name}) is {what} of the container, so it stays as it is: {cure}", "warning")


def _written(job: Job, role: str, kind: str, name: str) -> Iterator[_Text]:
    """The texts of a container, in the job, the role and their templates."""
    parts = ((f"spec.roles.{role}", job.spec.roles[role]), ("spec", job.spec))
    if name == TRAINER:
        words = _command_line(job, role)
        in_shell = _is_shell(word for _, word in words)
        yield from (_Text(path, word, in_shell) for path, word in words)
        values = {
            variable.name: _Text(f"{path}.env[{number}].value", variable.value or "", False)
            for path, part in reversed(parts)
            for number, variable in enumerate(part.env or ())
        }
        yield from values.values()
    for path, part in parts:
        spec: Any = (part.template or {}).get("spec") or {}
        for number, container in enumerate(spec.get(kind) or ()):
            if container.get("name") == name:
                yield from _in_template(container, f"{path}.template.spec.{kind}[{number}]")


def _command_line(job: Job, role: str) -> list[tuple[str, str]]:
    """(path, word)"""
    spec = job.spec.roles[role]
    if words := command_notes.arguments(job, role, spec):
        return words
    path, args = ("spec", job.spec.args) if spec.args is None else (f"spec.roles.{role}", spec.args)
    return [(f"{path}.args[{number}]", word) for number, word in enumerate(args or ())]


def _in_template(container: Mapping[str, Any], path: str) -> Iterator[_Text]:
    in_shell = _is_shell(container.get("command") or ())
    for field in ("command", "args"):
        for number, word in enumerate(container.get(field) or ()):
            yield _Text(f"{path}.{field}[{number}]", str(word), in_shell)
    for number, variable in enumerate(container.get("env") or ()):
        yield _Text(f"{path}.env[{number}].value", str(variable.get("value") or ""), False)


def _is_shell(command: Iterable[str]) -> bool:
    return any(str(word).rpartition("/")[2] in _SHELLS for word in command)
