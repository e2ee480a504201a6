"""The REST interface `/api/v1`, with the same JSON as `-o json` of the commands; /api/openapi.json describes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, Field

from allranks.client.jobs import Changed, delete_job, scale_job, set_suspended
from allranks.client.queues import Queue
from allranks.core.facts.naming import TRAINER
from allranks.kube.object_text import ObjectText
from allranks.ui.answers import Parts
from allranks.ui.changes import HEARTBEAT, PAUSE_SECONDS, SILENCE_SECONDS, event
from allranks.ui.entries import Entry, Manifest, Source, in_order, selection
from allranks.ui.logs import MOST_LINES, LogLine, LogQuery, with_replica
from allranks.ui.openapi import Job, JobList, ObjectList
from allranks.ui.problems import RESPONSES, Problem, details
from allranks.ui.ranks import Rank
from allranks.ui.state import State
from allranks.views.format.json_form import as_json
from allranks.views.report import html
from allranks.views.report.model import Report
from allranks.views.report.timeline import Attempt

router = APIRouter(prefix="/api/v1", responses=RESPONSES)


async def _state(request: Request) -> State:
    """Return the data that the user may see. Raises Problem."""
    state: State = await request.app.state.find_state(request)
    return state


StateOf = Annotated[State, Depends(_state)]


async def _entry(state: StateOf, source: Source, group: str, name: str) -> Entry:
    return await state.find(source, group, name)


EntryOf = Annotated[Entry, Depends(_entry)]
Namespace = Annotated[str | None, Query(description="Only jobs of this namespace.")]
Phase = Annotated[str | None, Query(description="Only jobs in this phase.")]
Label = Annotated[str | None, Query(description="Only jobs with these labels, for example team=nlp,stage!=draft.")]
Object = dict[str, Any]
Item = "/{source}/{group}/{name}"
"""`jobs/NAMESPACE/NAME`, `runs/JOB/TIME` for a run of `allranks run`, or `archive/NAMESPACE/NAME-UID`."""


def object_list(items: Sequence[Any]) -> Response:
    """Answer with objects in the form of `allranks get -o json`. Text is not decoded."""
    texts = [item.json if isinstance(item, ObjectText) else msgspec.json.encode(item) for item in items]
    return Parts(b'{"apiVersion":"v1","kind":"List","items":[', texts, b"]}", media_type="application/json")


def as_printed(content: Any) -> Response:
    """Answer with the JSON that a command prints. Numbers that JSON does not have, such as the loss NaN, are null."""
    return Response(msgspec.json.encode(content), media_type="application/json")


class Replicas(BaseModel):
    """The body of a request to scale."""

    replicas: Annotated[int, Field(ge=0, description="The new number of workers.")]


class Answer(BaseModel):
    """The result of an action: what was done, and the job afterwards."""

    message: str
    job: Job


class LogLines(BaseModel):
    """The end of the logs."""

    lines: list[LogLine]
    notes: list[str] = Field(description="What is missing, as sentences.")
    after: str = Field(description="Pass it as `after` with follow=true to get the lines after these.")


# --- reading ---------------------------------------------------------------------------------------------------------


@router.get("/jobs", response_model=JobList, summary="Jobs of the cluster")
async def jobs(state: StateOf, namespace: Namespace = None, phase: Phase = None, label: Label = None) -> Any:
    entries = await state.entries("jobs")
    if state.problem and not entries:
        raise Problem(503 if state.jobs else 404, state.problem)
    return await _list(state, "jobs", namespace, phase, label)


@router.get("/runs", response_model=JobList, summary="Runs of `allranks run` on this machine")
async def runs(state: StateOf, phase: Phase = None, label: Label = None) -> Any:
    return await _list(state, "runs", None, phase, label)


@router.get("/archive", response_model=JobList, summary="Deleted jobs, from the archive")
async def archive(state: StateOf, namespace: Namespace = None, phase: Phase = None, label: Label = None) -> Any:
    state.archived()
    return await _list(state, "archive", namespace, phase, label)


async def _list(state: State, source: Source, namespace: str | None, phase: str | None, label: str | None) -> Response:
    selects = selection(namespace, phase, label)
    entries = (entry for entry in in_order(await state.entries(source)) if selects(entry))
    return object_list([entry.content if isinstance(entry.content, ObjectText) else entry.printed for entry in entries])


@router.get(
    "/stream",
    response_class=StreamingResponse,
    summary="Changes of jobs and runs, as server-sent events",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream(
    state: StateOf,
    namespace: Namespace = None,
    source: Source | None = None,
    group: Annotated[str | None, Query(description="Only this namespace, or runs of this job.")] = None,
    name: Annotated[str | None, Query(description="Only this job or run.")] = None,
    objects: Annotated[bool, Query(description="Send the whole job with each change.")] = False,
) -> StreamingResponse:
    """Events `added`, `changed` and `deleted` with the job, and `status` with the state of the watch of the cluster.

    Changes of the same job that follow each other quickly are sent as one. There are no changes of the past: read the
    jobs when the stream is open.
    """

    def selects(entry: Entry) -> bool:
        return (
            source in (None, entry.source)
            and (namespace is None or (entry.source == "jobs" and entry.group == namespace))
            and group in (None, entry.group)
            and name in (None, entry.name)
        )

    async def events() -> AsyncIterator[str]:
        with state.hub.viewer(selects) as viewer:
            problem: str | None = None
            while not state.hub.closed:
                if state.problem != problem:
                    problem = state.problem
                    yield event("status", {"current": not problem, "problem": problem})
                changes = await viewer.take(SILENCE_SECONDS)
                for kind, entry in changes:
                    yield event(kind, _changed(entry, objects))
                if not changes:
                    yield HEARTBEAT
                await asyncio.sleep(PAUSE_SECONDS)

    return StreamingResponse(events(), media_type="text/event-stream")


def _changed(entry: Entry, objects: bool) -> Object:
    about: Object = {"source": entry.source, "group": entry.group, "name": entry.name, "phase": entry.phase}
    about |= {"attempt": entry.status.attempt}
    return {**about, "object": entry.printed} if objects else about


@router.get("/queues", response_model=list[Queue], summary="Queues of a namespace, with who waits")
async def queues(state: StateOf, namespace: Namespace = None) -> Response:
    """The same as `allranks queue -o json`."""
    cluster = state.cluster()
    return as_printed([as_json(queue) for queue in await cluster.queues(namespace or cluster.cluster.namespace)])


@router.get(Item, response_model=Job, summary="A job or a run, with its status")
async def job(entry: EntryOf) -> Response:
    return as_printed(entry.printed)


@router.get(Item + "/attempts", response_model=list[Attempt], summary="The attempts of a job")
async def attempts(state: StateOf, entry: EntryOf) -> Response:
    """The same as `attempts` of `allranks report -o json`. Times are seconds since the job was created."""
    return as_printed((await state.report(entry)).as_json()["attempts"])


@router.get(Item + "/ranks", response_model=list[Rank], summary="The ranks of a job, with their pods")
async def ranks(state: StateOf, entry: EntryOf) -> Any:
    ranks, problem = await state.ranks(entry)
    if problem:
        raise Problem(403, problem)
    return ranks


@router.get(Item + "/pods", response_model=ObjectList, summary="The pods of a job")
async def pods(state: StateOf, entry: EntryOf) -> Response:
    if entry.source != "jobs":
        return object_list([])
    async with state.reads_large():
        return object_list(await state.cluster().pod_texts(entry))


@router.get(Item + "/events", response_model=ObjectList, summary="The Events of a job and its pods")
async def events(state: StateOf, entry: EntryOf) -> Response:
    return object_list(await state.events(entry))


@router.get(Item + "/report", response_model=Report, summary="The report on a job")
async def report(state: StateOf, entry: EntryOf) -> Response:
    """The same as `allranks report -o json`."""
    return as_printed((await state.report(entry)).as_json())


@router.get(Item + "/report.html", response_class=HTMLResponse, summary="The report on a job as a page")
async def report_page(state: StateOf, entry: EntryOf) -> HTMLResponse:
    page = html.page(await state.report(entry))
    # The page has its styles in itself, and no script.
    return HTMLResponse(page, headers={"Content-Security-Policy": f"{html.POLICY}; frame-ancestors 'none'; sandbox"})


@router.get(
    Item + "/logs",
    response_model=LogLines,
    summary="The end of the logs, or their new lines as server-sent events",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def logs(
    state: StateOf,
    entry: EntryOf,
    rank: Annotated[
        int | None, Query(ge=0, description="Only this rank. A run has the log of one rank at a time.")
    ] = None,
    replica: Annotated[str | None, Query(description="Only this ROLE-INDEX.")] = None,
    attempt: Annotated[
        int | None, Query(ge=0, description="This attempt, if its pods exist. Default: the current.")
    ] = None,
    tail: Annotated[int, Query(ge=1, le=MOST_LINES, description="The last lines of all logs together.")] = 500,
    search: Annotated[str, Query(max_length=1000, description="Only lines that contain this text.")] = "",
    container: str = TRAINER,
    follow: Annotated[bool, Query(description="Send new lines until the job has finished.")] = False,
    after: Annotated[str, Query(max_length=64, description="With follow: `after` of an earlier answer.")] = "",
) -> Any:
    """Lines in the form of `allranks logs -o json`. With follow: events `lines` with lists of them, at last `end`."""
    query = LogQuery(rank, replica, attempt, tail, search, after, container)
    if follow:
        return StreamingResponse(_log_events(state, entry, with_replica(entry, query)), media_type="text/event-stream")
    last = await state.last_lines(entry, query)
    return LogLines(lines=last.lines, notes=last.notes, after=last.after)


async def _log_events(state: State, entry: Entry, query: LogQuery) -> AsyncIterator[str]:
    try:
        async for lines in state.follow_lines(entry, query):
            yield event("lines", [line.model_dump() for line in lines]) if lines else HEARTBEAT
            if state.hub.closed:
                return
    except Exception as error:
        yield event("problem", details(error).model_dump())
    yield event("end", {})


# --- actions ---------------------------------------------------------------------------------------------------------

Uid = Annotated[
    str | None, Query(description="Act only on the job with this UID, not on a later one of the same name.")
]


def job_of(state: State, entry: Entry, uid: str | None) -> Manifest:
    """Return the job on the cluster that an action changes. Raises Problem."""
    if entry.source == "archive":
        raise Problem(409, f"{entry.job} is deleted: only the archive has it")
    if entry.source == "runs":
        raise Problem(409, "a run of this machine cannot be changed here: Ctrl-C in its terminal ends it")
    state.cluster()
    unchanged(entry, uid)
    return entry.manifest


def unchanged(entry: Entry, uid: str | None) -> None:
    """Raises Problem if the page showed another job."""
    if uid and entry.metadata.get("uid") != uid:
        raise Problem(409, f"{entry.name} is another job than the one that the page showed: load the page again")


@router.post(Item + "/suspend", response_model=Answer, summary="Suspend a job: delete its pods, keep the job")
async def suspend(state: StateOf, entry: EntryOf, uid: Uid = None) -> Any:
    job = job_of(state, entry, uid)
    return answer(await set_suspended(state.cluster().within(entry.group), job, True))


@router.post(Item + "/resume", response_model=Answer, summary="Resume a suspended job")
async def resume(state: StateOf, entry: EntryOf, uid: Uid = None) -> Any:
    job = job_of(state, entry, uid)
    return answer(await set_suspended(state.cluster().within(entry.group), job, False))


@router.post(Item + "/scale", response_model=Answer, summary="Change the number of workers of a job")
async def scale(state: StateOf, entry: EntryOf, body: Replicas, uid: Uid = None) -> Any:
    job = job_of(state, entry, uid)
    return answer(await scale_job(state.cluster().within(entry.group), job, body.replicas))


@router.delete(Item, response_model=Answer, summary="Delete a job and everything it owns")
async def delete(state: StateOf, entry: EntryOf, uid: Uid = None) -> Any:
    job = job_of(state, entry, uid)
    await delete_job(state.cluster().within(entry.group), job)
    return answer(Changed(f"{entry.name} deleted", job))


def answer(changed: Changed) -> Answer:
    return Answer(message=changed.line, job=changed.job)
