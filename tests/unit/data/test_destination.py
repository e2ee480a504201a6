"""The check of a destination before the ranks start, with an S3 server and with servers that misbehave."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from allranks.data.upload import PROBE, check_destination
from allranks.errors import DataError
from support.data_servers import Behaviour, http_server


def test_a_bucket_is_left_as_it_was(s3) -> None:
    assert check_destination("s3://data/models/m") == ""
    assert check_destination("s3://data") == ""
    assert "Contents" not in s3.list_objects_v2(Bucket="data")
    assert not s3.list_multipart_uploads(Bucket="data").get("Uploads")


def test_a_bucket_that_does_not_exist(s3) -> None:
    text = r"^s3://nowhere/m: there is no bucket nowhere, or it is not visible with these credentials$"
    with pytest.raises(DataError, match=text):
        check_destination("s3://nowhere/m")


def answering(web: Behaviour, status: int, body: bytes) -> None:
    web.answers[f"/data/m/{PROBE}"] = lambda _: (status, {"Content-Type": "application/xml"}, body)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("AccessDenied", r"^s3://data/m: access is denied: check the credentials \(AWS_ACCESS_KEY_ID"),
        ("ExpiredToken", r"^s3://data/m: the credentials have expired: renew them"),
    ],
)
def test_wrong_credentials(s3, web: Behaviour, url: str, monkeypatch, code: str, text: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    xml = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    answering(web, 403, xml.encode())
    with pytest.raises(DataError, match=text):
        check_destination("s3://data/m")


def test_no_credentials(s3, monkeypatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(DataError, match=r"^s3://data/m: there are no credentials: set AWS_ACCESS_KEY_ID"):
        check_destination("s3://data/m")


def test_a_store_that_cannot_be_reached_decides_nothing(s3, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert check_destination("s3://data/m").startswith("s3://data/m: the connection failed: ")


def test_a_store_that_does_not_answer_decides_nothing(s3, web: Behaviour, monkeypatch) -> None:
    web.gate = threading.Event()  # its server sets it at the end
    answering(web, 200, b"<late/>")
    with http_server(web) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert check_destination("s3://data/m", seconds=1.0) == "s3://data/m: no answer within 1 s"


def test_an_answer_without_an_explanation_decides_nothing(s3, web: Behaviour, url: str, monkeypatch) -> None:
    """A store with the protocol of S3 may have no uploads in parts."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    answering(web, 400, b"<Error><Code>InvalidArgument</Code><Message>not here</Message></Error>")
    assert check_destination("s3://data/m").startswith("s3://data/m: ")


class Store:
    """A file system of fsspec that records what is done."""

    def __init__(self, files: set[str]) -> None:
        self.files, self.done = files, []

    def pipe_file(self, path: str, content: bytes) -> None:
        self.done.append((path, content))
        self.files.add(path)

    def rm_file(self, path: str) -> None:
        self.files.remove(path)


def test_another_store_gets_an_empty_object_that_is_removed(monkeypatch) -> None:
    store = Store(set())
    monkeypatch.setattr("allranks.data.upload.filesystem", lambda uri: store)
    assert check_destination("gs://models/m") == ""
    assert (store.done, store.files) == ([(f"models/m/{PROBE}", b"")], set())


def test_credentials_that_may_not_delete_can_upload(monkeypatch) -> None:
    store = Store(set())
    monkeypatch.setattr("allranks.data.upload.filesystem", lambda uri: store)

    def refuse(path: str) -> None:
        raise PermissionError("no right to delete")

    monkeypatch.setattr(store, "rm_file", refuse)
    found = check_destination("gs://models/m")
    assert found.startswith(f"the empty object {PROBE}, which was written to find out, could not be deleted: ")
    assert "gs://models/m: access is denied" in found


def test_a_directory_is_not_made(tmp_path: Path) -> None:
    assert check_destination(f"{tmp_path}/a/b") == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=rf"^{tmp_path}/file/b: {tmp_path}/file is a file$"):
        check_destination(f"{tmp_path}/file/b")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(DataError, match=r"this user may not write into"):
        check_destination(f"{tmp_path}/closed/b")
