"""Whether the exception that ends a program is about a checkpoint, or about another file."""

from __future__ import annotations

import gzip
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.report.damaged_file import is_elsewhere
from support.builders import table


def _unzip(path: Path) -> None:
    zipfile.ZipFile(path).read("a")


def _gunzip(path: Path) -> None:
    with gzip.open(path) as file:
        file.read()


def _unpickle(path: Path) -> None:
    with path.open("rb") as file:
        pickle.load(file)


def _newest(path: Path) -> None:
    files = sorted(str(file) for file in path.parent.iterdir())
    with open(files[-1], "rb") as stream:
        pickle.load(stream)


def test_a_relative_name_is_one_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.zip").touch()
    folder = tmp_path / "checkpoints"  # in a frame further outside
    assert is_elsewhere(_raised(_unzip, Path("data.zip")), str(folder))


@table(
    ("a zip file of the data", _unzip, "data", True),
    ("a zip file of a checkpoint", _unzip, "checkpoints", False),
    ("gzip", _gunzip, "data", True),
    ("gzip of a checkpoint", _gunzip, "checkpoints", False),
    ("pickle", _unpickle, "data", True),
    ("pickle of a checkpoint", _unpickle, "checkpoints", False),
    ("the last of a list of names", _newest, "checkpoints", False),
)
def test_the_file_is_what_the_innermost_frame_with_a_file_has(case, tmp_path: Path):
    read, place, expected = case
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    other = tmp_path / place / "step-8"
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(gzip.compress(b"x" * 1000)[:20] if read is _gunzip else b"")
    assert is_elsewhere(_raised(read, other), str(checkpoints)) is expected


def test_without_a_file_in_a_variable_the_place_is_open(tmp_path: Path):
    assert not is_elsewhere(None, str(tmp_path))
    assert not is_elsewhere(ValueError("no frame"), str(tmp_path))


def test_a_launcher_whose_process_failed_shows_no_file_of_that_process(tmp_path: Path):
    class ChildFailedError(Exception):
        __module__ = "torch.distributed.elastic.multiprocessing.errors"

    def launch(program: Path) -> None:
        raise ChildFailedError(program.name)

    program = tmp_path / "program.py"
    program.touch()
    assert not is_elsewhere(_raised(launch, program), str(tmp_path / "checkpoints"))


def _raised(read: Callable[[Path], None], file: Path) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (each reader has an exception of its own)
        read(file)
    return caught.value
