"""Copies of checkpoints of a program that continues: exactly one step, and never half of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from allranks.data import checkpoint
from allranks.data.errors import ChangedError
from allranks.data.upload import DirectoryTarget, ObjectTarget, Target, open_data, scan, upload
from allranks.errors import DataError


def none(_: float) -> None: ...


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def write(source: Path, *names: str) -> None:
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)


def copied(
    source: Path, step: int, mark: int = 1, sleep: Callable[[float], None] = none, target: Path | None = None
) -> set[str]:
    target = target or source.parent / "copy"
    checkpoint.copy_checkpoint(source, step, mark, target, sleep=sleep)
    return {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["checkpoint-500/model", "checkpoint-500/sub/optimizer", "checkpoint-1500/model"], [0, 1]),
        (["epoch=3-step=500.ckpt", "epoch=5-step=900.ckpt", "last.ckpt"], [0]),
        (["ckpt-500.index", "ckpt-500.data-00000-of-00001", "ckpt-400.index", "checkpoint"], [0, 1]),
        (["global_step500/rank_0", "latest"], [0]),
        (["iter_0000500/model", "latest_checkpointed_iteration.txt"], [0]),
        (["500/model", "400/model"], [0]),
        (["model.pt", "optimizer.pt"], [0, 1]),
        # Numbers that are no steps.
        (["rank-500.pt", "rank-7.pt"], [0, 1]),
        (["resnet500.pt", "optimizer.pt"], [0, 1]),
        (["epoch-00007.claim-00003.pt", "epoch-00006.claim-00003.pt"], [0, 1]),
        (["checkpoint_2026-11-25_15-00-00", "ckpt-20261125.pt", "step_2026.11.25"], [0, 1, 2]),
        (["ckpt-1.index", "ckpt-2.index"], [0, 1]),  # TensorFlow counts checkpoints
    ],
)
def test_the_files_of_a_step_are_copied(source: Path, names: list[str], wanted: list[int]) -> None:
    write(source, *names, ".allranks-resumed", "lost+found/x")
    assert copied(source, 500) == {names[number] for number in wanted}


def test_the_copy_has_the_content_of_links_and_no_folder_elsewhere(source: Path) -> None:
    write(source, "checkpoint-5/model")
    (source / "checkpoint-5" / "latest").symlink_to("model")
    (source / "checkpoint-5" / "outside").symlink_to(source.parent)
    assert copied(source, 5) == {"checkpoint-5/model", "checkpoint-5/latest"}
    assert (source.parent / "copy" / "checkpoint-5" / "latest").read_text() == "checkpoint-5/model"


def test_a_link_to_a_file_of_the_kernel_is_not_copied(source: Path) -> None:
    """It would be the environment of the process that uploads, with its credentials."""
    write(source, "checkpoint-500/model")
    (source / "checkpoint-500" / "link").symlink_to("/proc/self/environ")
    assert copied(source, 500) == {"checkpoint-500/model"}
    assert [found.name for found in scan(source)] == ["checkpoint-500/model"]


ENVIRON = Path("/proc/self/environ")


def test_a_file_that_becomes_a_link_before_it_is_copied_is_not_read(source: Path, monkeypatch: Any) -> None:
    write(source, "checkpoint-500/model", "checkpoint-500/sub/more")
    (source.parent / "kernel").symlink_to("/proc/self")
    stat = checkpoint._stat
    swaps = [
        lambda: (source / "checkpoint-500" / "model").unlink(),
        lambda: (source / "checkpoint-500" / "model").symlink_to(ENVIRON),
        lambda: (source / "checkpoint-500" / "sub" / "more").unlink(),
        lambda: (source / "checkpoint-500" / "sub").rmdir(),
        lambda: (source / "checkpoint-500" / "sub").symlink_to(source.parent / "kernel"),
    ]

    def swapped(*arguments: Any) -> Any:
        before = stat(*arguments)
        while swaps:
            swaps.pop(0)()
        return before

    monkeypatch.setattr(checkpoint, "_stat", swapped)
    with contextlib.suppress(DataError):
        copied(source, 500)
    secret = ENVIRON.read_bytes()[:40]
    assert secret
    assert not [path for path in (source.parent / "copy").rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_a_pipe_in_place_of_a_file_holds_up_no_copy(source: Path) -> None:
    os.mkfifo(source / "pipe")
    with pytest.raises(FileNotFoundError, match="no file of data any more"):
        open_data(source / "pipe")


class Stores:
    """Both kinds of destination, as directories."""

    @staticmethod
    def of_objects(to: str) -> Target:
        target = ObjectTarget.__new__(ObjectTarget)
        target._root, target._type_option, target._fs = to, "", fsspec.filesystem("file", auto_mkdir=True)
        return target

    @staticmethod
    def directory(to: str) -> Target:
        return DirectoryTarget(Path(to))


@pytest.mark.parametrize("connect", [Stores.of_objects, Stores.directory])
def test_a_file_that_becomes_a_link_before_it_is_uploaded_is_not_read(
    source: Path, connect: Callable[[str], Target]
) -> None:
    write(source, "model")
    store = source.parent / "store"
    store.mkdir()

    def swapped(to: str) -> Target:
        (source / "model").unlink()
        (source / "model").symlink_to(ENVIRON)
        return connect(to)

    with pytest.raises(DataError, match="model was removed or replaced while it was uploaded"):
        upload(source, str(store), source.parent / "journal", {}, connect=swapped)
    assert not [path for path in store.rglob("*") if path.is_file() and ENVIRON.read_bytes()[:40] in path.read_bytes()]


def test_a_checkpoint_that_the_program_has_deleted_is_an_error(source: Path) -> None:
    write(source, "checkpoint-200/model")
    with pytest.raises(DataError, match="no name has step 100, which was reported, but there is checkpoint-200"):
        copied(source, 100)


def test_a_directory_without_files_is_an_error(source: Path) -> None:
    with pytest.raises(DataError, match="there is no file of a checkpoint of step 100"):
        copied(source, 100)


def test_a_complete_copy_is_not_made_again_and_another_checkpoint_replaces_it(source: Path) -> None:
    write(source, "checkpoint-100/model", "checkpoint-200/model")
    assert copied(source, 100) == {"checkpoint-100/model"}
    (source / "checkpoint-100" / "model").unlink()
    assert copied(source, 100) == {"checkpoint-100/model"}
    assert copied(source, 200) == {"checkpoint-200/model"}
    write(source, "checkpoint-200/more")
    assert copied(source, 200, mark=2) == {"checkpoint-200/model", "checkpoint-200/more"}


def test_half_a_copy_of_a_killed_process_is_made_again(source: Path) -> None:
    write(source, "checkpoint-100/model")
    copy = source.parent / "copy"
    (copy / "checkpoint-100").mkdir(parents=True)
    (copy / "checkpoint-100" / "stale").write_text("x")
    assert copied(source, 100) == {"checkpoint-100/model"}


def test_files_that_change_meanwhile_are_copied_again(source: Path) -> None:
    """The names do not say which files belong together, so all of them must be still for a while."""
    write(source, "model", "optimizer")
    changes = [2, 1]

    def change(seconds: float) -> None:
        assert seconds > 0
        if changes:
            (source / "optimizer").write_text("x" * changes.pop())

    assert copied(source, 100, sleep=change) == {"model", "optimizer"}
    assert (source.parent / "copy" / "optimizer").read_text() == "xx"


def test_files_that_are_replaced_by_others_of_the_same_size_and_time_count_as_changed(source: Path) -> None:
    write(source, "model")
    before = (source / "model").stat()
    tries = []

    def replace(_: float) -> None:
        tries.append(0)
        (source / "new").write_text("MODEL")
        os.utime(source / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (source / "new").replace(source / "model")

    with pytest.raises(ChangedError, match="the checkpoint of step 100 was changed while it was copied"):
        copied(source, 100, sleep=replace)
    assert len(tries) == checkpoint.TRIES
    assert not list(source.parent.glob("*.json"))
