"""Inputs, outputs and the archive in Google Cloud Storage and Azure: their clients with servers of their protocols."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.data.errors import TemporaryError
from allranks.data.fetch import InputSpec, fetch
from allranks.data.object_source import ObjectSource
from allranks.data.tries import Tries
from allranks.data.upload import MANIFEST, PROVENANCE, ObjectTarget, upload
from allranks.errors import DataError
from support.data_servers import Behaviour, http_server
from support.store_servers import KEY, azure_environment, google_key, token_answer
from unit.data.store import Store
from unit.data.test_fetch import files_of, get
from unit.data.test_object_stores import Fails, output
from unit.data.test_pod import Claim, outputs, saving

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")]  # gcsfs
EXAMPLES = Path(__file__).parents[3] / "examples"
CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.data.object_source.RANGE", 100_000)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients' own tries follow at once."""
    sleep = asyncio.sleep

    async def no_sleep(_seconds: float, *_: Any) -> None:
        await sleep(0)

    monkeypatch.setattr("asyncio.sleep", no_sleep)


def test_all_objects_below_a_prefix(store: Store, cache) -> None:
    uri = f"{store.uri}/birds"
    store.put(birds__a=b"1", birds__b__c=b"22", birdsong=b"3", **{"birds__we ird+%41 ü#&?=": b"4"})
    result = get(cache, uri)
    assert files_of(cache, uri, result) == {"a": b"1", "b/c": b"22", "we ird+%41 ü#&?=": b"4"}
    assert result.entry.revision.startswith("list:")
    assert get(cache, uri).cached
    assert fetch(InputSpec(uri, revision=result.entry.revision), cache).cached
    store.put(birds__a=b"x")
    changed = get(cache, uri)
    assert (changed.cached, files_of(cache, uri, changed)["a"]) == (False, b"x")
    with pytest.raises(DataError, match=rf"^{uri}: the data was changed: its revision is list:"):
        fetch(InputSpec(uri, revision="list:0"), cache)


