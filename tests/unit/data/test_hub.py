"""Inputs of a server that answers like the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

from allranks.api.data import Input
from allranks.core.transfers.data import address
from allranks.data.fetch import InputSpec, look_up
from allranks.errors import DataError
from unit.data.test_fetch import files_of, get

COMMIT = "a" * 40
BIG = bytes(range(256)) * 5_000


@pytest.fixture
def hub(web, url, monkeypatch, tmp_path):
    """A dataset with a small file and a large one, for which there is a token."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    lfs = {"size": len(BIG), "sha256": hashlib.sha256(BIG).hexdigest(), "pointerSize": 1}
    siblings = [
        {"rfilename": "README.md", "size": 5, "blobId": "1" * 40},
        {"rfilename": "data/train.bin", "size": len(BIG), "blobId": "2" * 40, "lfs": lfs},
    ]
    info = {
        "_id": "1",
        "id": "birds/penguins",
        "sha": COMMIT,
        "siblings": siblings,
        "private": False,
        "disabled": False,
    }

    def answer(status: int, body: object):
        return lambda _: (status, {"Content-Type": "application/json"}, json.dumps(body).encode())

    for revision in ("", "/revision/main", f"/revision/{COMMIT}"):
        web.answers[f"/api/datasets/birds/penguins{revision}"] = answer(200, info)
    missing = (404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
    web.answers["/api/datasets/birds/penguins/revision/v9"] = lambda _: missing
    web.answers["/api/datasets/birds/none"] = lambda _: (401, {"X-Error-Code": "RepoNotFound"}, b"{}")
    web.files[f"/datasets/birds/penguins/resolve/{COMMIT}/README.md"] = b"hello"
    web.files[f"/datasets/birds/penguins/resolve/{COMMIT}/data/train.bin"] = BIG
    return web


def test_a_dataset_at_its_commit(hub, cache) -> None:
    hub.cut_after, hub.cuts = 1_000_000, 1
    uri = "hf://datasets/birds/penguins"
    result = get(cache, uri, revision="main")
    assert result.entry.revision == COMMIT
    assert files_of(cache, uri, result) == {"README.md": b"hello", "data/train.bin": BIG}
    assert "bytes=1000000-" in [wanted for _, wanted in hub.requests]
    sent = {path: token for (path, _), token in zip(hub.requests, hub.authorization, strict=True)}
    assert {token for path, token in sent.items() if "penguins" in path} == {"Bearer hf_secret"}, sent
    hub.requests.clear()
    assert get(cache, uri, revision=COMMIT).cached
    assert hub.requests == []


def test_a_directory_of_a_dataset(hub, cache) -> None:
    uri = "hf://datasets/birds/penguins/data"
    assert files_of(cache, uri, get(cache, uri)) == {"train.bin": BIG}


def test_a_damaged_file_is_not_published(hub, cache) -> None:
    hub.files[f"/datasets/birds/penguins/resolve/{COMMIT}/data/train.bin"] = bytes(len(BIG))
    with pytest.raises(DataError, match=r"the SHA-256 of data/train\.bin is .*, and must be"):
        get(cache, "hf://datasets/birds/penguins")


def test_a_revision_or_a_repository_that_does_not_exist(hub, cache) -> None:
    with pytest.raises(DataError, match="hf://datasets/birds/penguins: there is no such revision"):
        get(cache, "hf://datasets/birds/penguins", revision="v9")
    with pytest.raises(DataError, match=r"hf://datasets/birds/none: (there is no such object|access is denied)"):
        get(cache, "hf://datasets/birds/none")


STREAMS = """
import sys, fsspec
files, root = fsspec.url_to_fs(sys.argv[1])
print({name.removeprefix(root): files.cat_file(name)[:5] for name in sorted(files.find(root))})
"""


def test_a_program_streams_the_commit_of_a_dataset(hub) -> None:
    """Ranks get this address."""
    entries = [
        {"type": "file", "oid": "1" * 40, "size": 5, "path": "README.md"},
        {"type": "file", "oid": "2" * 40, "size": len(BIG), "path": "data/train.bin"},
    ]
    tree = (200, {"Content-Type": "application/json"}, json.dumps(entries).encode())
    hub.answers[f"/api/datasets/birds/penguins/tree/{COMMIT}"] = lambda _: tree
    source = Input.model_validate({"name": "a", "from": "hf://datasets/birds/penguins", "mode": "Stream"})
    revision = look_up(InputSpec(source.source, "main")).revision
    command = [sys.executable, "-c", STREAMS, address(source, revision)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == str({"/README.md": b"hello", "/data/train.bin": BIG[:5]}), done.stderr
    assert not [path for path, _ in hub.requests if "resolve" in path and COMMIT not in path]
