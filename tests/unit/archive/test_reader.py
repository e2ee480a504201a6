"""What is read from an archive: the newest job of a name, its Events, its logs; damaged files are left out."""

from __future__ import annotations

import gzip
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from allranks.archive import reader as readers
from allranks.archive.layout import LogName
from allranks.archive.reader import Reader
from allranks.archive.store import ArchiveError, DirectoryStore, Store
from allranks.archive.writer import folder_of
from allranks.kube.object_text import LEFT_OUT
from support.archives import WrittenArchive, stamp
from support.sweep_samples import a_sweep, trial_of
from support.ui_samples import a_job, event


def created(name: str, uid: str, time: str, namespace: str = "team"):
    job = a_job(name, "Succeeded")
    job["metadata"] |= {"uid": uid, "creationTimestamp": time, "namespace": namespace}
    return job


def uids(jobs: list) -> list[str]:
    return [job["metadata"]["uid"] for job in jobs]


def test_jobs_are_listed_by_age_and_found_by_name_and_uid(store: Store):
    archive = WrittenArchive(store.url)
    for job in (
        created("penguins", "u2", "2026-03-02T00:00:00Z"),
        created("penguins", "u1", "2026-03-01T00:00:00Z"),
        created("penguins-large", "u3", "2026-03-03T00:00:00Z"),
        created("penguins", "u4", "2026-03-04T00:00:00Z", "other"),
    ):
        archive.job(job)
    reader = Reader(store)
    assert uids(reader.jobs()) == ["u1", "u2", "u3", "u4"]
    assert uids(reader.jobs("team")) == ["u1", "u2", "u3"]
    assert uids(reader.jobs("team", ["penguins"])) == ["u1", "u2"]
    assert uids([reader.find("team", "penguins")]) == ["u2"]
    assert uids([reader.find("team", "penguins", "u1")]) == ["u1"]
    assert reader.find("team", "penguins", "u3") is None
    assert reader.find("team", "penguins", "u1/../../other/penguins-u4") is None
    assert reader.find("empty", "penguins") is None


def test_sweeps_are_listed_and_found_beside_jobs_and_lead_to_the_jobs_of_their_trials(store: Store):
    archive = WrittenArchive(store.url)
    earlier, later = a_sweep("search", "s1"), a_sweep("search", "s2")
    later["metadata"]["creationTimestamp"] = "2026-03-05T10:00:00Z"
    archive.job(earlier, event("search", "TrainingSweep", "TrialStarted", "trial 0: lr=0.1", uid="s1"))
    for sweep in (later, a_sweep("search", "s3", "other")):
        archive.job(sweep)
    for number, sweep in enumerate((earlier, later, earlier)):
        archive.job(trial_of(sweep, "search-0" if number < 2 else "search-0-r1", f"u{number}"))
    job = created("search", "u9", "2026-03-06T00:00:00Z")
    archive.job(job)
    reader = Reader(store)
    assert uids(reader.sweeps()) == ["s3", "s1", "s2"]
    assert uids(reader.sweeps("team")) == ["s1", "s2"]
    assert uids(reader.jobs("team", ["search"])) == ["u9"]
    assert uids([reader.find_any("team", "search")]) == ["u9"], "the newest of both kinds"
    assert uids([reader.find_any("team", "search", "s1")]) == ["s1"]
    assert reader.find_any("team", "search", "s3") is None
    assert reader.get("team", "search-s1") is None, "a sweep is no job"
    assert uids([reader.get_sweep("team", "search-s1")]) == ["s1"]
    assert [found["message"] for found in reader.events(earlier)] == ["trial 0: lr=0.1"]
    assert uids([reader.find_trial(earlier, "search-0")]) == ["u0"]
    assert uids([reader.find_trial(later, "search-0")]) == ["u1"]
    assert reader.find_trial(later, "search-0-r1") is None


