"""The application: REST, pages, files, errors, and what runs in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from allranks.archive.reader import Reader
from allranks.errors import AllranksError, ClusterError
from allranks.kube.auth import Connection
from allranks.kube.cluster import Cluster, Where
from allranks.ui import openapi, rendering
from allranks.ui.access import Access, SecurityHeaders, SignIn, challenge
from allranks.ui.answers import Answers
from allranks.ui.archive import ArchivedJobs, SharedArchive
from allranks.ui.bodies import Bodies
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.problems import MEDIA_TYPE, Problem, details
from allranks.ui.routes import capacity, compare, files, history, new_job, pages, rest, stacks, sweeps
from allranks.ui.runs import Runs
from allranks.ui.state import USER, State
from allranks.ui.users import REJECTED, ChooseNamespace, Users
from allranks.version import __version__

logger = logging.getLogger(__name__)

FILES = {
    "ui.css": ("allranks.ui", "static/ui.css", "text/css"),
    "report.css": ("allranks.views.report", "report.css", "text/css"),
    "live.js": ("allranks.ui", "static/live.js", "text/javascript"),
    "logs.js": ("allranks.ui", "static/logs.js", "text/javascript"),
    "curves.js": ("allranks.ui", "static/curves.js", "text/javascript"),
    "uplot.js": ("allranks.ui", "static/uplot-1.6.32.min.js", "text/javascript"),
    "uplot.css": ("allranks.ui", "static/uplot-1.6.32.min.css", "text/css"),
    "new.js": ("allranks.ui", "static/new.js", "text/javascript"),
    "idiomorph.js": ("allranks.ui", "static/idiomorph-0.8.0.min.js", "text/javascript"),
    "icon.svg": ("allranks.ui", "static/icon.svg", "image/svg+xml"),
}
"""Name in the address -> package, file, type."""


def application(where: Where, *, all_namespaces: bool, runs: Path, token: str, archive: str | None = None) -> FastAPI:
    """Return the server for a cluster, if there is one, for runs below a directory, and for deleted jobs of an archive.

    Raises ArchiveError if `archive` cannot be the address of one.
    """
    reader = Reader.open(archive) if archive else None

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        hub = Hub()
        state = app.state.allranks = State(hub, Runs(runs, hub))
        if reader:
            state.archive = ArchivedJobs(reader, None if all_namespaces else where.namespace)
        async with contextlib.AsyncExitStack() as stack:
            tasks: list[asyncio.Task[None]] = [asyncio.create_task(state.runs.run()), _warming_up()]
            stack.push_async_callback(_cancel, tasks)
            try:
                cluster = await stack.enter_async_context(Cluster.connect(where))
            except ClusterError as error:
                state.no_cluster = str(error)
            else:
                state.jobs = ClusterJobs(cluster, None if all_namespaces else cluster.namespace, hub)
                if reader:
                    state.archive = ArchivedJobs(reader, state.jobs.namespace)
                tasks.append(asyncio.create_task(state.jobs.run()))
                stack.push_async_callback(state.jobs.close)
                # Runs first: a watch that is cancelled begins a TLS shutdown, and the loop ends before it completes.
                stack.push_async_callback(cluster.client.transport.close, abort=True)
            yield

    async def find_state(_request: Request) -> State:
        state: State = app.state.allranks
        return state

    access = Middleware(Access, token=token, opened=lambda: app.state.opened())
    description = "Send the token of the address that `allranks ui` printed as a bearer token."
    app: FastAPI = build(lifespan, access, description)
    app.state.close_streams = lambda: app.state.allranks.hub.close()
    app.state.find_state = find_state
    app.state.opened = lambda: None
    return app


def _warming_up() -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.to_thread(rendering.warm_up))


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_cluster(api: Connection, namespaces: Sequence[str] = (), archive: str | None = None) -> FastAPI:
    """Return the server for all users of a cluster: it has no rights, and asks the API server with each user's token.

    `namespaces`: suggestions for users who must choose one. `archive`: its jobs are shown to users who may read the
    jobs of their namespaces. Raises ArchiveError if it cannot be the address of one.
    """
    users = Users(api, namespaces, SharedArchive(archive) if archive else None)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(users.run()), _warming_up()]
        try:
            yield
        finally:
            await users.close()
            await _cancel(tasks)

    app = build(lifespan, Middleware(SignIn, users=users), "Send a token for the API server as a bearer token.")
    app.state.users, app.state.close_streams = users, users.close_streams
    app.state.find_state = users.state
    return app


def build(
    lifespan: Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]], access: Middleware, how_to_sign_in: str
) -> FastAPI:
    """Return the server of pages, REST and files. `access` checks who sends a request."""
    app = FastAPI(
        title="allranks",
        version=__version__,
        description=f"Jobs of a cluster, and runs of this machine. {how_to_sign_in}",
        lifespan=lifespan,
        middleware=[
            Middleware(SecurityHeaders),
            access,
            Middleware(Bodies, reject=challenge),
            Middleware(Answers, reject=challenge),
        ],
        openapi_url="/api/openapi.json",
        docs_url=None,  # it would load scripts of another host
        redoc_url=None,
        generate_unique_id_function=openapi.operation_id,
    )
    subjects = (sweeps, capacity, history, compare, stacks, files, new_job)
    for router in (*(subject.api for subject in subjects), rest.router):
        app.include_router(router)
    for router in (*(subject.pages for subject in subjects), pages.router):
        app.include_router(router)
    app.add_api_route("/static/{name}", static, include_in_schema=False)
    app.add_api_route("/favicon.ico", icon, include_in_schema=False)
    app.openapi = openapi.document(app)  # type: ignore[method-assign]
    for kind in (AllranksError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer)
    return app


async def static(name: str) -> Response:
    """Return a file of the pages."""
    if name not in FILES:
        raise Problem(404, f"there is no file {name}")
    package, file, kind = FILES[name]
    # The address has the version, so that a new version is loaded.
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(resources.files(package).joinpath(file).read_bytes(), media_type=kind, headers=headers)


async def icon() -> Response:
    """Return the icon for pages that name none, such as reports."""
    return await static("icon.svg")


async def _answer(request: Request, error: Exception) -> Response:
    """Answer with an error: a page, or a problem for programs."""
    if isinstance(error, RequestValidationError):
        mistakes = error.errors()
        if any(mistake["loc"][0] == "path" for mistake in mistakes):
            error = HTTPException(404, "not found")
        else:
            error = Problem(422, "; ".join(map(_sentence, mistakes)))
    if isinstance(error, HTTPException):
        error = Problem(error.status_code, f"{request.method} {request.url.path}: {str(error.detail).lower()}")
    elif not isinstance(error, AllranksError):
        logger.error("%s %s", request.method, request.url.path, exc_info=error)
    if USER.get() and isinstance(error, ClusterError) and error.status == 401:
        return challenge(request.scope, Problem(401, REJECTED))
    problem = details(error)
    if request.url.path.startswith(("/api/", "/static/")):
        return JSONResponse(problem.model_dump(), problem.status, media_type=MEDIA_TYPE)
    return rendering.problem_page(problem, choose_namespace=isinstance(error, ChooseNamespace))


def _sentence(item: dict[str, object]) -> str:
    """Return `tail: Input should be less than or equal to 10000`."""
    place = item.get("loc")
    parts = [str(part) for part in place[1:]] if isinstance(place, tuple) else []
    return f"{'.'.join(parts) or 'body'}: {item.get('msg')}"
