"""The pages: jobs and runs, one job, its logs, Events and manifest, and its actions.

Pages are rendered here; a script only loads them again when something has changed. So they work without it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.api.status import FINISHED
from allranks.authoring.yaml_text import dump
from allranks.core.facts.naming import SWEEP_LABEL, replica_key
from allranks.errors import ClusterError
from allranks.local.run_directories import INTERRUPTED
from allranks.local.stored_logs import stored_logs
from allranks.ui import experiment, job_rows
from allranks.ui.actions import Action, actions
from allranks.ui.entries import Entry, owner_sweep, selection
from allranks.ui.logs import MOST_LINES, LogQuery, LogTail
from allranks.ui.problems import Problem
from allranks.ui.rendering import address_of_curves, read_form, render, stream_address
from allranks.ui.routes import compare, rest
from allranks.ui.routes.rest import EntryOf, Item, StateOf
from allranks.ui.runs import log_file
from allranks.ui.state import USER, State
from allranks.ui.users import remember_namespace
from allranks.views.format import checkpoints
from allranks.views.format.duration import age, human
from allranks.views.format.events import group_events
from allranks.views.format.outcome import describe, hint_for, verdict
from allranks.views.report import html

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

PAGE = 100
"""Jobs on one page."""
MOST_RANKS = 512
"""Ranks that are drawn."""


# --- jobs ------------------------------------------------------------------------------------------------------------


@router.get("/")
async def show_jobs(
    request: Request,
    state: StateOf,
    namespace: str = "",
    phase: str = "",
    label: str = "",
    text: str = "",
    where: Annotated[str, Query(max_length=1000)] = "",
    sort: Annotated[str, Query(max_length=200)] = "",
    column: Annotated[list[str], Query(max_length=experiment.MOST_COLUMNS)] = [],  # noqa: B006 (FastAPI copies it)
    trials: bool = False,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
    run_page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Show jobs of the cluster and runs of this machine, with their parameters and metrics."""
    selects, has_values = selection(namespace, phase, label, text), experiment.selection(where)
    entries, of_machine = await state.entries("jobs"), await state.entries("runs")
    stored_trials = await state.runs.trials()
    now = state.now()

    def chosen(entries: list[Entry]) -> list[Entry]:
        return experiment.ordered((entry for entry in entries if selects(entry) and has_values(entry)), sort, now)

    of_machine += stored_trials if trials else []
    if sort or where:  # every job is decoded
        jobs, runs = await state.compute(chosen, entries), await state.compute(chosen, of_machine)
    else:
        jobs, runs = chosen(entries), chosen(of_machine)
    rows = [job_rows.job_row(entry, now) for entry in _page(jobs, page)]
    run_rows = [job_rows.job_row(entry, now) for entry in _page(runs, run_page)]
    of_rows = [row.values for row in (*rows, *run_rows)]

    def address(**changed: str) -> str:
        values = [item for item in request.query_params.multi_items() if item[0] not in changed]
        return f"?{urlencode([(key, value) for key, value in (*values, *changed.items()) if value])}"

    overview = render(
        "jobs",
        live=stream_address(namespace=namespace),
        warning=state.problem if state.jobs else "",
        no_cluster=state.no_cluster,
        rows=rows,
        runs=run_rows,
        columns={
            source: experiment.columns([row.values for row in of_source], column, sort)
            for source, of_source in (("jobs", rows), ("runs", run_rows))
        },
        offered=[(key, experiment.title(key)) for key in sorted(experiment.offered(of_rows), key=_of_kind)],
        most=compare.MOST_JOBS,
        order=sort,
        trials=trials if stored_trials else None,
        totals=_totals(jobs),
        run_count=len(runs),
        page=page,
        pages=_pages(jobs),
        run_page=run_page,
        run_pages=_pages(runs),
        address=address,
        namespaces=sorted({entry.group for entry in entries}),
        phases=["Pending", "Queued", "Running", "Restarting", "Suspended", "Succeeded", "Failed", INTERRUPTED],
        chosen={"namespace": namespace, "phase": phase, "label": label, "text": text, "where": where},
        chosen_columns=column,
        root=str(state.runs.root),
        one_namespace=state.jobs.namespace if state.jobs else None,
        choices=state.choices,
    )
    if USER.get():
        remember_namespace(overview, namespace)
    return overview


def _page(entries: list[Entry], number: int) -> list[Entry]:
    return entries[(number - 1) * PAGE : number * PAGE]


