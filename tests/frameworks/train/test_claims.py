"""A stale rank 0 that was replaced cannot damage the files of its successor, and ends when it tries to write."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from common.checkpoints import CheckpointStore
from common.claims import Claim, Replaced, newest_claim
from common.metrics import MetricsLog, read_metrics

from .launch import ROOT
from .test_checkpoints import archive, names
from .test_records import append, epochs

FIRST_SIX, FIRST_SEVEN = "epoch-00006.claim-00001.pt", "epoch-00007.claim-00001.pt"


def start(directory: Path) -> CheckpointStore:
    """Starts as rank 0 of an attempt does."""
    return CheckpointStore(Claim(directory), ".pt")


@pytest.fixture
def stale(tmp_path: Path) -> CheckpointStore:
    """Attempt 0, at epoch 7 when the second training starts."""
    store = start(tmp_path)
    for epoch in (6, 7):
        store.save(epoch, archive(f"stale {epoch}"))
    return store


@pytest.fixture
def late(stale: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """The same at the worst moment: after its check for newer claims and before its write."""
    monkeypatch.setattr(stale._claim, "check", lambda: None)
    return stale


# The claim.


def test_each_start_takes_the_next_number_and_leaves_one_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, attempt in enumerate(["0", "1", "2", "0", ""], start=1):  # then a new job, then one without variables
        monkeypatch.setenv("ALLRANKS_ATTEMPT", attempt)
        assert Claim(tmp_path).number == number
        assert [path.name for path in tmp_path.iterdir()] == [f".claim-{number:05d}"]
        content = json.loads((tmp_path / f".claim-{number:05d}").read_text())
        assert content == {"attempt": attempt or "0", "job": ""}


def test_concurrent_starts_get_different_numbers(tmp_path: Path) -> None:
    claims: list[Claim] = []
    together = threading.Barrier(8)

    def run() -> None:
        together.wait()
        claims.append(Claim(tmp_path))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({claim.number for claim in claims}) == 8
    last = max(claims, key=lambda claim: claim.number)
    last.check()
    for claim in claims:
        if claim is not last:
            with pytest.raises(Replaced):
                claim.check()


@pytest.mark.parametrize(
    ("meanwhile", "number"),
    [
        pytest.param(".claim-00001", 2, id="the number is taken"),
        pytest.param(".claim-00002", 3, id="the number was taken, and its file removed by the next one"),
    ],
)
def test_a_start_with_a_stale_listing_takes_a_later_number(
    meanwhile: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / meanwhile).touch()
    looks = iter([0, 0])  # a listing from before the file existed
    monkeypatch.setattr("common.claims.newest_claim", lambda directory: next(looks, newest_claim(directory)))
    claim = Claim(tmp_path)
    assert claim.number == number
    assert [path.name for path in tmp_path.iterdir()] == [claim.mark]


def test_checkpoints_that_were_copied_without_the_claim_do_not_outrank_new_ones(
    stale: CheckpointStore, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "epoch-00007.claim-00041.pt").write_bytes(archive("copied"))
    store = start(copy)
    assert store.newest() == (7, archive("copied"))
    store.save(8, archive("eight"))
    assert names(copy) == ["epoch-00007.claim-00041.pt", "epoch-00008.claim-00042.pt"]
    assert store.newest() == (8, archive("eight"))


@pytest.mark.parametrize(
    ("mine", "theirs", "message"),
    [
        pytest.param("1", "2", "attempt 1 was replaced by attempt 2", id="the next attempt"),
        pytest.param("3", "0", "attempt 3 was replaced by attempt 0", id="a new job on the same volume"),
        pytest.param("", "", "attempt 0 was replaced by a later start", id="twice by hand"),
    ],
)
def test_the_error_of_a_replaced_training_names_its_successor(
    mine: str, theirs: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLRANKS_ATTEMPT", mine)
    claim = Claim(tmp_path)
    claim.check()
    monkeypatch.setenv("ALLRANKS_ATTEMPT", theirs)
    Claim(tmp_path).check()
    with pytest.raises(Replaced) as replaced:
        claim.check()
    assert str(replaced.value) == f"{message} ({tmp_path}/.claim-00002)"


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        pytest.param(("1", "a"), ("0", "a"), False, id="an attempt that starts after the next one"),
        pytest.param(("10", "a"), ("9", "a"), False, id="numbers, not text"),
        pytest.param(("1", "a"), ("1", "a"), True, id="the same attempt again, as torchrun restarts it"),
        pytest.param(("1", "a"), ("2", "a"), True, id="the next attempt"),
        pytest.param(("3", "a"), ("0", "b"), True, id="a new job on the same volume"),
        pytest.param(("3", ""), ("0", ""), True, id="perhaps a new job: nothing tells"),
        pytest.param(("3", "a"), ("0", ""), True, id="by hand, in the directory of a job"),
    ],
)
def test_an_attempt_that_starts_late_claims_nothing(
    first: tuple[str, str],
    second: tuple[str, str],
    allowed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def claim(attempt: str, job: str) -> Claim:
        monkeypatch.setenv("ALLRANKS_ATTEMPT", attempt)
        monkeypatch.setenv("ALLRANKS_JOB_UID", job)
        return Claim(tmp_path)

    before = claim(*first)
    if allowed:
        assert claim(*second).number == 2
        return
    with pytest.raises(Replaced, match=rf"attempt {second[0]} was replaced by attempt {first[0]} \("):
        claim(*second)
    before.check()
    assert [path.name for path in tmp_path.iterdir()] == [".claim-00001"]


def test_an_empty_claim_of_a_killed_writer_counts(stale: CheckpointStore) -> None:
    (stale.directory / ".claim-00002").touch()
    with pytest.raises(Replaced, match=r"attempt 0 was replaced by a later start \("):
        stale.save(8, archive("stale 8"))
    assert Claim(stale.directory).number == 3


# Checkpoints.


def test_a_replaced_training_writes_and_deletes_nothing(stale: CheckpointStore) -> None:
    start(stale.directory)
    stale.hold(8, archive("stale 8"))
    for write in (lambda: stale.save(8, archive("stale 8")), stale.flush):
        with pytest.raises(Replaced):
            write()
    assert names(stale.directory) == [FIRST_SIX, FIRST_SEVEN]


def test_a_late_write_does_not_replace_delete_or_outrank(late: CheckpointStore) -> None:
    successor = start(late.directory)
    assert successor.newest() == (7, archive("stale 7"))
    successor.save(8, archive("successor 8"))
    assert names(late.directory) == [FIRST_SEVEN, "epoch-00008.claim-00002.pt"]

    for epoch in (8, 9, 10, 11):  # a real one would end at 8
        late.save(epoch, archive(f"stale {epoch}"))
    assert successor.newest() == (8, archive("successor 8"))
    assert start(late.directory).newest() == (8, archive("successor 8"))


def test_a_late_write_deletes_none_of_many_newer_ones(late: CheckpointStore) -> None:
    newer = [f"epoch-{epoch:05d}.claim-00002.pt" for epoch in (1, 2, 8, 9)]
    for name in newer:
        (late.directory / name).write_bytes(archive())
    late.save(8, archive("stale 8"))
    assert names(late.directory) == sorted([*newer, FIRST_SEVEN, "epoch-00008.claim-00001.pt"])


def test_a_late_checkpoint_is_removed_by_the_next_one(late: CheckpointStore) -> None:
    successor = start(late.directory)
    successor.save(8, archive("successor 8"))
    late.save(8, archive("stale 8"))
    successor.save(9, archive("successor 9"))
    assert names(late.directory) == ["epoch-00008.claim-00002.pt", "epoch-00009.claim-00002.pt"]


def test_a_late_write_keeps_the_fallback_of_its_successor(late: CheckpointStore) -> None:
    successor = start(late.directory)
    successor.save(8, archive("successor 8"))
    late.save(8, archive("stale 8"))
    (late.directory / "epoch-00008.claim-00002.pt").write_bytes(b"?")
    said: list[str] = []
    third = CheckpointStore(Claim(late.directory), ".pt", said.append)
    assert third.newest() == (8, archive("stale 8"))
    (late.directory / "epoch-00008.claim-00001.pt").write_bytes(b"?")
    assert third.newest() == (7, archive("stale 7"))
    assert len(said) == 3


def test_a_start_that_saved_nothing_is_skipped(late: CheckpointStore) -> None:
    start(late.directory)  # and is killed
    late.save(8, archive("stale 8"))  # valid: the next training continues from it
    third = start(late.directory)
    assert third.newest() == (8, archive("stale 8"))
    third.save(9, archive("third 9"))
    assert names(late.directory) == ["epoch-00008.claim-00001.pt", "epoch-00009.claim-00003.pt"]


def test_the_directory_survives_a_zombie_that_is_caught_while_it_writes(
    stale: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(_: int) -> None:
        monkeypatch.undo()
        start(stale.directory)

    monkeypatch.setattr("os.fsync", meanwhile)
    with pytest.raises(Replaced):
        stale.save(8, archive("stale 8"))
    assert names(stale.directory) == [FIRST_SIX, FIRST_SEVEN]


def test_a_checkpoint_that_is_removed_during_the_listing_is_skipped(
    late: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    successor = start(late.directory)
    read_bytes = Path.read_bytes

    def meanwhile(path: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        for epoch in (8, 9):
            late.save(epoch, archive(f"stale {epoch}"))
        return path.read_bytes()

    monkeypatch.setattr(Path, "read_bytes", meanwhile)
    assert successor.newest() == (9, archive("stale 9"))


KILLED = """
import os, sys
sys.path.insert(0, {train!r})
from pathlib import Path
from common.checkpoints import CheckpointStore
from common.claims import Claim
from common.metrics import MetricsLog
left = int(sys.argv[1])

