"""Calls functions before or after a program imports a module. Without such an import it costs a lookup for each import.

Modules of this directory are visible to every program below, so no other module may have their names.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would delay the start of every Python
if TYPE_CHECKING:
    from typing import Any

_functions: dict[str, Any] = {}
_earlier: dict[str, Any] = {}
_deferred: list[Any] | None = None
"""Calls that wait until the program begins, in a process that imports in advance."""


def after_import(name: str, function: Any) -> None:
    """Call `function(module)` after the first import of the module. If it fails, that is one line on stderr."""
    _add_finder()
    _functions[name] = function


def before_import(name: str, function: Any) -> None:
    """Call `function()` before the first import of the module."""
    _add_finder()
    _earlier[name] = function


def defer() -> None:
    """Keep the calls after imports until `run_deferred`."""
    global _deferred
    _deferred = []


def run_deferred() -> None:
    global _deferred
    calls, _deferred = _deferred or [], None
    for function, module in calls:
        _call(function, module)


def _add_finder() -> None:
    if not _functions and not _earlier:
        sys.meta_path.insert(0, _Finder())


def write_line(text: str) -> None:
    try:  # noqa: SIM105 (importing contextlib would delay the start of every Python)
        os.write(2, f"allranks: {text}\n".encode("utf-8", "replace"))
    except OSError:
        pass


class _Finder:
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname in _earlier:
            _earlier.pop(fullname)()
        if fullname not in _functions:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                _extend(spec.loader)
                return spec
        return None


def _extend(loader: Any) -> None:
    """Make a loader call the registered function after the module is executed.

    The loader is not replaced: programs ask the loader of a module for its source or its data files."""
    original = getattr(loader, "exec_module", None)
    if original is None:
        return

    def exec_module(module: Any) -> None:
        del loader.exec_module
        original(module)
        function = _functions.pop(module.__name__, None)
        if function is not None and _deferred is not None:
            _deferred.append((function, module))
        elif function is not None:
            _call(function, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        write_line(f"{loader!r} loads modules that allranks cannot extend")


def _call(function: Any, module: Any) -> None:
    try:
        function(module)
    except Exception as error:
        write_line(f"{module.__name__} is used without allranks: {type(error).__name__}: {error}")
