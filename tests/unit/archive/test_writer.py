"""What is written: masked, bounded, and the same however often it is repeated."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from allranks.archive import writer as writers
from allranks.archive.layout import LogName
from allranks.archive.reader import Reader
from allranks.archive.store import ArchiveError, DirectoryStore, Store
from allranks.archive.tail import Tail
from allranks.archive.writer import Writer, folder_of
from allranks.kube.pod_logs import Line
from support.sweep_samples import a_sweep
from support.ui_samples import a_job, event

SECRET = "hunter2hunter2"


def a_secret_job() -> dict[str, Any]:
    job = a_job("penguins", "Failed")
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "DB_PASSWORD", "value": SECRET}]}]}}
    job["spec"]["roles"]["worker"]["template"] = template
    job["status"]["lastFailure"] = {"message": f"login with {SECRET} failed"}
    job["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": SECRET}
    return job


def test_a_job_is_written_with_its_events_and_without_secrets(store: Store):
    job, writer = a_secret_job(), Writer(store)
    events = [event("penguins", "DistributedTraining", "Failed", f"pod said {SECRET}", uid="uid-penguins")]
    assert writer.save(job, events) is True
    folder = folder_of(job)
    assert folder == "team/penguins-uid-penguins"
    files = {name: store.get(f"{folder}/{name}") for name in ("job.json", "events.json")}
    assert all(SECRET.encode() not in (data or b"") for data in files.values())
    read = json.loads(files["job.json"] or b"")
    assert read["status"]["lastFailure"]["message"] == "login with <masked> failed"
    assert read["metadata"]["uid"] == "uid-penguins"
    assert json.loads(files["events.json"] or b"")["items"][0]["message"] == "pod said <masked>"


def test_the_same_job_is_not_written_again(store: Store):
    job, writer = a_secret_job(), Writer(store)
    events = [event("penguins", "DistributedTraining", "Started", "attempt 0 started", uid="uid-penguins")]
    assert writer.save(job, events) is True
    before = store.list()
    assert writer.save(job, events) is False
    assert writer.save(job, None) is False
    assert store.list() == before


def test_a_secret_whose_value_is_the_name_of_the_job_does_not_hide_the_job(store: Store):
    job = a_job("penguins", "Failed")
    env = [{"name": "DB_PASSWORD", "value": "penguins"}]
    job["spec"]["roles"]["worker"]["template"] = {"spec": {"containers": [{"name": "trainer", "env": env}]}}
    job["status"]["lastFailure"] = {"message": "penguins: wrong password"}
    Writer(store).save(job, None, ["namespace-of-team", "team"])
    read = Reader(store).get("team", "penguins-uid-penguins")
    assert read is not None
    assert read["status"]["lastFailure"]["message"] == "<masked>: wrong password"


def test_the_largest_sweep_is_written_and_read(store: Store):
    sweep = a_sweep()
    trials = [{**sweep["status"]["trials"][0], "number": number, "message": "x" * 1024} for number in range(500)]
    sweep["status"]["trials"] = trials
    assert Writer(store).save(sweep, None) is True
    found = Reader(store).get_sweep("team", "search-uid-search")
    assert found == sweep
    assert sum(entry.size for entry in store.list()) < 1 << 20


def numbered(number: int) -> dict[str, Any]:
    metadata = {"name": f"e{number}", "uid": f"uid-{number}"}
    return {"metadata": metadata, "lastTimestamp": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z", "count": 1}


def test_expired_events_stay_newer_states_replace_older_ones_and_their_number_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writers, "MOST_EVENTS", 5)
    job, writer, store = a_job("penguins", "Running"), Writer(DirectoryStore(tmp_path)), DirectoryStore(tmp_path)

    def saved(*events: dict[str, Any]) -> list[tuple[str, int]]:
        writer.save(job, events)
        items = json.loads(store.get(f"{folder_of(job)}/events.json") or b"")["items"]
        return [(item["metadata"]["name"], item["count"]) for item in items]

    assert saved(numbered(1), numbered(2)) == [("e1", 1), ("e2", 1)]
    assert saved({**numbered(2), "count": 7}, numbered(3)) == [("e1", 1), ("e2", 7), ("e3", 1)]
    assert [name for name, _ in saved(*map(numbered, range(4, 8)))] == ["e3", "e4", "e5", "e6", "e7"]


def test_a_damaged_file_of_events_is_replaced(tmp_path: Path):
    job, store = a_job("penguins", "Running"), DirectoryStore(tmp_path)
    for damaged in (b"{", b"[]", b'{"items": [1]}'):
        store.put(f"{folder_of(job)}/events.json", damaged)
        Writer(store).save(job, [numbered(1)])
        assert json.loads(store.get(f"{folder_of(job)}/events.json") or b"")["items"] == [numbered(1)]


def lines(*texts: str) -> list[Line]:
    return [Line(b"2026-01-01T00:00:00.000000001Z", text.encode()) for text in texts]


def test_the_end_of_a_log_is_kept_within_bounds(tmp_path: Path):
    path = tmp_path / "spool"
    tail = Tail(path, 10_000)
    for number in range(2000):
        tail.add(lines(f"line {number}"))
        assert path.stat().st_size < 2 * 10_000 + 4096 + 8192  # the batch, and the buffer of the file
    text = gzip.decompress(tail.packed([])).decode().splitlines()
    assert text[0] == f"[{tail.dropped} bytes before this are left out]"
    assert text[-1] == "2026-01-01T00:00:00.000000001Z line 1999"
    numbers = [int(line.rpartition(" ")[2]) for line in text[1:]]
    assert numbers == list(range(numbers[0], 2000))
    assert 9_000 < sum(len(line) + 1 for line in text[1:]) <= 10_000
    total = sum(len(f"2026-01-01T00:00:00.000000001Z line {number}\n") for number in range(2000))
    assert tail.dropped + sum(len(line) + 1 for line in text[1:]) == total
    tail.close()
    assert not path.exists()


def test_a_short_log_is_complete_and_only_its_owner_can_read_the_spool(tmp_path: Path):
    tail = Tail(tmp_path / "spool", 10_000)
    assert tail.empty
    tail.add([*lines("one", "10%\r20%\r30%\r"), Line(b"", b"no time"), *lines("\x1b[31mred\x1b[0m")])
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o600
    stamp = "2026-01-01T00:00:00.000000001Z"
    assert gzip.decompress(tail.packed([])).decode() == f"{stamp} one\n{stamp} 30%\nno time\n{stamp} red\n"
    assert tail.packed([]) == tail.packed([])
    tail.close()


def test_logs_are_masked(tmp_path: Path):
    tail = Tail(tmp_path / "spool", 1 << 20)
    secret = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJl"
    tail.add(
        lines(f"using {SECRET}", "API_KEY=abcdef123", f"token {secret}", '{"password": "s3cr3t-s3cr3t"}', "loss=3.25")
    )
    text = gzip.decompress(tail.packed([SECRET])).decode()
    for hidden in (SECRET, "abcdef123", secret, "s3cr3t-s3cr3t"):
        assert hidden not in text
    assert text.count("<masked>") == 4
    assert "loss=3.25" in text
    tail.close()


def test_logs_of_too_many_attempts_are_deleted(tmp_path: Path):
    store = DirectoryStore(tmp_path)
    writer, folder = Writer(store), "team/penguins-uid"
    for attempt in range(25):
        writer.save_log(folder, LogName(attempt, "worker", 0), b"x")
    kept = {int(entry.name.split("/")[3]) for entry in store.list()}
    assert kept == {0, *range(6, 25)}
    assert writer.has_log(folder, LogName(24, "worker", 0))
    assert not writer.has_log(folder, LogName(24, "worker", 1))
    assert not writer.has_log(folder, LogName(3, "worker", 0))


def test_old_jobs_are_deleted_and_those_that_exist_stay(store: Store):
    writer = Writer(store)
    for name in ("old", "live"):
        job = a_job(name, "Succeeded")
        writer.save(job, [])
        writer.save_log(folder_of(job), LogName(0, "worker", 0), b"0123456789")
    later = max(entry.modified for entry in store.list()) + 100
    live = {"team/live-uid-live"}
    deleted, size = writer.clean_up(later, max_age=1000, max_bytes=None, live=live)
    assert deleted == 0
    deleted, size = writer.clean_up(later, max_age=50, max_bytes=None, live=live)
    assert (deleted, size) == (1, sum(entry.size for entry in store.list()))
    assert {entry.name.split("/")[1] for entry in store.list()} == {"live-uid-live"}


def test_a_killed_clean_up_is_finished_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DirectoryStore(tmp_path)
    writer, job = Writer(store), a_job("old", "Succeeded")
    writer.save(job, [])
    writer.save_log(folder_of(job), LogName(0, "worker", 0), b"x")
    removed: list[str] = []
    remove = store.remove

    def once(name: str) -> None:
        if removed:
            raise ArchiveError("killed")
        removed.append(name)
        remove(name)

    monkeypatch.setattr(store, "remove", once)
    with pytest.raises(ArchiveError):
        writer.clean_up(1e12, max_age=1, max_bytes=None, live=())
    assert removed == ["team/old-uid-old/job.json"]  # no reader shows the rest
    monkeypatch.setattr(store, "remove", remove)
    writer.clean_up(1e12, max_age=1, max_bytes=None, live=())
    assert store.list() == []
