"""Two API servers on one etcd, of which the second one lags behind. In the middle of a job's life, the operator's
watches move to it, as behind a load balancer: it shows an older state than the one that the operator has written.

The second API server reaches etcd through a proxy that stalls. Its watch cache is then as old as that moment, and it
answers neither consistent reads nor writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from allranks.api.job import KIND
from allranks.kube.auth import Connection
from allranks.operator.settings import Settings
from support import live
from support.api import Api, ApiError, path
from support.controlplane import ControlPlane
from support.fault_proxy import ObjectKey, Proxy, Threads, Write
from support.kubelet import Hand, Program
from support.kubernetes_world import SETTINGS
from support.live import eventually
from support.operators import RunningOperator
from support.stalling_proxy import StallingProxy

from .world import REQUEST_SECONDS

JOB = live.job(restart={"backoffSeconds": 0})
RECONCILES = 5
"""How often the operator reconciles all jobs while it sees the older state."""


class MovingProxy(Proxy):
    """Forwards some requests to a second API server from a chosen write on."""

    def __init__(self, threads: Threads, control_plane: ControlPlane, second: str) -> None:
        self._second = second
        self.moved = ""
        """What goes to the second API server: nothing, or a key of MOVES."""
        self.requests = 0
        """Requests that went there."""
        self.reads: list[str] = []
        """Lists and reads of single objects, with their query."""
        self._when: tuple[str, Callable[[Write], bool]] | None = None
        self._watches: set[asyncio.Task[Any]] = set()
        super().__init__(threads, control_plane.url, str(control_plane.ca_file), control_plane.admin_token)

    def move(self, what: str) -> None:
        """Connections of watches break, and the client connects again."""

        async def move() -> None:
            self._move(what)

        self._threads.do(move())

    def move_after(self, what: str, write: Callable[[Write], bool]) -> None:
        """Moves after the first such write that succeeds."""
        self._when = what, write

    def _move(self, what: str) -> None:
        self.moved, self.requests = what, 0
        for watch in self._watches:
            watch.cancel()

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task
        self._watches.add(task)
        try:
            return await super()._watch(request)
        finally:
            self._watches.discard(task)

    async def _read(self, request: web.BaseRequest) -> web.StreamResponse:
        self.reads.append(request.path_qs)
        return await super()._read(request)

    async def _carry_out(
        self, request: web.BaseRequest, body: Any, sent: bytes, key: ObjectKey
    ) -> tuple[int, dict[str, str], bytes]:
        answer = await super()._carry_out(request, body, sent, key)
        made = self.record.writes[-1]
        if self._when and made.code < 300 and self._when[1](made):
            what, self._when = self._when[0], None
            self._move(what)
        return answer

    def _url(self, request: web.BaseRequest, query: dict[str, str]) -> str:
        url = super()._url(request, query)
        if self.moved and MOVES[self.moved](request.path, "watch" in query):
            self.requests += 1
            return url.replace(self._upstream, self._second, 1)
        return url


MOVES: dict[str, Callable[[str, bool], bool]] = {
    "all watches": lambda path, watch: watch,
    "the watch of pods": lambda path, watch: watch and path.endswith("/pods"),
    "the watch of jobs": lambda path, watch: watch and path.endswith("/distributedtrainings"),
    "everything": lambda path, watch: True,
}
"""What moves -> (path, whether it is a watch) -> whether that request moves."""


class Second:
    """The second API server."""

    def __init__(self, threads: Threads, control_plane: ControlPlane) -> None:
        self._plane = control_plane
        self.etcd = StallingProxy(threads, control_plane.etcd_url)
        self.url = control_plane.start_second_api_server(self.etcd.url)
        self._api = Api(self.url, control_plane.ca_file, control_plane.admin_token)

    def close(self) -> None:
        self._api.close()
        self._plane.stop_second_api_server()
        self.etcd.close()

    def cached(self, namespace: str) -> Versions:
        """The state of its watch cache."""
        return versions(self._api, namespace, "?resourceVersion=0")


Versions = dict[tuple[str, str], str]
"""(kind, name) -> resourceVersion of the jobs and pods in a namespace."""


def versions(api: Api, namespace: str, query: str = "") -> Versions:
    found = {kind: api.request("GET", path(kind, namespace) + query)["items"] for kind in (KIND, "Pod")}
    return {
        (kind, item["metadata"]["name"]): item["metadata"]["resourceVersion"]
        for kind, items in found.items()
        for item in items
    }


@pytest.fixture(scope="module")
def second(control_plane: ControlPlane, proxies: Threads, impatient: None) -> Iterator[Second]:
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("a second API server cannot be added to a cluster of the user's")
    with contextlib.closing(Second(proxies, control_plane)) as second:
        yield second


@dataclass(frozen=True)
class Ending:
    """What a run left and what the operator did."""

    statuses: list[dict[str, Any]]
    """At the end of each step."""
    pods: list[str]
    creates: Counter[ObjectKey]
    deletes: Counter[ObjectKey]
    reads: list[str] = field(compare=False)


class Run:
    """A job that restarts, and two others with its name after it. In each step `moves` go to the second API server,
    which was stalled before, and the operator may be killed."""

    def __init__(self, plane: ControlPlane, threads: Threads, second: Second, moves: str, dies: bool) -> None:
        self._plane, self._api, self._second = plane, plane.api, second
        self._moves, self._dies = moves, dies
        self._namespace = namespace = f"faults-{secrets.token_hex(4)}"
        self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        with contextlib.suppress(ApiError):
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            self._api.create(account, namespace)
        self._hand = Hand(self._api, namespace, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))
        self._proxy = MovingProxy(threads, plane, second.url)
        self._operator = self._start()
        self._statuses: list[dict[str, Any]] = []

    def _start(self) -> RunningOperator:
        settings = Settings(namespaces=(self._namespace,), request_timeout=REQUEST_SECONDS, **SETTINGS)
        return RunningOperator(settings, Connection(self._proxy.url, token=self._plane.admin_token), live.TIMING)

    def close(self) -> None:
        self._operator.kill()
        self._proxy.close()

    def play(self) -> Ending:
        program = Program(seconds=None, stop_seconds=0.1)
        with live.kubelet(live.connection(self._plane), program, namespace=self._namespace):
            self._step(self._create, creates_pod(attempt=0))
            self._step(self._fail, writes_attempt(1), attempt=1)
            self._step(self._create_again, creates_pod(attempt=0))
            self._step(self._fail, creates_pod(attempt=1), attempt=1)
            self._step(self._create_again, None)
        names = [f"{p['metadata']['name']} {p['status']['phase']}" for p in self._pods()]
        record = self._proxy.record
        never_goes_back(record.writes)
        return Ending(self._statuses, sorted(names), record.creates, record.deletes, self._proxy.reads)

    def _step(self, change: Callable[[], None], moment: Callable[[Write], bool] | None, attempt: int = 0) -> None:
        """Makes the change; the second server lags from before it. The move comes after a write; None: before all."""
        if self._moves:
            eventually(lambda: self._second.cached(self._namespace) == versions(self._api, self._namespace))
            with self._second.etcd.stalled():
                before = self._second.cached(self._namespace)
                if moment:
                    self._proxy.move_after(self._moves, moment)
                else:
                    self._proxy.move(self._moves)
                change()
                eventually(lambda: self._proxy.moved)
                if self._dies:
                    self._operator.kill()
                    self._operator = self._start()
                self._look()
                assert self._second.cached(self._namespace) == before != versions(self._api, self._namespace)
        else:
            change()
        eventually(lambda: self._runs(attempt), what=f"attempt {attempt} runs")
        self._statuses.append(self._kept())
        if self._moves:
            self._proxy.move("")

    def _look(self) -> None:
        """The operator reconciles repeatedly while it sees the older state, or asks a server that does not answer."""
        if self._moves == "everything":
            eventually(lambda: self._proxy.requests >= RECONCILES)
            return
        for _ in range(RECONCILES):
            eventually(lambda: self._proxy.requests and self._operator.state()[0], what="the operator is idle")
            self._operator.enqueue_all()
        eventually(lambda: self._operator.state()[0], what="the operator is idle")

    def _create(self) -> None:
        self._api.create(JOB, self._namespace)

    def _create_again(self) -> None:
        self._api.delete(KIND, self._namespace, "demo")
        self._create()

    def _fail(self) -> None:
        self._hand.end("demo-worker-0-0", 137, others=137)

    def _runs(self, attempt: int) -> bool:
        """Only pods of this attempt and of the present job exist, and the status says that they run."""
        status, uid = self._status(), self._api.get(KIND, self._namespace, "demo")["metadata"]["uid"]
        wanted = {(f"demo-{role}-0-{attempt}", uid) for role in ("master", "worker")}
        there = {(p["metadata"]["name"], p["metadata"]["ownerReferences"][0]["uid"]) for p in self._pods()}
        observed = (status.get("phase"), status.get("attempt"), status.get("ready"), status.get("launched"), there)
        return observed == ("Running", attempt, "2/2", True, wanted)

    def _kept(self) -> dict[str, Any]:
        """The status without times, because the clock is real."""
        kept = ("phase", "attempt", "restarts", "roles", "replicaRestarts")
        return {name: self._status().get(name) for name in kept}

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._api.get(KIND, self._namespace, "demo").get("status", {})
        return found

    def _pods(self) -> list[dict[str, Any]]:
        return self._api.list("Pod", self._namespace)


def creates_pod(attempt: int) -> Callable[[Write], bool]:
    return lambda w: (
        w.verb == "POST" and w.path.endswith("/pods") and w.body["metadata"]["name"].endswith(f"-{attempt}")
    )


def writes_attempt(number: int) -> Callable[[Write], bool]:
    return lambda w: w.verb == "PATCH" and w.body["status"].get("attempt") == number


def never_goes_back(writes: list[Write]) -> None:
    """Attempts and counted restarts of each job only grow."""
    history: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for write in writes:
        if write.verb == "PATCH" and write.code < 300:
            last = history[write.body["metadata"]["uid"]]
            attempt, counted = last[-1] if last else (0, 0)
            status = write.body["status"]
            last.append((status.get("attempt", attempt), (status.get("restarts") or {}).get("counted", counted)))
    for states in history.values():
        assert states == sorted(states), states


@pytest.fixture(scope="module")
def reference(control_plane: ControlPlane, proxies: Threads, second: Second) -> Ending:
    with contextlib.closing(Run(control_plane, proxies, second, moves="", dies=False)) as run:
        return run.play()


@pytest.mark.parametrize(
    "dies", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["", "and the operator dies"]
)
@pytest.mark.parametrize(
    "moves", ["all watches", *(pytest.param(moves, marks=pytest.mark.nightly) for moves in list(MOVES)[1:])]
)
def test_an_api_server_that_lags_behind_changes_nothing(
    moves: str, dies: bool, reference: Ending, second: Second, control_plane: ControlPlane, proxies: Threads
) -> None:
    with contextlib.closing(Run(control_plane, proxies, second, moves, dies)) as run:
        assert run.play() == reference


def test_no_read_may_be_answered_from_a_cache(reference: Ending) -> None:
    """An API server may do that if the request names a resourceVersion."""
    assert [read for read in reference.reads if "/distributedtrainings?" in read or "/pods?" in read]
    assert not [read for read in reference.reads if "resourceVersion" in read]
