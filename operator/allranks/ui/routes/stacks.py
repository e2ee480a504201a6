"""Stacks on demand for the server: asks the ranks of a job, and reads the answers while somebody looks."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from allranks.api.status import FINISHED
from allranks.cli.live import rank_stacks
from allranks.cli.live.rank_stacks import ANSWER_SECONDS, CLOCK_SECONDS, Stacks
from allranks.cli.live.recent_lines import MOST_PODS, lines_since
from allranks.core import stack_requests
from allranks.core.naming import replica_key
from allranks.kube.job_codec import pods_of
from allranks.local import run_directories
from allranks.ui.entries import Entry
from allranks.ui.problems import Problem
from allranks.ui.state import State


class Asked(BaseModel):
    """The ranks are asked. They answer within seconds: read `stacks` again."""

    message: str
    request: str


def why_not(entry: Entry) -> str:
    """Why the ranks cannot be asked, as a sentence; empty if they can."""
    return rank_stacks.why_not(entry.job, entry.phase, entry.status, active=entry.active)


async def ask(state: State, entry: Entry) -> Asked:
    """Asks all ranks of the current attempt, with the user's right to change the job. Raises AllranksError."""
    if problem := why_not(entry):
        raise Problem(409, problem)
    attempt, now = entry.status.attempt, state.now()
    if entry.directory is not None:
        request = await rank_stacks.ask_run(entry.directory, attempt, now)
    else:
        request = await rank_stacks.ask(state.cluster().within(entry.group), entry.name, attempt, now)
    return Asked(message=f"the ranks of {entry.job} are asked for their stacks", request=request)


async def read(state: State, entry: Entry, request: str = "") -> Stacks:
    """The answers to a request, or to the newest one. Raises ClusterError."""
    request = request or _newest(entry)
    asked_at = stack_requests.requested_at(request)
    if asked_at is None or not stack_requests.stack_dump_id(request, entry.status.attempt):
        return Stacks(request="", waiting=[], over=True, notes=[], dumps=[])
    age = (state.now() - asked_at).total_seconds()
    logs, notes = await _logs(state, entry, age)
    dumps, waiting = rank_stacks.answers(request, logs, entry.ranks)
    over = not waiting or age > ANSWER_SECONDS
    if over and waiting and entry.phase not in FINISHED:
        notes.append(rank_stacks.silent(waiting))
    return Stacks(request=request, waiting=waiting, over=over, notes=notes, dumps=dumps)


def _newest(entry: Entry) -> str:
    if entry.directory is None:
        return str((entry.metadata.get("annotations") or {}).get(stack_requests.ANNOTATION, ""))
    return run_directories.stack_request(entry.directory)


async def _logs(state: State, entry: Entry, age: float) -> tuple[list[tuple[str, list[bytes]]], list[str]]:
    """(replica, lines since the request) of each rank, and what is missing."""
    if entry.directory is not None:
        return await asyncio.to_thread(rank_stacks.logs_of_run, entry.directory, entry.job, entry.status.attempt)
    pods = [pod for pod in pods_of(entry.manifest, await state.pods(entry)) if pod.attempt == entry.status.attempt]
    pods = list({(pod.role, pod.index): pod for pod in pods}.values())  # the newest of each replica
    since = max(1, round(age) + CLOCK_SECONDS)
    found, notes = await lines_since(state.cluster().within(entry.group), pods[:MOST_PODS], since)
    if len(pods) > MOST_PODS:
        notes.append(f"only {MOST_PODS} of {len(pods)} pods are read: allranks stacks reads all")
    return [(replica_key(pod.role, pod.index), lines) for pod, lines in found], notes
