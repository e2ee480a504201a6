"""Stores: a directory, and a bucket of an S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.archive.store import Store, open_store
from support.data_servers import s3_environment, s3_server


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an empty prefix."""
    import boto3

    for name, value in s3_environment(s3_url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    client = boto3.client("s3")
    client.create_bucket(Bucket="history")
    yield "s3://history/jobs"
    for found in client.list_objects_v2(Bucket="history").get("Contents", ()):
        client.delete_object(Bucket="history", Key=found["Key"])
    client.delete_bucket(Bucket="history")
    client.close()


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "s3":
        return open_store(request.getfixturevalue("bucket"))
    folder = tmp_path / "archive"
    folder.mkdir()
    return open_store(str(folder))