def test_only_files_that_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive, reader = WrittenArchive(tmp_path), Reader.open(str(tmp_path))
    jobs = [created(f"job-{number}", f"u{number}", "2026-03-01T00:00:00Z") for number in range(5)]
    for job in jobs:
        archive.job(job)
    read: list[str] = []
    get = DirectoryStore.get
    monkeypatch.setattr(DirectoryStore, "get", lambda self, name: (read.append(name), get(self, name))[1])
    assert len(reader.job_list()) == len(read) == 5
    jobs[3]["status"]["phase"] = "Failed"
    archive.job(jobs[3])
    read.clear()
    phases = {job.metadata["name"]: job.status["phase"] for job in reader.job_list()}
    assert read == ["team/job-3-u3/job.json"]
    assert phases["job-3"] == "Failed"
    DirectoryStore(tmp_path).remove("team/job-0-u0/job.json")
    assert len(reader.job_list()) == 4


def test_events_and_logs_of_a_job(store: Store):
    archive, job = WrittenArchive(store.url), a_job("penguins", "Failed")
    archive.job(job, event("penguins", "DistributedTraining", "Started", "attempt 0 started", uid="uid-penguins"))
    names = [LogName(0, "master", 0), LogName(0, "worker", 1, 2), LogName(1, "master", 0)]
    for log in names:
        archive.log(job, log, f"text of {log.path}", "end", second=log.attempt)
    reader = Reader(store)
    assert [found["message"] for found in reader.events(job)] == ["attempt 0 started"]
    assert reader.logs(job) == names
    (first, missing) = map(list, reader.lines(job, [names[1], LogName(7, "master", 0)]))
    assert first == [(stamp(0), b"text of attempts/0/worker-1.2.log.gz"), (stamp(1), b"end")]
    assert missing == []
    assert reader.logs(a_job("other", "Failed")) == reader.events(a_job("other", "Failed")) == []


def test_damaged_files_are_left_out(tmp_path: Path):
    archive, job, log = WrittenArchive(tmp_path), a_job("penguins", "Failed"), LogName(0, "master", 0)
    archive.job(job)
    store, reader = DirectoryStore(tmp_path), Reader.open(str(tmp_path))
    for number, damaged in enumerate(
        (b"", b"{", b"[]", b"1", b'{"metadata": {"name": "a"}}', b'{"metadata": 1}', b"\xff")
    ):
        store.put(f"team/broken-u{number}/job.json", damaged)
    assert uids(reader.jobs()) == ["uid-penguins"]
    for damaged in (b"{", b"[]", b'{"items": [1, {"metadata": {}}, {"metadata": 1, "involvedObject": {}}]}', b"\xff"):
        store.put(f"{folder_of(job)}/events.json", damaged)
        assert reader.events(job) == []
    whole = gzip.compress(b"".join(b"line %d\n" % number for number in range(100_000)))
    store.put(f"{folder_of(job)}/{log.path}", whole[: len(whole) // 2])
    [lines] = reader.lines(job, [log])
    texts = [line.text for line in lines]
    assert 10_000 < len(texts) < 90_000
    assert texts[:2] == [b"line 0", b"line 1"]
    store.put(f"{folder_of(job)}/{log.path}", b"not packed")
    assert [list(lines) for lines in reader.lines(job, [log])] == [[]]


def test_a_log_that_unpacks_to_too_much_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readers, "MOST_LOG_BYTES", 1 << 20)
    job, log = a_job("penguins", "Failed"), LogName(0, "master", 0)
    text = (b"x" * 1023 + b"\n") * 8192
    DirectoryStore(tmp_path).put(f"{folder_of(job)}/{log.path}", gzip.compress(text))
    [lines] = Reader.open(str(tmp_path)).lines(job, [log])
    assert 1024 <= len(list(lines)) <= 1024 + 65
    DirectoryStore(tmp_path).put(f"{folder_of(job)}/{log.path}", gzip.compress(bytes(8 << 20)))
    [lines] = Reader.open(str(tmp_path)).lines(job, [log])
    assert sum(len(line.text) for line in lines) < 17 * 1024


@pytest.mark.parametrize("moved", [{"name": "../../secret"}, {"namespace": "other"}, {"uid": "u2"}, {"name": 1}])
def test_a_job_whose_names_are_not_those_of_its_folder_is_left_out(tmp_path: Path, moved: dict):
    job = a_job("penguins", "Failed")
    job["metadata"] |= moved
    DirectoryStore(tmp_path).put("team/penguins-uid-penguins/job.json", json.dumps(job).encode())
    reader = Reader.open(str(tmp_path))
    assert reader.jobs() == []
    assert reader.find("team", "penguins", "uid-penguins") is None


@pytest.mark.parametrize(
    "place", [("..", "etc"), ("team", ".."), ("team", "a/b"), ("", "a"), ("team", "a\0"), ("a..b", "c")]
)
def test_a_name_that_leads_elsewhere_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[str, str]
):
    monkeypatch.setattr(DirectoryStore, "get", lambda *_: pytest.fail("a file was read"))
    assert Reader.open(str(tmp_path)).get(*place) is None


