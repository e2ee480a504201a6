"""What the helper unpacks, and what it refuses."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from allranks.cli.main import cli
from allranks.code.bundle import EMPTY, Bundle
from allranks.code.differences import File
from allranks.inpod import unpack


def stored(folder: Path, tar: bytes) -> tuple[Path, str]:
    archive = folder / "code.tar.gz"
    archive.write_bytes(gzip.compress(tar))
    return archive, hashlib.sha256(tar).hexdigest()


def tar_of(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for entry, data in entries:
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def test_a_bundle_is_unpacked_by_the_helper_for_every_user_of_the_pod(tmp_path) -> None:
    long = "a" * 120 + "/naïve.py"
    bundle = Bundle((File("lib/net.py", b"x = 1\n"), File("run.sh", b"#!/bin/sh\n", True))).with_file(long, b"")
    archive, sha256 = stored(tmp_path, bundle.tar)
    assert sha256 == bundle.sha256
    before = os.umask(0o077)
    try:
        arguments = ["--code", str(archive), "--sha256", sha256, "--to", str(tmp_path / "code")]
        done = CliRunner().invoke(cli, ["inject", str(tmp_path / "helper"), *arguments])
    finally:
        os.umask(before)
    assert (done.exit_code, done.output) == (0, "")
    assert (tmp_path / "helper" / "install_packages.py").is_file()
    modes = {name: (tmp_path / "code" / name).stat().st_mode & 0o777 for name in ("lib", "lib/net.py", "run.sh", long)}
    assert modes == {"lib": 0o777, "lib/net.py": 0o666, "run.sh": 0o777, long: 0o666}
    assert (tmp_path / "code" / "lib" / "net.py").read_bytes() == b"x = 1\n"


def test_a_helper_that_is_started_again_unpacks_again(tmp_path) -> None:
    archive, sha256 = stored(tmp_path, EMPTY.with_file("train.py", b"x").tar)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("half of a long file")
    unpack.unpack(archive, sha256, tmp_path / "code")
    assert (tmp_path / "code" / "train.py").read_text() == "x"


def test_code_with_another_hash_is_not_unpacked(tmp_path) -> None:
    archive, sha256 = stored(tmp_path, EMPTY.with_file("train.py", b"x").tar)
    arguments = ["--code", str(archive), "--sha256", "0" * 64, "--to", str(tmp_path / "code")]
    done = CliRunner().invoke(cli, ["inject", str(tmp_path / "helper"), *arguments])
    assert done.exit_code == 1
    assert f"is not that of the job: its SHA-256 is {sha256}" in done.output
    assert not (tmp_path / "code").exists()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((tarfile.TarInfo("../x"), b""), r"contains \.\./x, which leads outside its directory"),
        ((tarfile.TarInfo("a/../../x"), b""), "which leads outside its directory"),
        ((tarfile.TarInfo("/x"), b""), "contains /x, which leads outside its directory"),
        (link("x", "/etc/passwd"), "contains x, which is not a regular file"),
        (link("x", "../y", tarfile.LNKTYPE), "contains x, which is not a regular file"),
        (link("x", "", tarfile.CHRTYPE), "contains x, which is not a regular file"),
    ],
)
def test_nothing_is_written_outside_the_directory(tmp_path, entry, message) -> None:
    archive, sha256 = stored(tmp_path, tar_of(entry))
    with pytest.raises(unpack.Unusable, match=message):
        unpack.unpack(archive, sha256, tmp_path / "code")
    assert {path.name for path in tmp_path.iterdir()} <= {"code.tar.gz", "code"}


def test_a_link_that_is_in_the_way_is_not_followed(tmp_path) -> None:
    archive, sha256 = stored(tmp_path, EMPTY.with_file("train.py", b"x").tar)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").symlink_to(tmp_path / "outside")
    with pytest.raises(unpack.Unusable, match="cannot be written"):
        unpack.unpack(archive, sha256, tmp_path / "code")
    assert not (tmp_path / "outside").exists()


def test_a_small_archive_of_a_huge_file_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(unpack, "_MAX_TAR_BYTES", 10_000)
    archive, sha256 = stored(tmp_path, EMPTY.with_file("zeros", bytes(20_000)).tar)
    with pytest.raises(unpack.Unusable, match="has more than"):
        unpack.unpack(archive, sha256, tmp_path / "code")


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(b"x")[:-6]], ids=["empty", "no gzip", "cut off"])
def test_a_damaged_archive_is_named(tmp_path, data) -> None:
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(data)
    with pytest.raises(unpack.Unusable):
        unpack.unpack(archive, "0" * 64, tmp_path / "code")


def test_the_limits_of_the_client_and_the_helper_are_the_same() -> None:
    from allranks.code import bundle, selection

    assert unpack.MAX_BYTES == bundle.MAX_BYTES
    assert unpack.MAX_FILES == selection.MAX_FILES
