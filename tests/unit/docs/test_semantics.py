"""The tests and scenarios that tests/rules.yaml names exist, and it has every rule of docs/reference/semantics.md."""

from __future__ import annotations

import re

import yaml

from .named_tests import ROOT, exists

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

    def present(test: str) -> bool:
        if test.startswith("scenario "):
            return any(test.removeprefix("scenario ") in name for name in scenarios)
        return exists(test)

    assert len(RULES) > 50
    assert [test for _, test in RULES if not present(test)] == []


def test_every_rule_for_users_is_a_rule_with_a_test() -> None:
    page = (ROOT / "docs" / "reference" / "semantics.md").read_text().partition("Time is divided into")
    rules = re.findall(r"^- (.*(?:\n  .*)*)\.$", page[0] + page[2].partition("\n## ")[2], re.MULTILINE)
    rules = [" ".join(rule.split()) for rule in rules]
    assert len(rules) > 200
    assert [rule for rule in rules if rule not in {rule for rule, _ in RULES}] == []
    assert len(rules) == len(set(rules))
    assert len(RULES) == len({rule for rule, _ in RULES})
