"""Stacks on demand, as a page and in the REST interface: asks the ranks of a job, and reads the answers from their
logs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel

from allranks.api.status import FINISHED
from allranks.client import rank_stacks
from allranks.client.rank_stacks import ANSWER_SECONDS, CLOCK_SECONDS, MOST_BYTES, MOST_PODS, Stacks, lines_since
from allranks.core.facts import rank_reports
from allranks.core.facts.naming import replica_key
from allranks.errors import ClusterError
from allranks.local import run_directories
from allranks.ui.entries import Entry
from allranks.ui.logs import MOST_OF_ALL
from allranks.ui.problems import RESPONSES, Problem
from allranks.ui.rendering import read_form, render
from allranks.ui.routes.pages import about
from allranks.ui.routes.rest import EntryOf, Item, StateOf, Uid, unchanged
from allranks.ui.state import State
from allranks.views.format.duration import age

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

NOT_ASKED = Stacks(request="", waiting=[], over=True, notes=[], dumps=[])
REFRESH_MS = 1500
"""Interval in which the page reads answers, until all ranks have answered."""


class Asked(BaseModel):
    """The ranks are asked. They answer within seconds: read `stacks` again."""

    message: str
    request: str


@api.get(Item + "/stacks", response_model=Stacks, summary="The stacks that ranks have printed on request")
async def read(
    state: StateOf,
    entry: EntryOf,
    request: Annotated[str, Query(max_length=64, description="The request. Default: the newest.")] = "",
) -> Any:
    """Read from the logs of the current attempt."""
    return await _read(state, entry, request)


@api.post(
    Item + "/stacks",
    status_code=202,
    response_model=Asked,
    summary="Ask the ranks of a job to print the stacks of their threads",
)
async def ask(state: StateOf, entry: EntryOf, uid: Uid = None) -> Any:
    """The program continues. Ranks that report answer within seconds, with lines in their logs."""
    unchanged(entry, uid)
    return await _ask(state, entry)


@pages.get(Item + "/stacks")
async def page(state: StateOf, entry: EntryOf, request: str = "") -> Response:
    """Show the answers to the newest request, and a button for another one."""
    note = ""
    try:
        stacks = await _read(state, entry, request[:64])
    except ClusterError as error:
        note, stacks = str(error), NOT_ASKED
    asked_at = rank_reports.stacks_requested_at(stacks.request)
    return render(
        "stacks",
        **about(state, entry, "stacks"),
        stacks=stacks,
        note=note,
        refusal=_refusal(entry),
        asked=age(asked_at, state.now()) if asked_at else "",
        refresh=0 if stacks.over else REFRESH_MS,
    )


@pages.post(Item + "/stacks")
async def submit(request: Request, state: StateOf, entry: EntryOf) -> Response:
    """Ask, and show the answers as they arrive."""
    form = await read_form(request)
    asked = await ask(state, entry, form.get("uid"))
    return RedirectResponse(f"/{entry.path}/stacks?request={asked.request}", 303)


def _refusal(entry: Entry) -> str:
    """Return the reason why the ranks cannot be asked, as a sentence; empty if they can."""
    return rank_stacks.why_not(entry.job, entry.phase, entry.status, active=entry.active)


async def _ask(state: State, entry: Entry) -> Asked:
    """Ask all ranks of the current attempt, with the user's right to change the job. Raises AllranksError."""
    if problem := _refusal(entry):
        raise Problem(409, problem)
    attempt, now = entry.status.attempt, state.now()
    if entry.directory is not None:
        request = await rank_stacks.ask_run(entry.directory, attempt, now)
    else:
        request = await rank_stacks.ask(state.cluster().within(entry.group), entry.name, attempt, now)
    return Asked(message=f"the ranks of {entry.job} are asked for their stacks", request=request)


async def _read(state: State, entry: Entry, request: str = "") -> Stacks:
    """Return the answers to a request, or to the newest one. Raises ClusterError."""
    request = request or _newest(entry)
    asked_at = rank_reports.stacks_requested_at(request)
    if asked_at is None or not rank_reports.stack_dump_id(request, entry.status.attempt):
        return NOT_ASKED
    seconds = (state.now() - asked_at).total_seconds()
    logs, notes = await _logs(state, entry, seconds)
    dumps, waiting = rank_stacks.answers(request, logs, entry.ranks)
    over = not waiting or seconds > ANSWER_SECONDS
    if over and waiting and entry.phase not in FINISHED:
        notes.append(rank_stacks.silent(waiting))
    answers = Stacks(request=request, waiting=waiting, over=over, notes=notes, dumps=dumps)
    answers.compare()
    return answers


def _newest(entry: Entry) -> str:
    if entry.directory is None:
        return str((entry.metadata.get("annotations") or {}).get(rank_reports.STACKS_ANNOTATION, ""))
    return run_directories.stack_request(entry.directory)


async def _logs(state: State, entry: Entry, seconds: float) -> tuple[list[tuple[str, list[bytes]]], list[str]]:
    """Return (replica, lines since the request) of each rank, and sentences about what is missing."""
    if entry.directory is not None:
        return await asyncio.to_thread(rank_stacks.logs_of_run, entry.directory, entry.job, entry.status.attempt)
    pods = [pod for pod in await state.pods(entry) if pod.attempt == entry.status.attempt]
    pods = list({(pod.role, pod.index): pod for pod in pods}.values())  # the newest of each replica
    since = max(1, round(seconds) + CLOCK_SECONDS)
    pods, left_out = pods[:MOST_PODS], len(pods) - MOST_PODS
    async with state.reads_large():
        most = min(MOST_BYTES, MOST_OF_ALL // max(1, len(pods)))
        ends, notes = await lines_since(state.cluster().within(entry.group), pods, since, most)
    if left_out > 0:
        notes.append(f"only {MOST_PODS} of {MOST_PODS + left_out} pods are read: allranks stacks reads all")
    return [(replica_key(pod.role, pod.index), lines) for pod, lines in ends], notes
