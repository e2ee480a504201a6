"""docs/semantics.md: each rule names a test or a scenario that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "docs" / "semantics.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| rule")
]
SCENARIOS = [
    document["name"]
    for path in sorted((ROOT / "tests" / "model" / "scenarios").glob("*.yaml"))
    for document in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_rule_has_a_test_of_its_name(row: list[str]) -> None:
    test = row[-1]
    if test.startswith("scenario"):
        wanted = test.removeprefix("scenario ").removeprefix("`").removesuffix("`")
        assert any(wanted in name for name in SCENARIOS), wanted
    else:
        file, name = test.strip("`").split("::")
        [path] = (ROOT / "tests").rglob(file)
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), test
