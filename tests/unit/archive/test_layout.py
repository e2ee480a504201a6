"""Names in an archive, and which of its files are deleted."""

from __future__ import annotations

import random

from allranks.archive.layout import (
    Entry,
    Folder,
    LogName,
    deletion_order,
    expired,
    folders,
    job_folder,
    log_name,
    superseded,
)

UID = "1f5e2c3a-0000-4000-8000-123456789abc"


def test_a_log_has_one_name_and_the_name_has_one_log():
    log = LogName(3, "worker", 12)
    assert log.path == "attempts/3/worker-12.log.gz"
    assert LogName(3, "worker", 12, 2).path == "attempts/3/worker-12.2.log.gz"
    for name in (log, LogName(0, "ps", 0, 7)):
        assert log_name(name.path) == name


def test_other_files_are_no_logs():
    for path in ("job.json", "attempts/0/worker-0.log", "attempts/0/../worker-0.log.gz", "x/attempts/0/a-0.log.gz"):
        assert log_name(path) is None


def test_files_are_grouped_by_job_and_others_are_left_out():
    folder = job_folder("team", "penguins", UID)
    found = folders(
        [
            Entry("README", 5, 9.0),
            Entry("team/notes.txt", 5, 9.0),
            Entry(f"{folder}/job.json", 10, 3.0),
            Entry(f"{folder}/attempts/0/worker-0.log.gz", 100, 2.0),
        ]
    )
    assert found == [Folder(folder, 110, 3.0, (f"{folder}/attempts/0/worker-0.log.gz", f"{folder}/job.json"))]


def test_folders_are_deleted_by_age_then_by_size_and_live_ones_stay():
    found = [Folder(f"team/job-{number}", 100, float(number), ()) for number in range(10)]
    gone = [folder.name for folder in expired(found, 10.0, max_age=8.0, max_bytes=None, live=())]
    assert gone == ["team/job-0", "team/job-1"]
    gone = [folder.name for folder in expired(found, 10.0, max_age=None, max_bytes=700, live={"team/job-1"})]
    assert gone == ["team/job-0", "team/job-2", "team/job-3"]
    assert expired(found, 10.0, max_age=None, max_bytes=None, live=()) == []


def test_what_stays_fits_unless_live_jobs_alone_are_too_large():
    seed = 20_261_125
    draw = random.Random(seed)
    for case in range(300):
        found = [Folder(f"n/{place}", draw.randint(0, 50), draw.uniform(0, 100), ()) for place in range(12)]
        live = {folder.name for folder in found if draw.random() < 0.3}
        most, age = draw.randint(0, 400), draw.choice([None, draw.uniform(0, 120)])
        gone = expired(found, 110.0, max_age=age, max_bytes=most, live=live)
        stay = [folder for folder in found if folder not in gone]
        about = f"seed {seed}, case {case}"
        assert not live & {folder.name for folder in gone}, about
        assert sum(f.size for f in stay) <= most or {f.name for f in stay} == live, about
        assert age is None or all(f.name in live or 110.0 - f.modified <= age for f in stay), about
        # Nothing is deleted without need: the newest of what is gone for its size would not fit.
        for_size = [f for f in gone if age is None or 110.0 - f.modified <= age]
        if for_size and for_size[-1].size:
            assert sum(f.size for f in stay) + for_size[-1].size > most, about


def test_the_job_or_sweep_is_deleted_before_its_other_files():
    names = ("n/a/attempts/0/worker-0.log.gz", "n/a/events.json", "n/a/job.json")
    assert deletion_order(Folder("n/a", 1, 1.0, names))[0] == "n/a/job.json"
    assert deletion_order(Folder("n/a", 1, 1.0, ("n/a/events.json", "n/a/sweep.json")))[0] == "n/a/sweep.json"


def test_logs_of_the_first_and_the_newest_attempts_stay():
    logs = [LogName(attempt, "worker", index) for attempt in range(30) for index in range(2)]
    assert {log.attempt for log in superseded(logs, 20)} == set(range(1, 11))
    assert superseded(logs[:40], 20) == []
    assert {log.attempt for log in superseded(logs, 1)} == set(range(29))
