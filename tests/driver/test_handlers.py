"""kopf, as we use it: what it would do without an end, or too often."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from allranks.drivers.kubernetes import handlers
from allranks.drivers.kubernetes.connection import Connection
from allranks.settings import Settings

from .scripted import Answer, client_of, status

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
            run = asyncio.create_task(handlers.run(client, Settings(), *watching, asyncio.Event()))
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
