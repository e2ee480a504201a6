"""The programs that an installation puts on PATH are those that docs/start.md lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

START = Path(__file__).parents[2] / "docs" / "start.md"
OWN = {"allranks", "kubectl-allranks"}


def documented() -> dict[str, set[str]]:
    """Extra, empty for none -> programs, from the table."""
    rows = re.findall(
        r"^\| (none|`\w+`) \| (?:also )?((?:`[\w.-]+`(?:, )?)*|nothing) \|", START.read_text(), re.MULTILINE
    )
    return {
        "" if extra == "none" else extra.strip("`"): set(re.findall(r"`([\w.-]+)`", programs))
        for extra, programs in rows
    }


def packages(name: str, extras: frozenset[str], visited: set[tuple[str, str]]) -> Iterator[str]:
    """The package and all that it requires."""
    for extra in extras | {""}:
        if (name, extra) in visited:
            continue
        visited.add((name, extra))
        yield name
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                yield from packages(needed.name, frozenset(needed.extras), visited)


def programs(extra: str) -> set[str]:
    names = set(packages("allranks", frozenset({extra} if extra else ()), set()))
    points = [point for name in names for point in metadata.distribution(name).entry_points]
    return {point.name for point in points if point.group in ("console_scripts", "gui_scripts")}


EXTRAS = ["", "cli", "ui", "watch", "login", "python", "data", "gs", "az", "sweeps"]


def test_the_table_has_the_extras_of_users():
    assert list(documented()) == EXTRAS


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra or "no extra")
def test_dependencies_add_only_the_programs_that_the_page_lists(extra):
    listed, common = documented(), programs("")
    assert programs(extra) - (common if extra else OWN) == listed[extra]
