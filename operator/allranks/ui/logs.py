"""The logs of a job or a run, as REST and pages show them: the end of a log, a search, and what follows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from allranks.api.status import FINISHED
from allranks.cli.live.follow import has_log
from allranks.cli.live.recent_lines import MOST_PODS
from allranks.core.model import Pod
from allranks.core.naming import TRAINER, replica_key
from allranks.errors import ClusterError
from allranks.kube import bounded_logs
from allranks.kube.job_codec import pods_of
from allranks.kube.pod_logs import Line
from allranks.local import stored_logs
from allranks.local.stored_logs import StoredLog, matches
from allranks.ui import pod_logs as pod_log_reader
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.entries import Entry
from allranks.ui.log_lines import LogLine, shown
from allranks.ui.problems import Problem

if TYPE_CHECKING:
    from allranks.ui.state import State

MOST_LINES = 10_000
SETTLE_SECONDS = 1.0
"""How often a follower looks for new pods; so long after the end of a job its last lines may arrive."""
_WAITING = 64
"""Batches of lines that wait for a slow viewer. Then nothing more is read."""


@dataclass(frozen=True)
class Wanted:
    """Which lines. None: any rank, the current attempt."""

    rank: int | None = None
    replica: str | None = None
    """ROLE-INDEX, for replicas without a rank."""
    attempt: int | None = None
    tail: int = 500
    search: str = ""
    after: str = ""
    """What an earlier answer had in `after`: only newer lines."""
    container: str = TRAINER


@dataclass(frozen=True)
class Found:
    """The lines, and what is missing as sentences."""

    lines: list[LogLine]
    notes: list[str] = field(default_factory=list)
    after: str = ""
    """Where a follower continues."""


def chosen(entry: Entry, wanted: Wanted) -> Wanted:
    """The same with the replica of the rank. Raises Problem if the job has no such rank."""
    if wanted.rank is None:
        return wanted
    found = [key for key, rank in entry.ranks.items() if rank == wanted.rank]
    if not found:
        raise Problem(404, f"{entry.job} has no rank {wanted.rank}")
    return replace(wanted, rank=None, replica=found[0])


async def last_lines(jobs: ClusterJobs | None, entry: Entry, wanted: Wanted) -> Found:
    """The end of the logs. Raises Problem and ClusterError."""
    wanted = chosen(entry, wanted)
    if entry.directory is not None:
        return await _of_run(entry, wanted)
    assert jobs is not None
    pods = _selected(entry, await _pods(jobs, entry), wanted)
    if not pods:
        return Found([], [_no_pods(entry, wanted)])
    cluster = jobs.within(entry.group)
    found, notes = await pod_log_reader.last_lines(
        cluster, entry.group, pods, wanted.container, wanted.tail, wanted.search
    )
    notes += [_no_log(pod) for pod in pods[:8] if not has_log(pod, wanted.container)]
    after = max((line.time for _, line in found), default=b"").decode()
    return Found([_log_line(entry, pod, line) for pod, line in found], notes, after)


async def followed(state: State, entry: Entry, wanted: Wanted) -> AsyncGenerator[list[LogLine]]:
    """New lines in batches, across restarts unless an attempt is chosen, until the job has finished.

    An empty batch says that nothing has happened for a while. Raises Problem and ClusterError.
    """
    if entry.source == "archive":
        return  # nothing more is written
    wanted = chosen(entry, wanted)
    batches = (
        _of_new_lines(state.cluster(), entry, wanted) if entry.directory is None else _of_run_file(state, entry, wanted)
    )
    async with contextlib.aclosing(batches):
        async for lines in batches:
            yield lines


async def _of_new_lines(jobs: ClusterJobs, entry: Entry, wanted: Wanted) -> AsyncGenerator[list[LogLine]]:
    batches: asyncio.Queue[_Batch] = asyncio.Queue(_WAITING)
    readers: dict[str, asyncio.Task[None]] = {}

    def over() -> bool:
        return current(jobs, entry).phase in FINISHED

    async def read(pod: Pod, after: bytes) -> None:
        lines = bounded_logs.followed(
            jobs.within(entry.group), entry.group, pod.name, wanted.container, after, lambda: over() or pod.uid in gone
        )
        async with contextlib.aclosing(lines):
            async for some in lines:
                await batches.put(_Batch(pod, some))

    gone: set[str] = set()
    search = wanted.search.lower().encode()
    try:
        while True:
            was_over, now = over(), current(jobs, entry)
            try:
                pods = _selected(now, await _pods(jobs, now), wanted)
            except ClusterError as error:
                if error.status in (401, 403):
                    raise
                await asyncio.sleep(SETTLE_SECONDS)  # the API server is away: what is read continues later
            else:
                for pod in pods[:MOST_PODS]:
                    if pod.uid not in readers and has_log(pod, wanted.container):
                        readers[pod.uid] = asyncio.create_task(read(pod, wanted.after.encode()))
                gone |= readers.keys() - {pod.uid for pod in pods if not pod.ended}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    batch = await batches.get()
                some = [_log_line(now, batch.pod, line) for line in batch.lines if matches(line.text, search)]
                if some:
                    yield some
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


class _Batch(NamedTuple):
    pod: Pod
    lines: list[Line]


def current(jobs: ClusterJobs, entry: Entry) -> Entry:
    """The newest state of the job; the last one, if it was deleted."""
    try:
        return jobs.get(entry.group, entry.name)
    except Problem:
        status = {**(entry.manifest.get("status") or {}), "phase": "Failed"}
        return replace(entry, manifest={**entry.manifest, "status": status})


async def _pods(jobs: ClusterJobs, entry: Entry) -> list[Pod]:
    return pods_of(entry.manifest, await jobs.pods(entry))


def _selected(entry: Entry, pods: Sequence[Pod], wanted: Wanted) -> list[Pod]:
    attempt = entry.status.attempt if wanted.attempt is None else wanted.attempt
    return [
        pod for pod in pods if pod.attempt == attempt and wanted.replica in (None, "", replica_key(pod.role, pod.index))
    ]


def _log_line(entry: Entry, pod: Pod, line: Line) -> LogLine:
    rank = entry.ranks.get(replica_key(pod.role, pod.index))
    return LogLine(
        time=line.time.decode() or None,
        role=pod.role,
        index=pod.index,
        rank=rank if pod.attempt == entry.status.attempt else None,
        attempt=pod.attempt,
        line=shown(line.text),
    )


def _no_log(pod: Pod) -> str:
    why = pod.waiting_message or pod.waiting_reason or pod.phase
    return f"{replica_key(pod.role, pod.index)} has no log yet: {why}"


def _no_pods(entry: Entry, wanted: Wanted) -> str:
    attempt = entry.status.attempt if wanted.attempt is None else wanted.attempt
    if attempt != entry.status.attempt:
        return (
            f"the pods of attempt {attempt} are deleted, and their logs with them: the page of the job has the last "
            "lines of the rank that failed"
        )
    if entry.phase in FINISHED:
        return f"{entry.name} is {entry.phase} and its pods are deleted: spec.cleanPodPolicy: None keeps pods"
    return f"{entry.name} is {entry.phase} and has no pods yet"


# --- runs of this machine --------------------------------------------------------------------------------------------


def file_of(entry: Entry, wanted: Wanted) -> StoredLog | None:
    """The log of the chosen replica and attempt.

    Without a choice it is that of the first failure, or of rank 0, in the newest attempt.
    """
    files = stored_logs.stored_logs(entry.directory, entry.job) if entry.directory else []
    if wanted.replica:
        files = [log for log in files if log.replica == wanted.replica]
    else:
        first = next(iter(entry.ranks), "")
        failure = entry.status.last_failure
        if failure and failure.attempt == entry.status.attempt:
            first = replica_key(failure.role, failure.index)
        files = [log for log in files if log.replica == first] or files
    attempt = max((log.attempt for log in files), default=0) if wanted.attempt is None else wanted.attempt
    return next((log for log in reversed(files) if log.attempt == attempt), None)


async def _of_run(entry: Entry, wanted: Wanted) -> Found:
    log = file_of(entry, wanted)
    if log is None:
        return Found([], [_no_file(entry, wanted)])
    try:
        lines, end, more = await asyncio.to_thread(stored_logs.last_lines, log.path, wanted.tail, wanted.search)
    except OSError as error:
        return Found([], [f"{log.path.name} cannot be read: {error.strerror}"])
    notes = [f"the log has more lines before these: {log.path}"] if more else []
    return Found([_line_of_run(entry, log, line) for line in lines], notes, str(end))


async def _of_run_file(state: State, entry: Entry, wanted: Wanted) -> AsyncGenerator[list[LogLine]]:
    """The lines of one replica at a time."""
    place, search = int(wanted.after) if wanted.after.isdigit() else 0, wanted.search.lower().encode()
    read: StoredLog | None = None
    while True:
        now = await _newest(state, entry)
        log = await asyncio.to_thread(file_of, now, wanted)
        if log is not None and log != read:
            read = log
            async for some in stored_logs.appended(log.path, place, _EndOf(state, entry, wanted, log)):
                yield [_line_of_run(now, log, line) for line in some if matches(line, search)]
            place = 0
        elif not now.active:
            return
        else:
            yield []
            await asyncio.sleep(SETTLE_SECONDS)


async def _newest(state: State, entry: Entry) -> Entry:
    try:
        return await state.runs.get(entry.group, entry.name)
    except Problem:
        return replace(entry, active=False)  # the run was removed


@dataclass(frozen=True)
class _EndOf:
    """Whether nothing more is written to a log: the run has ended, or a later attempt has a log."""

    state: State
    entry: Entry
    wanted: Wanted
    log: StoredLog

    async def __call__(self) -> bool:
        now = await _newest(self.state, self.entry)
        return not now.active or await asyncio.to_thread(file_of, now, self.wanted) != self.log


def _line_of_run(entry: Entry, log: StoredLog, line: bytes) -> LogLine:
    rank = entry.ranks.get(log.replica) if log.attempt == entry.status.attempt else None
    return LogLine(time=None, role=log.role, index=log.index, rank=rank, attempt=log.attempt, line=shown(line))


def _no_file(entry: Entry, wanted: Wanted) -> str:
    which = f" of {wanted.replica}" if wanted.replica else ""
    attempt = "" if wanted.attempt is None else f" in attempt {wanted.attempt}"
    return f"the run {entry.job}/{entry.name} has no log{which}{attempt}"
