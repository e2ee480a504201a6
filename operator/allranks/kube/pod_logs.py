"""Reads the logs of pods through the API server, within bounds. `read` yields present lines, `follow` also new ones.

The server prefixes each line with a timestamp. Timestamps order the lines of different pods, and after a lost
connection they say where to continue.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from allranks.core.facts.naming import TRAINER
from allranks.errors import ClusterError
from allranks.kube.bounded_lines import LONGEST_LINE, Splitter
from allranks.kube.cluster import Cluster, Query
from allranks.kube.paths import core_path

if TYPE_CHECKING:
    import aiohttp

RETRY_SECONDS = 1.0
LONGEST_PRINTED_LINE = 1 << 20
"""Bytes of a line for people and programs who read whole logs. Pages and archives have shorter lines."""


class Line(NamedTuple):
    """A line of a log. `time` is UTC with nine decimals, so that times compare as strings."""

    time: bytes
    text: bytes


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The part of a log to read, as PodLogOptions of Kubernetes."""

    container: str = TRAINER
    previous: bool = False
    tail: int | None = None
    since_seconds: float | None = None
    longest_line: int = LONGEST_PRINTED_LINE
    """Bytes. The rest of a longer line is left out."""

    def query(self) -> dict[str, str | int | None]:
        since = None if self.since_seconds is None else max(1, round(self.since_seconds))
        return {
            "container": self.container,
            "timestamps": "true",
            "previous": "true" if self.previous else None,
            "tailLines": self.tail,
            "sinceSeconds": since,
        }


class LogStream:
    """The lines of one response as they arrive, all lines of a chunk together. Iterate over it once."""

    def __init__(self, content: aiohttp.StreamReader, longest_line: int, limit: int | None) -> None:
        self._content, self._longest_line, self._limit = content, longest_line, limit
        self.received = 0
        """Bytes so far."""

    async def __aiter__(self) -> AsyncGenerator[list[bytes]]:
        splitter = Splitter(self._longest_line)
        async for chunk in self._content.iter_any():
            part = chunk if self._limit is None else chunk[: self._limit - self.received]
            self.received += len(chunk)
            if lines := list(splitter.feed(part)):
                yield lines
            if self._limit is not None and self.received >= self._limit:
                break
        if lines := list(splitter.end()):
            yield lines


@asynccontextmanager
async def open_log(
    cluster: Cluster,
    namespace: str,
    pod: str,
    query: Query,
    *,
    longest_line: int = LONGEST_LINE,
    limit: int | None = None,
) -> AsyncIterator[LogStream]:
    """Open the log of a container; the stream ends after `limit` bytes. Raises ClusterError."""
    async with cluster.stream(core_path(namespace, "pods", pod, "log"), query, None) as content:
        yield LogStream(content, longest_line, limit)


async def read(cluster: Cluster, namespace: str, pod: str, options: LogOptions) -> AsyncGenerator[list[Line]]:
    """Yield the lines of a log that exist, several at a time. Raises ClusterError."""
    async with open_log(cluster, namespace, pod, options.query(), longest_line=options.longest_line) as log:
        async for lines in log:
            yield [parse_line(line) for line in lines]


async def follow(
    cluster: Cluster,
    namespace: str,
    pod: str,
    options: LogOptions,
    after: bytes,
    over: Callable[[], bool],
    *,
    on_open: Callable[[], None] = lambda: None,
    on_interruption: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[list[Line]]:
    """Yield the lines of a container after the time `after` until `over()`, across lost connections.

    With an empty `after` the log begins as `options` say. `on_open` is called when there is a log, which may be empty.
    `on_interruption` gets a sentence when the log cannot be read at the moment. Raises ClusterError if it never can.
    """
    reported = False
    while True:
        last_pass, since = over(), after
        query = {**options.query(), "follow": "true"}
        if after:
            query |= {"sinceTime": after[:19].decode() + "Z", "tailLines": None, "sinceSeconds": None}
        try:
            async with (
                open_log(cluster, namespace, pod, query, longest_line=options.longest_line) as log,
                aclosing(aiter(log)) as batches,
            ):
                on_open()
                async for lines in batches:
                    reported = False
                    # sinceTime has whole seconds: the server repeats lines.
                    fresh = [line for line in map(parse_line, lines) if not since or line.time > since]
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
        if last_pass:
            return
        await asyncio.sleep(RETRY_SECONDS)


def parse_line(raw: bytes) -> Line:
    """Split a line of an answer from its timestamp."""
    stamp, _, text = raw.partition(b" ")
    time = _time(stamp)
    return Line(b"", raw) if time is None else Line(time, text)


def _time(stamp: bytes) -> bytes | None:
    """Return None if it is not a time: some lines are the kubelet's own (`unable to retrieve container logs ...`)."""
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
    """Return a time in UTC: kubelets write the time zone of their node."""
    if zone == b"Z":
        return moment
    try:
        local = datetime.fromisoformat((moment + zone).decode())
    except ValueError:
        return None
    return local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


async def merged(sources: Iterable[AsyncIterator[list[Line]]]) -> AsyncIterator[tuple[int, Line]]:
    """Yield the lines of all sources in the order of their times, each with the index of its source.

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
    heap = [(waiting[place][0].time, place) for place, has_lines in enumerate(filled) if has_lines]
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
