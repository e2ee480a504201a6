"""Which logs are read and written: those of pods of jobs, each once, within limits; what is lost is said."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from allranks.archive import pod_logs
from allranks.archive.access import Access, Metrics
from allranks.archive.job_attempts import JobAttempts
from allranks.archive.layout import LogName
from allranks.archive.pod_logs import LogSource, PodLogs, RawPod, source_of
from allranks.archive.pod_secrets import SecretValues
from allranks.archive.store import ArchiveError, DirectoryStore
from allranks.archive.writer import Writer
from allranks.errors import ClusterError
from allranks.kube import pod_logs as kube_pod_logs
from allranks.kube.bounded_lines import LONGEST_LINE

STAMP = b"2026-03-04T10:00:00.000000000Z "
FOLDER = "team/penguins-u1"


def pod(index: int = 0, *, attempt: int = 0, state: dict[str, Any] | None = None, **changed: Any) -> RawPod:
    """A pod whose training container runs, or is in another state."""
    restart = changed.get("labels", {}).get("allranks.dev/restart")
    name = f"penguins-worker-{index}-{attempt}" + (f"-{restart}" if restart else "")
    manifest = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-of-{name}",
            "labels": {
                "allranks.dev/job-name": "penguins",
                "allranks.dev/role": "worker",
                "allranks.dev/index": str(index),
                "allranks.dev/attempt": str(attempt),
                **changed.pop("labels", {}),
            },
            "ownerReferences": [{"kind": "DistributedTraining", "name": "penguins", "uid": "u1", "controller": True}],
            **changed.pop("metadata", {}),
        },
        "spec": {"containers": [{"name": "trainer"}], "restartPolicy": "Never", **changed.pop("spec", {})},
        "status": {"containerStatuses": [{"name": "trainer", "state": state or {"running": {}}}]},
    }
    return msgspec.convert(manifest, RawPod)


ENDED = {"terminated": {"exitCode": 0}}
WAITING = {"waiting": {"reason": "ContainerCreating"}}


class Logs:
    """A cluster with the logs of pods. `release` ends those that are followed."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | ClusterError] = {}
        self.open = 0
        self.most_open = 0
        self.requests: list[str] = []
        self.ended = asyncio.Event()
        self.chunk = 1 << 20
        """Bytes that arrive together."""
        self.secrets: dict[str, str | ClusterError] = {}
        """Name of a Secret -> the value of its key `word`."""
        self.secrets_read: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        name = path.removeprefix("/api/v1/namespaces/team/secrets/")
        self.secrets_read.append(name)
        value = self.secrets.get(name, ClusterError("no such Secret", 404, "NotFound"))
        if isinstance(value, ClusterError):
            raise value
        return {"data": {"word": base64.b64encode(value.encode()).decode()}}

    @contextlib.asynccontextmanager
    async def stream(self, path: str, _query: Any, _silence: Any) -> AsyncIterator[Any]:
        name = path.split("/")[-2]
        self.requests.append(name)
        answer = self.answers.get(name, ClusterError("no such pod", 404, "NotFound"))
        if isinstance(answer, ClusterError):
            raise answer
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            yield _Content(answer, self.ended, self.chunk)
        finally:
            self.open -= 1


class _Content:
    def __init__(self, data: bytes, ended: asyncio.Event, chunk: int) -> None:
        self._data, self._ended, self._chunk = data, ended, chunk

    async def iter_any(self) -> AsyncIterator[bytes]:
        for begin in range(0, len(self._data), self._chunk):
            yield self._data[begin : begin + self._chunk]
        await self._ended.wait()


class World:
    """A cluster, an archive and what follows the logs of the one into the other."""

    def __init__(self, folder: Path, most: int = 8) -> None:
        self.cluster, self.metrics = Logs(), Metrics()
        self.lost: list[tuple[str, str]] = []
        for name in ("archive", "spool"):
            (folder / name).mkdir()
        self.store, self.spool = DirectoryStore(folder / "archive"), folder / "spool"
        self._access = Access(self.metrics, call_seconds=20, give_up_seconds=0)

        def lost(source: LogSource, why: str) -> None:
            self.lost.append((source.pod, why))

        cluster: Any = self.cluster
        self.attempts = JobAttempts()
        self.attempts.note(FOLDER, 3)
        self.logs = PodLogs(
            lambda _namespace: cluster,
            self._access,
            Writer(self.store),
            self.metrics,
            SecretValues(lambda _namespace: cluster),
            self.attempts,
            spool=self.spool,
            log_bytes=1 << 16,
            most=most,
            lost=lost,
        )

    def changed(self, pod: RawPod, deleted: bool) -> None:
        self.logs.changed(self.logs.observed(pod), deleted)

    def listed(self, pods: list[RawPod], namespace: str | None) -> None:
        self.logs.listed([self.logs.observed(pod) for pod in pods], namespace)

    def text(self, log: LogName) -> str | None:
        data = self.store.get(f"{FOLDER}/{log.path}")
        return None if data is None else gzip.decompress(data).decode()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not condition():
                await asyncio.sleep(0.001)

    async def all_written(self) -> None:
        await self.until(lambda: self.logs.idle)
        assert list(self.spool.iterdir()) == []

    async def close(self) -> None:
        await self.logs.close()
        self._access.close()


