"""Notes whether a program of `allranks run` reads a variable by which the ranks find each other.

`local/independent_ranks.py` chooses the variables, and reads the files that this module writes.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # see allranks_import_hooks
if TYPE_CHECKING:
    from typing import Any

_LAUNCHERS = {"torchrun", "torch.distributed.run", "watch.py", "log_progress_matcher.py", "jax_process.py"}
"""They read all variables to pass them on, or are no part of the program."""


def install(setting: str) -> None:
    """`setting`: a path, a colon and the names of the variables, separated by commas. Writes the file `PATH.ran` with
    the number of processes in this pod, and makes `PATH.read` when one of the variables is read."""
    path, _, names = setting.rpartition(":")
    arguments = getattr(sys, "orig_argv", None)  # Python 3.10
    if arguments is None or _LAUNCHERS.intersection(os.path.basename(word) for word in arguments[:4]):  # noqa: PTH119
        return
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    watched = {os.fsencode(name) for name in names.split(",")}

    class Values(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            if key in watched and not _is_library():
                watched.clear()
                _write(f"{path}.read", "")
            return dict.__getitem__(self, key)

    values = Values(os.environ._data)  # type: ignore[attr-defined]
    os.environ._data = os.environb._data = values  # type: ignore[attr-defined]
    _write(f"{path}.ran", processes)


_LIBRARIES = {"tqdm.utils"}
"""Modules that go through all variables when they are imported, for those of their own. PyTorch imports tqdm."""
_DEPTH = 8


def _is_library() -> bool:
    """Whether a module of `_LIBRARIES` reads the variable."""
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_globals.get("__name__") in _LIBRARIES:
            return True
    return False


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass  # a full disk: nothing is said at the end
