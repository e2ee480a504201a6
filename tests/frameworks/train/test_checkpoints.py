"""A checkpoint is complete or missing, and a damaged one costs an epoch, not the training."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from common.checkpoints import CheckpointStore, check_archive
from common.claims import Claim
from common.files import write_atomically


def archive(content: str = "weights", compression: int = zipfile.ZIP_STORED) -> bytes:
    """A small archive like those of `torch.save` and `numpy.savez`, without timestamps."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(zipfile.ZipInfo("data"), content * 100, compression)
        file.writestr(zipfile.ZipInfo("more"), content, compression)
    return buffer.getvalue()


def names(directory: Path) -> list[str]:
    """The names of all files except the claim."""
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith(".claim-"))


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, lines: list[str]) -> CheckpointStore:
    return CheckpointStore(Claim(tmp_path / "made" / "on the way"), ".pt", lines.append)


def test_an_empty_directory_has_no_checkpoint(store: CheckpointStore, lines: list[str]) -> None:
    assert store.newest() is None
    assert lines == []


def test_the_last_two_checkpoints_are_kept(store: CheckpointStore) -> None:
    for epoch in (1, 2, 3, 99999, 100000):
        store.save(epoch, archive(f"epoch {epoch}"))
    assert names(store.directory) == ["epoch-100000.claim-00001.pt", "epoch-99999.claim-00001.pt"]
    assert store.newest() == (100000, archive("epoch 100000"))


def test_an_epoch_that_is_saved_again_replaces_itself(store: CheckpointStore) -> None:
    store.save(1, archive("one"))
    store.save(2, archive("first"))
    store.save(2, archive("second"))
    assert names(store.directory) == ["epoch-00001.claim-00001.pt", "epoch-00002.claim-00001.pt"]
    assert store.newest() == (2, archive("second"))


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="empty"),
        pytest.param(archive()[:-30], id="cut short at the end"),
        pytest.param(archive()[:40], id="cut short at the beginning"),
        pytest.param(archive().replace(b"weights", b"weighty", 1), id="one wrong bit in the data"),
        pytest.param(archive(compression=zipfile.ZIP_DEFLATED).replace(b"K", b"L"), id="compressed data damaged"),
        pytest.param(bytes(1000), id="zeros, as after a power failure"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_one_line(
    store: CheckpointStore, lines: list[str], damaged: bytes
) -> None:
    store.save(6, archive("six"))
    store.save(7, archive("seven"))
    path = store.directory / "epoch-00007.claim-00001.pt"
    path.write_bytes(damaged)
    assert store.newest() == (6, archive("six"))
    assert len(lines) == 1
    assert lines[0].startswith(f"checkpoint {path} is damaged (")
    assert lines[0].endswith("): trying the one before it")


def test_two_damaged_checkpoints_mean_a_new_start_and_not_a_crash(store: CheckpointStore, lines: list[str]) -> None:
    for epoch in (6, 7):
        store.save(epoch, archive())
        (store.directory / f"epoch-0000{epoch}.claim-00001.pt").write_bytes(b"?")
    assert store.newest() is None
    assert len(lines) == 2


def test_damaged_checkpoints_of_later_epochs_are_removed_by_the_next_save(store: CheckpointStore) -> None:
    for epoch in (6, 7, 8, 9):
        store.save(epoch, archive())
    for epoch in (8, 9):
        (store.directory / f"epoch-0000{epoch}.claim-00001.pt").write_bytes(b"?")
    (store.directory / "epoch-00007.pt").write_bytes(archive("before there were claims"))
    again = CheckpointStore(Claim(store.directory), ".pt", lambda _: None)
    assert again.newest() == (7, archive("before there were claims"))
    again.save(8, archive())
    assert names(store.directory) == ["epoch-00007.pt", "epoch-00008.claim-00002.pt"]


def test_other_files_are_neither_read_nor_removed(store: CheckpointStore) -> None:
    others = ["epoch-00099.npz", "epoch-best.pt", "loss.png", "my-epoch-00099.pt", ".epoch-00004.npz.tmp"]
    for name in others:
        (store.directory / name).write_bytes(b"?")
    for epoch in (1, 2, 3):
        store.save(epoch, archive())
    assert names(store.directory) == sorted([*others, "epoch-00002.claim-00001.pt", "epoch-00003.claim-00001.pt"])
    assert CheckpointStore(Claim(store.directory), ".pt").newest() == (3, archive())


def test_the_files_of_a_killed_writer_are_not_checkpoints_and_are_removed(store: CheckpointStore) -> None:
    store.save(1, archive())
    for name in (".epoch-00002.claim-00001.pt.claim-00001.tmp", ".metrics.jsonl.claim-00001.tmp"):
        (store.directory / name).write_bytes(archive()[:50])
    again = CheckpointStore(Claim(store.directory), ".pt")
    assert again.newest() == (1, archive())
    assert names(store.directory) == ["epoch-00001.claim-00001.pt"]


def test_a_checkpoint_that_is_not_due_is_saved_at_the_end(store: CheckpointStore) -> None:
    store.save(5, archive("five"))
    store.hold(6, archive("six"))
    store.hold(7, archive("seven"))
    assert names(store.directory) == ["epoch-00005.claim-00001.pt"]
    assert store.flush() == 7
    assert store.newest() == (7, archive("seven"))
    assert store.flush() is None


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_whole_archive_passes(tmp_path: Path) -> None:
    check_archive(archive())
    check_archive(archive(compression=zipfile.ZIP_DEFLATED))