def _pages(entries: list[Entry]) -> int:
    return max(1, -(-len(entries) // PAGE))


def _of_kind(key: str) -> tuple[int, str]:
    kind, _, name = key.partition(":")
    return experiment.KINDS.index(kind), name


def _totals(jobs: list[Entry]) -> str:
    """`3 jobs: 2 Running, 1 Failed`."""
    counts: dict[str, int] = {}
    for entry in jobs:
        counts[entry.phase] = counts.get(entry.phase, 0) + 1
    words = ", ".join(f"{number} {phase}" for phase, number in counts.items())
    return f"{len(jobs)} job{'s' * (len(jobs) != 1)}" + (f": {words}" if words else "")


@router.get("/jobs")
async def all_jobs() -> Response:
    return RedirectResponse("/", 303)


@router.get("/jobs/{namespace}")
async def jobs_of(namespace: str) -> Response:
    return RedirectResponse(f"/?{urlencode({'namespace': namespace})}", 303)


@router.get("/runs/{job}")
async def newest_run(state: StateOf, job: str) -> Response:
    """Lead to the newest run of a job."""
    entries = [*await state.entries("runs"), *await state.runs.trials()]
    runs = [entry for entry in entries if entry.group == job]
    if not runs:
        raise Problem(404, f"there is no run of {job} in {state.runs.root}: allranks runs lists them")
    newest = max(runs, key=lambda entry: (str(entry.metadata.get("creationTimestamp") or ""), entry.name))
    return RedirectResponse(f"/{newest.path}", 303)


# --- one job ---------------------------------------------------------------------------------------------------------


def about(state: State, entry: Entry, tab: str) -> dict[str, Any]:
    """Return the values for the head of each page of a job."""
    sweep, sweep_path = _sweep_of(entry)
    return {
        "entry": entry,
        "tab": tab,
        "sweep": sweep,
        "sweep_path": sweep_path,
        "live": stream_address(source=entry.source, group=entry.group, name=entry.name) if entry.active else "",
        "warning": state.problem if entry.source == "jobs" else "",
        "actions": actions(entry, state.now()),
    }


@router.get(Item)
async def job(state: StateOf, entry: EntryOf) -> Response:
    """Show progress, attempts, ranks and the first failure."""
    report = await state.report(entry)
    ranks, hidden = await state.ranks(entry)
    now = state.now()
    failure = entry.status.last_failure
    return render(
        "job",
        **about(state, entry, ""),
        report=report,
        curves=address_of_curves([f"{entry.source}/{entry.group}/{entry.name}"]) if report.metric_names() else "",
        tiles=list(html.tiles(report)),
        sections=[
            *(section for section in html.sections(report) if not section.lines),  # these only in report.html
            *checkpoint_sections(entry, now),
        ],
        ranks=ranks[:MOST_RANKS],
        more_ranks=len(ranks) - MOST_RANKS,
        ranks_note=hidden,
        failure=failure,
        ended_badly=_ended_by_failure(entry),
        failure_title=describe(failure) if failure else "",
        failure_verdict=verdict(failure) if failure else "",
        failure_age=age(failure.time, now) if failure else "",
        failure_log=_log_address(entry, replica_key(failure.role, failure.index), failure.attempt) if failure else "",
        hint=hint_for(failure) if failure else "",
        conditions=[
            (c.type, c.status, age(c.last_transition_time, now), c.reason, c.message) for c in entry.status.conditions
        ],
        log_address=functools.partial(_log_address, entry),
    )


def checkpoint_sections(entry: Entry, now: datetime) -> Iterator[html.Section]:
    """Yield the table of the newest checkpoints, if there are any."""
    grid = checkpoints.table(entry.status, now)
    due = checkpoints.schedule(entry.manifest.get("spec") or {}, entry.status)
    notes = [note for note in (checkpoints.rollback(entry.status), due and f"Due {due}.") if note]
    if grid or notes:
        yield html.Section("Checkpoints", notes=notes, table=grid)


def _ended_by_failure(entry: Entry) -> bool:
    """Return whether the failure in the status is the reason why nothing runs, and not one before a restart."""
    failure = entry.status.last_failure
    of_last = failure is not None and failure.attempt == entry.status.attempt
    return entry.phase == "Failed" or (entry.phase == INTERRUPTED and of_last)


def _log_address(entry: Entry, replica: str, attempt: int | None = None) -> str:
    query = {"replica": replica} | ({} if attempt is None else {"attempt": str(attempt)})
    return f"/{entry.path}/logs?{urlencode(query)}"


@router.get(Item + "/logs")
async def logs(
    state: StateOf,
    entry: EntryOf,
    replica: str = "",
    attempt: str = "",
    search: Annotated[str, Query(max_length=1000)] = "",
    tail: Annotated[int, Query(ge=1, le=MOST_LINES)] = 500,
) -> Response:
    """Show the end of the logs of a rank, or of all ranks."""
    if attempt and not attempt.isdigit():
        raise Problem(422, f"attempt: {attempt!r} is not a number")
    number = int(attempt) if attempt else None
    query = LogQuery(replica=replica or None, attempt=number, tail=tail, search=search)
    readable = True
    try:
        last = await state.last_lines(entry, query)
    except ClusterError as error:  # a right that not every user has: the other views stay in reach
        if error.status == 401:
            raise
        last, readable = LogTail([], [str(error)]), False
    whole = ""
    if entry.directory is not None:
        attempts = sorted({log.attempt for log in stored_logs(entry.directory, entry.job)})
        log = log_file(entry, query)
        replica = replica or (log.replica if log else "")
        whole = f"/api/v1/{entry.path}/files/logs/{quote(log.path.name)}" if log else ""
    else:
        attempts = list(range(entry.status.attempt + 1))
    current = number is None or number == entry.status.attempt
    follows = readable and entry.active and entry.phase not in FINISHED and current
    following = {"follow": "true", "replica": replica, "attempt": attempt, "search": search, "after": last.after}
    return render(
        "logs",
        **{**about(state, entry, "logs"), "live": ""},
        last=last,
        whole=whole,
        replicas=list(entry.ranks.items()),
        attempts=attempts,
        chosen={"replica": replica, "attempt": attempt, "search": search, "tail": tail},
        follow=f"/api/v1/{entry.path}/logs?{urlencode({k: v for k, v in following.items() if v})}" if follows else "",
    )


def _sweep_of(entry: Entry) -> tuple[str, str]:
    """Return the name of the sweep of which the job is a trial, and the address of its page; empty without one."""
    if entry.source == "jobs":
        name = (entry.metadata.get("labels") or {}).get(SWEEP_LABEL, "")
        return name, f"/sweeps/jobs/{quote(entry.group, safe='')}/{quote(name, safe='')}" if name else ""
    if entry.source == "runs" and entry.sweep:
        return entry.sweep.partition("/")[0], f"/sweeps/runs/{quote(entry.sweep)}"
    owner = owner_sweep(entry) if entry.source == "archive" else None
    if owner is None:
        return "", ""
    folder = quote("{name}-{uid}".format(**owner), safe="")
    return owner["name"], f"/sweeps/archive/{quote(entry.group, safe='')}/{folder}"


@router.get(Item + "/events")
async def events(state: StateOf, entry: EntryOf) -> Response:
    """Show the Events of the job and its pods, the newest first."""
    note = "Events are objects of a cluster: a run of this machine has none." if entry.source == "runs" else ""
    rows: list[tuple[str, ...]] = []
    try:
        rows = event_rows(await state.events(entry), state.now())
    except ClusterError as error:
        note = str(error)
    return render("events", **about(state, entry, "events"), rows=rows, note=note)


def event_rows(events: list[dict[str, Any]], now: datetime) -> list[tuple[str, ...]]:
    """Return similar Events as one row, the newest first."""
    return [
        (
            group.kind,
            age(group.last, now)
            + (f" (x{group.count} over {human((now - group.first).total_seconds())})" if group.count > 1 else ""),
            group.reason,
            group.objects,
            group.message,
        )
        for group in group_events(events)[::-1]
    ]


@router.get(Item + "/manifest")
async def manifest(state: StateOf, entry: EntryOf) -> Response:
    """Show the job as YAML: its spec first, then its status."""
    status = entry.manifest.get("status")
    spec = {key: value for key, value in entry.manifest.items() if key != "status"}
    return render(
        "manifest",
        **about(state, entry, "manifest"),
        spec=dump([spec]),
        status=dump([{"status": status}]) if status else "",
    )


# --- actions ---------------------------------------------------------------------------------------------------------


def _action(state: State, entry: Entry, name: str) -> Action:
    """Return the action with a name. Raises Problem if the job does not allow it."""
    action = next((action for action in actions(entry, state.now()) if action.name == name), None)
    if action is None:
        raise Problem(409, f"{entry.job} is {entry.phase}: {name} is not possible")
    return action


@router.get(Item + "/actions/{name_of_action}")
async def confirm(state: StateOf, entry: EntryOf, name_of_action: str) -> Response:
    """Say what an action will do, and ask."""
    values = {**about(state, entry, "actions"), "live": ""}
    return render("confirm", **values, action=_action(state, entry, name_of_action))


@router.post(Item + "/actions/{name_of_action}")
async def act(request: Request, state: StateOf, entry: EntryOf, name_of_action: str) -> Response:
    """Do an action, and show the job, or all jobs after a deletion."""
    form = await read_form(request)
    uid = form.get("uid")
    action = _action(state, entry, name_of_action)
    if action.name == "suspend":
        await rest.suspend(state, entry, uid)
    elif action.name == "resume":
        await rest.resume(state, entry, uid)
    elif action.name == "scale":
        number = form.get("replicas", "")
        if not number.isdigit() or len(number) > 6:
            raise Problem(422, f"replicas: {number!r} is not a number of workers")
        await rest.scale(state, entry, rest.Replicas(replicas=int(number)), uid)
    else:
        await rest.delete(state, entry, uid)
        return RedirectResponse("/", 303)
    return RedirectResponse(f"/{entry.path}", 303)
