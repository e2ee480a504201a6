"""The CRD has at most two CEL rules in each object, which say the same as the single rules."""

from __future__ import annotations

from typing import Any

from allranks.api.crd import RESOURCES, RULES, crd, merged, root_schema

from .test_crd import nodes

SINGLE = [
    {"rule": "has(self.a)", "message": "a is needed", "fieldPath": ".a"},
    {"rule": "self.b > 1", "message": 'b is larger than "1"'},
    {"rule": "self.b == oldSelf.b", "message": "b is fixed", "fieldPath": ".b"},
    {"rule": "self.c == oldSelf.c", "message": "c is fixed", "fieldPath": ".c"},
]


def test_rules_of_content_and_of_changes_become_one_each():
    assert merged({RULES: SINGLE}, "spec.x")[RULES] == [
        {
            "rule": "oldSelf.hasValue() && oldSelf.value() == self || ((has(self.a)) && (self.b > 1))",
            "optionalOldSelf": True,
            "messageExpression": "((has(self.a)) ? '' : \"spec.x.a: a is needed. \") + "
            '((self.b > 1) ? \'\' : "spec.x: b is larger than \\"1\\". ")',
            "message": "the object is not valid: `allranks validate` names the field",
        },
        {
            "rule": "self == oldSelf || ((self.b == oldSelf.b) && (self.c == oldSelf.c))",
            "messageExpression": "((self.b == oldSelf.b) ? '' : \"spec.x.b: b is fixed. \") + "
            "((self.c == oldSelf.c) ? '' : \"spec.x.c: c is fixed. \")",
            "message": "the object is not valid: `allranks validate` names the field",
        },
    ]


def test_one_rule_stays_as_it_is():
    assert merged({RULES: SINGLE[:1]}, "spec") == {RULES: SINGLE[:1]}


def rules_of(kind: str) -> dict[str, Any]:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return {path: node[RULES] for path, node in nodes(schema) if RULES in node}


def test_a_status_write_evaluates_at_most_two_rules_of_each_object():
    """Each costs the API server time at every status write."""
    for kind in RESOURCES:
        for path, rules in rules_of(kind).items():
            assert len(rules) <= 2, path
            assert sum(rule.get("optionalOldSelf", False) for rule in rules) == len(rules) - 1 or len(rules) == 1, path


def test_every_single_rule_is_in_the_CRD_with_its_message():
    for kind in RESOURCES:
        found = rules_of(kind)
        for path, node in nodes(root_schema(kind)):
            for single in node.get(RULES, ()):
                assert any(single["rule"] in rule["rule"] for rule in found[path]), single
                said = [rule.get("messageExpression", rule["message"]) for rule in found[path]]
                assert any(single["message"].replace('"', '\\"') in text for text in said), single
