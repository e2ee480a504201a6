"""Writes the generated pages of docs/reference: `tools/reference.py`; `--check` compares, and fails if one is stale."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from reference import cli, fields, metrics, settings, verdicts

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES = {
    "fields.md": fields.page,
    "cli.md": cli.page,
    "settings.md": settings.page,
    "metrics.md": metrics.page,
    "verdicts.md": verdicts.page,
}


def main() -> None:
    """Exits with 1 when `--check` finds a difference."""
    stale = False
    for name, page in PAGES.items():
        file, text = FOLDER / name, page()
        if "--check" not in sys.argv[1:]:
            file.write_text(text)
        elif (now := file.read_text() if file.exists() else "") != text:
            stale = True
            shown = f"docs/reference/{name}"
            sys.stdout.writelines(difflib.unified_diff(now.splitlines(True), text.splitlines(True), shown, shown))
    sys.exit(stale)


if __name__ == "__main__":
    main()
