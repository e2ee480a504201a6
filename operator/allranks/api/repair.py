"""Leaves out what is wrong in a document, so that the rest of it can be checked as well."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from allranks.api.validation_messages import steps_of
from allranks.frameworks import FRAMEWORKS

M = TypeVar("M", bound=BaseModel)

_ROUNDS = 3
"""An object without a required field is left out in the next round."""
_ANY: dict[tuple[int | str, ...], str] = {
    ("spec", "framework"): next(name for name, framework in FRAMEWORKS.items() if framework.any_role),
    ("metadata", "name"): "name",
}
"""Fields without which nothing can be checked -> a value that stands for any."""


def repaired(document: dict[str, Any], model: type[M], errors: Sequence[ErrorDetails]) -> M | None:
    """The document without the values that `errors` are about. None if too little of it is left."""
    rest = copy.deepcopy(document)
    for _ in range(_ROUNDS):
        for detail in reversed(errors):
            path = tuple(steps_of(detail))
            drop(rest, path)
            parent = rest.get(str(path[0])) if len(path) == 2 else None
            if path in _ANY and isinstance(parent, dict):
                parent[str(path[1])] = _ANY[path]
        try:
            return model.model_validate(rest, by_alias=True, by_name=False)
        except ValidationError as error:
            errors = error.errors(include_url=False)
    return None


def with_values(complete: Any, written: Any) -> Any:
    """`complete`, which has all defaults, with the values as they are written, also the wrong ones."""
    if isinstance(complete, dict) and isinstance(written, dict):
        own = {key: with_values(complete.get(key), value) for key, value in written.items() if value is not None}
        return {**complete, **own}
    if isinstance(complete, list) and isinstance(written, list) and len(complete) == len(written):
        return [with_values(one, other) for one, other in zip(complete, written, strict=True)]
    return written


def drop(value: Any, path: Sequence[int | str]) -> None:
    """Removes the value at `path`, or the nearest one above it that exists: an object without a required field."""
    found: list[tuple[Any, int | str]] = []
    for step in path:
        if not (step in value if isinstance(value, dict) else _has(value, step)):
            break
        found.append((value, step))
        value = value[step]
    if found:
        container, step = found[-1]
        del container[step]


def _has(value: Any, step: int | str) -> bool:
    return isinstance(value, list) and isinstance(step, int) and step < len(value)
