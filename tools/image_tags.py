"""Writes the version of allranks into examples and pages: `tools/image_tags.py`; `--check` compares.

The source is `__version__`. Images are named with a version everywhere: `latest` would be another program tomorrow.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("README.md", "CITATION.cff", "docs/*.md", "examples/*.yaml", "tools/transcripts.py")
"""For git ls-files, whose `*` also matches folders."""
IMAGE = re.compile(r"(ghcr\.io/allranks/\w+):(?:latest|\d+\.\d+\.\d+[\w.-]*)\b")
"""Not the tag `e2e`, which recorded sessions with the images of the tests show."""
LINE = re.compile(r"^(  ok +allranks +version |version: |VERSION=)\d+\.\d+\.\d+", re.MULTILINE)
"""A line of `allranks doctor`, of CITATION.cff, or of commands that verify a release.

Recorded sessions keep the version that they were recorded with."""


def main() -> None:
    stale = [path for path in files() if tagged(path.read_text()) != path.read_text()]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)}: another version than {version()}: run 'make generate'")
        sys.exit(1 if stale else 0)
    for path in stale:
        path.write_text(tagged(path.read_text()))


def tagged(text: str) -> str:
    """The text with the current version, as the tag of every image of allranks and in such lines."""
    return LINE.sub(rf"\g<1>{version()}", IMAGE.sub(rf"\1:{version()}", text))


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *FILES], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split()]


def version() -> str:
    found = re.search(r'__version__ = "(.+)"', (ROOT / "operator" / "allranks" / "version.py").read_text())
    assert found, "no version in version.py"
    return found[1]


if __name__ == "__main__":
    main()
