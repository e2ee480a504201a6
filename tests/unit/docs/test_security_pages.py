"""SECURITY.md and the threat model: each promise names tests that exist."""

from __future__ import annotations

import re

import pytest

from .named_tests import ROOT, exists

TABLES = [
    pytest.param("SECURITY.md", "## What tenants share", 20, id="resources that tenants share"),
    pytest.param("docs/platform/threat-model.md", "## ", 30, id="threat model"),
]
TEST = re.compile(r"`(test_\w+\.py::test_\w+|\w+/test_\w+\.py::test_\w+)`")


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the tables in all sections that begin like this."""
    sections = re.split(r"^(?=## )", (ROOT / page).read_text(), flags=re.MULTILINE)
    lines = [line for section in sections if section.startswith(heading) for line in section.splitlines()]
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [cells for cells in table if cells[-1].strip(" |-") not in ("", "test")]


@pytest.mark.parametrize(("page", "heading", "least"), TABLES)
def test_each_line_names_a_test_that_exists_or_says_that_it_is_a_decision(page: str, heading: str, least: int) -> None:
    lines = rows(page, heading)
    assert len(lines) >= least
    without = [cells for cells in lines if not TEST.search(cells[-1]) and not cells[-1].startswith("none: ")]
    assert without == []
    assert [test for cells in lines for test in TEST.findall(cells[-1]) if not exists(test)] == []
