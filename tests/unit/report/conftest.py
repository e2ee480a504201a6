"""A fake report server for each test, and a client that ends with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allranks.report import warn
from allranks.report.client import Client
from support.fake_report_server import FakeReportServer, hub_in


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeReportServer]:
    with hub_in(tmp_path) as hub:
        yield hub


@pytest.fixture
def client(
    hub: FakeReportServer, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Client]]:
    for name in ("RANK", "LOCAL_RANK", "ALLRANKS_HANG_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    made: list[Client] = []

    def make(url: str = "") -> Client:
        made.append(Client(url or hub.url, str(hub.token_file)))
        return made[-1]

    yield make
    for each in made:
        each.finish(2.0)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings on stderr."""
    lines: list[str] = []
    monkeypatch.setattr(warn, "write", lines.append)
    monkeypatch.setattr(warn, "_warned", set())
    return lines
