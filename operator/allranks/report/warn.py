"""Warnings on stderr, each kind once: reports must not fill the program's log."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_warned: set[str] = set()


def warn_once(kind: str, line: str) -> None:
    """Print a line, each kind once. Bypass Python's own buffers: a hung thread may hold their lock."""
    if kind not in _warned and len(_warned) < 100:
        _warned.add(kind)
        write(f"allranks: {line}\n")


def write(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed
        os.write(2, text.encode("utf-8", "replace"))


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook of a callback whose errors do not end the training: another version of a framework may differ."""

    @functools.wraps(hook)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            hook(*args, **kwargs)
        except Exception as error:
            name = f"{type(args[0]).__name__}.{hook.__name__}"
            warn_once(f"hook {name}", f"{name} failed: {type(error).__name__}: {error}")

    return call
