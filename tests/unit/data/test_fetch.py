"""Inputs: a web server with ranges that misbehaves, and the cache."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.cache_key import cache_key
from allranks.data.cache import Cache
from allranks.data.download import JOURNAL
from allranks.data.errors import TemporaryError
from allranks.data.fetch import InputSpec, Result, fetch
from allranks.data.source import Listing, RemoteFile
from allranks.data.tries import Tries
from allranks.errors import DataError

CONTENT = random.Random(7).randbytes(3_000_000)
SUM = hashlib.sha256(CONTENT).hexdigest()
PARTS = 700_000
"""Bytes after which responses are cut."""


def get(cache: Cache, uri: str, **wanted: str) -> Result:
    return fetch(InputSpec(uri, **wanted), cache, tries=Tries(sleep=lambda _: None))


def files_of(cache: Cache, uri: str, result: Result) -> dict[str, bytes]:
    lease = cache.lease(uri, result.entry.pin)
    assert lease
    with lease.lock:
        paths = [path for path in lease.directory.rglob("*") if path.is_file()]
        return {path.relative_to(lease.directory).as_posix(): path.read_bytes() for path in paths}


def test_a_file_is_fetched_once(cache, web, url) -> None:
    web.files["/a/train.csv"] = CONTENT
    uri = f"{url}/a/train.csv"
    first = get(cache, uri)
    assert files_of(cache, uri, first) == {"train.csv": CONTENT}
    assert (first.entry.sha256, first.entry.bytes, first.entry.files, first.cached) == (SUM, len(CONTENT), 1, False)
    assert first.entry.revision.startswith('etag:"')
    web.requests.clear()
    again = get(cache, uri)
    assert (again.entry, again.cached) == (first.entry, True)
    assert len(web.requests) == 1  # is it still the same?


def test_an_empty_file_and_a_file_without_a_validator(cache, web, url) -> None:
    web.files["/x"] = b""
    assert files_of(cache, f"{url}/x", get(cache, f"{url}/x")) == {"x": b""}
    web.files["/y"], web.etags = b"1", False
    for content in (b"1", b"2"):  # nothing shows whether it changed: it is fetched each time
        web.files["/y"] = content
        assert files_of(cache, f"{url}/y", get(cache, f"{url}/y")) == {"y": content}


def test_a_changed_file_is_another_revision(cache, web, url) -> None:
    web.files["/x"] = b"old"
    old = get(cache, f"{url}/x")
    web.files["/x"] = b"new"
    new = get(cache, f"{url}/x")
    assert old.entry.revision != new.entry.revision
    assert files_of(cache, f"{url}/x", old) == {"x": b"old"}
    assert files_of(cache, f"{url}/x", new) == {"x": b"new"}


def test_a_pinned_revision_or_sum_needs_no_network(cache, web, url) -> None:
    web.files["/x"] = CONTENT
    revision = get(cache, f"{url}/x").entry.revision
    get(cache, f"{url}/x", sha256=SUM)
    web.requests.clear()
    assert get(cache, f"{url}/x", sha256=SUM).cached
    assert get(cache, f"{url}/x", revision=revision).cached
    assert web.requests == []


def test_another_revision_than_the_wanted_one_is_an_error(cache, web, url) -> None:
    web.files["/x"] = b"new"
    with pytest.raises(DataError, match='x: the data was changed: its revision is etag:"'):
        get(cache, f"{url}/x", revision='etag:"old"')


def test_a_cut_connection_continues_where_it_was(cache, web, url) -> None:
    web.files["/x"], web.cut_after, web.cuts = CONTENT, PARTS, 4
    result = get(cache, f"{url}/x")
    assert files_of(cache, f"{url}/x", result) == {"x": CONTENT}
    ranges = [wanted for _, wanted in web.requests]
    assert ranges[1:6] == [None, "bytes=700000-", "bytes=1400000-", "bytes=2100000-", "bytes=2800000-"]


def test_a_server_without_ranges_sends_the_file_again(cache, web, url) -> None:
    web.files["/x"], web.cut_after, web.cuts, web.ranges = CONTENT, PARTS, 1, False
    assert files_of(cache, f"{url}/x", get(cache, f"{url}/x")) == {"x": CONTENT}


def test_a_file_that_changes_between_two_parts_is_not_mixed(cache, web, url) -> None:
    web.files["/x"], web.cut_after, web.cuts = CONTENT, PARTS, 1
    other = bytes(reversed(CONTENT))

    def sleep(_: float) -> None:
        web.files["/x"] = other

    with pytest.raises(DataError, match="was changed while it was fetched: run again"):
        fetch(InputSpec(f"{url}/x"), cache, tries=Tries(sleep=sleep))
    assert files_of(cache, f"{url}/x", get(cache, f"{url}/x")) == {"x": other}


def test_a_server_that_is_overloaded_is_asked_again(cache, web, url) -> None:
    web.files["/x"], web.failures = b"1", [503, 429, 500]
    waits: list[float] = []
    assert fetch(InputSpec(f"{url}/x"), cache, tries=Tries(sleep=waits.append)).entry.bytes == 1
    assert waits == [1.0, 2.0, 4.0]


def test_a_server_that_stays_away_is_an_error(cache, web, url) -> None:
    web.files["/x"], web.failures = b"1", [503] * 100
    with pytest.raises(TemporaryError, match=r"x: the connection failed: HTTP Error 503"):
        get(cache, f"{url}/x")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "there is no such object, or it is not visible with these credentials"),
        (401, "access is denied: check the credentials"),
        (400, "HTTP Error 400"),
    ],
)
def test_other_answers_are_errors_at_once(cache, web, url, status, message) -> None:
    web.failures = [status]
    with pytest.raises(DataError, match=message):
        get(cache, f"{url}/x")
    assert len(web.requests) == 1


def test_a_wrong_sum_publishes_nothing(cache, web, url) -> None:
    web.files["/x"] = CONTENT
    with pytest.raises(DataError, match=f"SHA-256 of the file is {SUM}, and the job wants {'0' * 64}"):
        get(cache, f"{url}/x", sha256="0" * 64)
    assert [path.name for path in cache.root.iterdir() if path.is_dir()] == []


def test_two_fetches_at_once_download_once(cache, web, url) -> None:
    web.files["/x"], web.gate = CONTENT, threading.Event()
    results: list[Result] = []
    threads = [threading.Thread(target=lambda: results.append(get(cache, f"{url}/x"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    web.gate.set()
    for thread in threads:
        thread.join(300)
    assert sorted(result.cached for result in results) == [False, True, True]
    # Each asks for the revision, and one of them once more at the end; one reads the content.
    assert len(web.requests) == 5


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_killed_fetch_continues(cache, web, url, monkeypatch) -> None:
    """What was synced counts; what comes after it may not be on the disk."""
    web.files["/x"] = CONTENT
    monkeypatch.setattr("allranks.data.download.SYNC_BYTES", 1 << 20)
    program = f"""
