"""Finds words that the project does not use: `tools/language.py [FILE...]`, part of `make lint`.

`--count` prints for each package: names that are pronouns, and the phrases that are only checked in pages.

Documentation, comments, messages and names are written in plain technical English (CONTRIBUTING.md). The words below
come from an older style that was hard to read; each one has a plain replacement.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
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

PHRASES = {
    "that of": "the noun: the role of the chart",
    "those of": "the noun: the pods of the next attempt",
    "so long": "for this time",
    "so many": "the number",
    "stranger": "untrusted client",
    "strangers": "untrusted clients",
    "the same of": "the same for",
}
"""Checked in pages. In code they are only counted (`--count`)."""
PHRASE = re.compile(rf"(?<![A-Za-z])({'|'.join(PHRASES)})(?![A-Za-z])", re.IGNORECASE)
PAGES = ("docs/", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
NO_PAGES = (
    *(f"docs/reference/{name}.md" for name in ("fields", "cli", "settings", "metrics")),
    "docs/dev/rules-and-tests.md",
    "docs/dev/testing.md",
)
"""Generated from code, in which the phrases are only counted, or not revised yet."""

PRONOUNS = frozenset(
    {"found", "given", "made", "wanted", "one", "each", "what", "why", "own", "of", "there", "here", "told", "seen"}
)
"""Names that say nothing: use the noun. Checked in the package; in tests they are only counted (`--count`)."""
NAMES_STAY = ("operator/allranks/inpod/mpi_rank.py", "operator/allranks/views/report/model.py")
"""Its source is in golden manifests; `why` is a field of the report as JSON."""

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
    "tests/unit/authoring/convert/manifests/",
    "tools/language.py",
)
"""Licences, and logs, interfaces and manifests of other programs."""


def main() -> None:
    """Prints each finding as FILE:LINE; exits with 1 if there is one."""
    if sys.argv[1:] == ["--count"]:
        print_counts()
        return
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
    if name.startswith(PAGES) and name.endswith(".md") and name not in NO_PAGES:
        yield from (f"{name}:{number}: {phrase}: use {PHRASES[phrase.lower()]}" for number, phrase in phrases(text))
    if name.endswith(".py"):
        yield from (f"{name}:{number}: a docstring begins with {word!r}" for number, word in openings(text))
    if name.startswith("operator/") and name.endswith(".py") and name not in NAMES_STAY:
        yield from (f"{name}: the name {word}: use the noun" for word in pronouns(text))


def phrases(page: str) -> Iterator[tuple[int, str]]:
    """(line, phrase) of a page, without its blocks and spans of code."""
    prose = re.sub(r"^ *```.*?^ *```", lambda block: "\n" * block[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL)
    for number, line in enumerate(prose.splitlines(), 1):
        yield from ((number, match[0]) for match in PHRASE.finditer(re.sub(r"`[^`]*`", "", line)))


def pronouns(source: str) -> Counter[str]:
    """The names in a module that are pronouns, each as often as it is bound."""
    bound = Counter[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] += 1
        elif isinstance(node, ast.arg):
            bound[node.arg] += 1
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
            bound[node.name] += 1
    return Counter({name: number for name, number in bound.items() if name.lower().strip("_") in PRONOUNS})


def print_counts() -> None:
    """Prints the numbers of pronouns as names, and of phrases, for each package of allranks and for the tests."""
    names, in_text = dict[str, Counter[str]](), Counter[str]()
    for path in sorted([*(ROOT / "operator" / "allranks").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        parts = path.relative_to(ROOT).parts
        package = "tests" if parts[0] == "tests" else parts[2] if len(parts) > 3 else "allranks"
        source = path.read_text()
        names.setdefault(package, Counter()).update(pronouns(source))
        in_text[package] += len(PHRASE.findall(source))
    print(f"{'package':12} {'names':>6} {'phrases':>8}  most frequent names")
    for package, counts in sorted(names.items(), key=lambda item: -item[1].total()):
        frequent = ", ".join(f"{name} {number}" for name, number in counts.most_common(5))
        print(f"{package:12} {counts.total():6} {in_text[package]:8}  {frequent}")
    print(f"{'total':12} {sum(counts.total() for counts in names.values()):6} {in_text.total():8}")


def openings(source: str) -> Iterator[tuple[int, str]]:
    """(line, first word) of docstrings that begin with a preposition or a relative pronoun."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0] in OPENINGS:
                yield getattr(node, "lineno", 1), words[0]


if __name__ == "__main__":
    main()