def run(folder: Path, scenario: Callable[[World], Any], most: int = 8) -> World:
    async def whole() -> World:
        world = World(folder, most)
        try:
            await scenario(world)
        finally:
            await world.close()
        return world

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_pod_logs, "RETRY_SECONDS", 0.0)


def test_an_archiver_that_ends_writes_the_logs_of_pods_that_are_being_deleted(tmp_path: Path):
    async def scenario(world: World) -> None:
        for index in (0, 1):
            world.cluster.answers[f"penguins-worker-{index}-0"] = STAMP + b"step 1\n"
            world.changed(pod(index), False)
        await world.until(lambda: world.cluster.open == 2)
        world.changed(pod(metadata={"deletionTimestamp": "2026-03-04T10:00:00Z"}), False)
        closing = asyncio.create_task(world.logs.close())
        await asyncio.sleep(0)
        assert not closing.done()
        world.cluster.ended.set()
        await closing

    world = run(tmp_path, scenario)
    assert world.text(LogName(0, "worker", 0)) == f"{STAMP.decode()}step 1\n"
    assert world.lost == []


def test_an_archiver_that_ends_does_not_wait_for_pods_that_run(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"step 1\n"
        world.changed(pod(), False)
        await world.until(lambda: world.cluster.open == 1)
        async with asyncio.timeout(pod_logs.CLOSE_SECONDS / 2):
            await world.logs.close()

    world = run(tmp_path, scenario)
    assert world.text(LogName(0, "worker", 0)) is None


def test_a_log_is_followed_while_the_pod_runs_and_written_when_it_has_ended(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"step 1\n" + STAMP + b"step 2\n"
        world.changed(pod(), False)
        await world.until(lambda: world.cluster.open == 1)
        assert world.store.list() == []
        world.changed(pod(state=ENDED), False)
        world.cluster.ended.set()
        await world.all_written()
        world.changed(pod(state=ENDED), False)  # the pod changes again
        assert world.logs.idle

    world = run(tmp_path, scenario)
    assert world.text(LogName(0, "worker", 0)) == f"{STAMP.decode()}step 1\n{STAMP.decode()}step 2\n"
    assert world.lost == []


def test_a_program_that_prints_nothing_has_an_empty_log_and_is_not_lost(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = b""
        world.changed(pod(), False)
        await world.until(lambda: world.cluster.open == 1)
        del world.cluster.answers["penguins-worker-0-0"]
        world.changed(pod(), True)
        world.cluster.ended.set()
        await world.all_written()

    world = run(tmp_path, scenario)
    assert world.text(LogName(0, "worker", 0)) == ""
    assert world.lost == []


def test_a_log_of_a_pod_that_is_deleted_before_it_is_read_is_lost(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.changed(pod(state=ENDED), False)
        world.changed(pod(state=ENDED), True)
        await world.all_written()

    world = run(tmp_path, scenario)
    assert world.lost == [("penguins-worker-0-0", "the pod was deleted before its log was read")]
    assert world.store.list() == []


def test_without_the_right_to_read_logs_they_are_lost_with_the_reason(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = ClusterError("you may not get pods/log", 403, "Forbidden")
        world.changed(pod(state=ENDED), False)
        await world.all_written()

    assert run(tmp_path, scenario).lost == [("penguins-worker-0-0", "you may not get pods/log")]


def test_a_log_whose_end_cannot_be_read_says_so_in_its_last_line(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"step 1\n"
        world.changed(pod(), False)
        await world.until(lambda: world.cluster.open == 1)
        world.cluster.answers["penguins-worker-0-0"] = ClusterError("you may not get pods/log", 403, "Forbidden")
        world.cluster.ended.set()  # the connection is lost
        await world.all_written()

    world = run(tmp_path, scenario)
    text = f"{STAMP.decode()}step 1\n[the end is missing: you may not get pods/log]\n"
    assert world.text(LogName(0, "worker", 0)) == text
    assert world.lost == []


def test_a_line_without_a_time_does_not_repeat_the_log_after_a_lost_connection(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"step 1\nfailed to watch file\n"
        world.cluster.chunk = len(STAMP) + 7
        world.changed(pod(), False)
        await world.until(lambda: world.cluster.open == 1)
        world.cluster.ended.set()  # the connection is lost
        await world.until(lambda: len(world.cluster.requests) > 2)
        world.changed(pod(state=ENDED), False)
        await world.all_written()

    world = run(tmp_path, scenario)
    assert world.text(LogName(0, "worker", 0)) == f"{STAMP.decode()}step 1\nfailed to watch file\n"


def test_a_log_that_an_earlier_archiver_has_written_is_not_read_again(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.store.put(f"{FOLDER}/{LogName(0, 'worker', 0).path}", gzip.compress(b"before\n"))
        world.changed(pod(state=ENDED), False)
        await world.all_written()

    world = run(tmp_path, scenario)
    assert world.cluster.requests == []
    assert world.text(LogName(0, "worker", 0)) == "before\n"


def test_logs_that_are_read_at_the_same_time_are_limited_and_pods_that_end_have_room(tmp_path: Path):
    async def scenario(world: World) -> None:
        pods = [pod(index) for index in range(12)]
        for each in pods:
            world.cluster.answers[each.metadata.name] = STAMP + each.metadata.name.encode() + b"\n"
            world.changed(each, False)
        await world.until(lambda: world.cluster.open == 5)  # of three quarters of 8, one is for other namespaces
        # One beyond them ends, while the others still run.
        world.changed(pod(11, state=ENDED), False)
        await world.until(lambda: world.cluster.open == 6)
        for index in range(11):
            world.changed(pod(index, state=ENDED), False)
        world.cluster.ended.set()
        await world.all_written()

    world = run(tmp_path, scenario)
    assert 6 <= world.cluster.most_open <= 8
    assert [world.text(LogName(0, "worker", index)) is not None for index in range(12)] == [True] * 12
    assert world.lost == []


@pytest.mark.parametrize("state", [{"running": {}}, ENDED], ids=["running pods", "pods that end"])
def test_many_pods_of_one_namespace_leave_room_for_the_log_of_another(tmp_path: Path, state: dict[str, Any]):
    async def scenario(world: World) -> None:
        world.attempts.note("calm/penguins-u1", 0)
        for index in range(24):
            world.cluster.answers[f"penguins-worker-{index}-0"] = STAMP + b"step\n"
            world.changed(pod(index, state=state), False)
        name = "penguins-worker-99-0"
        world.cluster.answers[name] = STAMP + b"step\n"
        await world.until(lambda: world.cluster.open > 0)
        assert set().union(*world.logs.large.values()) == {"team"}
        assert 'job_namespace="team"' not in world.metrics.page().decode()
        world.metrics.shares = lambda: world.logs.large
        assert 'job_namespace="team"' in world.metrics.page().decode()
        before = len(world.cluster.requests)
        world.changed(pod(99, state=state, metadata={"namespace": "calm"}), False)
        await world.until(lambda: name in world.cluster.requests)
        assert len(world.cluster.requests) - before <= 8, "it does not wait for the logs of the others"
        world.cluster.ended.set()

    run(tmp_path, scenario, most=16)


def test_pods_that_are_missing_in_a_new_list_have_ended(tmp_path: Path):
    async def scenario(world: World) -> None:
        for index in (0, 1):
            world.cluster.answers[f"penguins-worker-{index}-0"] = STAMP + b"step\n"
        world.listed([pod(0), pod(1)], None)
        await world.until(lambda: world.cluster.open == 2)
        world.listed([pod(1)], "other")
        world.listed([pod(1)], "team")
        del world.cluster.answers["penguins-worker-0-0"]
        world.cluster.ended.set()
        await world.until(lambda: world.text(LogName(0, "worker", 0)) is not None)
        assert world.text(LogName(0, "worker", 1)) is None

    run(tmp_path, scenario)


def test_an_archive_that_fails_for_too_long_loses_the_log_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any) -> None:
        raise ArchiveError("/archive: no space left on device")

    monkeypatch.setattr(DirectoryStore, "put", full)

    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"step\n"
        world.cluster.ended.set()
        world.changed(pod(state=ENDED), False)
        await world.all_written()
        assert world.metrics.problem == "/archive: no space left on device"

    assert run(tmp_path, scenario).lost == [("penguins-worker-0-0", "/archive: no space left on device")]


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": {"allranks.dev/role": "../x"}},
        {"labels": {"allranks.dev/index": "-1"}},
        {"labels": {"allranks.dev/attempt": "one"}},
        {"labels": {"allranks.dev/job-name": "whales"}},
        {"metadata": {"ownerReferences": []}},
        {"metadata": {"ownerReferences": [{"name": "penguins", "uid": "../u", "controller": True}]}},
        {"metadata": {"name": "some-pod"}},
    ],
)
def test_a_pod_whose_labels_are_not_those_of_the_operator_is_left_out(changed: dict[str, Any]):
    assert source_of(pod(**changed)) is None


def test_a_pod_cannot_write_into_the_archive_of_a_job_that_the_watch_has_not_shown(tmp_path: Path):
    """Its owner is a job of long ago, a job of another namespace, or an attempt that has not begun."""
    log = LogName(0, "worker", 0)
    of_others = {"kind": "DistributedTraining", "name": "penguins", "uid": "u2", "controller": True}
    forged = [
        pod(attempt=4, state=ENDED),
        pod(state=ENDED, metadata={"uid": "1", "ownerReferences": [of_others]}),
        pod(state=ENDED, metadata={"uid": "2", "namespace": "other"}),
    ]

    async def scenario(world: World) -> None:
        world.store.put(f"team/penguins-u2/{log.path}", gzip.compress(b"of long ago\n"))
        for each in forged:
            world.cluster.answers[each.metadata.name] = STAMP + b"forged\n"
            world.changed(each, False)
        world.cluster.ended.set()
        assert world.logs.idle
        for each in forged:
            world.changed(each, True)
        world.attempts.note(FOLDER, 4)
        assert world.logs.idle, "the pod is gone"

    world = run(tmp_path, scenario)
    assert world.cluster.requests == []
    assert [entry.name for entry in world.store.list()] == [f"team/penguins-u2/{log.path}"]
    assert world.lost == []


def test_a_pod_whose_attempt_is_shown_later_is_read_then(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-4"] = STAMP + b"step 1\n"
        world.cluster.ended.set()
        world.changed(pod(attempt=4, state=ENDED), False)
        assert world.logs.idle
        world.attempts.note(FOLDER, 4)
        await world.all_written()

    assert run(tmp_path, scenario).text(LogName(4, "worker", 0)) == f"{STAMP.decode()}step 1\n"


def test_a_finished_log_is_not_replaced_by_a_pod_that_takes_the_name_later(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"real\n"
        world.cluster.ended.set()
        world.changed(pod(state=ENDED), False)
        await world.all_written()
        world.changed(pod(state=ENDED), True)
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"forged\n"
        world.changed(pod(metadata={"uid": "of-another-pod"}), False)  # it runs
        await world.until(lambda: len(world.cluster.requests) > 1)
        world.changed(pod(state=ENDED, metadata={"uid": "of-another-pod"}), False)
        await world.all_written()

    assert run(tmp_path, scenario).text(LogName(0, "worker", 0)) == f"{STAMP.decode()}real\n"


def test_attempts_that_a_job_has_not_begun_supersede_no_logs(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.ended.set()
        for attempt in (*range(4), *range(100, 120)):
            each = pod(attempt=attempt, state=ENDED)
            world.cluster.answers[each.metadata.name] = STAMP + b"step\n"
            world.changed(each, False)
            await world.all_written()

    world = run(tmp_path, scenario)
    logs = [world.text(LogName(attempt, "worker", 0)) is not None for attempt in (0, 1, 2, 3, 100, 119)]
    assert logs == [True, True, True, True, False, False]


def test_the_log_has_the_name_of_the_pod_and_its_secrets_are_found():
    env = [{"name": "DB_PASSWORD", "value": "correct-horse"}, {"name": "STEPS", "value": "100000"}]
    found = source_of(
        pod(2, attempt=3, labels={"allranks.dev/restart": "4"}, spec={"containers": [{"name": "trainer", "env": env}]})
    )
    assert found is not None
    assert (found.folder, found.log) == (FOLDER, LogName(3, "worker", 2, 4))
    assert found.references == frozenset()
    assert found.secrets == {"correct-horse"}


@pytest.mark.parametrize(
    ("state", "spec", "over"),
    [
        (WAITING, {}, False),
        ({"running": {}}, {}, False),
        ({"terminated": {"exitCode": 1}}, {}, True),
        ({"terminated": {"exitCode": 1}}, {"restartPolicy": "OnFailure"}, False),
        ({"terminated": {"exitCode": 0}}, {"restartPolicy": "OnFailure"}, True),
    ],
)
def test_a_container_that_its_kubelet_restarts_has_not_ended(state: dict[str, Any], spec: dict[str, Any], over: bool):
    assert pod_logs._trainer_ended(pod(state=state, spec=spec)) is over


# --- values of Secrets -----------------------------------------------------------------------------------------------

SECRET = "correct-horse-battery"
WITH_SECRET = {
    "containers": [{"name": "trainer", "env": [{"valueFrom": {"secretKeyRef": {"name": "db", "key": "word"}}}]}],
    "initContainers": [{"name": "setup", "envFrom": [{"secretRef": {"name": "setup"}}]}],
}


def masked(folder: Path, data: bytes, chunk: int = 1 << 20, during: Callable[[World], None] = lambda _: None) -> str:
    """What the archive has of a log that arrives in chunks. `during`: called while it is followed."""

    async def scenario(world: World) -> None:
        world.cluster.secrets["db"] = SECRET
        world.cluster.chunk = chunk
        world.cluster.answers["penguins-worker-0-0"] = data
        world.changed(pod(spec=WITH_SECRET), False)
        await world.until(lambda: world.cluster.open == 1)
        await world.until(lambda: set(world.cluster.secrets_read) == {"db", "setup"})
        during(world)
        world.changed(pod(state=ENDED, spec=WITH_SECRET), False)
        world.cluster.ended.set()
        await world.all_written()
        everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert SECRET.encode() not in everything
        assert SECRET not in repr(vars(world.logs))

    world = run(folder, scenario)
    assert world.lost == []
    return world.text(LogName(0, "worker", 0)) or ""


@pytest.mark.parametrize("chunk", [1, 7, 30, 1 << 20])
def test_the_values_of_the_secrets_of_the_pod_are_masked_wherever_the_stream_is_cut(tmp_path: Path, chunk: int):
    lines = ["connecting", f"as {SECRET}, {SECRET}", f"\x1b[31m{SECRET[:9]}\x1b[0m{SECRET[9:]}", f"{SECRET}\rdone"]
    data = b"".join(STAMP + line.encode() + b"\n" for line in lines)
    texts = [line[len(STAMP) :] for line in masked(tmp_path, data, chunk).splitlines()]
    assert texts == ["connecting", "as <masked>, <masked>", "<masked>", "done"]


@pytest.mark.parametrize("shown", [0, 1, 5, 6, 7, 20, 21])
def test_a_line_that_is_cut_within_a_secret_shows_at_most_five_characters_of_it(tmp_path: Path, shown: int):
    before = STAMP + b"x" * (LONGEST_LINE - len(STAMP) - shown)
    [line] = masked(tmp_path, before + SECRET.encode() + b" and more\n").splitlines()
    kept = line.removeprefix(before.decode()).partition(" … (")[0]
    assert kept == (SECRET[:shown] if shown < 6 else "<masked>")
    assert line.endswith("left out)")


def test_a_program_that_is_killed_while_it_prints_a_secret_shows_at_most_five_characters_of_it(tmp_path: Path):
    assert masked(tmp_path, STAMP + f"token {SECRET[:12]}".encode()) == f"{STAMP.decode()}token <masked>\n"


def test_a_secret_that_is_deleted_or_changed_while_the_pod_runs_is_masked_in_both_values(tmp_path: Path):
    def deleted(world: World) -> None:
        del world.cluster.secrets["db"]

    def changed(world: World) -> None:
        world.cluster.secrets["db"] = "a-new-secret"

    for number, (during, second) in enumerate(((deleted, "a-new-secret"), (changed, "<masked>"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = masked(folder, STAMP + f"{SECRET} then a-new-secret\n".encode(), during=during)
        assert text == f"{STAMP.decode()}<masked> then {second}\n"


def test_without_the_right_to_read_secrets_names_and_forms_are_masked(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.secrets["db"] = ClusterError("you may not get secrets", 403, "Forbidden")
        world.cluster.answers["penguins-worker-0-0"] = STAMP + f"{SECRET} DB_TOKEN={SECRET}\n".encode()
        world.cluster.ended.set()
        world.changed(pod(state=ENDED, spec=WITH_SECRET), False)
        await world.all_written()

    world = run(tmp_path, scenario)
    assert world.text(LogName(0, "worker", 0)) == f"{STAMP.decode()}{SECRET} DB_TOKEN=<masked>\n"
    assert world.lost == []
    assert world.cluster.secrets_read.count("db") == 1


def test_a_pod_without_secrets_asks_for_none(tmp_path: Path):
    async def scenario(world: World) -> None:
        world.cluster.answers["penguins-worker-0-0"] = STAMP + b"step 1\n"
        world.cluster.ended.set()
        world.changed(pod(state=ENDED), False)
        await world.all_written()

    assert run(tmp_path, scenario).cluster.secrets_read == []
