"""JSON merge patches (RFC 7386)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.kube.merge_patch import apply, diff

json = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=2), children, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=2), json, max_size=4)


@given(objects, objects)
def test_the_patch_turns_one_object_into_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert apply(diff(before, after), before) == after
    assert diff(after, after) == {}


@given(objects, objects)
def test_without_removal_the_patch_sets_every_field_and_keeps_the_others(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    result = apply(diff(before, after, remove=False), before)
    assert result.keys() == before.keys() | after.keys()
    assert diff(result, after, remove=False) == {}


@pytest.mark.parametrize(
    ("value", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_examples_of_the_rfc(value: Any, patch: Any, result: Any) -> None:
    assert apply(patch, value) == result
