"""Prints the section of the change log about the version of the working tree: the notes of its release."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(changes: str, version: str) -> str:
    """Return the section of a version without its title. Raises ValueError if there is none."""
    section = re.search(rf"^## {re.escape(version)} \(.*\)\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if not section or not section[1].strip():
        raise ValueError(f"CHANGELOG.md has no section '## {version} (DATE)'")
    return section[1].strip() + "\n"


def main() -> None:
    [version] = re.findall(r'^__version__ = "(.*)"$', (ROOT / "operator/allranks/version.py").read_text(), re.MULTILINE)
    try:
        sys.stdout.write(notes((ROOT / "CHANGELOG.md").read_text(), version))
    except ValueError as error:
        sys.exit(f"release-notes: error: {error}")


if __name__ == "__main__":
    main()
