"""Copies the files that run inside pods: into a volume by an init container, or into a directory by `allranks run`."""

from __future__ import annotations

import shutil
from pathlib import Path

import allranks

PACKAGE = Path(allranks.__file__).parent
HELPERS = PACKAGE / "inpod"


def copy(directory: Path) -> None:
    """Copies the in-pod helpers and the report library. Raises OSError."""
    copy_modules(HELPERS, directory, "[!_]*.py")
    copy_modules(HELPERS, directory, "*.sh")
    # A separate directory, because helpers add it to PYTHONPATH and nothing else must be importable from it.
    copy_modules(HELPERS / "startup", directory / "startup", "[!_]*.py")
    copy_library(directory / "python")


def copy_library(directory: Path) -> None:
    """Copies what `from allranks.report import report` needs. Raises OSError."""
    copy_modules(PACKAGE, directory / "allranks", "__init__.py")
    copy_modules(PACKAGE, directory / "allranks", "version.py")
    copy_modules(PACKAGE / "report", directory / "allranks" / "report", "*.py")


def copy_modules(source: Path, directory: Path, pattern: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for module in sorted(source.glob(pattern)):
        shutil.copyfile(module, directory / module.name)
