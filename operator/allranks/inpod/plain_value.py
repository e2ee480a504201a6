"""Encodes values as JSON, which runs no code when it is loaded, as a pickle does: numbers, texts, lists, dictionaries
and the like, with arrays of NumPy. Needs only the standard library.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from typing import Any

_KIND, _CONTENT = "$", "value"
_PLAIN = (type(None), bool, int, float, str)


def encoded(value: Any) -> bytes | None:
    """Return the value as JSON; None if it has another type, also of a part, which only a pickle can restore."""
    try:
        return json.dumps(_node(value)).encode()
    except (TypeError, ValueError, RecursionError):
        return None


def decoded(data: bytes) -> Any:
    """Return the value. Raise ValueError if it is malformed, ImportError if it needs NumPy and there is none."""
    try:
        return _value(json.loads(data))
    except (KeyError, TypeError, AttributeError, RecursionError, EOFError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _node(value: Any) -> Any:
    # Exact types: a subclass, such as an enumeration, would come back as another type.
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [_node(item) for item in value]
    if type(value) is dict:
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: _node(item) for key, item in value.items()}
        return {_KIND: "dict", _CONTENT: [[_node(key), _node(item)] for key, item in value.items()]}
    if type(value) in (tuple, set, frozenset):
        return {_KIND: type(value).__name__, _CONTENT: [_node(item) for item in value]}
    if type(value) is bytes:
        return {_KIND: "bytes", _CONTENT: base64.b64encode(value).decode()}
    return _array(value)


def _array(value: Any) -> Any:
    """Raise TypeError."""
    numpy = sys.modules.get("numpy")  # a program with arrays has imported it
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        raise TypeError(type(value).__name__)
    file = io.BytesIO()
    numpy.save(file, numpy.asarray(value), allow_pickle=False)  # ValueError for objects
    kind = "array" if type(value) is numpy.ndarray else "scalar"
    return {_KIND: kind, _CONTENT: base64.b64encode(file.getvalue()).decode()}


def _value(node: Any) -> Any:
    if isinstance(node, list):
        return [_value(item) for item in node]
    if not isinstance(node, dict):
        return node
    if _KIND not in node:
        return {key: _value(item) for key, item in node.items()}
    return _DECODERS[node[_KIND]](node[_CONTENT])


def _load(text: str) -> Any:
    import numpy  # type: ignore[import-not-found, unused-ignore]

    return numpy.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "dict": lambda pairs: {_value(key): _value(item) for key, item in pairs},
    "tuple": lambda items: tuple(_value(items)),
    "set": lambda items: set(_value(items)),
    "frozenset": lambda items: frozenset(_value(items)),
    "bytes": base64.b64decode,
    "array": _load,
    "scalar": lambda text: _load(text)[()],
}
