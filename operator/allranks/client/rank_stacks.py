"""Asks the ranks of a job to print the stacks of their threads, and finds the answers in their logs."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.client.follow import has_log
from allranks.control_sequences import clean, last_state
from allranks.core.diagnosis import stalled_ranks
from allranks.core.facts import rank_reports
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER
from allranks.core.facts.rank_reports import Position, RankReport
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.paths import job_path
from allranks.kube.pod_logs import open_log
from allranks.local import run_directories, stored_logs
from allranks.text import human_duration

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
STILL_SECONDS = 15.0
"""If all ranks have made no step for this time, they stood still while they answered."""
_STACKS = "stacks, asked for because"
"""In the first line of a dump."""
_POSITION = "allranks: position "
_RANK = re.compile(r"allranks: rank (\d{1,8}) \(")
_UNNAMED = re.compile(r"Thread 0x[0-9a-f]+")
_DUMP_LINES = ("Thread ", "Current thread", '  File "', "  ...", "... and ", "allranks: unfinished", _POSITION)
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")


_Text = Annotated[str, Field(max_length=200)]


class Place(BaseModel):
    """Where the main thread of a process is. Values that the process does not say are empty."""

    where: _Text = Field("", description="Line of the program: train.py:88.")
    function: _Text = Field("", description="The function of the program that has this line.")
    call: _Text = Field("", description="The function that it calls there: all_reduce.")
    collective: bool = Field(False, description="The call is one of a library of collectives.")
    activity: Literal["", "data", "debugger", "input", "read", "write"] = Field("", description="What it waits for.")
    file: _Text = Field("", description="The file that it reads or writes.")
    stuck: bool = Field(False, description="The kernel waits for a device, such as a disk (state D).")
    callers: Annotated[tuple[_Text, ...], Field(max_length=12)] = Field(
        (), description="How the program came there, the innermost function first."
    )
    raising: _Text = Field("", description="The exception that it handles meanwhile.")
    step: Annotated[int, Field(ge=0)] | None = Field(None, description="The last step that it reported.")
    idle: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="Seconds since that step."
    )


class Dump(BaseModel):
    """The stacks of one process."""

    replica: str = Field(description="ROLE-INDEX.")
    rank: int | None = None
    title: str = Field(description="The line that begins the dump: the process, its pod, and why.")
    lines: list[str] = Field(description="The stack of each thread, the main thread first.")
    place: Place | None = Field(None, description="Where the main thread is; null if the process does not say it.")


class Stacks(BaseModel):
    """The answers to a request."""

    request: str = Field(description="The newest request; empty if there is none for this attempt.")
    waiting: list[str] = Field(description="Ranks that have not answered yet, as ROLE-INDEX.")
    over: bool = Field(description="All ranks have answered, or the request is older than 30 s.")
    notes: list[str] = Field(description="What is missing, as sentences.")
    sentence: str = Field("", description="Which rank differs from the others, and where it is.")
    dumps: list[Dump]
    groups: list[list[int]] = Field([], description="Processes with the same stacks, as places in `dumps`.")

    def compare(self, completed: Mapping[str, int | None] | None = None) -> None:
        """Sort the dumps by rank, and set the sentence and the groups.

        `completed`: replicas that completed -> rank.
        """
        self.dumps.sort(key=lambda dump: (dump.rank is None, dump.rank, dump.replica))
        self.groups = groups_of(self.dumps)
        self.sentence = sentence_about(self.dumps, completed or {}, whole=not self.waiting)


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
            _dump(replica, ranks.get(replica), title, stacks)
            for title, *stacks in stack_dumps(clean(last_state(line), colour=False) for line in lines)
            if f"{request})" in title and (stacks or NO_PROCESS in title)
        ]
        dumps += texts
        waiting += [] if texts else [replica]
    return dumps, waiting


def _dump(replica: str, rank: int | None, title: str, stacks: list[str]) -> Dump:
    """Return the dump of a process. `rank` is the rank of its pod, for a title without one."""
    match = _RANK.search(title)
    places = [line.partition(_POSITION)[2] for line in stacks if _POSITION in line]
    place = None
    with suppress(ValidationError):
        place = Place.model_validate_json(places[-1]) if places else None
    lines = [line for line in stacks if _POSITION not in line][:MOST_LINES]
    return Dump(replica=replica, rank=int(match[1]) if match else rank, title=title, lines=lines, place=place)


def groups_of(dumps: Sequence[Dump]) -> list[list[int]]:
    """Return the numbers of the dumps with the same stacks, whatever the names of threads without a name."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, dump in enumerate(dumps):
        groups.setdefault(tuple(_UNNAMED.sub("Thread", line) for line in dump.lines), []).append(number)
    return list(groups.values())


def sentence_about(dumps: Sequence[Dump], completed: Mapping[str, int | None], *, whole: bool) -> str:
    """Return which rank differs, if no rank made a step meanwhile; else where the ranks are. Empty if they do not say
    it.

    Ranks answer within seconds of each other. While they make steps, that says nothing about who waits for whom.
    `whole`: whether all ranks have answered.
    """
    ranks = [_report(dump.replica, dump.rank, dump.place) for dump in dumps if dump.place]
    if not ranks:
        return ""
    idle = min((dump.place.idle or 0.0 for dump in dumps if dump.place), default=0.0)
    if idle < STILL_SECONDS:
        return stalled_ranks.places(ranks)
    ranks += [_report(replica, rank, None) for replica, rank in completed.items()]
    suspects = stalled_ranks.suspects(ranks)
    sentence = suspects.sentence if suspects.ranks or whole else stalled_ranks.places(ranks)
    return f"no step for {human_duration(idle)}: {sentence}"


def _report(replica: str, rank: int | None, place: Place | None) -> RankReport:
    role, _, index = replica.rpartition("-")
    position = Position(**place.model_dump(exclude={"step", "idle"})) if place else None
    return RankReport(
        role=role,
        index=int(index),
        local_rank=0,
        rank=rank,
        pod="",
        node=None,
        received_at=datetime.min,
        step=place.step if place else None,
        position=position,
        done=place is None,
    )


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