def test_one_object_in_several_ranges_with_its_sum(store: Store, cache, small_ranges) -> None:
    uri = f"{store.uri}/d/train"
    store.put(d__train=CONTENT)
    result = get(cache, uri, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert files_of(cache, uri, result) == {"train": CONTENT}
    with pytest.raises(DataError, match=rf"^{uri}: the SHA-256 of the file is .*, and the job wants abab"):
        get(cache, uri, sha256="ab" * 32)


def test_objects_and_buckets_that_do_not_exist(store: Store, cache, tmp_path) -> None:
    scheme = store.server.scheme
    for uri in (f"{store.uri}/nothing", f"{scheme}://elsewhere/x"):
        with pytest.raises(DataError, match=rf"^{uri}: there is no such object"):
            get(cache, uri)
    with pytest.raises(DataError, match=rf"^{scheme}://elsewhere/m: there is no such object"):
        upload(output(tmp_path), f"{scheme}://elsewhere/m", tmp_path / "journal", {})


def test_a_connection_that_breaks_continues_where_it_was(store: Store, cache, small_ranges, impatient) -> None:
    store.put(train=CONTENT)
    store.way.cut_after, store.way.cuts, store.way.received = 50_000, 5, 0
    uri = f"{store.uri}/train"
    assert files_of(cache, uri, get(cache, uri)) == {"train": CONTENT}
    assert store.way.cuts == 0
    assert len(CONTENT) + 5 * 40_000 < store.way.received < len(CONTENT) + 5 * 60_000


def test_a_fetch_that_failed_continues_where_it_was(store: Store, cache, small_ranges, impatient) -> None:
    store.put(train=CONTENT)
    uri = f"{store.uri}/train"

    class Breaks(ObjectSource):
        def read(self, *args: Any) -> Iterator[bytes]:
            for data in super().read(*args):
                yield data
                if store.way.received > 700_000:
                    store.way.cut_after, store.way.cuts = 0, 10_000

    store.way.received = 0
    with pytest.raises(TemporaryError, match=rf"^{uri}: the connection failed: "):
        fetch(InputSpec(uri), cache, connect=Breaks, tries=Tries(sleep=lambda _: None))
    store.way.cuts = store.way.received = 0
    assert files_of(cache, uri, get(cache, uri)) == {"train": CONTENT}
    assert store.way.received < len(CONTENT) - 600_000


def test_a_server_that_cannot_be_reached_may_answer_later(store: Store, cache, impatient) -> None:
    store.way.cut_after, store.way.cuts = 0, 10_000
    with pytest.raises(TemporaryError, match=rf"^{store.uri}/x: the connection failed: "):
        get(cache, f"{store.uri}/x")


def test_an_output_with_its_manifest_which_is_uploaded_again(store: Store, tmp_path) -> None:
    directory, journal, to = output(tmp_path), tmp_path / "journal", f"{store.uri}/models/m"
    (directory / "empty").write_bytes(b"")
    assert upload(directory, to, journal, {"job": "penguins"}).sent == 3
    there = store.keys()
    names = ("config.json", "empty", "weights/0.bin", MANIFEST, PROVENANCE)
    assert set(there) == {f"models/m/{name}" for name in names}
    listed = {file["name"]: file["sha256"] for file in json.loads(there[f"models/m/{MANIFEST}"])["files"]}
    assert listed["weights/0.bin"] == hashlib.sha256(there["models/m/weights/0.bin"]).hexdigest()
    assert json.loads(there[f"models/m/{PROVENANCE}"]) == {"job": "penguins"}
    (directory / "config.json").write_text('{"new": 1}')
    assert upload(directory, to, journal, {"job": "penguins"}).sent == 1
    assert store.keys()["models/m/config.json"] == b'{"new": 1}'


def test_an_upload_that_failed_continues(store: Store, tmp_path) -> None:
    directory, journal, to = output(tmp_path), tmp_path / "journal", f"{store.uri}/m"
    store.put(**{f"m__{MANIFEST}": b"of an earlier model"})
    target = Fails(to)
    target.failures = 100
    with pytest.raises(DataError, match=rf"^{to}: the connection failed: connection reset"):
        upload(directory, to, journal, {}, connect=lambda _: target, tries=Tries(sleep=lambda _: None))
    assert set(store.keys()) == {"m/config.json"}  # a reader finds no manifest
    assert upload(directory, to, journal, {}).sent == 1
    assert set(store.keys()) == {f"m/{name}" for name in ("config.json", "weights/0.bin", MANIFEST, PROVENANCE)}


def test_a_file_in_the_place_of_a_folder_is_uploaded(store: Store) -> None:
    store.put(m__weights__0=b"1")
    target = ObjectTarget(f"{store.uri}/m")
    assert (target.size("weights"), target.size("weights/0"), target.size("nothing")) == (None, 1, None)


def test_a_large_file_is_uploaded_through_connections_that_break(store: Store, tmp_path, impatient) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    (directory / "weights").write_bytes(CONTENT * 70)
    store.way.cut_after, store.way.cuts = 100, 3
    upload(directory, f"{store.uri}/m", tmp_path / "journal", {}, tries=Tries(sleep=lambda _: None))
    assert store.way.cuts == 0
    assert hashlib.sha256(store.keys()["m/weights"]).digest() == hashlib.sha256(CONTENT * 70).digest()


def test_a_pod_uploads_a_checkpoint(store: Store, tmp_path) -> None:
    claim = Claim(tmp_path / "claim")
    outputs(claim)
    folder = claim.root / "checkpoint" / "checkpoint-100"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"1234")
    code, message = claim.run(saving(100, 60), to=f"{store.uri}/m/step-100")
    assert (code, json.loads(message)["uploaded"]) == (0, {"bytes": 4, "files": 1})
    names = ("allranks-manifest.json", "allranks-provenance.json", "checkpoint-100/weights")
    assert set(store.keys()) == {f"m/step-100/{name}" for name in names}


def signature(hours: float, **may: bool) -> str:
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
    everything = ResourceTypes(service=True, container=True, object=True)
    return generate_account_sas("devstoreaccount1", KEY, everything, AccountSasPermissions(**may), expiry=end)


def test_azure_accepts_a_signature_and_says_why_it_rejects_credentials(
    az: Store, cache, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    az.put(x=b"1")
    uri = f"{az.uri}/x"

    def log_in(login: str) -> None:
        for name, value in azure_environment(az.server.endpoint, login).items():
            monkeypatch.setenv(name, value)

    def message() -> str:
        with pytest.raises(DataError) as caught:
            get(cache, uri)
        assert not isinstance(caught.value, TemporaryError)
        return str(caught.value)

    log_in(f"SharedAccessSignature={signature(1, read=True, list=True)}")
    assert files_of(cache, uri, get(cache, uri)) == {"x": b"1"}
    with pytest.raises(DataError, match=rf"^{az.uri}/m: access is denied: .*\(AZURE_.*\): This req"):
        upload(output(tmp_path), f"{az.uri}/m", tmp_path / "journal", {})
    log_in(f"SharedAccessSignature={signature(-1, read=True, list=True)}")
    assert message().startswith(f"{uri}: the credentials have expired: the shared access signature ended at 20")
    log_in(f"AccountKey={'A' * 86}==")
    assert message().startswith(f"{uri}: access is denied: check the credentials (AZURE_STORAGE_CONNECTION_STRING, or ")
    assert message().endswith("is formed correctly including the signature.")
    log_in("AccountKey=abc")
    assert message().startswith(f"{uri}: access is denied: check the credentials (AZURE_")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "hello")
    assert "check the credentials (AZURE_" in message()
    assert "malformed" in message()
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    assert message().startswith(f"{uri}: there are no credentials: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STOR")


