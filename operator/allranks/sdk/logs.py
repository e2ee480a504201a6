"""The log lines of a job's ranks, as objects: those that exist in the order of time, then new ones as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from allranks.api.status import FINISHED, Status
from allranks.client.follow import Follower, has_log
from allranks.control_sequences import last_state
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import replica_key
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import ranks_of, status_of
from allranks.kube.pod_logs import Line, LogOptions, merged, read


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a rank's output. `str()` is the line as the commands print it."""

    time: datetime | None
    """None for a line of the node itself."""
    rank: int | None
    """Of the pod; None if its ranks are several, or of an earlier attempt."""
    role: str
    index: int
    pod: str
    attempt: int
    text: str

    def __str__(self) -> str:
        return f"{self.role}-{self.index} | {self.text}"


async def log_lines(
    cluster: Cluster, job: Manifest, *, follow: bool, ranks: Collection[int], tail: int | None
) -> AsyncGenerator[LogLine]:
    """Yield the lines of the current attempt; with `follow`, until the job has finished, across restarts."""
    status, ranks_by_replica = status_of(job), ranks_of(job)

    def rank_of(pod: Pod) -> int | None:
        return ranks_by_replica.get(replica_key(pod.role, pod.index))

    def selected(pod: Pod) -> bool:
        return pod.attempt >= status.attempt and (not ranks or rank_of(pod) in ranks)

    options = LogOptions(tail=tail)
    queue: asyncio.Queue[tuple[Pod, list[Line]]] = asyncio.Queue()
    follower = Follower(cluster, job, _ToQueue(queue.put_nowait), options, selected)
    await follower.list_pods()
    pods = [pod for pod in follower.pods if selected(pod) and has_log(pod)]
    async for place, line in merged([_existing(cluster, job, pod, options) for pod in pods]):
        pod = pods[place]
        follower.after[pod.uid] = max(line.time, follower.after.get(pod.uid, b""))
        yield _line(pod, rank_of(pod), line)
    if not follow or status.phase in FINISHED:
        return
    following = asyncio.create_task(follower.follow(lambda now: now.phase in FINISHED))
    try:
        while True:
            getting = asyncio.ensure_future(queue.get())
            await asyncio.wait((getting, following), return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                getting.cancel()
                break
            pod, lines = getting.result()
            for line in lines:
                yield _line(pod, rank_of(pod), line)
        while not queue.empty():
            pod, lines = queue.get_nowait()
            for line in lines:
                yield _line(pod, rank_of(pod), line)
        following.result()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _existing(cluster: Cluster, job: Manifest, pod: Pod, options: LogOptions) -> AsyncGenerator[list[Line]]:
    try:
        async with contextlib.aclosing(read(cluster, job["metadata"]["namespace"], pod.name, options)) as blocks:
            async for lines in blocks:
                yield lines
    except ClusterError as error:
        if error.status in (401, 403):
            raise


def _line(pod: Pod, rank: int | None, line: Line) -> LogLine:
    text = last_state(line.text).decode("utf-8", errors="replace")
    time = datetime.fromisoformat(f"{line.time[:26].decode()}+00:00") if line.time else None
    return LogLine(time, rank, pod.role, pod.index, pod.name, pod.attempt, text)


class _ToQueue:
    """Passes on only log lines."""

    def __init__(self, put: Callable[[tuple[Pod, list[Line]]], None]) -> None:
        self._put = put

    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...

    def lines(self, pod: Pod, lines: list[Line]) -> None:
        self._put((pod, lines))

    def message(self, text: str) -> None: ...
