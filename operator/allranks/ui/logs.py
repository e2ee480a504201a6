"""Logs as REST and pages show them: the requested lines and, of pods, the ends of logs and the lines that follow."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from allranks.api.status import FINISHED
from allranks.archive.layout import LogName
from allranks.client.follow import has_log
from allranks.client.rank_stacks import MOST_BYTES, MOST_PODS
from allranks.control_sequences import clean, last_state
from allranks.core.facts.attempt_pods import pods_of
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER, replica_key
from allranks.errors import ClusterError
from allranks.kube import pod_logs
from allranks.kube.bounded_lines import LONGEST_LINE, MOST_KEPT, LastLines
from allranks.kube.cluster import Cluster
from allranks.kube.pod_logs import Line, LogOptions, open_log, parse_line
from allranks.local.stored_logs import StoredLog, matches
from allranks.shares import Share, Turns
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry
from allranks.ui.problems import Problem

MOST_LINES = 10_000
POLL_SECONDS = 1.0
"""Interval in which a follower lists new pods or files, and its wait for the last lines after a job has ended."""


class LogLine(BaseModel):
    """A line of a log, in the form of `allranks logs -o json`."""

    time: str | None = Field(description="UTC, with nanoseconds; null if the log has no times.")
    role: str
    index: int
    rank: int | None = Field(description="null for earlier attempts, which may have had another number of ranks.")
    attempt: int
    line: str


@dataclass(frozen=True)
class LogQuery:
    """The requested lines. None: any rank, the current attempt."""

    rank: int | None = None
    replica: str | None = None
    """ROLE-INDEX, for replicas without a rank."""
    attempt: int | None = None
    tail: int = 500
    search: str = ""
    after: str = ""
    """`after` of an earlier answer: only newer lines."""
    container: str = TRAINER


@dataclass(frozen=True)
class LogTail:
    """The last lines, and sentences about what is missing."""

    lines: list[LogLine]
    notes: list[str] = field(default_factory=list)
    after: str = ""
    """Where a follower continues."""


def with_replica(entry: Entry, query: LogQuery) -> LogQuery:
    """Return the query with the replica of its rank. Raises Problem if the job has no such rank."""
    if query.rank is None:
        return query
    replica = next((key for key, rank in entry.ranks.items() if rank == query.rank), None)
    if replica is None:
        raise Problem(404, f"{entry.job} has no rank {query.rank}")
    return replace(query, rank=None, replica=replica)


def shown(line: bytes) -> str:
    """Return the line as a terminal shows it: the last state of a redrawn line, without control sequences."""
    return clean(last_state(line), colour=False)


# --- logs of pods ----------------------------------------------------------------------------------------------------


MOST_OF_ALL = 64 * 2**20
"""Bytes of lines that are in memory for one page, of all pods."""
SEARCH_LINES = 20_000
"""Lines of each pod that are searched."""
_WAITING = 8
"""Batches of lines that wait for a slow viewer. Then nothing more is read."""
PAGES_AT_ONCE = 4
"""Pages whose logs are read at the same time: others wait."""
FOLLOWED, FOLLOWED_HERE = 256, 1024
"""Logs of pods that are followed at the same time: by all users in a cluster, and by the one of this machine."""
FULL = "too many logs are followed at the same time: choose a rank, or close other pages"
LINE_BYTES = 200
"""Memory of a line besides its text."""


class LogRoom:
    """The memory for logs, which the users of a server share."""

    def __init__(self, followed: int = FOLLOWED) -> None:
        self._pages, self._followed = Turns(PAGES_AT_ONCE), Share(followed)

    def page(self, account: str) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of an account to read a page, and have it until the end of the block."""
        return self._pages.turn(account)

    def follow(self, account: str, reader: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that follows a log. Raises Problem if there is no room for it."""
        if not self._followed.take(account):
            reader.close()
            raise Problem(503, FULL)
        task = asyncio.create_task(reader)
        task.add_done_callback(lambda _: self._followed.give(account))
        return task


async def last_lines(jobs: ClusterJobs, entry: Entry, query: LogQuery) -> LogTail:
    """Return the end of the logs of the job's pods. Raises ClusterError."""
    pods = _selected(entry, await jobs.pods(entry), query)
    if not pods:
        return LogTail([], [_no_pods(entry, query)])
    lines, notes = await _last_lines(jobs.within(entry.group), pods, query)
    notes += [_no_log(pod) for pod in pods[:8] if not has_log(pod, query.container)]
    after = max((line.time for _, line in lines), default=b"").decode()
    return LogTail([log_line(entry, pod, line.text, line.time) for pod, line in lines], notes, after)


async def _last_lines(
    cluster: Cluster, pods: Sequence[Pod], query: LogQuery
) -> tuple[list[tuple[Pod, Line]], list[str]]:
    """Return the last lines of all pods together, by time, and sentences about what is missing."""
    notes: list[str] = []
    if len(pods) > MOST_PODS:
        notes.append(f"only {MOST_PODS} of {len(pods)} pods are read: choose a rank")
    if query.search:
        notes.append(f"the last {SEARCH_LINES:,} lines of each log are searched")
    readable = [pod for pod in pods[:MOST_PODS] if has_log(pod, query.container)]
    ends = await asyncio.gather(
        *(_end_of_log(cluster, pod, query, MOST_OF_ALL // len(readable), notes) for pod in readable)
    )
    last = LastLines[tuple[Pod, Line]](query.tail)
    for _, item in heapq.merge(*map(_with_times, ends), key=lambda item: item[0]):
        last.add(item, len(item[1].text))
    lines = list(last)
    if last.cut and len(lines) < query.tail:
        notes.append(f"only the last {MOST_KEPT >> 20} MiB of lines are shown: choose a rank")
    return lines, notes


async def _end_of_log(
    cluster: Cluster, pod: Pod, query: LogQuery, most_kept: int, notes: list[str]
) -> list[tuple[Pod, Line]]:
    kept, search, received = LastLines[Line](query.tail, most_kept), query.search.lower().encode(), 0
    tail = SEARCH_LINES if search else query.tail
    parameters: dict[str, str | int | None] = {"container": query.container, "timestamps": "true"}
    parameters |= {"tailLines": tail, "limitBytes": MOST_BYTES}
    try:
        async with open_log(cluster, cluster.namespace, pod.name, parameters, limit=MOST_BYTES) as log:
            async for batch in log:
                for line in map(parse_line, batch):
                    if matches(line.text, search):
                        kept.add(line, len(line.text) + LINE_BYTES)
                received = log.received
    except ClusterError as error:
        if error.status in (401, 403):
            raise
        notes.append(f"{pod.name}: {error}")
    if received >= MOST_BYTES:
        notes.append(f"{pod.name}: only {MOST_BYTES >> 20} MiB are read: allranks logs prints all lines")
    return [(pod, line) for line in kept]


def _with_times(lines: list[tuple[Pod, Line]]) -> list[tuple[bytes, tuple[Pod, Line]]]:
    """Return each line with its time, or the time before it, so that a line without one keeps its place."""
    time, out = b"", []
    for pod, line in lines:
        time = max(time, line.time)
        out.append((time, (pod, line)))
    return out


# --- new lines -------------------------------------------------------------------------------------------------------


class _Batch(NamedTuple):
    pod: Pod
    lines: list[Line]


async def follow(
    jobs: ClusterJobs,
    entry: Entry,
    query: LogQuery,
    start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = asyncio.create_task,
) -> AsyncGenerator[list[LogLine]]:
    """Yield new lines of the job's pods until the job has finished; an empty list after a while without lines.

    `start` starts the reader of a pod. Raises ClusterError, and what `start` raises.
    """
    batches: asyncio.Queue[_Batch] = asyncio.Queue(_WAITING)
    readers: dict[str, asyncio.Task[None]] = {}
    gone: set[str] = set()
    search = query.search.lower().encode()

    def over() -> bool:
        return _current(jobs, entry).phase in FINISHED

    async def read(pod: Pod, after: bytes) -> None:
        options = LogOptions(query.container, longest_line=LONGEST_LINE)
        lines = pod_logs.follow(
            jobs.within(entry.group), entry.group, pod.name, options, after, lambda: over() or pod.uid in gone
        )
        async with contextlib.aclosing(lines):
            async for batch in lines:
                await batches.put(_Batch(pod, batch))

    try:
        while True:
            was_over, current = over(), _current(jobs, entry)
            try:
                pods = _selected(current, await jobs.pods(current), query)
            except ClusterError as error:
                if error.status in (401, 403):
                    raise
                await asyncio.sleep(POLL_SECONDS)  # the API server is unavailable: the readers try again, too
            else:
                for pod in pods[:MOST_PODS]:
                    if pod.uid not in readers and has_log(pod, query.container):
                        readers[pod.uid] = start(read(pod, query.after.encode()))
                gone |= readers.keys() - {pod.uid for pod in pods if not pod.ended}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    batch = await batches.get()
                lines = [
                    log_line(current, batch.pod, line.text, line.time)
                    for line in batch.lines
                    if matches(line.text, search)
                ]
                if lines:
                    yield lines
                continue
            for task in readers.values():
                if task.done() and not task.cancelled() and (failure := task.exception()):
                    raise failure
            if was_over and batches.empty():
                return
            yield []
    finally:
        for task in readers.values():
            task.cancel()
        await asyncio.gather(*readers.values(), return_exceptions=True)


def _current(jobs: ClusterJobs, entry: Entry) -> Entry:
    """Return the newest state of the job; a deleted one as failed."""
    try:
        return jobs.get(entry.group, entry.name)
    except Problem:
        status = {**(entry.manifest.get("status") or {}), "phase": "Failed"}
        return replace(entry, content={**entry.manifest, "status": status})


# --- pods ------------------------------------------------------------------------------------------------------------


def _selected(entry: Entry, pods: Sequence[Pod], query: LogQuery) -> list[Pod]:
    attempt = entry.status.attempt if query.attempt is None else query.attempt
    if pods_of(entry.status, attempt) == entry.status.pods_of_attempt:
        attempt = entry.status.attempt  # they carry both
    return [
        pod for pod in pods if pod.attempt == attempt and query.replica in (None, "", replica_key(pod.role, pod.index))
    ]


def log_line(entry: Entry, source: Pod | LogName | StoredLog, text: bytes, time: bytes = b"") -> LogLine:
    """Return a line of a log, with the rank that wrote it, if that is a rank of the current attempt."""
    rank = entry.ranks.get(replica_key(source.role, source.index))
    return LogLine(
        time=time.decode() or None,
        role=source.role,
        index=source.index,
        rank=rank if source.attempt == entry.status.attempt else None,
        attempt=source.attempt,
        line=shown(text),
    )


def _no_log(pod: Pod) -> str:
    reason = pod.waiting_message or pod.waiting_reason or pod.phase
    return f"{replica_key(pod.role, pod.index)} has no log yet: {reason}"


def _no_pods(entry: Entry, query: LogQuery) -> str:
    attempt = entry.status.attempt if query.attempt is None else query.attempt
    if attempt != entry.status.attempt:
        return (
            f"the pods of attempt {attempt} are deleted, and their logs with them: the page of the job has the last "
            "lines of the rank that failed"
        )
    if entry.phase in FINISHED:
        return f"{entry.name} is {entry.phase} and its pods are deleted: spec.cleanPodPolicy: None keeps pods"
    return f"{entry.name} is {entry.phase} and has no pods yet"
