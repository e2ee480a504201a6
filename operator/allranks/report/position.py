"""Says where the main thread of a program is, in a few words: its own line, what it calls there, and its exception.

The operator compares the positions of ranks that make no progress. The whole stacks are in the log.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

MOST_CHARACTERS = 200
_WRAPPERS = frozenset({"wrapper", "inner", "inner_wrapper", "_fn", "decorate_context", "new_func", "_call_impl"})
"""Names of functions of decorators, which say nothing about the call."""
_LIBRARY = f"{Path(threading.__file__).parent}/"
_REPORT_LIBRARY = f"{Path(__file__).resolve().parents[1]}/"


def position() -> dict[str, str]:
    """Return `where` (`train.py:88`), `call` (`all_reduce`) and `raising` (`ValueError: ...`), without empty ones.

    `call` is `ended` when the main thread has ended and other threads keep the process.
    """
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    ended = frame is not None and frame.f_code.co_name == "_shutdown" and frame.f_code.co_filename == threading.__file__
    if ended:
        raising = exception(getattr(sys, "last_value", None))
        return without_empty({"call": "ended", "raising": raising})
    where, call = place(frame)
    return without_empty({"where": where, "call": call, "raising": exception(raised_in(main))})


def place(frame: FrameType | None) -> tuple[str, str]:
    """Return (file and line of the innermost frame of the program, function that it calls there)."""
    calls: list[str] = []
    while frame is not None:
        code = frame.f_code
        if is_program(code.co_filename):
            called = next((name for name in reversed(calls) if name not in _WRAPPERS), "")
            line = f"{Path(code.co_filename).name}:{frame.f_lineno}"
            return line[-MOST_CHARACTERS:], called[:MOST_CHARACTERS]
        calls.append("DataLoader" if code.co_filename.endswith("dataloader.py") else code.co_name)
        frame = frame.f_back
    return "", ""


def is_program(file: str) -> bool:
    """Return whether a file belongs to the program, and not to Python, an installed package or this library."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    return not file.startswith((_REPORT_LIBRARY, _LIBRARY))


def raised_in(thread: int | None) -> Any:
    """Return the exception that a thread handles, also while it waits in a `finally`; None before Python 3.10."""
    current = getattr(sys, "_current_exceptions", None)
    handled = current().get(thread) if current is not None else None
    return handled[1] if isinstance(handled, tuple) else handled


def exception(value: Any) -> str:
    if not isinstance(value, BaseException):
        return ""
    name = type(value).__name__
    try:
        text = str(value)
    except Exception:
        return name
    line = "".join(letter if letter.isprintable() else " " for letter in text[:MOST_CHARACTERS]).strip()
    return f"{name}: {line}"[:MOST_CHARACTERS] if line else name


def without_empty(texts: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if text}
