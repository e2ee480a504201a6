"""Reads the logs of many pods through the API server, merged by time, in one thread.

The server prefixes each line with a timestamp. Timestamps order the lines of different pods, and after a lost
connection they say where to continue.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from allranks.core.facts.naming import TRAINER
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Query
from allranks.kube.paths import core_path

RETRY_SECONDS = 1.0


class Line(NamedTuple):
    """A line of a log. `time` is UTC with nine decimals, so that times compare as strings."""

    time: bytes
    text: bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of each log to read."""

    container: str = TRAINER
    previous: bool = False
    tail: int | None = None
    since_seconds: float | None = None

    def query(self) -> dict[str, str | int | None]:
        since = None if self.since_seconds is None else max(1, round(self.since_seconds))
        return {
            "container": self.container,
            "timestamps": "true",
            "previous": "true" if self.previous else None,
            "tailLines": self.tail,
            "sinceSeconds": since,
        }


async def read(cluster: Cluster, namespace: str, pod: str, query: Query) -> AsyncGenerator[list[Line]]:
    """The lines of one response as they arrive, several at a time. Raises ClusterError."""
    pending: list[bytes] = []
    async with cluster.stream(core_path(namespace, "pods", pod, "log"), query, None) as content:
        async for chunk in content.iter_any():
            head, newline, rest = chunk.rpartition(b"\n")
            if not newline:
                pending.append(chunk)  # a long line: joined once, at its end
                continue
            lines = b"".join((*pending, head)).split(b"\n")
            pending = [rest] if rest else []
            yield [parse_line(line) for line in lines]
    if pending:
        yield [parse_line(b"".join(pending))]


def parse_line(raw: bytes) -> Line:
    """A line of an answer with timestamps."""
    stamp, _, text = raw.partition(b" ")
    time = _time(stamp)
    return Line(b"", raw) if time is None else Line(time, text)


def _time(stamp: bytes) -> bytes | None:
    """None if it is not a time: some lines are the kubelet's own (`unable to retrieve container logs ...`)."""
    if len(stamp) < 20 or stamp[10:11] != b"T":
        return None
    fraction = b""
    zone = stamp[19:]
    if zone[:1] == b".":
        end = 1
        while zone[end : end + 1].isdigit():
            end += 1
        fraction, zone = zone[1:end], zone[end:]
    moment = _utc(stamp[:19], zone)
    return None if moment is None else moment + b"." + fraction[:9].ljust(9, b"0") + b"Z"


@functools.lru_cache(maxsize=4096)
def _utc(moment: bytes, zone: bytes) -> bytes | None:
    """Kubelets write the time zone of their node."""
    if zone == b"Z":
        return moment
    try:
        local = datetime.fromisoformat((moment + zone).decode())
    except ValueError:
        return None
    return local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


async def merged(sources: Iterable[AsyncIterator[list[Line]]]) -> AsyncIterator[tuple[int, Line]]:
    """The lines of all sources in the order of their times, each with the index of its source.

    Buffers only what has arrived from each source. The sources must end.
    """
    iterators = [source.__aiter__() for source in sources]
    waiting: list[deque[Line]] = [deque() for _ in iterators]

    async def refill(place: int) -> bool:
        while not waiting[place]:
            try:
                waiting[place].extend(await iterators[place].__anext__())
            except StopAsyncIteration:
                return False
        return True

    filled = await asyncio.gather(*(refill(place) for place in range(len(iterators))))
    heap = [(waiting[place][0].time, place) for place, some in enumerate(filled) if some]
    heapq.heapify(heap)
    while heap:
        time, place = heap[0]
        line = waiting[place].popleft()
        yield place, line
        if waiting[place] or await refill(place):
            # A line without a time stays behind the one before it.
            heapq.heapreplace(heap, (max(time, waiting[place][0].time), place))
        else:
            heapq.heappop(heap)


async def followed(
    cluster: Cluster,
    namespace: str,
    pod: str,
    wanted: Wanted,
    after: bytes,
    over: Callable[[], bool],
    on_interruption: Callable[[str], None],
) -> AsyncGenerator[list[Line]]:
    """The lines of a container from the time `after` (empty: as `wanted` says) until `over()`, across reconnections.

    `on_interruption` gets a sentence when the log cannot be read at the moment. Raises ClusterError if it never can.
    """
    reported = False
    while True:
        was_over, begun = over(), after
        query = {**wanted.query(), "follow": "true"}
        if after:
            query |= {"sinceTime": after[:19].decode() + "Z", "tailLines": None, "sinceSeconds": None}
        try:
            async for lines in read(cluster, namespace, pod, query):
                reported = False
                # sinceTime has whole seconds: the server repeats lines.
                fresh = [line for line in lines if not line.time or line.time > begun] if begun else lines
                after = max((line.time for line in fresh if line.time), default=after)
                if fresh:
                    yield fresh
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            if error.status == 404:
                return  # the pod is deleted, with its log
            if error.status != 400 and not reported:  # 400: the container is restarting
                reported = True
                on_interruption(f"the log of {pod} cannot be read, trying again: {error}")
        if was_over:
            return
        await asyncio.sleep(RETRY_SECONDS)
