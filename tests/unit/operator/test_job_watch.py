"""kopf, as we use it: what it would do without an end, or too often."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from allranks.api.job import GROUP, KIND, PLURAL, VERSION
from allranks.kube import paths
from allranks.kube.auth import Connection
from allranks.kube.errors import NotFound
from allranks.operator import job_watch
from allranks.operator.settings import Settings
from support.scripted import Answer, client_of, says, status

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("kopf"), "disabled", True)


def ran(answer: Answer, token_file: Path) -> list[dict[str, str]]:
    """The headers of what kopf asked within a second of its second request."""

    async def scenario() -> list[dict[str, str]]:
        async with client_of(answer) as (client, api):
            client.connection = Connection(api.url, token_file=token_file)
            watching: list[Any] = [lambda *_: None, lambda *_: None, lambda: None]
            run = asyncio.create_task(job_watch.run(client, Settings(), *watching, asyncio.Event()))
            async with asyncio.timeout(60):
                while len(api.asked) < 2:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            asked = list(api.headers)
            run.cancel()
            await asyncio.wait([run], timeout=10)
            return asked

    try:
        return asyncio.run(scenario())
    finally:
        gc.collect()  # kopf, cancelled within a request, leaves its connection to the collector: here, and nowhere else


def test_a_token_that_stays_refused_is_not_tried_hundreds_of_times_a_second(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    assert len(ran(status(401), tmp_path / "token")) <= 20


def test_after_a_refused_token_the_file_is_read_again_at_once(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")

    async def refuse_and_rotate(request: web.Request) -> web.StreamResponse:
        (tmp_path / "token").write_text("new")
        return await status(401)(request)

    asked = [headers["Authorization"] for headers in ran(refuse_and_rotate, tmp_path / "token")]
    assert "Bearer old" in asked
    assert "Bearer new" in asked


GROUPS = says({"kind": "APIGroupList", "groups": [
    {"name": GROUP, "versions": [{"version": VERSION}], "preferredVersion": {"version": VERSION}}
]})  # fmt: skip
JOBS = {"name": PLURAL, "singularName": "", "kind": KIND, "namespaced": True, "verbs": ["get", "list", "watch"]}
POOLS = JOBS | {"name": "trainingpools", "kind": "TrainingPool"}
BOTH, ONE = (says({"kind": "APIResourceList", "resources": found}) for found in ([JOBS, POOLS], [POOLS]))
LOOKS = {
    "no such group": {paths.GROUPS: says({"kind": "APIGroupList", "groups": []})},
    "no such version": {paths.GROUPS: GROUPS, paths.GROUP_VERSION: status(404)},
    "no such resource": {paths.GROUPS: GROUPS, paths.GROUP_VERSION: ONE},
}


def looked(answers: dict[str, Answer], seconds: float) -> None:
    """Raises TimeoutError when kopf goes on for so long."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await answers.get(request.path, status(503))(request)

    async def scenario() -> None:
        async with client_of(answer) as (client, api):
            client.connection = Connection(api.url)
            told: list[Any] = [lambda *_: None, lambda *_: None, lambda: None]
            await asyncio.wait_for(job_watch.run(client, Settings(), *told, asyncio.Event()), seconds)

    try:
        asyncio.run(scenario())
    finally:
        gc.collect()


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_that_does_not_find_the_jobs_ends_it(name: str) -> None:
    with pytest.raises(NotFound, match=f"serves no {PLURAL}"):
        looked(LOOKS[name], 30)


def test_what_is_wrong_for_a_moment_is_no_such_look() -> None:
    with pytest.raises(TimeoutError):
        looked({paths.GROUPS: GROUPS, paths.GROUP_VERSION: BOTH}, 1)
    with pytest.raises(TimeoutError):
        looked({paths.GROUPS: GROUPS}, 1)
