"""The files of a run of this machine, in REST and on a page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from allranks.text import size
from allranks.ui.entries import Entry
from allranks.ui.files import Folder, RunFile, list_folder, open_file, picture_type
from allranks.ui.problems import RESPONSES
from allranks.ui.rendering import render
from allranks.ui.routes.pages import about, checkpoint_sections
from allranks.ui.routes.rest import EntryOf, Item, StateOf
from allranks.views.format.duration import age

api = APIRouter(prefix="/api/v1", responses=RESPONSES)
pages = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MOST_PICTURES, MOST_PICTURE_BYTES = 12, 4 * 2**20
"""Pictures that a page shows."""
MOST_PATH = 4096
Path = Annotated[str, Query(alias="folder", max_length=MOST_PATH, description="A folder of the run directory.")]


@api.get(Item + "/files", response_model=Folder, summary="The files in a folder of a run directory")
async def files(entry: EntryOf, folder: Path = "") -> Folder:
    """Links and special files are named, and neither opened nor sent. A job of a cluster has no files here."""
    return await asyncio.to_thread(list_folder, entry, folder)


@api.get(
    Item + "/files/{path:path}",
    response_class=Response,
    operation_id="get_job_file",
    summary="A file of a run directory",
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def file(entry: EntryOf, path: str) -> Response:
    return await asyncio.to_thread(open_file, entry, path)


@pages.get(Item + "/files")
async def show_files(state: StateOf, entry: EntryOf, folder: Path = "") -> Response:
    """Show the files in a folder of the run directory, its pictures, and the checkpoints."""
    listed = await asyncio.to_thread(list_folder, entry, folder)
    now = state.now()
    return render(
        "files",
        **about(state, entry, "files"),
        directory=str(entry.directory),
        folders=list(_folders(entry, folder)),
        files=[
            (item, _address(entry, item), "" if item.bytes is None else size(item.bytes), age(item.modified, now))
            for item in listed.files
        ],
        more=listed.more,
        pictures=[(item.name, _address(entry, item)) for item in listed.files if _is_shown(item)][:MOST_PICTURES],
        sections=list(checkpoint_sections(entry, now)),
    )


def _folders(entry: Entry, path: str) -> Iterator[tuple[str, str]]:
    """Yield (name, address) of each folder on the path."""
    parts = path.split("/") if path else []
    for place, name in enumerate(parts):
        yield name, _folder_address(entry, "/".join(parts[: place + 1]))


def _address(entry: Entry, item: RunFile) -> str:
    if item.kind == "folder":
        return _folder_address(entry, item.path)
    return f"/api/v1/{entry.path}/files/{quote(item.path)}"


def _folder_address(entry: Entry, path: str) -> str:
    return f"/{entry.path}/files?folder={quote(path, safe='')}"


def _is_shown(item: RunFile) -> bool:
    return item.kind == "file" and bool(picture_type(item.name)) and (item.bytes or 0) <= MOST_PICTURE_BYTES
