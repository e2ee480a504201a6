"""Stacks on demand, as a page and in the REST interface."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from allranks.cli.format.duration import age
from allranks.cli.live.rank_stacks import Stacks
from allranks.core import stack_requests
from allranks.errors import ClusterError
from allranks.ui.problems import RESPONSES
from allranks.ui.routes import stacks
from allranks.ui.routes.pages import MOST_FORM_BYTES, about, read_form, render
from allranks.ui.routes.rest import EntryOf, Item, StateOf, Uid, unchanged

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

REFRESH_MS = 1500
"""How often the page looks for answers, until all ranks have answered."""


@api.get(Item + "/stacks", response_model=Stacks, summary="The stacks that ranks have printed on request")
async def read(
    state: StateOf,
    entry: EntryOf,
    request: Annotated[str, Query(max_length=64, description="The request. Default: the newest.")] = "",
) -> Any:
    """Read from the logs of the current attempt."""
    return await stacks.read(state, entry, request)


@api.post(
    Item + "/stacks",
    status_code=202,
    response_model=stacks.Asked,
    summary="Ask the ranks of a job to print the stacks of their threads",
)
async def ask(state: StateOf, entry: EntryOf, uid: Uid = None) -> Any:
    """The program continues. Ranks that report answer within seconds, with lines in their logs."""
    unchanged(entry, uid)
    return await stacks.ask(state, entry)


@pages.get(Item + "/stacks")
async def page(state: StateOf, entry: EntryOf, request: str = "") -> Response:
    """The answers to the newest request, and a button for another one."""
    note = ""
    try:
        found = await stacks.read(state, entry, request[:64])
    except ClusterError as error:
        note, found = str(error), Stacks(request="", waiting=[], over=True, notes=[], dumps=[])
    asked_at = stack_requests.requested_at(found.request)
    return render(
        "stacks",
        **about(state, entry, "stacks"),
        found=found,
        note=note,
        why_not=stacks.why_not(entry),
        asked=age(asked_at, state.now()) if asked_at else "",
        refresh=0 if found.over else REFRESH_MS,
    )


@pages.post(Item + "/stacks")
async def submit(request: Request, state: StateOf, entry: EntryOf) -> Response:
    """Asks, and shows the answers as they arrive."""
    form = await read_form(request, MOST_FORM_BYTES)
    asked = await ask(state, entry, form.get("uid"))
    return RedirectResponse(f"/{entry.path}/stacks?request={asked.request}", 303)
