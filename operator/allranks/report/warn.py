"""Lines on stderr for people, each kind once: reports must not fill a program's log."""

from __future__ import annotations

import contextlib
import os

_told: set[str] = set()


def tell_once(kind: str, line: str) -> None:
    """Written past Python's own buffers: they may be in use by the thread that hangs."""
    if kind not in _told and len(_told) < 100:
        _told.add(kind)
        write(f"allranks: {line}\n")


def write(text: str) -> None:
    with contextlib.suppress(OSError):  # no stderr, or nobody reads it
        os.write(2, text.encode("utf-8", "replace"))
