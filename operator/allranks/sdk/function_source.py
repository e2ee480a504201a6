"""Finds out what the source of a function says, to guess its framework as for a script."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from allranks.cli.script_job import Script
from allranks.sdk.payload import name_of


def read_function(function: Callable[..., Any]) -> Script:
    """The packages that the function imports, and those of the modules and objects that it uses."""
    name = name_of(function)
    imports: dict[str, str] = {}
    names: set[str] = set()
    plain = inspect.unwrap(function)
    for node in ast.walk(_parsed(plain)):
        if isinstance(node, ast.Import):
            imports |= {alias.name.partition(".")[0]: name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports[node.module.partition(".")[0]] = name
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    for used, value in getattr(plain, "__globals__", {}).items():
        if used in names:
            module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
            if isinstance(module, str):
                imports.setdefault(module.partition(".")[0], name)
    return Script(name, imports, frozenset(names))


def _parsed(function: Callable[..., Any]) -> ast.AST:
    """Empty if the source is not available, for example of a builtin."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
