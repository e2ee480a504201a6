"""Logs of several pods, merged by time, within bounds."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from allranks.kube import pod_logs
from allranks.kube.bounded_lines import LONGEST_LINE
from allranks.kube.pod_logs import LONGEST_PRINTED_LINE, Line, LogOptions, _time, merged
from support.builders import table


@table(
    ("UTC with nanoseconds", b"2026-03-04T10:00:00.123456789Z", b"2026-03-04T10:00:00.123456789Z"),
    ("zeros left out", b"2026-03-04T10:00:00.5Z", b"2026-03-04T10:00:00.500000000Z"),
    ("whole seconds", b"2026-03-04T10:00:00Z", b"2026-03-04T10:00:00.000000000Z"),
    ("a node's own zone", b"2026-03-04T12:00:00.25+02:00", b"2026-03-04T10:00:00.250000000Z"),
    ("a message of the kubelet", b"unable", None),
    ("no date", b"2026-13-44T99:00:00.25+02:00", None),
)
def test_times_compare_as_strings(case):
    stamp, time = case
    assert _time(stamp) == time


def test_logs_are_merged_by_time_and_a_line_without_time_keeps_its_place():
    async def source(*batches: list[tuple[bytes, bytes]]) -> AsyncIterator[list[Line]]:
        for batch in batches:
            yield [Line(*line) for line in batch]

    async def read() -> list[tuple[int, bytes]]:
        sources = [
            source([(b"1", b"a"), (b"4", b"d")], [(b"", b"d2"), (b"6", b"f")]),
            source(),
            source([(b"2", b"b")], [(b"3", b"c"), (b"5", b"e")]),
        ]
        return [(place, line.text) async for place, line in merged(sources)]

    assert asyncio.run(read()) == [(0, b"a"), (2, b"b"), (2, b"c"), (0, b"d"), (0, b"d2"), (2, b"e"), (0, b"f")]


CHUNK = b"x" * 2**20
ENDLESS = [b"2026-03-04T10:00:00.000000000Z ", *[CHUNK] * 50]
"""The chunks of a log of 50 MB without a newline."""


class _Content:
    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in ENDLESS:
            yield chunk


class _Cluster:
    @asynccontextmanager
    async def stream(self, _path: str, _query: Any, _silence: Any) -> AsyncIterator[_Content]:
        yield _Content()


async def _lines(batches: AsyncIterator[list[Line]]) -> list[Line]:
    return [line async for batch in batches for line in batch]


@pytest.mark.parametrize("longest", [LONGEST_LINE, LONGEST_PRINTED_LINE])
@pytest.mark.parametrize("reader", ["read", "follow"])
def test_a_line_without_end_is_cut_and_takes_little_memory(reader: str, longest: int):
    cluster: Any = _Cluster()
    options = LogOptions(longest_line=longest)
    if reader == "read":
        batches = pod_logs.read(cluster, "team", "penguins-worker-0-0", options)
    else:
        batches = pod_logs.follow(cluster, "team", "penguins-worker-0-0", options, b"", lambda: True)
    tracemalloc.start()
    try:
        [line] = asyncio.run(_lines(batches))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert line.time == b"2026-03-04T10:00:00.000000000Z"
    assert line.text.endswith(b"left out)")
    assert longest - 100 < len(line.text) < longest + 100
    assert peak < 4 * longest + 4 * len(CHUNK)
