"""The files of a program that `allranks dev` watches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.control_sequences import clean_text
from allranks.local.run_directories import ROOT

if TYPE_CHECKING:
    from watchfiles import Change

QUIET_MS = 150
"""A save of several files is over when no file has changed for this time."""
LONGEST_MS = 1500
"""Changes without an end restart the command after this time."""
POLL_MS = 250
SUFFIXES = (".py", ".ipynb", ".yaml", ".yml", ".json", ".toml", ".txt", ".cfg", ".ini", ".sh")


def source_filter() -> Callable[[Change, str], bool]:
    """Return a filter for files of a program: no caches, environments, hidden directories and directories of runs."""
    from watchfiles import DefaultFilter

    others = (ROOT.name, "build", "dist", ".ruff_cache", ".ipynb_checkpoints")
    of_others = DefaultFilter(ignore_dirs=(*DefaultFilter.ignore_dirs, *others))
    return lambda change, path: path.endswith(SUFFIXES) and of_others(change, path)


def named_files(changes: set[tuple[Any, str]]) -> str:
    """List the names of the files, at most three."""
    names = sorted({clean_text(_relative(path), colour=False) for _, path in changes})
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _relative(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
