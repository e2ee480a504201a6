"""Asks the ranks of a job to print the stacks of their threads, and finds the answers in their logs."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, Field

from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.client.follow import has_log
from allranks.control_sequences import clean, last_state
from allranks.core.facts import rank_reports
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.paths import job_path
from allranks.kube.pod_logs import open_log
from allranks.local import run_directories, stored_logs

ANSWER_SECONDS = 30.0
"""Ranks answer with their next report, every 5 s, or every 15 s in a job of many ranks. Then waiting ends."""
CLOCK_SECONDS = 10
"""Logs are read from this time before the request."""
MOST_BYTES = 8 * 2**20
"""Bytes that are read of the log of one pod."""
MOST_PODS = 64
"""Logs that are read at once."""
MOST_LINES = 2000
"""Lines of one dump that are shown."""
SEARCH_LINES = 20_000
"""Lines at the end of the log of a local run that are searched for a dump."""
NO_PROCESS = "no process of"
"""In the answer of a pod without a Python process (allranks.inpod.watch). It has one line."""
NO_REPORTS = (
    "the ranks do not report, so they cannot be asked: call allranks.report in the program, or set progress.logPattern"
)
_STACKS = "stacks, asked for because"
"""In the first line of a dump."""
_DUMP_LINES = ("Thread ", "Current thread", '  File "', "  ...", "... and ", "allranks: unfinished")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")


class Dump(BaseModel):
    """The stacks of one process."""

    replica: str = Field(description="ROLE-INDEX.")
    rank: int | None = None
    title: str = Field(description="The line that begins the dump: the process, its pod, and why.")
    lines: list[str] = Field(description="The stack of each thread, the main thread first.")


class Stacks(BaseModel):
    """The answers to a request."""

    request: str = Field(description="The newest request; empty if there is none for this attempt.")
    waiting: list[str] = Field(description="Ranks that have not answered yet, as ROLE-INDEX.")
    over: bool = Field(description="All ranks have answered, or the request is older than 30 s.")
    notes: list[str] = Field(description="What is missing, as sentences.")
    dumps: list[Dump]


def why_not(name: str, phase: str, status: Status, *, active: bool = True) -> str:
    """Say why the ranks cannot be asked; empty if they can. `active`: not a run whose process has ended."""
    if phase in FINISHED or not active:
        return f"{name} is {phase}: there are no ranks to ask"
    if phase in WITHOUT_PODS or status.running_time is None:
        return f"{name} is {phase}: its ranks do not run yet"
    if status.progress is None or not status.progress.reporting:
        return NO_REPORTS
    return ""


async def ask(cluster: Cluster, name: str, attempt: int, now: datetime) -> str:
    """Ask all ranks of the attempt, with the user's right to change the job. Return the request. Raise
    ClusterError."""
    request = _new(attempt, now)
    change = {"metadata": {"annotations": {rank_reports.STACKS_ANNOTATION: request}}}
    await cluster.request("PATCH", job_path(cluster.namespace, name), {"fieldManager": "allranks"}, change)
    return request


async def ask_run(directory: Path, attempt: int, now: datetime) -> str:
    """Ask all ranks of a run of this machine. Raise AllranksError."""
    request = _new(attempt, now)
    try:
        await asyncio.to_thread(run_directories.request_stacks, directory, request)
    except OSError as error:
        raise AllranksError(f"{directory}: {error.strerror}") from error
    return request


def _new(attempt: int, now: datetime) -> str:
    return rank_reports.new_stack_request(attempt, now, secrets.randbelow(1 << 16))


def answers(
    request: str, logs: Iterable[tuple[str, Iterable[bytes]]], ranks: Mapping[str, int | None]
) -> tuple[list[Dump], list[str]]:
    """Return (the dumps for the request, replicas without one). `logs`: replica -> lines. `ranks`: replica -> rank.

    A dump that has only its first line is being written, and is no answer yet.
    """
    dumps, waiting = list[Dump](), list[str]()
    for replica, lines in logs:
        texts = [
            Dump(replica=replica, rank=ranks.get(replica), title=title, lines=stacks[:MOST_LINES])
            for title, *stacks in stack_dumps(clean(last_state(line), colour=False) for line in lines)
            if f"{request})" in title and (stacks or NO_PROCESS in title)
        ]
        dumps += texts
        waiting += [] if texts else [replica]
    return dumps, waiting


async def lines_since(
    cluster: Cluster, pods: Sequence[Pod], seconds: int, most: int = MOST_BYTES
) -> tuple[list[tuple[Pod, list[bytes]]], list[str]]:
    """Return the lines that each pod wrote in the last `seconds`, the oldest first, and notes about missing ones.

    At most the first `most` bytes and SEARCH_LINES lines of a pod are read. Raise ClusterError.
    """
    notes: list[str] = []
    free = asyncio.Semaphore(MOST_PODS)

    async def read(pod: Pod) -> tuple[Pod, list[bytes]]:
        query: dict[str, str | int | None] = {"container": TRAINER, "sinceSeconds": seconds, "limitBytes": most}
        lines: list[bytes] = []
        try:
            async with free, open_log(cluster, cluster.namespace, pod.name, query, limit=most) as log:
                async for batch in log:
                    lines += batch
                    if len(lines) >= SEARCH_LINES or log.received >= most:
                        notes.append(f"{pod.name}: only the beginning of what it wrote since the request is read")
                        break
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            notes.append(f"{pod.name}: {error}")
        return pod, lines

    return list(await asyncio.gather(*(read(pod) for pod in pods if has_log(pod)))), notes


def logs_of_run(directory: Path, job: str, attempt: int) -> tuple[list[tuple[str, list[bytes]]], list[str]]:
    """Return the ends of the logs of an attempt of a local run, as (replica, lines), and what is missing. Blocks."""
    newest = {log.replica: log for log in stored_logs.stored_logs(directory, job) if log.attempt == attempt}
    out, notes = [], []
    for replica, log in newest.items():
        try:
            lines, _, _ = stored_logs.last_lines(log.path, SEARCH_LINES)
        except OSError as error:
            notes.append(f"{log.path.name} cannot be read: {error.strerror}")
            continue
        out.append((replica, lines))
    return out, notes


def silent(waiting: Sequence[str]) -> str:
    """Say why ranks may not have answered."""
    names = ", ".join(waiting[:8]) + (f" and {len(waiting) - 8} more" if len(waiting) > 8 else "")
    return (
        f"{names} did not answer: a rank that does not report cannot be asked, and one in which native code holds "
        "Python's interpreter lock cannot answer"
    )


# --- dumps in logs, which allranks.report.stacks and allranks.inpod.watch write ---------------------------------------


def stack_dumps(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield each dump: from the line that announces it to the next line that is not part of it."""
    dump: list[str] = []
    for line in lines:
        if _STACKS in line:
            if dump:
                yield dump
            dump = [line]
        elif dump and _in_dump(line):
            dump.append(line)
        elif dump:
            yield dump
            dump = []
    if dump:
        yield dump


def _in_dump(line: str) -> bool:
    text = _STAMP.sub("", line)
    return not text or text.startswith(_DUMP_LINES)
