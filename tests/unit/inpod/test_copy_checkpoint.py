"""Copies of another job's checkpoints: whole, once, and never written back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.inpod import copy_checkpoint
from allranks.inpod.copy_checkpoint import MARKER, UNFINISHED, Unusable, copy

PROGRAM = Path(copy_checkpoint.__file__)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    for step in (100, 500):
        (source / f"checkpoint-{step}").mkdir(parents=True)
        (source / f"checkpoint-{step}" / "model.pt").write_text(f"weights of {step}")
    (source / "latest").symlink_to("checkpoint-500")
    target.mkdir()
    return source, target


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.pt"))}


def test_all_checkpoints_are_copied_and_a_link_stays_relative(folders: tuple[Path, Path]):
    source, target = folders
    assert "checkpoint-100, checkpoint-500" in copy(source, target, "first")
    assert content(target) == content(source)
    assert str((target / "latest").readlink()) == "checkpoint-500"
    assert sorted(path.name for path in target.iterdir() if path.name[0] == ".") == [MARKER]
    assert not (source / MARKER).exists()


def test_a_step_selects_the_checkpoint_with_this_number_in_its_name(folders: tuple[Path, Path]):
    source, target = folders
    copy(source, target, "first/100", 100)
    assert content(target) == {"checkpoint-100/model.pt": "weights of 100"}
    assert not (target / "latest").exists()


def test_a_step_without_checkpoint_names_those_that_exist(folders: tuple[Path, Path]):
    with pytest.raises(Unusable, match="first has no checkpoint whose name contains step 50: it has checkpoint-100, "):
        copy(*folders, "first/50", 50)


def test_an_empty_folder_is_no_checkpoint(folders: tuple[Path, Path]):
    (folders[0].parent / "third").mkdir()
    with pytest.raises(Unusable, match="first has no checkpoints"):
        copy(folders[1], folders[0].parent / "third", "first")


def test_the_jobs_own_checkpoints_are_not_replaced(folders: tuple[Path, Path]):
    source, target = folders
    (target / "checkpoint-900").mkdir()
    assert "continues from these" in copy(source, target, "first")
    assert content(target) == {}
    assert copy(source, target, "first") == ""


def test_an_interrupted_copy_is_begun_again(folders: tuple[Path, Path]):
    source, target = folders
    (target / UNFINISHED / "checkpoint-100").mkdir(parents=True)
    (target / "checkpoint-100").mkdir()
    (target / "checkpoint-100" / "half.pt").write_text("half")
    copy(source, target, "first")
    assert content(target) == content(source)


def test_one_pod_copies_and_the_others_wait_for_it(folders: tuple[Path, Path]):
    source, target = folders

    def pod(index: int, copier: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), str(source), str(target), "--name", "first", "--copier", str(copier)]
        return subprocess.Popen(command, env={**os.environ, "ALLRANKS_INDEX": str(index)}, text=True)

    waiting = [pod(1, 1), pod(0, 0)]
    assert content(target) == {}
    assert pod(0, 1).wait(60) == 0
    assert [each.wait(60) for each in waiting] == [0, 0]
    assert content(target) == content(source)
