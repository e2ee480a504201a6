"""Copies the files that run inside pods: into a volume by an init container, or into a directory by `allranks run`."""

from __future__ import annotations

import shutil
from pathlib import Path

import allranks

PACKAGE = Path(allranks.__file__).parent
HELPERS = PACKAGE / "inpod"


def copy(directory: Path) -> None:
    """Copy the in-pod helpers and the report library. Raises OSError."""
    copy_modules(HELPERS, directory, "[!_]*.py")
    copy_modules(HELPERS, directory, "*.sh")
    copy_modules(PACKAGE / "core" / "diagnosis", directory, "patterns.py")
    copy_startup(directory / "startup")
    copy_library(directory / "python")


def copy_library(directory: Path) -> None:
    """Copy what `from allranks.report import report` needs. Raises OSError."""
    copy_modules(PACKAGE, directory / "allranks", "__init__.py")
    copy_modules(PACKAGE, directory / "allranks", "version.py")
    copy_modules(PACKAGE / "report", directory / "allranks" / "report", "*.py")


def copy_startup(directory: Path) -> None:
    """Copy what programs run at their start. Raises OSError.

    It is a separate directory, because it is added to PYTHONPATH and nothing else must be importable from it.
    """
    copy_modules(HELPERS / "startup", directory, "[!_]*.py")
    metadata = directory / "allranks_automatic_reports-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: allranks-automatic-reports\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)


_ENTRY_POINTS = "".join(
    f"[{package}.callbacks_factory]\nallranks = allranks_automatic_reports:lightning_callbacks\n"
    for package in ("lightning.pytorch", "pytorch_lightning")
)
"""How Lightning finds callbacks that no program names."""


def copy_modules(source: Path, directory: Path, pattern: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for module in sorted(source.glob(pattern)):
        shutil.copyfile(module, directory / module.name)
