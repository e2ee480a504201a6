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

from allranks.archive.reader import Reader
from allranks.errors import AllranksError, ClusterError
from allranks.kube.auth import Connection
from allranks.kube.cluster import Cluster, Where
from allranks.ui import openapi
from allranks.ui.access import Access
from allranks.ui.allowed_archive import SharedArchive
from allranks.ui.archive import ArchivedJobs
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.ui.problems import MEDIA_TYPE, Problem, details
from allranks.ui.routes import new_job as new_job_page
from allranks.ui.routes import pages, rest, stack_routes, sweeps, views
from allranks.ui.routes import queues as queues_page
from allranks.ui.runs import Runs
from allranks.ui.sign_in import SignIn, challenge
from allranks.ui.state import USER, State
from allranks.ui.users import REJECTED, ChooseNamespace, Users
from allranks.version import __version__

logger = logging.getLogger(__name__)

FILES = {
    "ui.css": ("allranks.ui", "static/ui.css", "text/css"),
    "report.css": ("allranks.cli.job_report", "report.css", "text/css"),
    "live.js": ("allranks.ui", "static/live.js", "text/javascript"),
    "logs.js": ("allranks.ui", "static/logs.js", "text/javascript"),
    "new.js": ("allranks.ui", "static/new.js", "text/javascript"),
    "idiomorph.js": ("allranks.ui", "static/idiomorph-0.8.0.min.js", "text/javascript"),
    "icon.svg": ("allranks.ui", "static/icon.svg", "image/svg+xml"),
}
"""Name in the address -> package, file, type."""


def application(where: Where, *, all_namespaces: bool, runs: Path, token: str, archive: str | None = None) -> FastAPI:
    """The server for a cluster, if there is one, for the runs below a directory, and for deleted jobs of an archive.

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

    app = build(lifespan, "Send the token of the address that `allranks ui` printed as a bearer token.")
    app.state.close_streams = lambda: app.state.allranks.hub.close()
    app.state.find_state = find_state
    app.add_middleware(Access, token=token)
    return app


def _warming_up() -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.to_thread(pages.warm_up))


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_cluster(api: Connection, namespaces: Sequence[str] = (), archive: str | None = None) -> FastAPI:
    """The server for all users of a cluster: it has no rights, and asks the API server with each user's own token.

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

    app = build(lifespan, "Send a token for the API server as a bearer token.")
    app.state.users, app.state.close_streams = users, users.close_streams
    app.state.find_state = users.state
    app.add_middleware(SignIn, users=users)
    return app


def build(lifespan: Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]], how_to_sign_in: str) -> FastAPI:
    """REST, pages and files, open to everybody: the caller adds the middleware that checks who asks."""
    app = FastAPI(
        title="allranks",
        version=__version__,
        description=f"Jobs of a cluster, and runs of this machine. {how_to_sign_in}",
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # it would load scripts of another host
        redoc_url=None,
        generate_unique_id_function=openapi.operation_id,
    )
    for router in (sweeps.rest, views.api, stack_routes.api, rest.router):
        app.include_router(router)
    others = (pages.router, queues_page.router, new_job_page.router)
    for router in (sweeps.pages, views.pages, stack_routes.pages, *others):
        app.include_router(router)
    app.add_api_route("/static/{name}", static, include_in_schema=False)
    app.add_api_route("/favicon.ico", icon, include_in_schema=False)
    app.openapi = openapi.document(app)  # type: ignore[method-assign]
    for kind in (AllranksError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer)
    return app


async def static(name: str) -> Response:
    """A file of the pages."""
    if name not in FILES:
        raise Problem(404, f"there is no file {name}")
    package, file, kind = FILES[name]
    # The address has the version, so that a new version is loaded.
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(resources.files(package).joinpath(file).read_bytes(), media_type=kind, headers=headers)


async def icon() -> Response:
    """Browsers ask for it on a page that names no icon."""
    return await static("icon.svg")


async def _answer(request: Request, error: Exception) -> Response:
    """An error as a problem, or as a page if a person looks."""
    if isinstance(error, RequestValidationError):
        found = error.errors()
        if any(item["loc"][0] == "path" for item in found):
            error = HTTPException(404, "not found")
        else:
            error = Problem(422, "; ".join(map(_sentence, found)))
    if isinstance(error, HTTPException):
        error = Problem(error.status_code, f"{request.method} {request.url.path}: {str(error.detail).lower()}")
    elif not isinstance(error, AllranksError):
        logger.error("%s %s", request.method, request.url.path, exc_info=error)
    if USER.get() and isinstance(error, ClusterError) and error.status == 401:
        return challenge(request.scope, Problem(401, REJECTED))
    problem = details(error)
    if request.url.path.startswith(("/api/", "/static/")):
        return JSONResponse(problem.model_dump(), problem.status, media_type=MEDIA_TYPE)
    return pages.problem_page(problem, choose_namespace=isinstance(error, ChooseNamespace))


def _sentence(item: dict[str, object]) -> str:
    """`tail: Input should be less than or equal to 10000`."""
    place = item.get("loc")
    parts = [str(part) for part in place[1:]] if isinstance(place, tuple) else []
    return f"{'.'.join(parts) or 'body'}: {item.get('msg')}"
