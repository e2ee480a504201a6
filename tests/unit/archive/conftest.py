"""Stores: a directory, and a bucket of an S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.archive.store import Store, open_store
from support.data_servers import empty_bucket, s3_server


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an empty prefix."""
    with empty_bucket(s3_url, "history", monkeypatch, tmp_path):
        yield "s3://history/jobs"


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "s3":
        return open_store(request.getfixturevalue("bucket"))
    folder = tmp_path / "archive"
    folder.mkdir()
    return open_store(str(folder))
