"""Asynchronous twins: coroutines with the parameters of another function, which are written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def twin_of(
    original: Callable[P, Any],
) -> Callable[[Callable[[dict[str, Any]], Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """The coroutine gets the arguments of a call by the names of the parameters of `original`, with their defaults.

    Type checkers, help() and completion show these parameters.
    """
    signature = inspect.signature(original)

    def decorate(function: Callable[[dict[str, Any]], Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(function)
        async def called(*args: Any, **options: Any) -> T:
            try:
                given = signature.bind(*args, **options)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            given.apply_defaults()
            return await function(given.arguments)

        returned = inspect.signature(function).return_annotation
        called.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        called.__annotations__ = {**original.__annotations__, "return": returned}
        return cast("Callable[P, Coroutine[Any, Any, T]]", called)

    return decorate
