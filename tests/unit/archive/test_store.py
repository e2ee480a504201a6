"""A directory and an S3 server keep files in the same way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from allranks.archive.store import LEFTOVER_SECONDS, ArchiveError, DirectoryStore, Store, open_store


def test_files_are_written_read_listed_and_removed(store: Store):
    assert store.list() == []
    assert store.get("team/a-1/job.json") is None
    before = time.time()
    store.put("team/a-1/job.json", b"one")
    store.put("team/a-1/job.json", b"three")
    store.put("team/a-10/job.json", b"x")
    store.put("team/a-1/attempts/0/worker-0.log.gz", b"log")
    assert store.get("team/a-1/job.json") == b"three"
    found = {entry.name: entry.size for entry in store.list()}
    assert found == {"team/a-1/attempts/0/worker-0.log.gz": 3, "team/a-1/job.json": 5, "team/a-10/job.json": 1}
    assert all(before - 5 < entry.modified < time.time() + 5 for entry in store.list())
    assert [entry.name for entry in store.list("team/a-1")] == [
        "team/a-1/attempts/0/worker-0.log.gz",
        "team/a-1/job.json",
    ]
    assert store.list("nowhere") == []
    store.remove("team/a-1/job.json")
    store.remove("team/a-1/job.json")
    assert store.get("team/a-1/job.json") is None


def test_empty_folders_are_removed_with_their_last_file(tmp_path: Path):
    store = DirectoryStore(tmp_path)
    store.put("team/a/attempts/0/x.log.gz", b"1")
    store.put("team/b/job.json", b"1")
    store.remove("team/a/attempts/0/x.log.gz")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "job.json", "team"]


def test_a_process_that_is_killed_leaves_the_old_file_and_a_temporary_one_that_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = DirectoryStore(tmp_path)
    store.put("team/a/job.json", b"old")

    class Killed(BaseException):
        pass

    def killed(_descriptor: int) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        patch.setattr(Path, "unlink", lambda *_args, **_options: None)  # no clean-up either
        with pytest.raises(Killed):
            store.put("team/a/job.json", b"new")
    (partial,) = tmp_path.rglob("*.partial")
    assert store.get("team/a/job.json") == b"old"
    assert [entry.name for entry in store.list()] == ["team/a/job.json"]
    assert partial.exists()
    at = time.time() - LEFTOVER_SECONDS - 1
    os.utime(partial, (at, at))
    store.list()
    assert not partial.exists()


def test_a_volume_that_is_not_mounted_is_an_error_and_not_a_new_directory(tmp_path: Path):
    store = DirectoryStore(tmp_path / "archive")
    with pytest.raises(ArchiveError, match="there is no such directory: is the volume mounted"):
        store.put("team/a/job.json", b"1")
    with pytest.raises(ArchiveError, match="there is no such directory"):
        store.list()
    assert not (tmp_path / "archive").exists()


def test_a_full_volume_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DirectoryStore(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28), "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ArchiveError, match="no space left on device"):
            store.put("team/a/job.json", b"1")
    assert list(tmp_path.rglob("*.partial")) == []


def test_links_are_not_followed(tmp_path: Path):
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "archive" / "team" / "a"
    folder.mkdir(parents=True)
    (folder / "job.json").symlink_to(tmp_path / "secret")
    assert DirectoryStore(tmp_path / "archive").list() == []


def test_a_missing_bucket_is_a_sentence(bucket: str):
    with pytest.raises(ArchiveError, match="s3://absent/x: there is no such object"):
        open_store("s3://absent/x").put("a/b/job.json", b"1")


@pytest.mark.parametrize("url", ["ftp://host/x", "gcs://b/x", "s3:/b/x", "S3://b/x"])
def test_other_addresses_are_refused(url: str):
    with pytest.raises(ArchiveError, match=f"{url}: an archive is a directory, or an address"):
        open_store(url)
