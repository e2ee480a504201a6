"""Finds words that the project does not use: `tools/language.py [FILE...]`, part of `make lint`.

Documentation, comments, messages and names are written in plain technical English (CONTRIBUTING.md). The words below
come from an older style that was hard to read; each one has a plain replacement.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

REPLACEMENTS = {
    "told": "reported, recorded, notified",
    "seen": "observed, cached, found",
    "known": "recorded, cached, expected",
    "anew": "again",
    "nobody": "no client, no user, nothing",
    "whoever": "the client that, the user who",
    "lacks": "has no, is missing",
    "blame": "describe the failure, root cause",
    "blames": "names as the root cause",
    "blamed": "named as the root cause",
    "happenings": "events",
    "befalls": "happens to",
    "goes on": "continues",
    "in vain": "without success",
    "so long as": "while",
}
WORDS = re.compile(rf"(?<![A-Za-z])({'|'.join(REPLACEMENTS)})(?![A-Za-z])", re.IGNORECASE)

ALLOWED = re.compile(
    r"known_hosts|well-known|known[ -]limitations?"  # ssh's file; terms of the field
    r"|last seen"  # a column of `kubectl get events`
    r"|user nobody",  # the Unix account
    re.IGNORECASE,
)

OPENINGS = {"Of", "In", "On", "At", "By", "From", "With", "Without", "Upon", "Among", "Whom", "Whose", "Who", "Whoever"}
"""First words that a docstring does not have: it begins with its subject or its verb."""

NOT_OURS = (
    "LICENSE",
    "tests/unit/core/fixtures/",
    "tests/unit/inpod/fake_horovod/",
    "tests/unit/cli/convert/manifests/",
    "tools/language.py",
)
"""Licences, and logs, interfaces and manifests of other programs."""


def main() -> None:
    """Prints each finding as FILE:LINE; exits with 1 if there is one."""
    names = sys.argv[1:] or subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    found = [finding for name in names if not name.startswith(NOT_OURS) for finding in findings(name)]
    print(*found, sep="\n", end="\n" if found else "")
    if found:
        print(f"{len(found)} findings: see CONTRIBUTING.md, Language", file=sys.stderr)
        sys.exit(1)


def findings(name: str) -> Iterator[str]:
    """What is wrong with one file, as `FILE:LINE: word: use ...`. Binary files have no findings."""
    try:
        text = (ROOT / name).read_text()
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        return
    for number, line in enumerate(text.splitlines(), 1):
        for match in WORDS.finditer(ALLOWED.sub("", line)):
            yield f"{name}:{number}: {match[0]}: use {REPLACEMENTS[match[0].lower()]}"
    if name.endswith(".py"):
        yield from (f"{name}:{number}: a docstring begins with {word!r}" for number, word in openings(text))


def openings(source: str) -> Iterator[tuple[int, str]]:
    """(line, first word) of docstrings that begin with a preposition or a relative pronoun."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0] in OPENINGS:
                yield getattr(node, "lineno", 1), words[0]


if __name__ == "__main__":
    main()