def test_google_accepts_a_key_in_a_variable_and_says_why_it_rejects_credentials(
    gs: Store, cache, tmp_path, monkeypatch: pytest.MonkeyPatch, impatient
) -> None:
    from fsspec.config import conf

    gs.put(x=b"1")
    uri = f"{gs.uri}/x"
    tokens = Behaviour()

    def message() -> str:
        with pytest.raises(DataError) as caught:
            get(cache, uri)
        assert not isinstance(caught.value, TemporaryError)
        return str(caught.value)

    with http_server(tokens) as url:
        tokens.answers["/token"] = lambda _: token_answer("abc")
        variable = json.dumps({"token": google_key(url)})  # as the Secret of the guide has it
        request = json.dumps({"uri": uri, "cache": str(tmp_path / "other"), "limit": 1 << 30})
        command = [sys.executable, "-m", "allranks.data.program", "fetch"]
        environ = {**os.environ, "FSSPEC_GS": variable}
        done = subprocess.run(command, input=request, env=environ, capture_output=True, text=True)
        assert json.loads(done.stdout.splitlines()[-1])["entry"]["bytes"] == 1, done.stdout + done.stderr
        assert gs.way.logins == {"Bearer abc"}
        monkeypatch.setitem(conf, "gs", json.loads(variable))
        expired = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        tokens.answers["/token"] = lambda _: (400, {}, json.dumps(expired).encode())
        assert message().startswith(f"{uri}: the credentials have expired: renew them (Invalid Credentials, 401: ")
        monkeypatch.setitem(conf, "gs", {"token": {"type": "service_account"}})
        assert message() == (
            f"{uri}: the credentials cannot be read: set FSSPEC_GS to "
            '{"token": KEY}, where KEY is the JSON key of a service account'
        )
    monkeypatch.delitem(conf, "gs")
    for status, text in ((401, "Anonymous caller does not have access"), (403, "reader does not have access")):
        body = json.dumps({"error": {"code": status, "message": text}})
        head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        gs.way.answer = (head + body).encode()
        assert message().startswith(
            f"{uri}: access is denied: check the credentials (GOOGLE_APPLICATION_CREDENTIALS or"
        )
        assert text in message()


def test_the_example_runs_here(store: Store, tmp_path) -> None:
    """`allranks run` with ranks, which are processes."""
    scheme, folder = store.server.scheme, EXAMPLES / "data"
    table = (EXAMPLES.parent / "train" / "data" / "penguins.csv").read_bytes()
    birds, models = (Store(store.server, name) for name in ("birds", "models"))
    for each in (birds, models):
        each.create()
    birds.put(**{"penguins__penguins.csv": table})
    command = [
        sys.executable,
        "-m",
        "allranks",
        "run",
        str(folder / f"{scheme}.yaml"),
        "--run-dir",
        str(tmp_path / "run"),
    ]
    environ = {**os.environ, "ALLRANKS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "input data was fetched in" in done.stdout
    names = ("rank-0.json", "rank-1.json", MANIFEST, PROVENANCE)
    assert set(models.keys()) == {f"penguins/{name}" for name in names}


def test_the_archive_has_the_same_files(store: Store) -> None:
    from allranks.archive.store import open_store

    archive, before = open_store(f"{store.uri}/history"), time.time()
    assert (archive.list(), archive.get("team/a-1/job.json")) == ([], None)
    for name, content in (("a-1/job.json", b"one"), ("a-1/job.json", b"three"), ("a-10/job.json", b"x")):
        archive.put(f"team/{name}", content)
    assert archive.get("team/a-1/job.json") == b"three"
    assert {each.name: each.size for each in archive.list()} == {"team/a-1/job.json": 5, "team/a-10/job.json": 1}
    assert [each.name for each in archive.list("team/a-1")] == ["team/a-1/job.json"]
    assert all(before - 5 < each.modified < time.time() + 5 for each in archive.list())
    archive.remove("team/a-1/job.json")
    archive.remove("team/a-1/job.json")
    assert archive.get("team/a-1/job.json") is None
