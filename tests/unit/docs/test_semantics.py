"""The tests and scenarios that tests/rules.yaml names exist, and it has every rule of docs/reference/semantics.md."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import yaml

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
RULES = [
    (entry["rule"], entry["test"])
    for topic in yaml.load((ROOT / "tests" / "rules.yaml").read_text(), Loader=yaml.CSafeLoader).values()
    for entry in topic
]


def test_every_rule_has_a_test() -> None:
    scenarios = [
        document["name"]
        for path in sorted((ROOT / "tests").rglob("scenarios/*.yaml"))
        for document in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
    ]
    functions = defaultdict[str, list[str]](list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for function in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE):
            functions[f"{path.name}::{function}"].append(path.as_posix())

    def exists(test: str) -> bool:
        if test.startswith("scenario "):
            return any(test.removeprefix("scenario ") in name for name in scenarios)
        file, _, function = test.partition("::")
        return sum(path.endswith(f"/{file}") for path in functions[f"{Path(file).name}::{function}"]) == 1

    assert len(RULES) > 50
    assert [test for _, test in RULES if not exists(test)] == []


def test_every_rule_for_users_is_a_rule_with_a_test() -> None:
    page = (ROOT / "docs" / "reference" / "semantics.md").read_text().partition("Time is divided into")
    rules = re.findall(r"^- (.*(?:\n  .*)*)\.$", page[0] + page[2].partition("\n## ")[2], re.MULTILINE)
    rules = [" ".join(rule.split()) for rule in rules]
    assert len(rules) > 200
    assert [rule for rule in rules if rule not in {rule for rule, _ in RULES}] == []
    assert len(rules) == len(set(rules))
    assert len(RULES) == len({rule for rule, _ in RULES})
