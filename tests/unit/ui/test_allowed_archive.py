"""What users of the UI in the cluster see of an archive: what they may read of jobs that exist, no names of others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from allranks.archive.layout import LogName
from allranks.ui import archive as archives
from allranks.ui.archive import EVENTS, JOBS, LOGS, SWEEPS, AllowedArchive, ArchivedJobs, Right, SharedArchive
from allranks.ui.logs import LogQuery
from allranks.ui.problems import Problem
from support.archives import WrittenArchive
from support.sweep_samples import a_sweep, trial_of
from support.ui_samples import a_job, event

T = TypeVar("T")
Granted = set[tuple[Right, str | None]]


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def shared(tmp_path: Path) -> SharedArchive:
    """A job, and a sweep with a trial, in each of the namespaces mine, theirs and secret-project."""
    (tmp_path / "archive").mkdir()
    archive = WrittenArchive(tmp_path / "archive")
    for namespace in ("mine", "theirs", "secret-project"):
        job = a_job(f"of-{namespace}", "Succeeded", namespace=namespace)
        archive.job(
            job, event(job["metadata"]["name"], "DistributedTraining", "Done", "done", uid=f"uid-of-{namespace}")
        )
        archive.log(job, LogName(0, "worker", 0), f"log of {namespace}")
        sweep = a_sweep(namespace=namespace)
        archive.job(sweep, event("search", "TrainingSweep", "TrialStarted", "trial 0", uid="uid-search"))
        archive.job(trial_of(sweep, "search-0", "t0"))
    return SharedArchive(archive.url)


def user(shared: SharedArchive, granted: Granted, namespace: str | None = None) -> AllowedArchive:
    async def may(right: Right, where: str | None) -> bool:
        return (right, where) in granted or (right, None) in granted

    return AllowedArchive(shared, namespace, may, "ada")


def names(archive: AllowedArchive) -> list[str]:
    return sorted({entry.group for entry in do(archive.all())})


def sweeps(archive: AllowedArchive) -> list[str]:
    return sorted(sweep.metadata["namespace"] for sweep in do(archive.sweeps()))


def folder(namespace: str) -> tuple[str, str]:
    return namespace, f"of-{namespace}-uid-of-{namespace}"


def test_the_list_has_the_namespaces_in_which_the_user_may_get_jobs(shared: SharedArchive):
    assert names(user(shared, {(JOBS, None)})) == ["mine", "secret-project", "theirs"]
    assert names(user(shared, {(JOBS, "mine"), (JOBS, "theirs")})) == ["mine", "theirs"]
    assert names(user(shared, set())) == []
    assert names(user(shared, {(LOGS, None), (EVENTS, None)})) == []


def test_sweeps_are_listed_where_the_user_may_get_sweeps(shared: SharedArchive):
    assert sweeps(user(shared, {(SWEEPS, None)})) == ["mine", "secret-project", "theirs"]
    assert sweeps(user(shared, {(SWEEPS, "mine"), (JOBS, None)})) == ["mine"]
    assert sweeps(user(shared, {(JOBS, None), (LOGS, None), (EVENTS, None)})) == []
    assert sweeps(user(shared, {(SWEEPS, None)}, "theirs")) == ["theirs"]


def test_a_sweep_its_events_and_its_trials_need_their_rights(shared: SharedArchive):
    sweep = do(user(shared, {(SWEEPS, "mine")}).sweep("mine", "search-uid-search"))
    for folder in ("search-uid-search", "no-such-sweep"):
        with pytest.raises(Problem, match=r"ada cannot get trainingsweeps.allranks.dev in namespace theirs"):
            do(user(shared, {(SWEEPS, "mine"), (JOBS, None)}).sweep("theirs", folder))
    with pytest.raises(Problem, match="ada cannot list events in namespace mine"):
        do(user(shared, {(SWEEPS, "mine")}).sweep_events(sweep))
    found = do(user(shared, {(SWEEPS, "mine"), (EVENTS, "mine")}).sweep_events(sweep))
    assert [one["reason"] for one in found] == ["TrialStarted"]
    with pytest.raises(Problem, match=r"ada cannot get distributedtrainings.allranks.dev in namespace mine"):
        do(user(shared, {(SWEEPS, "mine")}).trial(sweep, "search-0"))
    with pytest.raises(Problem, match=r"ada cannot get distributedtrainings.allranks.dev in namespace mine"):
        do(user(shared, {(SWEEPS, "mine")}).trials(sweep, ["search-0"]))
    assert len(do(user(shared, {(SWEEPS, "mine"), (JOBS, "mine")}).trials(sweep, ["search-0", "search-1"]))) == 1
    assert do(user(shared, {(SWEEPS, "mine"), (JOBS, "mine")}).trial(sweep, "search-0")).group == "mine"


def test_a_page_of_one_namespace_lists_no_other(shared: SharedArchive):
    assert names(user(shared, {(JOBS, None)}, "mine")) == ["mine"]
    assert names(user(shared, {(JOBS, "theirs")}, "mine")) == []


def test_a_job_that_the_user_may_not_get_and_one_that_does_not_exist_have_the_same_answer(shared: SharedArchive):
    archive = user(shared, {(JOBS, "mine")})
    assert do(archive.get(*folder("mine"))).job == "of-mine"
    answers = set()
    for name in ("of-theirs-uid-of-theirs", "no-such-job"):
        with pytest.raises(Problem) as found:
            do(archive.get("theirs", name))
        answers.add((found.value.status, str(found.value)))
    [(status, text)] = answers
    assert status == 403
    assert text.startswith("ada cannot get distributedtrainings.allranks.dev in namespace theirs")
    with pytest.raises(Problem, match="this page shows namespace mine, not theirs"):
        do(user(shared, {(JOBS, None)}, "mine").get(*folder("theirs")))


@pytest.mark.parametrize(
    ("granted", "right"),
    [
        ({(JOBS, "mine")}, "get pods/log"),
        ({(JOBS, "mine"), (LOGS, "theirs")}, "get pods/log"),
        ({(LOGS, "mine")}, "get distributedtrainings.allranks.dev"),
    ],
)
def test_logs_need_the_rights_to_get_jobs_and_logs(shared: SharedArchive, granted: Granted, right: str):
    entry = do(user(shared, {(JOBS, None)}).get(*folder("mine")))
    with pytest.raises(Problem, match=f"ada cannot {right} in namespace mine"):
        do(user(shared, granted).last_lines(entry, LogQuery()))
    allowed = user(shared, {(JOBS, "mine"), (LOGS, "mine")})
    assert [line.line for line in do(allowed.last_lines(entry, LogQuery())).lines] == ["log of mine"]


def test_events_need_the_right_to_list_them(shared: SharedArchive):
    entry = do(user(shared, {(JOBS, None)}).get(*folder("mine")))
    with pytest.raises(Problem, match="ada cannot list events in namespace mine"):
        do(user(shared, {(JOBS, "mine"), (LOGS, "mine")}).events(entry))
    found = do(user(shared, {(JOBS, "mine"), (EVENTS, "mine")}).events(entry))
    assert [one["reason"] for one in found] == ["Done"]


def test_without_the_rights_nothing_is_read(shared: SharedArchive, monkeypatch: pytest.MonkeyPatch):
    entry = do(user(shared, {(JOBS, None)}).get(*folder("mine")))

    async def fail(*_: Any) -> Any:
        raise AssertionError("the archive was read")

    sweep = a_sweep(namespace="mine")
    for method in ("all", "get", "events", "last_lines", "sweeps", "sweep", "sweep_events", "trial"):
        monkeypatch.setattr(ArchivedJobs, method, fail)
    archive = user(shared, set(), "mine")
    assert do(archive.all()) == do(archive.sweeps()) == []
    readings = [archive.get(*folder("mine")), archive.events(entry), archive.last_lines(entry, LogQuery())]
    readings += [archive.sweep("mine", "x"), archive.sweep_events(sweep), archive.trial(sweep, "x")]
    for reading in readings:
        with pytest.raises(Problem, match="ada cannot"):
            do(reading)


def test_users_share_the_lists_and_the_number_of_lists_is_bounded(shared: SharedArchive, monkeypatch):
    monkeypatch.setattr(archives, "MOST_NAMESPACES", 2)
    mine = shared.in_namespace("mine")
    assert shared.in_namespace("mine") is mine
    shared.in_namespace("a")
    assert shared.in_namespace("mine") is mine, "the one that was used last stays"
    shared.in_namespace("b")
    assert shared.in_namespace("mine") is mine
    shared.in_namespace("c")
    shared.in_namespace("d")
    assert shared.in_namespace("mine") is not mine
