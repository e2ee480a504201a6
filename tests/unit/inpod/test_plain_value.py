"""Values that ranks send without a pickle."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import numpy
import pytest

from allranks.inpod.plain_value import decoded, encoded

PLAIN = [
    None,
    True,
    -(2**80),
    0.1,
    "ü\ud800",
    [1, [2.5, None], "x"],
    {"loss": [0.5, 0.25], "": {}},
    {0: "a", (1, 2): "b"},
    {"$": "a dictionary of the program", "value": 1},
    (1, ("a",)),
    {1, 2},
    frozenset({"a"}),
    b"\x00\xff",
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_a_plain_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    data = encoded(value)
    assert data is not None
    back = decoded(data)
    assert back == value
    assert type(back) is type(value)


def test_numbers_that_are_not_finite_come_back() -> None:
    data = encoded([math.nan, math.inf])
    assert data is not None
    back = decoded(data)
    assert math.isnan(back[0])
    assert back[1] == math.inf


@pytest.mark.parametrize(
    "value", [numpy.arange(6.0).reshape(2, 3), numpy.float32(0.25), numpy.array(3), numpy.zeros(0)]
)
def test_an_array_comes_back_with_its_type_and_shape(value: Any) -> None:
    data = encoded({"weights": [value]})
    assert data is not None
    [back] = decoded(data)["weights"]
    assert type(back) is type(value)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert numpy.array_equal(back, value)


class Color(enum.IntEnum):
    RED = 1


class Special(dict):  # type: ignore[type-arg]
    pass


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [Color.RED, Special(), object(), [Color.RED], numpy.array([object()]), ENDLESS, print, 1j],
    ids=["enum", "subclass", "object", "list of enums", "array of objects", "endless", "function", "complex"],
)
def test_any_other_value_is_left_to_a_pickle(value: Any) -> None:
    assert encoded(value) is None


@pytest.mark.parametrize(
    "text", ["", "{", '{"$": "exec", "value": "1"}', '{"$": "array"}', '{"$": "array", "value": "AAAA"}', '{"$": []}']
)
def test_a_malformed_value_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, json.JSONDecodeError)):
        decoded(text.encode())
