"""When a job or a sweep is written: as attempts and trials end, when it has finished, and when it is deleted."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allranks.archive import access as accesses
from allranks.archive import saved_objects
from allranks.archive.access import Access, Metrics
from allranks.archive.job_attempts import JobAttempts
from allranks.archive.pod_secrets import SecretValues
from allranks.archive.saved_objects import SavedObjects
from allranks.archive.store import ArchiveError, DirectoryStore
from allranks.archive.writer import Writer
from allranks.errors import ClusterError
from allranks.kube.object_text import object_text
from support import floods
from support.sweep_samples import a_sweep
from support.ui_samples import a_job, event

JOB = "team/penguins-uid-penguins/job.json"
SWEEP = "team/search-uid-search/sweep.json"
KIND = "TrainingSweep"


class Events:
    """A cluster with Events and Secrets."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] | None = []
        self.secrets: dict[str, dict[str, str]] = {}

    async def get(self, path: str) -> dict[str, Any]:
        name = path.removeprefix("/api/v1/namespaces/team/secrets/")
        if name not in self.secrets:
            raise ClusterError("no such Secret", 404, "NotFound")
        return {"data": self.secrets[name]}

    async def items(self, _path: str, query: dict[str, Any], decode: Callable[[bytes], Any], _turn: Any) -> list[Any]:
        if self.events is None:
            raise ClusterError("you may not list events", 403, "Forbidden")
        key, _, value = query["fieldSelector"].partition("=")
        field = key.removeprefix("involvedObject.")
        selected = (item for item in self.events if item["involvedObject"].get(field) == value)
        return [kept for item in selected if (kept := decode(json.dumps(item).encode())) is not None]


class World:
    def __init__(self, folder: Path, give_up_seconds: float) -> None:
        self.cluster, self.metrics, self.store = Events(), Metrics(), DirectoryStore(folder)
        self._access = Access(self.metrics, call_seconds=20, give_up_seconds=give_up_seconds)
        self.attempts = JobAttempts()
        cluster: Any = self.cluster
        self.jobs = SavedObjects(
            lambda _: cluster,
            self._access,
            Writer(self.store),
            self.metrics,
            SecretValues(lambda _: cluster),
            self.attempts,
        )
        self.running = asyncio.create_task(self.jobs.run())

    def listed(self, objects: list[dict[str, Any]], namespace: str | None, kind: str = "DistributedTraining") -> None:
        texts = [object_text(json.dumps(manifest).encode(), kind) for manifest in objects]
        self.jobs.listed(texts, namespace, kind)

    def changed(self, manifest: dict[str, Any], deleted: bool, kind: str = "DistributedTraining") -> None:
        self.jobs.changed(object_text(json.dumps(manifest).encode(), kind), deleted)

    def job(self, file: str = JOB) -> dict[str, Any] | None:
        data = self.store.get(file)
        return None if data is None else json.loads(data)

    async def written(self) -> None:
        async with asyncio.timeout(300):
            while not self.jobs.idle:
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self._access.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_objects, "SETTLE_SECONDS", 0.0)
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
        world.listed([changed(job, progress={"summary": "1"})], None)
        await world.written()
        assert world.job()["status"]["progress"]["summary"] == "1"  # type: ignore[index]
        world.changed(changed(job, progress={"summary": "2"}), False)
        assert world.jobs.idle
        world.changed(changed(job, attempt=1, progress={"summary": "3"}), False)
        await world.written()
        assert world.job()["status"]["attempt"] == 1  # type: ignore[index]

    run(tmp_path, scenario)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_job_that_is_deleted_while_it_runs_is_written_in_its_last_state(tmp_path: Path, noticed: bool):
    async def scenario(world: World) -> None:
        job = a_job("penguins", "Running")
        world.changed(copy.deepcopy(job), False)
        await world.written()
        last = changed(job, progress={"summary": "2"})
        world.changed(copy.deepcopy(last), False)
        if noticed:
            world.changed(last, True)
        else:  # the watch was interrupted
            world.listed([], "team")
        await world.written()
        assert world.job()["status"]["progress"]["summary"] == "2"  # type: ignore[index]
        assert world.jobs.live == set()

    run(tmp_path, scenario)


