"""Writes docs/dev/rules-and-tests.md from tests/rules.yaml: `tools/rules.py`; `--check` fails if the page is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dev" / "rules-and-tests.md"
HEAD = """# Rules and tests

`tools/rules.py` generates this page from `tests/rules.yaml`. It names a test for each rule. The text after *scenario*
is a part of the name of a [scenario](scenarios.md), which runs on the simulated cluster and on a real API server. The
rules for users are also on the page [rules](../reference/semantics.md), in the same words; a test compares both pages.
"""


def main() -> None:
    """Exits with 1 when `--check` finds a difference."""
    text = page(yaml.safe_load((ROOT / "tests" / "rules.yaml").read_text()))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is stale: run tools/rules.py")
        sys.exit(1)


def page(topics: dict[str, list[dict[str, str]]]) -> str:
    return "\n".join([HEAD, *(line for topic, rules in topics.items() for line in _section(topic, rules))])


def _section(topic: str, rules: list[dict[str, str]]) -> Iterator[str]:
    yield from (f"## {topic}", "", "| rule | test |", "| --- | --- |")
    for entry in rules:
        scenario = entry["test"].removeprefix("scenario ")
        code = f"``{scenario}``" if "`" in scenario else f"`{scenario}`"
        yield f"| {entry['rule']} | {'scenario ' if scenario != entry['test'] else ''}{code} |"
    yield ""


if __name__ == "__main__":
    main()
