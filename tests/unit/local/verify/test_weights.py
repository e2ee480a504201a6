"""Checkpoints that are only a part, and the comparison of two."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest

from allranks.local.verify.check import pair
from allranks.local.verify.weights import checkpoints, compare, incomplete


def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data", "weights" * 1000)
    return buffer.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(400)


def hdf5() -> bytes:
    start = b"\x89HDF\r\n\x1a\n" + bytes([0]) + bytes(31) + struct.pack("<Q", 4096)
    return start + bytes(4096 - len(start))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.pt", zip_archive()), ("a.safetensors", safetensors()), ("a.h5", hdf5()), ("a.json", b'{"step": 40}')],
)
def test_a_file_that_is_cut_anywhere_is_not_complete(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert incomplete(path) == ""
    for size in (0, len(content) // 2, len(content) - 1):
        if name != "a.h5" or size == 0 or size > 96:
            path.write_bytes(content[:size])
            assert incomplete(path), f"{size} of {len(content)} bytes"


def test_a_file_of_an_unknown_format_is_not_called_torn(tmp_path: Path) -> None:
    (tmp_path / "weights.raw").write_bytes(b"anything")
    assert incomplete(tmp_path / "weights.raw") == ""
    assert incomplete(tmp_path / "removed meanwhile") == ""


def test_equal_files_need_no_library_and_unknown_formats_are_not_compared(tmp_path: Path) -> None:
    one, other = tmp_path / "one.raw", tmp_path / "other.raw"
    one.write_bytes(b"a")
    other.write_bytes(b"a")
    assert compare(str(one), str(other)) == {"result": "equal"}
    other.write_bytes(b"b")
    assert compare(str(one), str(other)) == {"result": "not compared", "detail": "format of one.raw"}


def test_a_directory_of_a_distributed_checkpoint_is_one_checkpoint(tmp_path: Path) -> None:
    for name in (
        "step-8/.metadata",
        "step-8/__0_0.distcp",
        "model/ckpt.index",
        "model/ckpt.data-00000-of-00001",
        "a.pt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".claim-00001").touch()
    (tmp_path / ".unreadable").mkdir()
    (tmp_path / ".unreadable" / "b.pt").touch()
    assert sorted(checkpoints(str(tmp_path))) == ["a.pt", "model/ckpt.index", "step-8"]


def test_checkpoints_belong_together_by_name_or_are_the_newest_with_other_numbers() -> None:
    unbroken = {"last.pt": 9.0, "epoch-19.claim-1.pt": 1.0, "epoch-20.claim-1.pt": 2.0, "only.pt": 3.0}
    killed = {"last.pt": 9.0, "epoch-19.claim-4.pt": 11.0, "epoch-20.claim-4.pt": 12.0}
    assert pair(unbroken, killed) == [("last.pt", "last.pt"), ("epoch-20.claim-1.pt", "epoch-20.claim-4.pt")]