def test_a_list_of_one_namespace_says_nothing_about_the_others(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.changed(a_job("penguins", "Running"), False)
        await world.written()
        world.listed([], "other")
        assert world.jobs.live == {"team/penguins-uid-penguins"}

    run(tmp_path, scenario)


def test_events_of_the_job_and_its_pods_are_written_and_a_missing_right_loses_only_them(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.events = [
            event("penguins", "DistributedTraining", "Started", "attempt 0 started", uid="uid-penguins"),
            event("penguins-worker-1-0", "Pod", "BackOff", "Back-off restarting"),
            event("whales-worker-1-0", "Pod", "BackOff", "of another job"),
        ]
        world.changed(a_job("penguins", "Running"), False)
        await world.written()
        world.cluster.events = None
        world.changed(a_job("penguins", "Succeeded"), False)
        await world.written()

    world = run(tmp_path, scenario)
    items = json.loads(world.store.get(JOB.replace("job.json", "events.json")) or b"")["items"]
    assert sorted(item["reason"] for item in items) == ["BackOff", "Started"]
    assert world.job()["status"]["phase"] == "Succeeded"  # type: ignore[index]


def test_the_namespace_whose_events_are_large_is_named_when_the_archiver_has_read_some_of_them(tmp_path: Path):
    async def scenario(world: World) -> None:
        noisy = a_job("penguins", "Suspended")
        world.cluster.events = [floods.event_of_job(f"e{number}", noisy) for number in range(8)]
        world.changed(noisy, False)
        await world.written()
        assert world.jobs.received.large == {"team": 1.0}

    run(tmp_path, scenario)


def running(ended: int, step: int = 10) -> dict[str, Any]:
    """A sweep of 12 trials, of which so many have ended."""
    made = a_sweep(phase="Running")
    del made["kind"]  # items of a list have none
    for trial in made["status"]["trials"][ended:]:
        trial |= {"phase": "Running", "step": step}
    return made


def test_a_sweep_is_written_when_a_trial_ends_and_when_it_has_finished_and_not_for_steps(tmp_path: Path):
    async def scenario(world: World) -> None:
        def summary() -> tuple[str, int]:
            status = world.job(SWEEP)["status"]  # type: ignore[index]
            return status["phase"], sum(trial["phase"] == "Succeeded" for trial in status["trials"])

        world.listed([running(0)], None, KIND)
        await world.written()
        assert summary() == ("Running", 0)
        world.changed(running(0, step=20), False, KIND)
        assert world.jobs.idle
        world.changed(running(2), False, KIND)
        await world.written()
        assert summary() == ("Running", 2)
        world.changed(a_sweep(), False, KIND)
        await world.written()
        assert summary() == ("Succeeded", 12)
        assert world.jobs.live == {"team/search-uid-search"}

    world = run(tmp_path, scenario)
    assert world.job(SWEEP)["kind"] == KIND  # type: ignore[index]
    assert 'allranks_archive_written_total{kind="sweep"} 3.0' in world.metrics.page().decode()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_sweep_that_is_deleted_is_written_in_its_last_state(tmp_path: Path, noticed: bool):
    async def scenario(world: World) -> None:
        world.changed(a_job("penguins", "Running"), False)
        world.changed(running(1), False, KIND)
        await world.written()
        last = running(1, step=77)
        world.changed(copy.deepcopy(last), False, KIND)
        if noticed:
            world.changed(last, True, KIND)
        else:  # the watch was interrupted
            world.listed([], None, KIND)
        await world.written()
        assert world.job(SWEEP)["status"]["trials"][-1]["step"] == 77  # type: ignore[index]
        assert world.jobs.live == {"team/penguins-uid-penguins"}, "a list of sweeps says nothing about jobs"

    run(tmp_path, scenario)


def test_a_sweep_has_its_own_events_and_not_those_of_its_trials(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.events = [
            event("search", KIND, "TrialStarted", "trial 0: lr=0.1", uid="uid-search"),
            event("search-0-worker-0-0", "Pod", "BackOff", "Back-off restarting"),
        ]
        world.changed(a_sweep(), False, KIND)
        await world.written()

    world = run(tmp_path, scenario)
    events = world.job(SWEEP.replace("sweep.json", "events.json"))
    assert [item["reason"] for item in events["items"]] == ["TrialStarted"]  # type: ignore[index]


def test_values_of_secrets_are_masked_in_messages_and_stay_masked_when_the_secret_is_gone(tmp_path: Path):
    job = a_job("penguins", "Failed")
    job["spec"]["env"] = [{"name": "LOGIN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "word"}}}]
    job["status"]["lastFailure"] = {"message": "ConnectionError: team:swordfish@db"}
    said = event("penguins", "DistributedTraining", "Failed", "swordfish is wrong", uid="uid-penguins")

    async def scenario(world: World) -> None:
        world.cluster.events = [said]
        world.cluster.secrets = {"db": {"word": "c3dvcmRmaXNo", "unused": "cGVuZ3VpbnM="}}
        world.changed(copy.deepcopy(job), False)
        await world.written()
        world.cluster.secrets = {}  # deleted with the job
        world.changed(changed(job, outcome="cleaned up"), True)
        await world.written()

    world = run(tmp_path, scenario)
    found, events = world.job(), world.job(JOB.replace("job.json", "events.json"))
    assert found is not None and events is not None  # noqa: PT018
    assert found["status"]["lastFailure"]["message"] == "ConnectionError: team:<masked>@db"
    assert found["status"]["outcome"] == "cleaned up"
    assert found["metadata"]["name"] == "penguins", "the job does not name that key"
    assert events["items"][0]["message"] == "<masked> is wrong"


def test_writing_is_tried_again_until_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put, failures = DirectoryStore.put, [3]

    def failing(self: DirectoryStore, name: str, data: bytes) -> None:
        if failures[0]:
            failures[0] -= 1
            raise ArchiveError("the archive is away")
        put(self, name, data)

    monkeypatch.setattr(DirectoryStore, "put", failing)

    async def scenario(world: World) -> None:
        world.changed(a_job("penguins", "Running"), False)
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


def test_a_job_that_is_too_large_is_written_without_its_spec_and_says_so(tmp_path: Path):
    async def scenario(world: World) -> None:
        job = a_job("penguins", "Suspended")
        job["spec"] |= {"managedBy": "example.com/other", "template": {"spec": {"x": "y" * 1_300_000}}}
        world.changed(job, False)
        await world.written()

    job = run(tmp_path, scenario).job()
    assert job is not None
    assert (job["spec"], job["status"]["phase"]) == (None, "Suspended")
    assert job["metadata"]["annotations"] == {
        "allranks.dev/left-out": "too large to keep: spec (more than 512 KiB)",
        **(a_job("penguins", "Suspended")["metadata"].get("annotations") or {}),
    }


def test_the_attempts_of_jobs_are_recorded_while_they_exist_and_after_their_deletion(tmp_path: Path):
    folder = "team/penguins-uid-penguins"

    async def scenario(world: World) -> None:
        new = a_job("penguins", "Running", attempt=2)
        del new["status"]
        world.changed(new, False)
        assert not world.attempts.has(folder, 0), "it has no status yet"
        world.changed(a_job("penguins", "Running", attempt=2), False)
        assert [world.attempts.has(folder, attempt) for attempt in (-1, 0, 2, 3)] == [False, True, True, False]
        world.changed(a_job("penguins", "Running", attempt=3), True)
        assert [world.attempts.has(folder, attempt) for attempt in (3, 4)] == [True, False]
        assert not world.attempts.has("team/penguins-of-another-uid", 0)
        await world.written()

    run(tmp_path, scenario)


def test_jobs_that_wait_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = len(object_text(json.dumps(a_job("job-a", "Running")).encode()).json)
    monkeypatch.setattr(saved_objects, "MOST_WAITING_BYTES", 4 * size)

    async def scenario(world: World) -> None:
        calm = a_job("calm", "Running")
        calm["metadata"]["namespace"] = "calm"
        world.changed(calm, False)
        for name in ("job-a", "job-b", "job-c", "job-c"):
            world.changed(a_job(name, "Running"), False)
        assert 0.4 < world.jobs.large["team"] <= 0.6
        await world.written()
        assert world.jobs.large == {}

    world = run(tmp_path, scenario)
    assert [entry.name for entry in world.store.list() if entry.name.endswith("job.json")] == [
        "calm/calm-uid-calm/job.json",
        "team/job-b-uid-job-b/job.json",
        "team/job-c-uid-job-c/job.json",
    ]
    assert 'allranks_archive_lost_total{kind="job"} 1.0' in world.metrics.page().decode()


def test_unfinished_jobs_are_held_within_a_size_and_all_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = len(object_text(json.dumps(a_job("job-0", "Running")).encode()).json)
    monkeypatch.setattr(saved_objects, "MOST_UNFINISHED_BYTES", 10 * size)

    async def scenario(world: World) -> None:
        for version in range(3):
            for number in range(20):
                world.changed(changed(a_job(f"job-{number}", "Running"), attempt=version), False)
        await world.written()
        held = world.jobs._unfinished
        assert 5 <= len(held) <= 8
        world.changed(a_job("job-0", "Succeeded"), False)
        world.listed([], "team")
        await world.written()
        assert held == {}
        assert world.jobs._room.fits("team", 7 * size)

    world = run(tmp_path, scenario)
    jobs = [json.loads(world.store.get(entry.name) or b"") for entry in world.store.list() if "job.json" in entry.name]
    assert len(jobs) == 20
    assert {job["status"]["attempt"] for job in jobs if job["metadata"]["name"] != "job-0"} == {2}


def of_namespace(namespace: str, name: str) -> dict[str, Any]:
    job = a_job(name, "Running")
    job["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{name}"}
    return job


def test_namespaces_have_turns_however_many_jobs_of_one_of_them_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []
    save = Writer.save

    def recorded(self: Writer, manifest: dict[str, Any], *how: Any) -> bool:
        written.append(manifest["metadata"]["namespace"])
        return save(self, manifest, *how)

    monkeypatch.setattr(Writer, "save", recorded)

    async def scenario(world: World) -> None:
        for number in range(100):
            world.changed(of_namespace("loud", f"job-{number}"), False)
        for number in range(3):
            world.changed(of_namespace("calm", f"job-{number}"), False)
        assert "allranks_archive_waiting_jobs 103.0" in world.metrics.page().decode()
        await world.written()
        assert "allranks_archive_waiting_jobs 0.0" in world.metrics.page().decode()

    run(tmp_path, scenario)
    assert len(written) == 103
    last = max(place for place, namespace in enumerate(written) if namespace == "calm")
    assert last < 2 * saved_objects.WRITERS + 3


def test_jobs_of_one_namespace_that_take_long_leave_a_writer_for_others(tmp_path: Path):
    async def scenario(world: World) -> None:
        answers, items = asyncio.Event(), world.cluster.items

        async def slow(path: str, *how: Any) -> list[Any]:
            if "/loud/" in path:
                await answers.wait()
            return await items(path, *how)

        world.cluster.items = slow  # type: ignore[method-assign]
        for number in range(10):
            world.changed(of_namespace("loud", f"job-{number}"), False)
        world.changed(of_namespace("calm", "penguins"), False)
        async with asyncio.timeout(300):
            while not world.job("calm/penguins-calm-penguins/job.json"):
                await asyncio.sleep(0.001)
        answers.set()
        await world.written()
        assert world.job("loud/job-9-loud-job-9/job.json")

    run(tmp_path, scenario)


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
