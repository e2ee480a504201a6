"""Inputs with `unpack: true`: the files of their archives take the place of the archives."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile

import pytest

from allranks.data import archives
from allranks.data.cache import Cache
from allranks.data.fetch import InputSpec, Result, fetch
from allranks.data.tries import Tries
from allranks.errors import DataError
from unit.data.test_fetch import files_of
from unit.inpod.test_unpack import link, tar_of

FILES = {"cifar/data_batch_1": b"1" * 5000, "cifar/empty": b"", "readme": b"2"}


def packed(name: str, files: dict[str, bytes] = FILES) -> bytes:
    out = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.mkdir("cifar")
            for path, content in files.items():
                zipped.writestr(path, content)
        return out.getvalue()
    mode = {"gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "xz": "w:xz", "tar": "w"}[name.rpartition(".")[2]]
    with tarfile.open(fileobj=out, mode=mode) as tar:
        folder = tarfile.TarInfo("cifar")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(folder)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def unpacked(cache: Cache, uri: str, **wanted: str) -> Result:
    return fetch(InputSpec(uri, unpack=True, **wanted), cache, tries=Tries(sleep=lambda _: None))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.TGZ", "a.tar.bz2", "a.tar.xz", "a.zip"])
def test_an_archive_is_replaced_by_its_files(cache, web, url, name) -> None:
    web.files[f"/{name}"] = archive = packed(name.lower())
    uri, sha256 = f"{url}/{name}", hashlib.sha256(archive).hexdigest()
    result = unpacked(cache, uri, sha256=sha256)
    assert files_of(cache, uri, result) == FILES
    assert (result.entry.sha256, result.entry.bytes, result.entry.files) == (sha256, 5001, 3)
    assert unpacked(cache, uri, sha256=sha256).cached


def test_the_same_archive_is_another_input_if_it_stays_packed(cache, web, url) -> None:
    web.files["/a.zip"] = archive = packed("a.zip")
    uri = f"{url}/a.zip"
    first = unpacked(cache, uri)
    assert files_of(cache, uri, fetch(InputSpec(uri), cache)) == {"a.zip": archive}
    assert files_of(cache, uri, unpacked(cache, uri, revision=first.entry.revision)) == FILES


def test_each_archive_of_a_prefix_is_unpacked_in_its_directory(s3, cache) -> None:
    for key, content in {"d/train/a.tar": packed("a.tar"), "d/train/b.zip": packed("b.zip", {"b": b"b"})}.items():
        s3.put_object(Bucket="data", Key=key, Body=content)
    s3.put_object(Bucket="data", Key="d/labels.csv", Body=b"x")
    result = unpacked(cache, "s3://data/d")
    train = {f"train/{name}": content for name, content in FILES.items()}
    assert files_of(cache, "s3://data/d", result) == {**train, "train/b": b"b", "labels.csv": b"x"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tar", tar_of((tarfile.TarInfo("../x"), b"")), r"a\.tar contains \.\./x, which leads outside"),
        ("a.tar", tar_of((tarfile.TarInfo("/x"), b"")), "a.tar contains /x, which leads outside"),
        ("a.zip", packed("a.zip", {"../x": b""}), r"a\.zip contains \.\./x, which leads outside"),
        ("a.tar", tar_of(link("x", "/etc/passwd")), "a.tar contains x, which is not a regular file"),
        ("a.tar", tar_of(link("x", "", tarfile.CHRTYPE)), "a.tar contains x, which is not a regular file"),
        ("a.tgz", packed("a.tgz")[:-100], "a.tgz is damaged, or no archive"),
        ("a.zip", packed("a.zip")[:-100], "a.zip is damaged, or no archive"),
        ("a.tar", b"no archive", "a.tar is damaged, or no archive"),
        ("a.csv", b"x", "there is no archive to unpack"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # an archive contains the time
)
def test_what_cannot_be_unpacked_is_an_error_and_nothing_is_written(
    cache, web, url, tmp_path, name, content, message
) -> None:
    web.files[f"/{name}"] = content
    with pytest.raises(DataError, match=message):
        unpacked(cache, f"{url}/{name}")
    assert not list(tmp_path.rglob("x"))
    assert not [path for path in cache.root.iterdir() if path.is_dir() and "." not in path.name]


def test_a_link_in_a_zip_is_refused(cache, web, url) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zipped:
        entry = zipfile.ZipInfo("x")
        entry.external_attr = 0o120777 << 16
        zipped.writestr(entry, "/etc/passwd")
    web.files["/a.zip"] = out.getvalue()
    with pytest.raises(DataError, match=r"a\.zip contains x, which is not a regular file"):
        unpacked(cache, f"{url}/a.zip")


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_a_small_archive_of_huge_files_does_not_fill_the_disk(tmp_path, web, url, name) -> None:
    web.files[f"/{name}"] = packed(name, {"zeros": bytes(5_000_000)})
    small = Cache(tmp_path / "small", limit=1_000_000)
    with pytest.raises(DataError, match=rf"the files in {name} have too many bytes: \d+ were left for zeros"):
        unpacked(small, f"{url}/{name}")
    assert sum(path.stat().st_size for path in small.root.rglob("*") if path.is_file()) < 3_000_000


def test_an_archive_of_too_many_files_is_refused(cache, web, url, monkeypatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 3)
    web.files["/a.tar"] = packed("a.tar")
    with pytest.raises(DataError, match=r"a\.tar has more than 3 files"):
        unpacked(cache, f"{url}/a.tar")


def test_a_file_that_two_archives_have_is_an_error(s3, cache) -> None:
    for key in ("d/a.tar", "d/b.tar"):
        s3.put_object(Bucket="data", Key=key, Body=packed("a.tar"))
    with pytest.raises(DataError, match=r"data_batch_1 is in b\.tar and beside it"):
        unpacked(cache, "s3://data/d")


def test_a_fetch_that_was_interrupted_while_it_unpacked_begins_again(cache, web, url, monkeypatch) -> None:
    web.files["/a.tar"] = packed("a.tar")
    broken = OSError("interrupted")

    def interrupted(*_: object) -> None:
        raise broken

    with monkeypatch.context() as patched:
        patched.setattr(archives, "_merge", interrupted)
        with pytest.raises(DataError):
            unpacked(cache, f"{url}/a.tar")
    assert files_of(cache, f"{url}/a.tar", unpacked(cache, f"{url}/a.tar")) == FILES