def test_only_the_newest_jobs_are_read_if_so_asked(tmp_path: Path):
    archive, reader = WrittenArchive(tmp_path), Reader.open(str(tmp_path))
    for number in range(5):
        archive.job(created(f"job-{number}", f"u{number}", f"2026-03-0{number + 1}T00:00:00Z"))
        os.utime(tmp_path / f"team/job-{number}-u{number}/job.json", (number, number))
    assert uids(reader.jobs(most=2)) == ["u3", "u4"]
    assert uids(reader.jobs(most=10)) == ["u0", "u1", "u2", "u3", "u4"]


@pytest.mark.parametrize("part", ["spec", "metadata"])
def test_a_list_holds_no_large_part_of_a_job_and_the_job_itself_is_read_whole(tmp_path: Path, part: str):
    archive, reader = WrittenArchive(tmp_path), Reader.open(str(tmp_path))
    job = created("penguins", "u1", "2026-03-01T00:00:00Z")
    job["spec"]["pool"] = "a100"
    large: dict = {
        "spec": {"template": {"spec": {"x": [{}] * 9000}}},
        "metadata": {"annotations": {"note": "x" * 60_000}},
    }
    job[part] |= large[part]
    archive.job(job)
    [text] = reader.job_list()
    assert len(text.json) < 8_000
    assert text.metadata["annotations"][LEFT_OUT].startswith("spec")
    assert (text.manifest()["spec"], text.status["phase"]) == ({"framework": "pytorch", "pool": "a100"}, "Succeeded")
    [whole] = reader.jobs("team", ["penguins"])
    assert whole == reader.get("team", "penguins-u1") == reader.jobs()[0]
    assert whole[part].items() >= large[part].items()


def test_an_archive_that_does_not_exist_is_an_error(tmp_path: Path):
    with pytest.raises(ArchiveError, match="there is no such directory"):
        Reader.open(str(tmp_path / "missing")).jobs()


def test_jobs_are_read_one_after_another_and_jobs_that_ended_earlier_are_not_read(tmp_path: Path, monkeypatch):
    archive = WrittenArchive(tmp_path)
    for number in range(300):
        archive.job(created(f"job-{number}", f"u{number}", "2026-03-01T00:00:00Z"))
    os.utime(tmp_path / "team/job-7-u7/job.json", (1e9, 1e9))
    (tmp_path / "team/job-8-u8/job.json").write_text("{")
    read: list[str] = []
    get = DirectoryStore.get
    monkeypatch.setattr(DirectoryStore, "get", lambda store, name: read.append(name) or get(store, name))
    reader = Reader.open(str(tmp_path))
    jobs = reader.each_job("team", since=datetime(2026, 3, 1, tzinfo=UTC))
    next(jobs)
    assert len(read) < 100
    assert set(uids(jobs)) >= {"u299", "u9"}
    assert len(read) == 299
    assert len(list(reader.each_job())) == 299
    assert list(reader.each_job("other")) == []
