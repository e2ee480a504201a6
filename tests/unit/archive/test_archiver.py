"""The archiver as a whole, against lists of a fake API server: what it watches, when it is ready, and what it deletes.
`tests/apiserver/test_archiver.py` runs it on a real one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from allranks.archive import saved_objects
from allranks.archive.archiver import Archiver, Settings
from allranks.kube.auth import Connection
from support.sweep_samples import a_sweep
from support.ui_samples import a_job

Manifest = dict[str, Any]


class FakeApi:
    """Lists of objects, and watches without events."""

    def __init__(self) -> None:
        self.items: dict[str, list[Manifest]] = {}
        """Path -> objects."""
        self.forbidden: set[str] = set()
        """Plurals."""
        self.watched: set[str] = set()
        self._over = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.rpartition("/")[2] in self.forbidden:
            return web.json_response(
                {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}, status=403
            )
        if "watch" not in request.query:
            found = self.items.get(request.path, [])
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": found})
        self.watched.add(request.path)
        response = web.StreamResponse()
        await response.prepare(request)
        await self._over.wait()
        return response

    def end(self) -> None:
        self._over.set()


def run(archive: Path, api_of: Callable[[FakeApi], None], test: Callable[[Archiver, FakeApi], Awaitable[None]]) -> None:
    async def whole() -> None:
        api = FakeApi()
        api_of(api)
        application = web.Application()
        application.router.add_get("/{rest:.*}", api.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        settings = Settings(str(archive), ("a", "b"), address="127.0.0.1", port=0, max_age_seconds=86_400)
        archiver = Archiver(settings, Connection(f"http://127.0.0.1:{runner.addresses[0][1]}"))
        running = asyncio.create_task(archiver.run())
        try:
            await test(archiver, api)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            api.end()
            await runner.cleanup()

    asyncio.run(asyncio.wait_for(whole(), 300))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_objects, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A job and a sweep that are deleted and older than a day, and a sweep that exists and is as old."""
    for folder, name in (("a/old-u1", "job.json"), ("a/old-u2", "sweep.json"), ("b/search-uid-search", "sweep.json")):
        path = tmp_path / "archive" / folder / name
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        os.utime(path, (1_000_000, 1_000_000))
    return tmp_path / "archive"


def objects(api: FakeApi) -> None:
    group = "/apis/allranks.dev/v1alpha1/namespaces"
    sweep = a_sweep(namespace="b", phase="")
    del sweep["kind"]
    api.items = {
        f"{group}/a/distributedtrainings": [a_job("penguins", "Running", namespace="a")],
        f"{group}/b/trainingsweeps": [sweep, a_sweep("herd", namespace="b")],
    }


def test_jobs_and_sweeps_of_each_namespace_are_written_and_those_that_exist_are_not_deleted(archive: Path) -> None:
    async def test(archiver: Archiver, api: FakeApi) -> None:
        written = [archive / "a/penguins-uid-penguins/job.json", archive / "b/herd-uid-herd/sweep.json"]
        await until(lambda: all(path.exists() for path in written))
        assert json.loads(written[1].read_text())["status"]["phase"] == "Succeeded"
        await until(lambda: b"allranks_archive_deleted_jobs_total 2.0" in archiver.metrics.page())
        assert [path.name for path in (archive / "a").iterdir()] == ["penguins-uid-penguins"]
        assert (archive / "b/search-uid-search/sweep.json").exists()
        await until(lambda: len(api.watched) == 6)
        assert {path.rpartition("/")[2] for path in api.watched} == {"distributedtrainings", "trainingsweeps", "pods"}
        assert await archiver._ready() == ""

    run(archive, objects, test)


def test_without_the_right_to_list_sweeps_it_is_not_ready_and_deletes_nothing(archive: Path) -> None:
    def refused(api: FakeApi) -> None:
        objects(api)
        api.forbidden.add("trainingsweeps")

    async def test(archiver: Archiver, api: FakeApi) -> None:
        await until((archive / "a/penguins-uid-penguins/job.json").exists)
        await until(lambda: len(api.watched) == 4)
        problem = await archiver._ready()
        assert problem.startswith("not listed yet: ")
        assert "namespaces/b/trainingsweeps" in problem
        assert (archive / "a/old-u1/job.json").exists()

    run(archive, refused, test)
