"""Logs of several pods, merged by time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from allranks.kube.pod_logs import Line, _time, merged
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
