"""Sets of replica indices as text in the status: `0-3,5`. A job may have ten thousand replicas."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def encode(indices: Iterable[int]) -> str:
    """The indices as ranges in ascending order; empty for none."""
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@lru_cache(maxsize=64)
def decode(text: str) -> frozenset[int]:
    """The indices of a text of `encode`."""
    bounds = [part.partition("-") for part in text.split(",") if part]
    return frozenset(i for first, _, last in bounds for i in range(int(first), int(last or first) + 1))
