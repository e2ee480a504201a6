"""Warnings on stderr, each kind once: reports must not fill the program's log."""

from __future__ import annotations

import contextlib
import os

_warned: set[str] = set()


def warn_once(kind: str, line: str) -> None:
    """Bypasses Python's own buffers: a hung thread may hold their lock."""
    if kind not in _warned and len(_warned) < 100:
        _warned.add(kind)
        write(f"allranks: {line}\n")


def write(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed
        os.write(2, text.encode("utf-8", "replace"))
