"""Inputs and outputs of an S3 server, by its real protocol."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from allranks.data.fetch import InputSpec, fetch
from allranks.data.tries import Tries
from allranks.data.upload import MANIFEST, PROVENANCE, ObjectTarget, upload
from allranks.errors import DataError
from support.data_servers import Behaviour, http_server
from unit.data.test_fetch import files_of, get


def put(s3, **objects: bytes) -> None:
    for key, content in objects.items():
        s3.put_object(Bucket="data", Key=key.replace("__", "/"), Body=content)


def keys(s3) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket="data").get("Contents", ())
    return {one["Key"]: s3.get_object(Bucket="data", Key=one["Key"])["Body"].read() for one in found}


def test_all_objects_below_a_prefix(s3, cache) -> None:
    put(s3, birds__a=b"1", birds__b__c=b"22", birdsong=b"3")
    s3.put_object(Bucket="data", Key="birds/empty/", Body=b"")  # as the console makes for a folder
    result = get(cache, "s3://data/birds")
    assert files_of(cache, "s3://data/birds", result) == {"a": b"1", "b/c": b"22"}
    assert result.entry.revision.startswith("list:")
    assert get(cache, "s3://data/birds").cached
    put(s3, birds__a=b"x")
    changed = get(cache, "s3://data/birds")
    assert not changed.cached
    assert changed.entry.revision != result.entry.revision
    with pytest.raises(DataError, match=r"s3://data/birds: the data was changed: its revision is list:"):
        fetch(InputSpec("s3://data/birds", revision="list:0"), cache)


def test_one_object_in_several_ranges(s3, cache, monkeypatch) -> None:
    monkeypatch.setattr("allranks.data.object_source.RANGE", 1000)
    content = bytes(range(256)) * 17
    put(s3, d__train=content)
    result = get(cache, "s3://data/d/train", sha256=hashlib.sha256(content).hexdigest())
    assert files_of(cache, "s3://data/d/train", result) == {"train": content}


def test_an_object_that_does_not_exist(s3, cache) -> None:
    with pytest.raises(DataError, match=r"^s3://data/nothing: there is no such object"):
        get(cache, "s3://data/nothing")
    with pytest.raises(DataError, match=r"^s3://elsewhere/x: there is no such object"):
        get(cache, "s3://elsewhere/x")


def error_xml(code: str, message: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


@pytest.mark.parametrize(
    ("status", "code", "text", "message"),
    [
        (400, "ExpiredToken", "The provided token has expired.", "the credentials have expired: renew them"),
        (403, "InvalidAccessKeyId", "The key does not exist", "access is denied: check the credentials (AWS_ACC"),
    ],
)
def test_credentials_that_the_server_rejects(s3, cache, monkeypatch, status, code, text, message) -> None:
    server = Behaviour()
    server.answers["/data"] = lambda _: (status, {"Content-Type": "application/xml"}, error_xml(code, text))
    server.answers["/data/x"] = server.answers["/data"]
    with http_server(server) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(DataError) as caught:
            get(cache, "s3://data/x")
    assert str(caught.value).startswith(f"s3://data/x: {message}")


def output(folder: Path) -> Path:
    (folder / "out" / "weights").mkdir(parents=True)
    (folder / "out" / "config.json").write_text("{}")
    (folder / "out" / "weights" / "0.bin").write_bytes(b"0" * 1000)
    return folder / "out"


def test_an_output_with_its_manifest_and_provenance(s3, tmp_path) -> None:
    directory, journal = output(tmp_path), tmp_path / "journal"
    done = upload(directory, "s3://data/models/m", journal, {"job": "penguins"})
    assert (done.files, done.bytes, done.sent) == (2, 1002, 2)
    there = keys(s3)
    assert set(there) == {f"models/m/{name}" for name in ("config.json", "weights/0.bin", MANIFEST, PROVENANCE)}
    manifest = json.loads(there[f"models/m/{MANIFEST}"])
    assert manifest["files"][1] == {
        "name": "weights/0.bin",
        "size": 1000,
        "sha256": hashlib.sha256(b"0" * 1000).hexdigest(),
    }
    assert json.loads(there[f"models/m/{PROVENANCE}"]) == {"job": "penguins"}
    # A job can read it as an input.
    (directory / "config.json").write_text('{"new": 1}')
    assert upload(directory, "s3://data/models/m", journal, {"job": "penguins"}).sent == 1


class Fails(ObjectTarget):
    """Fails at the second file, a number of times."""

    failures = 1

    def put(self, path: Path, name: str) -> None:
        if name == "weights/0.bin" and self.failures > 0:
            self.failures -= 1
            raise ConnectionResetError("connection reset")
        super().put(path, name)


def test_an_upload_is_tried_again_and_continues(s3, tmp_path) -> None:
    directory, journal = output(tmp_path), tmp_path / "journal"
    put(s3, **{f"m__{MANIFEST}": b"of an earlier model"})
    target = Fails("s3://data/m")
    target.failures = 100
    with pytest.raises(DataError, match=r"s3://data/m: the connection failed: connection reset"):
        upload(directory, "s3://data/m", journal, {}, connect=lambda _: target, tries=Tries(sleep=lambda _: None))
    assert set(keys(s3)) == {"m/config.json"}  # a reader finds no manifest
    target.failures = 1
    waits: list[float] = []
    done = upload(directory, "s3://data/m", journal, {}, connect=lambda _: target, tries=Tries(sleep=waits.append))
    assert (done.sent, waits) == (1, [1.0])


def test_an_output_that_a_program_left_empty_is_an_error(s3, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="there is nothing to upload: the program wrote no file into"):
        upload(tmp_path / "out", "s3://data/m", tmp_path / "journal", {})


def test_a_file_that_changes_during_the_upload_is_an_error(s3, tmp_path) -> None:
    directory = output(tmp_path)

    class Writes(ObjectTarget):
        def put(self, path: Path, name: str) -> None:
            super().put(path, name)
            (directory / "config.json").write_text("later")

    with pytest.raises(DataError, match=r"config\.json was changed while it was uploaded"):
        upload(directory, "s3://data/m", tmp_path / "j", {}, connect=Writes)
    assert f"m/{MANIFEST}" not in keys(s3)


def test_a_name_that_allranks_writes_is_refused(tmp_path) -> None:
    (output(tmp_path) / MANIFEST).write_text("{}")
    with pytest.raises(DataError, match=f"allranks writes {MANIFEST} itself"):
        upload(tmp_path / "out", str(tmp_path / "to"), tmp_path / "j", {})


def test_an_output_of_a_claim_is_copied(tmp_path) -> None:
    directory = output(tmp_path)
    done = upload(directory, str(tmp_path / "to"), tmp_path / "j", {})
    assert done.sent == 2
    copied = {path.relative_to(tmp_path / "to").as_posix() for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert copied == {"config.json", "weights/0.bin", MANIFEST, PROVENANCE}
