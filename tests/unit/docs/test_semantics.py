"""docs/reference/semantics.md: each test and scenario that it lists exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "docs" / "reference" / "semantics.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| rule", "| ---"))
]
SCENARIOS = [
    document["name"]
    for path in sorted((ROOT / "tests").rglob("scenarios/*.yaml"))
    for document in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
]


def test_the_page_lists_the_rules() -> None:
    assert len(ROWS) > 50
    assert len({rule for rule, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_rule_has_a_test(row: list[str]) -> None:
    _, test = row
    if test.startswith("scenario"):
        wanted = test.removeprefix("scenario ").removeprefix("`").removesuffix("`")
        assert any(wanted in name for name in SCENARIOS), wanted
    else:
        file, name = test.strip("`").split("::")
        found = [path.read_text() for path in (ROOT / "tests").rglob(file)]
        assert sum(bool(re.search(rf"^def {name}\(", text, re.MULTILINE)) for text in found) == 1, test
