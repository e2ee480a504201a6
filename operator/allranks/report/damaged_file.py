"""Says whether the exception that ends a program is about a file that is no checkpoint. Needs the standard library
only."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_FRAMES, MOST_VARIABLES = 200, 200
_OF_OTHER_PROCESSES = (
    "torch.distributed.elastic.",
    "torch.multiprocessing.",
    "subprocess.",
    "multiprocessing.",
    "concurrent.futures.",
    "ray.",
)
"""Packages whose exceptions say that another process failed. Its variables are not in the frames here."""


def is_elsewhere(error: BaseException | None, directory: str) -> bool:
    """Return whether the innermost frame that has a file in a variable has none in the directory of checkpoints."""
    if error is None or f"{type(error).__module__}.".startswith(_OF_OTHER_PROCESSES):
        return False
    frames: list[Mapping[str, Any]] = []
    trace = error.__traceback__
    while trace is not None and len(frames) < MOST_FRAMES:
        frames.append(trace.tb_frame.f_locals)
        trace = trace.tb_next
    folder = os.path.realpath(directory)
    for variables in reversed(frames):
        paths = list(_paths(variables))
        if any(path == folder or path.startswith(folder + os.sep) for path in paths):
            return False
        if any(os.path.isfile(path) for path in paths):  # noqa: PTH113 (a Path costs more, and may raise)
            return True
    return False


def _paths(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the absolute paths in variables: names of files, open files, and lists of names."""
    for name, value in list(variables.items())[:MOST_VARIABLES]:
        if name.startswith("__"):
            continue
        values = value[-1:] if type(value) in (list, tuple) else [value]
        for item in values:
            path = getattr(item, "name", None) if isinstance(item, io.IOBase) else item
            if isinstance(path, str | bytes | os.PathLike):
                text = os.fsdecode(path)
                if (os.sep in text or "." in text) and "\0" not in text and len(text) < 4096:
                    yield os.path.realpath(text)
