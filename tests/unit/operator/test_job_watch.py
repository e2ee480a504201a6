"""The watch of jobs by kopf: its retries and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from allranks.api.job import GROUP, KIND, PLURAL, VERSION
from allranks.kube import paths
from allranks.kube.auth import Connection
from allranks.kube.client import Client
from allranks.kube.errors import NotFound
from allranks.operator import job_watch
from allranks.operator.settings import Settings
from support.scripted import Answer, Scripted, says, status, threaded_server

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("kopf"), "disabled", True)


Enough = Callable[[Scripted], bool]


@contextmanager
def watching(answer: Answer) -> Iterator[Scripted]:
    with threaded_server(answer) as api:
        yield api
    gc.collect()  # A cancelled kopf leaves its connections to the garbage collector: collect them here.


async def watch_until(enough: Enough, api: Scripted, token_file: Path | None = None) -> None:
    """Runs kopf until there are enough requests. Raises the error that ends it before."""
    client = Client(Connection(api.url, token_file=token_file))
    callbacks: list[Any] = [lambda *_: None, lambda *_: None, lambda: None]
    run = asyncio.create_task(job_watch.run(client, Settings(), *callbacks, asyncio.Event()))
    try:
        async with asyncio.timeout(300):
            while not run.done() and not enough(api):
                await asyncio.sleep(0.01)
        if run.done():
            run.result()
    finally:
        run.cancel()
        await asyncio.wait([run], timeout=10)
        await client.close()


def test_a_rejected_token_is_retried_with_a_backoff(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    since: list[float] = []

    def enough(api: Scripted) -> bool:
        """Half a second after the second request."""
        if len(api.asked) >= 2:
            since.append(time.monotonic())
        return bool(since) and since[-1] - since[0] > 0.5

    with watching(status(401)) as api:
        asyncio.run(watch_until(enough, api, tmp_path / "token"))
        assert len(api.asked) <= 12


def test_after_a_rejected_token_the_token_file_is_read_again_immediately(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")

    async def reject_and_rotate(request: web.Request) -> web.StreamResponse:
        (tmp_path / "token").write_text("new")
        return await status(401)(request)

    def tokens(api: Scripted) -> list[str]:
        return [headers["Authorization"] for headers in api.headers]

    with watching(reject_and_rotate) as api:
        asyncio.run(watch_until(lambda api: "Bearer new" in tokens(api), api, tmp_path / "token"))
        assert tokens(api)[0] == "Bearer old"


GROUPS = says({"kind": "APIGroupList", "groups": [
    {"name": GROUP, "versions": [{"version": VERSION}], "preferredVersion": {"version": VERSION}}
]})  # fmt: skip
JOBS = {"name": PLURAL, "singularName": "", "kind": KIND, "namespaced": True, "verbs": ["get", "list", "watch"]}
POOLS = JOBS | {"name": "trainingpools", "kind": "TrainingPool"}
BOTH, ONE = (says({"kind": "APIResourceList", "resources": found}) for found in ([JOBS, POOLS], [POOLS]))
DISCOVERIES = {
    "no such group": {paths.GROUPS: says({"kind": "APIGroupList", "groups": []})},
    "no such version": {paths.GROUPS: GROUPS, paths.GROUP_VERSION: status(404)},
    "no such resource": {paths.GROUPS: GROUPS, paths.GROUP_VERSION: ONE},
}


NAMESPACES = JOBS | {"name": "namespaces", "kind": "Namespace", "namespaced": False}
CORE = says({"kind": "APIVersions", "versions": []})
"""kopf would retry /api while it ends, and waits 5 s for that."""


def by_path(answers: dict[str, Answer]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await answers.get(request.path, status(503))(request)

    return answer


@pytest.mark.parametrize("name", DISCOVERIES)
def test_a_discovery_without_our_resource_ends_the_watch(name: str) -> None:
    with (
        watching(by_path({"/api": CORE} | DISCOVERIES[name])) as api,
        pytest.raises(NotFound, match=f"serves no {PLURAL}"),
    ):
        asyncio.run(watch_until(lambda _: False, api))


@pytest.mark.parametrize(
    "answers", [{paths.GROUPS: GROUPS, paths.GROUP_VERSION: BOTH}, {paths.GROUPS: GROUPS}], ids=["lists", "discovery"]
)
def test_transient_errors_do_not_end_the_watch(answers: dict[str, Answer]) -> None:
    """503 to lists and watches, or to the discovery itself."""
    with watching(by_path(answers)) as api:
        unavailable = lambda api: [path for _, path, *_ in api.asked if path not in answers]  # noqa: E731
        asyncio.run(watch_until(lambda api: len(unavailable(api)) >= 4, api))


def test_a_list_that_takes_too_long_is_asked_for_again_with_fewer_jobs_until_it_is_complete() -> None:
    """An API server that is busy answers with three large jobs within the timeout, and not with four."""

    async def jobs(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query or int(request.query["limit"]) > 3:
            await asyncio.sleep(60)
        page = int(request.query.get("continue") or 0)
        metadata = {"namespace": "team", "name": f"job-{page}", "uid": "u", "resourceVersion": "5"}
        more = {"resourceVersion": "7", "continue": str(page + 1) if page < 2 else ""}
        answer = {"kind": f"{KIND}List", "metadata": more, "items": [{"metadata": metadata, "spec": {}}]}
        return await says(answer)(request)

    listed: list[Any] = []

    async def scenario(api: Scripted) -> None:
        client = Client(Connection(api.url))
        callbacks: list[Any] = [lambda *_: None, lambda *of: listed.append(of), lambda: None]
        settings = Settings(request_timeout=0.5)
        run = asyncio.create_task(job_watch.run(client, settings, *callbacks, asyncio.Event()))
        async with asyncio.timeout(300):
            while not listed:
                await asyncio.sleep(0.01)
        run.cancel()
        await asyncio.wait([run], timeout=10)
        await client.close()

    core = says({"kind": "APIVersions", "versions": ["v1"]})
    kinds = says({"kind": "APIResourceList", "resources": [NAMESPACES]})
    answers = {"/api": core, "/api/v1": kinds, paths.GROUPS: GROUPS, paths.GROUP_VERSION: BOTH}
    with watching(by_path({**answers, paths.job_path(None): jobs})) as api:
        asyncio.run(scenario(api))
        limits = [
            query["limit"] for _, path, query, _ in api.asked if path == paths.job_path(None) and "limit" in query
        ]
        assert limits[:3] == ["50", "12", "3"]
    assert listed == [({("team", f"job-{number}") for number in range(3)}, 7, None)]


def test_a_connection_that_was_closed_between_two_reads_is_a_lost_connection() -> None:
    """kopf retries a watch whose connection is lost, and ends after any other error."""

    class Closed:
        def iter_chunked(self, size: int) -> Any:
            return self

        async def __anext__(self) -> bytes:
            raise RuntimeError("Connection closed.")  # as aiohttp's StreamReader

    async def read() -> None:
        lines: Any = job_watch._CompactLines(cast("Any", Closed()))
        await anext(lines.iter_chunked(100))

    with pytest.raises(aiohttp.ClientConnectionError, match=r"Connection closed\."):
        asyncio.run(read())
