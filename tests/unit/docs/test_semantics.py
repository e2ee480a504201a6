"""docs/reference/semantics.md: each test and scenario that it lists exists."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_every_rule_has_a_test() -> None:
    files: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            files.setdefault(name, []).append(path.as_posix())
    assert [(rule, test) for rule, test in ROWS if not exists(test, files)] == []


def exists(test: str, files: dict[str, list[str]]) -> bool:
    """Return whether a scenario of that name, or exactly one function `file::name`, exists."""
    if test.startswith("scenario"):
        return any(test.removeprefix("scenario ").strip("`") in name for name in SCENARIOS)
    file, _, name = test.strip("`").partition("::")
    return sum(path.endswith(f"/{file}") for path in files.get(name, ())) == 1
