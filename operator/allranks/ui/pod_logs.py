"""The ends of the logs of pods, through the API server, merged by time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from allranks.cli.live.follow import has_log
from allranks.cli.live.recent_lines import MOST_BYTES, MOST_PODS
from allranks.core.model import Pod
from allranks.errors import ClusterError
from allranks.kube.bounded_logs import MOST_KEPT, LastLines, lines_of
from allranks.kube.cluster import Cluster
from allranks.kube.paths import core_path
from allranks.kube.pod_logs import Line, parse_line
from allranks.local.stored_logs import matches

if TYPE_CHECKING:
    import aiohttp

MOST_OF_ALL = 64 * 2**20
"""Bytes of lines that are in memory for one page, of all pods."""
SEARCH_LINES = 20_000
"""Lines of each pod that are searched."""


async def last_lines(
    cluster: Cluster, namespace: str, pods: Sequence[Pod], container: str, lines: int, search: str
) -> tuple[list[tuple[Pod, Line]], list[str]]:
    """The last lines of all pods together, by time, and sentences about what is missing. Raises ClusterError."""
    notes: list[str] = []
    if len(pods) > MOST_PODS:
        notes.append(f"only {MOST_PODS} of {len(pods)} pods are read: choose a rank")
    if search:
        notes.append(f"the last {SEARCH_LINES:,} lines of each log are searched")
    read = [pod for pod in pods[:MOST_PODS] if has_log(pod, container)]

    async def one(pod: Pod) -> list[tuple[Pod, Line]]:
        kept = LastLines[Line](lines, MOST_OF_ALL // len(read))
        tail = SEARCH_LINES if search else lines
        query: dict[str, str | int | None] = {"container": container, "timestamps": "true"}
        query |= {"tailLines": tail, "limitBytes": MOST_BYTES}
        received = 0

        async def counted(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
            nonlocal received
            async for chunk in content.iter_any():
                received += len(chunk)
                yield chunk

        try:
            async with cluster.stream(core_path(namespace, "pods", pod.name, "log"), query, None) as content:
                async for some in lines_of(counted(content), MOST_BYTES):
                    for line in map(parse_line, some):
                        if matches(line.text, search.lower().encode()):
                            kept.add(line, len(line.text))
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            notes.append(f"{pod.name}: {error}")
        if received >= MOST_BYTES:
            notes.append(f"{pod.name}: only {MOST_BYTES >> 20} MiB are read: allranks logs prints all lines")
        return [(pod, line) for line in kept]

    found = await asyncio.gather(*map(one, read))
    ends = LastLines[tuple[Pod, Line]](lines)
    for _, item in heapq.merge(*map(_with_times, found), key=lambda item: item[0]):
        ends.add(item, len(item[1].text))
    shown = list(ends)
    if ends.cut and len(shown) < lines:
        notes.append(f"only the last {MOST_KEPT >> 20} MiB of lines are shown: choose a rank")
    return shown, notes


def _with_times(lines: list[tuple[Pod, Line]]) -> list[tuple[bytes, tuple[Pod, Line]]]:
    """A line without a time stays behind the one before it."""
    time, out = b"", []
    for pod, line in lines:
        time = max(time, line.time)
        out.append((time, (pod, line)))
    return out