def hook(event, arguments):
    global left
    if event in ("open", "os.rename", "os.remove") and {directory!r} in str(arguments[0]):
        left -= 1
        if left < 0:
            os._exit(9)

sys.addaudithook(hook)
claim = Claim(Path({directory!r}))
store = CheckpointStore(claim, ".pt")
log = MetricsLog(claim, store.newest()[0])
log.append(epoch=8, step=64, loss=0.1, validation_loss=0.1, accuracy=1, seconds=1, samples=1, world_size=1)
store.save(8, Path({new!r}).read_bytes())
"""


def test_a_kill_at_any_file_operation_loses_nothing_for_the_next_start(tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.write_bytes(archive("new"))
    found = []
    for operations in range(100):
        directory = tmp_path / str(operations)
        old = start(directory)
        log = MetricsLog(old._claim, 0)
        for epoch in (6, 7):
            append(log, epoch)
            old.save(epoch, archive("old"))
        program = KILLED.format(train=str(ROOT / "train"), directory=str(directory), new=str(new))
        code = subprocess.run([sys.executable, "-c", program, str(operations)], check=False).returncode
        after = start(directory)
        newest = after.newest()
        assert newest in [(7, archive("old")), (8, archive("new"))]
        MetricsLog(after._claim, newest[0])
        assert epochs(directory / "metrics.jsonl") == list(range(6, newest[0] + 1))
        assert not [name for name in names(directory) if name.endswith(".tmp")]
        found.append(newest[0])
        if code == 0:
            break
        assert code == 9
    assert found == sorted(found)
    assert set(found) == {7, 8}
    assert len(found) > 10


# Metrics.


def test_a_replaced_training_appends_nothing(tmp_path: Path) -> None:
    log = MetricsLog(Claim(tmp_path), 0)
    append(log, 1)
    Claim(tmp_path)
    with pytest.raises(Replaced):
        append(log, 2)
    assert epochs(tmp_path / "metrics.jsonl") == [1]


def test_a_late_line_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    claim = Claim(tmp_path)
    stale = MetricsLog(claim, 0)
    for epoch in (1, 2, 3):
        append(stale, epoch)
    monkeypatch.setattr(claim, "check", lambda: None)
    log = MetricsLog(Claim(tmp_path), 2)
    with path.open("ab") as file:
        file.write(b'{"epoch": 4, "loss": 7, "claim": 1}\n')  # of the stale training
    assert epochs(path) == [1, 2, 4]
    append(log, 3)
    assert [(line["epoch"], line["claim"]) for line in map(json.loads, path.read_text().splitlines())] == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]


def test_the_line_of_the_newer_claim_wins_for_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    old, new, first = ({"epoch": 2, "loss": 9.0}, {"epoch": 2, "claim": 2}, {"epoch": 1, "claim": 2})
    late, other = {"epoch": 2, "claim": 1}, {"epoch": 3, "claim": 1}
    path.write_text("".join(json.dumps(line) + "\n" for line in (old, first, new, late, other)))
    assert read_metrics(path) == [first, new, other]
    Claim(tmp_path)
    MetricsLog(Claim(tmp_path), 2)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [first, new]
