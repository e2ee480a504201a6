"""Writes a function with its arguments to a file that the ranks load (inpod/call_function.py)."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import linecache
import sys
import sysconfig
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from allranks.errors import CannotPickle, CannotRun
from allranks.extras import install_command


def write(file: Path, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Write the payload of ranks on this machine, which have the import path of this process.

    Raises OSError, and the errors of `dumps`.
    """
    data = dumps(function, args, kwargs, path=[path for path in sys.path if path])
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_bytes(data)


def dumps(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, path: Sequence[str] = ()
) -> bytes:
    """Pickle the function with its arguments.

    Raises CannotPickle with the name of the object that cannot be pickled, TypeError if the arguments do not fit the
    function.
    """
    cloudpickle = _cloudpickle()
    _check_arguments(function, args, kwargs)
    try:
        with _REGISTRY, _by_value(cloudpickle, function):
            data, files = _dumps(cloudpickle, (function, tuple(args), dict(kwargs)))
    except Exception as error:  # pickling runs code of the objects, which raises anything
        raise CannotPickle(_explain(function, args, kwargs, error)) from error
    header = {"python": "{}.{}".format(*sys.version_info[:2]), "path": list(path), "sources": _sources(files)}
    return json.dumps(header).encode() + b"\n" + data


_REGISTRY = threading.RLock()
"""cloudpickle has one list of the modules by value for all threads, and a program may call `run` in several."""


def _sources(files: Sequence[str]) -> dict[str, str]:
    """Return file -> text, for tracebacks in ranks that do not have the file, such as the cell of a notebook."""
    out, left = {}, _SOURCE_CHARACTERS
    for file in files:
        text = "".join(linecache.getlines(file))
        if text and len(text) <= left:
            out[file] = text
            left -= len(text)
    return out


_SOURCE_CHARACTERS = 400_000
"""Of all files together. Longer files have no source lines in tracebacks."""


def cloudpickle_files() -> dict[str, bytes]:
    """Return path -> content of the modules of cloudpickle, for images that do not have it."""
    folder = Path(_cloudpickle().__file__).parent
    return {f"{folder.name}/{file.name}": file.read_bytes() for file in sorted(folder.glob("*.py"))}


def name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        raise CannotRun(f"sending a function to the ranks needs cloudpickle: {install_command('python')}") from None
    return cloudpickle


def _dumps(cloudpickle: Any, value: Any) -> tuple[bytes, list[str]]:
    """Pickle a value, and return the files of the code in it.

    Code keeps the name of its file, with which a traceback shows its lines. cloudpickle 3.1.3 writes `<dynamic-code>`
    instead.
    """
    reduce = cloudpickle.Pickler.dispatch_table[CodeType]
    files: dict[str, None] = {}

    def reduce_code(code: CodeType) -> tuple[Any, ...]:
        files[code.co_filename] = None
        make, arguments = reduce(code)
        return make, tuple(code.co_filename if item == "<dynamic-code>" else item for item in arguments)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = ChainMap({CodeType: reduce_code}, cloudpickle.Pickler.dispatch_table)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue(), list(files)


@contextlib.contextmanager
def _by_value(cloudpickle: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Send the module of the function as it is in this process, unless it is installed.

    The ranks do not run its top level, which may start the job.
    """
    module = inspect.getmodule(function)
    if module is None or module.__name__ == "__main__" or _is_installed(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: ModuleType) -> bool:
    """Return whether the module belongs to Python or to an installed package."""
    file = getattr(module, "__file__", None)
    installed = (sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    return file is None or any(Path(file).is_relative_to(folder) for folder in installed if folder)


def _check_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Report a wrong argument here, with one traceback, instead of in each rank. Raises TypeError."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name_of(function)}{signature} cannot be called with these arguments: {error}") from None


def _explain(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> str:
    """Name the object that cannot be pickled in one sentence."""
    name = name_of(function)
    for subject, value, cure in _parts(function, args, kwargs):
        if problem := _problem(value):
            return f"{subject.format(name=name)} cannot be pickled ({problem}): {cure.format(name=name)}"
    return f"{name} cannot be pickled ({type(error).__name__}: {error})"


def _parts(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Yield (subject of a sentence, object, cure) for everything that is sent with the function."""
    pass_data = "pass what it is made of, and make it in {name}"
    for number, value in enumerate(args, 1):
        yield f"argument {number} of {{name}}, a {type(value).__name__},", value, pass_data
    for key, value in kwargs.items():
        yield f"argument {key} of {{name}}, a {type(value).__name__},", value, pass_data
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return
    for key, value in {**variables.nonlocals, **variables.globals}.items():
        if not inspect.ismodule(value):
            yield f"the variable {key} that {{name}} uses, a {type(value).__name__},", value, "make it in {name}"


def _problem(value: Any) -> str:
    """Return the reason why the value cannot be pickled; empty if it can."""
    try:
        _cloudpickle().dumps(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