import os, sys
from pathlib import Path
from allranks.data import download
from allranks.data.cache import Cache
from allranks.data.fetch import InputSpec, fetch
download.SYNC_BYTES = 1 << 20
class Dies:
    count = 0
    def resolved(self, revision, total): ...
    def added(self, count):
        self.count += count
        if self.count > 2_500_000:
            os.kill(os.getpid(), 9)
fetch(InputSpec("{url}/x"), Cache(Path({str(cache.root)!r})), Dies())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=300)
    assert done.returncode == -9
    [partial] = cache.root.glob("*.partial")
    assert (partial / JOURNAL).read_text().count("offset") == 2
    assert [path for path in cache.root.iterdir() if path.is_dir()] == [partial]
    web.requests.clear()
    assert files_of(cache, f"{url}/x", get(cache, f"{url}/x")) == {"x": CONTENT}
    assert "bytes=2097152-" in [wanted for _, wanted in web.requests]


class Many:
    """A source with many files, of which one is damaged."""

    uri, branches = "s3://b/many", True

    def __init__(self, files: dict[str, bytes], damaged: str = "") -> None:
        self.files, self.damaged, self.reads = files, damaged, list[str]()

    def resolve(self, revision: str | None) -> Listing:
        files = [RemoteFile(name, len(data), "", hashlib.sha256(data).hexdigest()) for name, data in self.files.items()]
        return Listing("1", tuple(files))

    def read(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[bytes]:
        self.reads.append(file.name)
        data = self.files[file.name]
        yield (bytes(len(data)) if file.name == self.damaged else data)[start:]


def test_a_damaged_file_is_fetched_again_and_the_others_are_kept(cache) -> None:
    files = {f"d/{number}": b"%d" % number for number in range(20)}
    source = Many(files, damaged="d/19")
    with pytest.raises(DataError, match=r"the SHA-256 of d/19 is .*, and must be"):
        fetch(InputSpec(source.uri), cache, connect=lambda _: source)
    source.damaged, source.reads = "", []
    result = fetch(InputSpec(source.uri), cache, connect=lambda _: source)
    assert files_of(cache, source.uri, result) == files
    assert "d/19" in source.reads
    assert len(source.reads) < 20


def test_the_sum_of_several_files_is_that_of_sha256sum(cache, tmp_path) -> None:
    source = Many({"b": b"2", "a/c": b"1", "a b": b"3"})
    result = fetch(InputSpec(source.uri), cache, connect=lambda _: source)
    for name, data in source.files.items():
        path = tmp_path / "same" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    command = "find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    shell = subprocess.run(command, shell=True, cwd=tmp_path / "same", capture_output=True, text=True, check=True)
    assert shell.stdout.split()[0] == result.entry.sha256


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/../b", "."])
def test_a_name_that_leads_outside_is_refused(name) -> None:
    from allranks.data.source import checked

    with pytest.raises(DataError, match="cannot be a file"):
        checked("s3://b", [RemoteFile(name, 1)])


def test_an_object_that_is_also_a_directory_is_refused() -> None:
    from allranks.data.source import checked

    with pytest.raises(DataError, match="a is an object, and also the directory of a/b"):
        checked("s3://b", [RemoteFile("a/b", 1), RemoteFile("a", 1)])


def test_the_cache_evicts_what_was_used_longest_ago(tmp_path, web, url) -> None:
    cache = Cache(tmp_path / "inputs", limit=2_500)
    uris = [f"{url}/{number}" for number in range(4)]
    results = []
    for number, uri in enumerate(uris[:2]):
        web.files[f"/{number}"] = bytes([number]) * 1_000
        results.append(get(cache, uri))
    for number, result in enumerate(results):  # entry 0 is the older one
        os.utime(cache.root / cache_key(uris[number], result.entry.pin) / "entry.json", (number, number))
    get(cache, uris[0])  # a use makes it the newer one
    web.files["/2"] = b"2" * 1_000
    get(cache, uris[2])
    assert cache.lease(uris[1], results[1].entry.pin) is None
    kept = cache.lease(uris[0], results[0].entry.pin)
    assert kept
    kept.close()
    assert len(list(cache.root.glob("*.lock"))) == 2


def test_data_in_use_is_not_evicted(tmp_path, web, url) -> None:
    cache = Cache(tmp_path / "inputs", limit=1_500)
    web.files["/0"], web.files["/1"] = b"0" * 1_000, b"1" * 1_000
    first = get(cache, f"{url}/0")
    lease = cache.lease(f"{url}/0", first.entry.pin)
    assert lease
    get(cache, f"{url}/1")  # it goes over the limit rather than take data from a run
    assert (lease.directory / "0").read_bytes() == b"0" * 1_000
    lease.close()
    web.files["/2"] = b"2" * 1_000
    get(cache, f"{url}/2")
    assert cache.lease(f"{url}/0", first.entry.pin) is None


def test_data_that_does_not_fit_on_the_disk_is_not_begun(cache, monkeypatch) -> None:
    source = Many({"big": b"1"})
    listing = Listing("1", (RemoteFile("big", 1 << 60),))
    monkeypatch.setattr(source, "resolve", lambda revision: listing)
    with pytest.raises(DataError, match=r"s3://b/many: the disk is full: 1024.0 PiB are needed, and .* are free for"):
        fetch(InputSpec(source.uri), cache, connect=lambda _: source)
    assert source.reads == []


def test_a_fetch_that_failed_for_a_full_disk_continues(cache, web, url, monkeypatch) -> None:
    """A file size limit of the process stands for the disk: the write fails in the middle of the file."""
    web.files["/x"] = CONTENT
    program = f"""
import resource, signal, errno
from pathlib import Path
from allranks.data import errors
from allranks.data.cache import Cache
from allranks.data.fetch import InputSpec, fetch
from allranks.errors import DataError
errors._FULL = (*errors._FULL, errno.EFBIG)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
try:
    fetch(InputSpec("{url}/x"), Cache(Path({str(cache.root)!r})))
except DataError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert f"{url}/x: the disk is full" in done.stdout, done.stderr
    web.requests.clear()
    assert files_of(cache, f"{url}/x", get(cache, f"{url}/x")) == {"x": CONTENT}
    assert [wanted for _, wanted in web.requests] == ["bytes=0-0", "bytes=2000000-", "bytes=0-0"]


def test_files_in_the_cache_are_read_only(cache, web, url) -> None:
    web.files["/x"] = b"1"
    result = get(cache, f"{url}/x")
    lease = cache.lease(f"{url}/x", result.entry.pin)
    assert lease
    with lease.lock:
        assert (lease.directory / "x").stat().st_mode & 0o222 == 0


def test_credentials_are_not_sent_to_another_host(web, url) -> None:
    from allranks.data.http_source import open_url
    from support.data_servers import Behaviour, http_server

    other = Behaviour(files={"/x": b"1"})
    with http_server(other) as elsewhere:
        web.answers["/away"] = lambda _: (302, {"Location": f"{elsewhere}/x"}, b"")
        web.answers["/here"] = lambda _: (302, {"Location": "/y"}, b"")
        web.files["/y"] = b"2"
        for path in ("/away", "/here"):
            with open_url(url + path, {"Authorization": "Bearer secret"}) as answer:
                answer.read()
    assert other.authorization == [None]
    assert web.authorization == ["Bearer secret"] * 3


def test_a_missing_package_is_named_with_the_command(cache, monkeypatch) -> None:
    monkeypatch.setattr("allranks.data.errors.find_spec", lambda name: None if name in ("gcsfs", "adlfs") else name)
    with pytest.raises(DataError, match=r"gs://b/x: gs:// needs the Python package gcsfs: pip install .*\[cli,gs\]'$"):
        get(cache, "gs://b/x")
    with pytest.raises(DataError, match=r"az://b/x: az:// needs the Python package adlfs: pip install .*\[cli,az\]'$"):
        get(cache, "az://b/x")


def repository(folder: Path) -> str:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout

    folder.mkdir()
    git("init", "--quiet", "--initial-branch=main")
    (folder / "d").mkdir()
    (folder / "d" / "a.txt").write_text("one")
    (folder / "link").symlink_to("/etc/passwd")
    git("add", "-A")
    git("commit", "--quiet", "-m", "one")
    git("tag", "-a", "v1", "-m", "v1")
    (folder / "d" / "a.txt").write_text("two")
    git("commit", "--quiet", "-am", "two")
    return git("rev-parse", "HEAD").strip()


def test_a_git_repository_at_a_branch_a_tag_and_a_commit(cache, tmp_path) -> None:
    commit = repository(tmp_path / "repository")
    uri = f"git+file://{tmp_path}/repository"
    head = get(cache, uri)
    assert head.entry.revision == commit
    assert files_of(cache, uri, head) == {"d/a.txt": b"two", "link": b"/etc/passwd"}
    tag = get(cache, uri, revision="v1")
    assert files_of(cache, uri, tag)["d/a.txt"] == b"one"
    assert get(cache, uri, revision="main").cached
    assert get(cache, uri, revision=commit).cached
    with pytest.raises(DataError, match="there is no branch or tag v2"):
        get(cache, uri, revision="v2")
