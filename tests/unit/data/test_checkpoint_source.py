"""The newest uploaded checkpoint at an address: `resumeFrom: s3://...`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allranks.data.cache import Cache
from allranks.data.fetch import InputSpec, Result, fetch, pin
from allranks.data.tries import Tries
from allranks.data.upload import MANIFEST, PROVENANCE, upload
from allranks.errors import DataError
from unit.data.test_fetch import files_of
from unit.data.test_object_stores import put

URI = "s3://data/run"


def newest(cache: Cache, uri: str = URI, **more: object) -> Result:
    return fetch(InputSpec(uri, newest=True, **more), cache, tries=Tries(sleep=lambda _: None))


def uploaded(folder: Path, step: int, **files: str) -> None:
    directory = folder / f"checkpoint-{step}"
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    upload(directory, f"{URI}/step-{step}", folder / f"{step}.jsonl", {"job": "first", "uid": str(step)})


def test_the_newest_complete_checkpoint_is_fetched_without_the_files_that_allranks_adds(s3, cache, tmp_path) -> None:
    uploaded(tmp_path, 5, model="old")
    uploaded(tmp_path, 10, model="new", optimizer="state")
    put(s3, **{"run__step-15__model": b"half of an upload", "run__step-10__left": b"of an earlier upload"})
    result = newest(cache)
    assert files_of(cache, URI, result) == {"model": b"new", "optimizer": b"state"}
    assert result.entry.revision.startswith("step-10:list:")
    assert files_of(cache, f"{URI}/step-5", newest(cache, f"{URI}/step-5")) == {"model": b"old"}


def test_pods_that_fetch_later_get_the_same_checkpoint(s3, cache, tmp_path) -> None:
    uploaded(tmp_path, 5, model="old")
    revision = pin(InputSpec(URI, newest=True)).revision
    uploaded(tmp_path, 10, model="new")
    result = newest(cache, revision=revision)
    assert (files_of(cache, URI, result), result.entry.revision) == ({"model": b"old"}, revision)
    uploaded_again = {"run__step-5__model": b"OLD"}
    put(s3, **uploaded_again)
    with pytest.raises(DataError, match="the data was changed"):
        newest(Cache(tmp_path / "other"), revision=revision)


def test_a_checkpoint_that_is_uploaded_meanwhile_does_not_disturb_the_fetch(s3, cache, tmp_path, monkeypatch) -> None:
    uploaded(tmp_path, 5, model="old")
    original = Cache.make_room

    def make_room(*words) -> None:
        uploaded(tmp_path, 10, model="new")
        original(*words)

    monkeypatch.setattr(Cache, "make_room", make_room)
    assert files_of(cache, URI, newest(cache)) == {"model": b"old"}


def test_checkpoints_of_other_programs_are_fetched_as_a_whole(s3, cache) -> None:
    put(s3, **{"run__checkpoint-500__model": b"1", "run__latest": b"checkpoint-500"})
    assert files_of(cache, URI, newest(cache)) == {"checkpoint-500/model": b"1", "latest": b"checkpoint-500"}


def test_an_upload_that_is_not_complete_is_not_taken_for_a_checkpoint(s3, cache) -> None:
    put(s3, **{"run__step-5__model": b"half"})
    with pytest.raises(
        DataError, match=r"step-5 has no allranks-manifest\.json, .*: name the folder, s3://data/run/step-5"
    ):
        newest(cache)
    assert files_of(cache, f"{URI}/step-5", newest(cache, f"{URI}/step-5")) == {"model": b"half"}
    first = newest(cache, may_be_empty=True)  # the job's own destination
    assert (files_of(cache, URI, first), first.entry.bytes) == ({}, 0)


def test_only_the_own_destination_may_be_empty(s3, cache, tmp_path) -> None:
    with pytest.raises(DataError, match="s3://data/run: there is no such object"):
        newest(cache)
    first = newest(cache, may_be_empty=True)
    assert files_of(cache, URI, first) == {}
    uploaded(tmp_path, 5, model="1")
    assert files_of(cache, URI, newest(cache, may_be_empty=True)) == {"model": b"1"}


def test_a_file_that_is_damaged_or_missing_is_an_error(s3, cache, tmp_path) -> None:
    uploaded(tmp_path, 5, model="1")
    put(s3, **{"run__step-5__model": b"2"})
    with pytest.raises(DataError, match="the SHA-256 of model is"):
        newest(cache)
    s3.delete_object(Bucket="data", Key="run/step-5/model")
    with pytest.raises(DataError, match=rf"step-5/model is not the file that step-5/{MANIFEST} lists"):
        newest(cache)
    put(s3, **{f"run__step-5__{MANIFEST}": json.dumps({"files": 5}).encode(), f"run__step-5__{PROVENANCE}": b""})
    with pytest.raises(DataError, match="cannot be read"):
        newest(cache)


def test_a_single_file_of_a_web_server_is_a_checkpoint(cache, web, url) -> None:
    web.files["/model.pt"] = b"weights"
    assert files_of(cache, f"{url}/model.pt", newest(cache, f"{url}/model.pt")) == {"model.pt": b"weights"}
