"""Stacks on demand: asks the ranks of a job to print the stacks of their threads, and finds them in their logs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, Field

from allranks.api.status import FINISHED, WITHOUT_PODS
from allranks.cli import stack_dumps
from allranks.core import stack_requests
from allranks.core.naming import replica_key
from allranks.kube.job_codec import pods_of
from allranks.kube.paths import job_path
from allranks.local import run_directories
from allranks.ui import log_files, pod_log_reader
from allranks.ui.entries import Entry
from allranks.ui.log_lines import shown
from allranks.ui.problems import Problem
from allranks.ui.state import State

ANSWER_SECONDS = 30.0
"""Ranks answer with their next report, every 5 s, or every 15 s in a job of many ranks. Then the page stops waiting."""
CLOCK_SECONDS = 10
"""Logs are read from so long before the request."""
MOST_LINES = 2000
"""Lines of one dump that are shown."""
NO_REPORTS = (
    "the ranks do not report, so they cannot be asked: call allranks.report in the program, or set progress.logPattern"
)


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


class Asked(BaseModel):
    """The ranks are asked. They answer within seconds: read `stacks` again."""

    message: str
    request: str


def why_not(entry: Entry) -> str:
    """Why the ranks cannot be asked, as a sentence; empty if they can."""
    status = entry.status
    if entry.phase in FINISHED or not entry.active:
        return f"{entry.job} is {entry.phase}: there are no ranks to ask"
    if entry.phase in WITHOUT_PODS or status.running_time is None:
        return f"{entry.job} is {entry.phase}: its ranks do not run yet"
    if status.progress is None or not status.progress.reporting:
        return NO_REPORTS
    return ""


async def ask(state: State, entry: Entry) -> Asked:
    """Asks all ranks of the current attempt, with the user's right to change the job. Raises Problem, ClusterError."""
    if problem := why_not(entry):
        raise Problem(409, problem)
    request = stack_requests.new_request(entry.status.attempt, state.now(), secrets.randbelow(1 << 16))
    if entry.directory is not None:
        try:
            await asyncio.to_thread(run_directories.request_stacks, entry.directory, request)
        except OSError as error:
            raise Problem(409, f"{entry.directory}: {error.strerror}") from error
    else:
        cluster = state.cluster().within(entry.group)
        change = {"metadata": {"annotations": {stack_requests.ANNOTATION: request}}}
        query = {"fieldManager": "allranks"}
        await cluster.request("PATCH", job_path(cluster.namespace, entry.name), query, change)
    return Asked(message=f"the ranks of {entry.job} are asked for their stacks", request=request)


async def read(state: State, entry: Entry, request: str = "") -> Stacks:
    """The answers to a request, or to the newest one. Raises ClusterError."""
    request = request or _newest(entry)
    asked_at = stack_requests.requested_at(request)
    if asked_at is None or not stack_requests.stack_dump_id(request, entry.status.attempt):
        return Stacks(request="", waiting=[], over=True, notes=[], dumps=[])
    age = (state.now() - asked_at).total_seconds()
    logs, notes = await _logs(state, entry, age)
    dumps = [dump for replica, lines in logs for dump in _dumps(entry, replica, lines, request)]
    answered = {dump.replica for dump in dumps}
    waiting = [replica for replica, _ in logs if replica not in answered]
    over = not waiting or age > ANSWER_SECONDS
    if over and waiting and entry.phase not in FINISHED:
        notes.append(_silent(waiting))
    return Stacks(request=request, waiting=waiting, over=over, notes=notes, dumps=dumps)


def _newest(entry: Entry) -> str:
    if entry.directory is None:
        return str((entry.metadata.get("annotations") or {}).get(stack_requests.ANNOTATION, ""))
    return run_directories.stack_request(entry.directory)


def _silent(waiting: Sequence[str]) -> str:
    names = ", ".join(waiting[:8]) + (f" and {len(waiting) - 8} more" if len(waiting) > 8 else "")
    return (
        f"{names} did not answer: a rank that does not report cannot be asked, and one in which native code holds "
        "Python's interpreter lock cannot answer"
    )


def _dumps(entry: Entry, replica: str, lines: Iterable[str], request: str) -> Iterable[Dump]:
    for title, *rest in stack_dumps.dumps(lines):
        if f"{request})" in title:
            yield Dump(replica=replica, rank=entry.ranks.get(replica), title=title, lines=rest[:MOST_LINES])


async def _logs(state: State, entry: Entry, age: float) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """(replica, lines since the request) of each rank, and what is missing."""
    if entry.directory is not None:
        return await asyncio.to_thread(_logs_of_run, entry)
    pods = [pod for pod in pods_of(entry.manifest, await state.pods(entry)) if pod.attempt == entry.status.attempt]
    pods = list({(pod.role, pod.index): pod for pod in pods}.values())  # the newest of each replica
    since = max(1, round(age) + CLOCK_SECONDS)
    cluster = state.cluster().within(entry.group)
    found, notes = await pod_log_reader.lines_since(cluster, entry.group, pods, since)
    return [(replica_key(pod.role, pod.index), [shown(line) for line in lines]) for pod, lines in found], notes


def _logs_of_run(entry: Entry) -> tuple[list[tuple[str, list[str]]], list[str]]:
    newest = {log.replica: log for log in log_files.log_files(entry) if log.attempt == entry.status.attempt}
    out, notes = [], []
    for replica, log in newest.items():
        try:
            lines, _, _ = log_files.last_lines(log.path, pod_log_reader.SEARCH_LINES)
        except OSError as error:
            notes.append(f"{log.path.name} cannot be read: {error.strerror}")
            continue
        out.append((replica, [shown(line) for line in lines]))
    return out, notes
