from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.data.cache import Cache
from support.data_servers import Behaviour, empty_bucket, http_server, s3_server

from .store import Server, Store, empty, server


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "inputs")


@pytest.fixture
def web() -> Behaviour:
    return Behaviour()


@pytest.fixture
def url(web: Behaviour) -> Iterator[str]:
    with http_server(web) as found:
        yield found


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[object]:
    """The client of an S3 server with an empty bucket `data`."""
    with empty_bucket(s3_url, "data", monkeypatch, tmp_path) as client:
        yield client


@pytest.fixture(scope="session")
def gs_server() -> Iterator[Server]:
    with server("gs") as found:
        yield found


@pytest.fixture(scope="session")
def az_server() -> Iterator[Server]:
    with server("az") as found:
        yield found


@pytest.fixture
def gs(gs_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """An empty bucket of a server that answers like Google Cloud Storage."""
    for name, value in {**gs_server.environment, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with empty(gs_server) as found:
        yield found


@pytest.fixture
def az(az_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """An empty container of Azurite."""
    for name, value in {**az_server.environment, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with empty(az_server) as found:
        yield found


@pytest.fixture(params=["gs", "az"])
def store(request: pytest.FixtureRequest) -> Store:
    return request.getfixturevalue(request.param)
