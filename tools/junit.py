"""The tests of a part that has run, from the file that pytest wrote about it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import NamedTuple

from parts import RESULTS


class Case(NamedTuple):
    """A test that has run."""

    seconds: float
    """With fixtures."""
    file: str
    name: str
    failure: str
    """The first failure or error, as pytest shows it; empty if the test passed."""


def cases(part: str) -> Iterator[Case]:
    """Yield the tests of a part of the last run."""
    for file in sorted(RESULTS.glob(f"{part}.xml")):
        for case in ET.parse(file).iter("testcase"):
            words = case.get("classname", "").split(".")
            length = next((index for index, word in enumerate(words, 1) if word.startswith("test_")), len(words))
            path, name = "/".join(words[:length]) + ".py", "::".join([*words[length:], case.get("name", "")])
            failures = [
                node.get("message") or node.text or "failed" for node in case if node.tag in ("failure", "error")
            ]
            yield Case(float(case.get("time", 0)), path, name, next(iter(failures), ""))
