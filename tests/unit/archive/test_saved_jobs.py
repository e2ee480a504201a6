"""When a job is written: at the begin and end of attempts, when it has finished, and when it is deleted."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allranks.archive import access as accesses
from allranks.archive import saved_jobs
from allranks.archive.access import Access
from allranks.archive.metrics import Metrics
from allranks.archive.saved_jobs import SavedJobs
from allranks.archive.store import ArchiveError, DirectoryStore
from allranks.archive.writer import Writer
from allranks.errors import ClusterError
from support.ui_samples import a_job, event

JOB = "team/penguins-uid-penguins/job.json"


class Events:
    """A cluster with Events."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] | None = []

    async def get(self, _path: str, query: dict[str, Any]) -> dict[str, Any]:
        if self.items is None:
            raise ClusterError("you may not list events", 403, "Forbidden")
        key, _, value = query["fieldSelector"].partition("=")
        field = key.removeprefix("involvedObject.")
        return {"items": [item for item in self.items if item["involvedObject"].get(field) == value]}


class World:
    def __init__(self, folder: Path, give_up_seconds: float) -> None:
        self.cluster, self.metrics, self.store = Events(), Metrics(), DirectoryStore(folder)
        self._access = Access(self.metrics, call_seconds=20, give_up_seconds=give_up_seconds)
        self.jobs = SavedJobs(lambda _: self.cluster, self._access, Writer(self.store), self.metrics)  # type: ignore[arg-type,return-value]
        self.running = asyncio.create_task(self.jobs.run())

    def job(self) -> dict[str, Any] | None:
        data = self.store.get(JOB)
        return None if data is None else json.loads(data)

    async def written(self) -> None:
        async with asyncio.timeout(20):
            while not self.jobs.idle:
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self._access.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_jobs, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(accesses, "FIRST_BACKOFF_SECONDS", 0.001)


def run(folder: Path, scenario: Callable[[World], Any], give_up_seconds: float = 0.0) -> World:
    async def whole() -> World:
        world = World(folder, give_up_seconds)
        try:
            await scenario(world)
        finally:
            await world.close()
        return world

    return asyncio.run(whole())


def changed(job: dict[str, Any], **status: Any) -> dict[str, Any]:
    made = copy.deepcopy(job)
    made["status"] |= status
    return made


def test_a_job_is_written_when_its_attempt_or_its_phase_changes_and_not_for_its_progress(tmp_path: Path):
    async def scenario(world: World) -> None:
        job = a_job("penguins", "Running")
        world.jobs.listed([changed(job, progress={"summary": "1"})], None)
        await world.written()
        assert world.job()["status"]["progress"]["summary"] == "1"  # type: ignore[index]
        world.jobs.changed(changed(job, progress={"summary": "2"}), False)
        assert world.jobs.idle
        world.jobs.changed(changed(job, attempt=1, progress={"summary": "3"}), False)
        await world.written()
        assert world.job()["status"]["attempt"] == 1  # type: ignore[index]

    run(tmp_path, scenario)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_job_that_is_deleted_while_it_runs_is_written_in_its_last_state(tmp_path: Path, noticed: bool):
    async def scenario(world: World) -> None:
        job = a_job("penguins", "Running")
        world.jobs.changed(copy.deepcopy(job), False)
        await world.written()
        last = changed(job, progress={"summary": "2"})
        world.jobs.changed(copy.deepcopy(last), False)
        if noticed:
            world.jobs.changed(last, True)
        else:  # the watch was interrupted
            world.jobs.listed([], "team")
        await world.written()
        assert world.job()["status"]["progress"]["summary"] == "2"  # type: ignore[index]
        assert world.jobs.live == set()

    run(tmp_path, scenario)


def test_a_list_of_one_namespace_says_nothing_about_the_others(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.jobs.changed(a_job("penguins", "Running"), False)
        await world.written()
        world.jobs.listed([], "other")
        assert world.jobs.live == {"team/penguins-uid-penguins"}

    run(tmp_path, scenario)


def test_events_of_the_job_and_its_pods_are_written_and_a_missing_right_loses_only_them(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.items = [
            event("penguins", "DistributedTraining", "Started", "attempt 0 started", uid="uid-penguins"),
            event("penguins-worker-1-0", "Pod", "BackOff", "Back-off restarting"),
            event("whales-worker-1-0", "Pod", "BackOff", "of another job"),
        ]
        world.jobs.changed(a_job("penguins", "Running"), False)
        await world.written()
        world.cluster.items = None
        world.jobs.changed(a_job("penguins", "Succeeded"), False)
        await world.written()

    world = run(tmp_path, scenario)
    items = json.loads(world.store.get(JOB.replace("job.json", "events.json")) or b"")["items"]
    assert sorted(item["reason"] for item in items) == ["BackOff", "Started"]
    assert world.job()["status"]["phase"] == "Succeeded"  # type: ignore[index]


def test_writing_is_tried_again_until_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put, failures = DirectoryStore.put, [3]

    def failing(self: DirectoryStore, name: str, data: bytes) -> None:
        if failures[0]:
            failures[0] -= 1
            raise ArchiveError("the archive is away")
        put(self, name, data)

    monkeypatch.setattr(DirectoryStore, "put", failing)

    async def scenario(world: World) -> None:
        world.jobs.changed(a_job("penguins", "Running"), False)
        await world.written()

    world = run(tmp_path, scenario, give_up_seconds=20.0)
    assert world.job() is not None
    assert 'allranks_archive_write_failures_total{kind="job"} 3.0' in world.metrics.page().decode()
    assert world.metrics.problem == ""

    failures[0] = 1_000_000
    (tmp_path / JOB).unlink()
    world = run(tmp_path, scenario, give_up_seconds=0.0)
    assert world.job() is None
    assert 'allranks_archive_lost_total{kind="job"} 1.0' in world.metrics.page().decode()
    assert world.metrics.problem == "the archive is away"


def test_jobs_that_wait_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saved_jobs, "MOST_WAITING", 2)

    async def scenario(world: World) -> None:
        for name in ("a", "b", "c"):
            world.jobs.changed(a_job(name, "Running"), False)
        await world.written()

    world = run(tmp_path, scenario)
    assert [entry.name for entry in world.store.list() if entry.name.endswith("job.json")] == [
        "team/b-uid-b/job.json",
        "team/c-uid-c/job.json",
    ]
    assert 'allranks_archive_lost_total{kind="job"} 1.0' in world.metrics.page().decode()


def test_an_access_that_hangs_fails_within_its_time(tmp_path: Path):
    import threading

    free = threading.Event()

    async def scenario() -> Metrics:
        metrics = Metrics()
        access = Access(metrics, call_seconds=0.02)
        with pytest.raises(ArchiveError, match="did not answer within"):
            await access.once(free.wait)
        assert await access.once(lambda: 7) == 7
        free.set()
        access.close()
        return metrics

    assert asyncio.run(scenario()).problem == ""
