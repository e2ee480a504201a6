"""docs/reference/semantics.md: each place in the code exists, and each test is named so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "docs" / "reference" / "semantics.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| rule")
]
SCENARIOS = [
    document["name"]
    for path in sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))
    for document in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_rule_has_a_place_in_the_code_and_a_test_of_its_name(row: list[str]) -> None:
    _, place, test = row
    module, *names = _module(place.strip("`").split("."))
    found = importlib.import_module(module)
    for name in names:
        found = getattr(found, name)
    if test.startswith("scenario"):
        wanted = test.removeprefix("scenario ").removeprefix("`").removesuffix("`")
        assert any(wanted in name for name in SCENARIOS), wanted
    else:
        file, name = test.strip("`").split("::")
        [path] = (ROOT / "tests").rglob(file)
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), test


def _module(parts: list[str]) -> list[str]:
    """[module, attribute, ...] of a dotted path below `allranks`."""
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath("operator", "allranks", *parts[:length])
        if path.with_suffix(".py").is_file():
            return [".".join(["allranks", *parts[:length]]), *parts[length:]]
    raise AssertionError(f"no module in {'.'.join(parts)}")
