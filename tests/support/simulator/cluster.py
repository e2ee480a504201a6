"""A cluster in memory: store, nodes, garbage collector and operator on one virtual clock, deterministic by its seed.

Nothing sleeps and nothing runs in parallel. The seed determines the order of events at the same moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.api.pool import KIND as POOL
from allranks.core import reconcile as core
from allranks.core.facts.data_store import DataStore
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.optional_kinds import OptionalKind
from allranks.errors import AllranksError

from .controller import Audit, Controller, Killed, Reconcile
from .informer import Lag
from .kubelets import Kubelets, Node, Workload
from .ranks import Ranks
from .store import Change, Key, NotFound, Store, key_of, owners
from .supervisors import Supervisors

START = datetime(2026, 1, 1, tzinfo=UTC)
PLATFORM = Platform(
    helper_image="allranks/operator:simulated",
    report_url="http://allranks.simulated:8081/v1/report",
    data=DataStore("allranks-data", "allranks/data:simulated", 100 << 30),
)
FOREGROUND = "foregroundDeletion"


class DoesNotSettle(AllranksError):
    """The events of one moment do not come to an end."""


class Cluster:
    """The simulated world. Its methods are the actions of users, machines and faults."""

    def __init__(
        self,
        seed: int = 0,
        *,
        nodes: Iterable[Node] = (Node("node-1"), Node("node-2")),
        workload: Workload | None = None,
        lag: Lag | None = None,
        reconcile: Reconcile | None = None,
        admit: Callable[[Manifest | None, Manifest], None] | None = None,
        start: datetime = START,
    ) -> None:
        self._random = Random(seed)
        self._queue: list[tuple[datetime, float, int, Callable[[], None]]] = []
        self._queued = 0
        self.lag = lag or Lag()
        self.reconcile: Reconcile = reconcile or core.reconcile
        self.now = start
        self.audit = Audit()
        self.served: dict[str, str] = {}
        """Ids of optional kinds that the cluster serves -> their `apiVersion`."""
        self.store = Store(lambda: self.now, admit)
        self.store.watchers.append(self._collect_garbage)
        self.kubelets = Kubelets(self.store, self, {node.name: node for node in nodes}, workload)
        self.max_events = 100_000
        """Limit of events at one moment."""
        self.ranks = Ranks(lambda: self.now)
        """Reports of the programs in the pods."""
        self.supervisors = Supervisors(
            self.store, self, lambda pod, code, message: self.kubelets.end(pod, code, message=message, others=code)
        )
        self.ranks.number_of = self.supervisors.number_of
        self.operator: Controller | None = None
        self._writes_left: int | None = None
        """Number of writes after which the operator is killed that is started next; None: it is not."""
        self.late_requests = 0.0
        """Probability that a request in flight when the operator was killed still arrives, within a minute."""
        self.operator_starts = 0
        self.start_operator()

    # Time

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._queued += 1
        moment = self.now + timedelta(seconds=seconds)
        heapq.heappush(self._queue, (moment, self._random.random(), self._queued, action))

    def settle(self) -> None:
        """Runs all events that are due now. Raises DoesNotSettle if they do not come to an end."""
        for _ in range(self.max_events):
            if not self._queue or self._queue[0][0] > self.now:
                return
            self._next()
        raise DoesNotSettle(f"more than {self.max_events} events at {self.now}: something goes round in circles")

    def advance(self, seconds: float) -> None:
        """Advances the clock and runs each event when it is due."""
        until = self.now + timedelta(seconds=seconds)
        self.settle()
        while self._queue and self._queue[0][0] <= until:
            self.now = max(self.now, self._queue[0][0])
            self.settle()
        self.now = until
        self.settle()

    def jump(self, seconds: float) -> None:
        """Advances the clock at once, as after a pause of the machine. Events that were due in between run late."""
        self.now += timedelta(seconds=seconds)
        self.settle()

    def random(self) -> float:
        return self._random.random()

    def shuffled(self, items: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        return self._random.sample(list(items), len(items))

    def _next(self) -> None:
        _, _, _, action = heapq.heappop(self._queue)
        try:
            action()
        except Killed:
            self.stop_operator()
            self.start_operator()

    # The operator

    def start_operator(self) -> None:
        """Starts a new operator process, which lists all objects."""
        self.operator_starts += 1
        self.operator = Controller(
            self.store, self, self.reconcile, PLATFORM, self.audit, self.lag, self.ranks, self.supervisors
        )
        self.operator.writes_left = self._writes_left

    def stop_operator(self) -> None:
        """kill -9."""
        if self.operator:
            self._writes_left = self.operator.writes_left or None  # 0: it was killed for that
            self.operator.kill()
            self.supervisors.disconnect()
            for request in self.operator.unsent:
                if self.late_requests and self.random() < self.late_requests:
                    self.after(60 * self.random(), request)
        self.operator = None

    def restart_operator(self) -> None:
        self.stop_operator()
        self.start_operator()

    def kill_operator_after(self, writes: int) -> None:
        """Kills the operator, or the one that is started in its place, after this many further writes, and starts it
        again."""
        self._writes_left = writes
        if self.operator:
            self.operator.writes_left = writes

    # Actions of programs

    def report(self, pod: Key, **values: Any) -> None:
        """The pod's rank sends a report (see `Ranks.report`), which enqueues the job."""
        manifest = self.store.get(pod)
        self.ranks.report(manifest, **values)
        for owner in manifest["metadata"]["ownerReferences"]:
            if self.operator and owner["kind"] == KIND:
                self.operator.enqueue((KIND, pod[1], owner["name"]))
        self.settle()

    def enqueue_jobs(self) -> None:
        """Ranks report again."""
        if self.operator:
            for key in self.operator.informer.jobs:
                self.operator.enqueue(key)
        self.settle()

    # Actions of users

    def create_job(self, manifest: Manifest) -> Manifest:
        return self.store.create(manifest)

    def patch_job(self, key: Key, spec: dict[str, Any]) -> None:
        """A merge patch of the spec. Raises NotFound, Invalid."""
        self.store.patch(key, {"spec": spec})

    def delete_job(self, key: Key, foreground: bool = False) -> None:
        """Deletes the job. Its objects are deleted after it, or with `foreground` before it."""
        if foreground:
            self.store.patch(key, {"metadata": {"finalizers": [FOREGROUND]}})
        self.store.delete(key)

    def apply_pool(self, name: str, spec: dict[str, Any]) -> None:
        """Creates a TrainingPool or replaces its spec. Raises Invalid."""
        self.store.apply({"apiVersion": API_VERSION, "kind": POOL, "metadata": {"name": name}, "spec": spec})

    def delete_pool(self, name: str) -> None:
        """Raises NotFound."""
        self.store.delete((POOL, "", name))

    # Optional API groups

    def serve(self, kinds: Iterable[OptionalKind]) -> None:
        """Installs the API groups of these kinds."""
        self.served |= {kind.id: f"{kind.group}/{kind.versions[0]}" for kind in kinds}
        self.enqueue_jobs()

    def withdraw(self, kinds: Iterable[OptionalKind]) -> None:
        """Uninstalls them, with all their objects."""
        for kind in kinds:
            self.served.pop(kind.id, None)
            for manifest in self.store.all(kind.kind):
                self.store.remove(key_of(manifest))
        self.enqueue_jobs()

    def job(self, key: Key) -> Manifest | None:
        return self.store.find(key)

    def pods(self) -> list[Manifest]:
        return self.store.all("Pod")

    # Garbage collection

    def _collect_garbage(self, change: Change) -> None:
        """Deletes the dependents of deleted owners, including those created after their owner was deleted."""
        uid = change.object["metadata"]["uid"]
        if change.kind == "DELETED":
            self.after(0, lambda: self._delete_dependents(uid))
            for owner in owners(change.object):
                self.after(0, lambda o=owner: self._finish_foreground(o))  # type: ignore[misc]
        elif change.kind == "ADDED" and any(True for _ in owners(change.object, KIND)):
            self.after(0, lambda: self._delete_orphan(change.object))
        elif FOREGROUND in change.object["metadata"].get("finalizers", ()) and _deleted(change.object):
            self.after(0, lambda: self._delete_dependents(uid))
            self.after(0, lambda: self._finish_foreground(uid))

    def _delete_dependents(self, uid: str) -> None:
        for manifest in self.store.all():
            if uid in owners(manifest) and not _deleted(manifest):
                self.store.delete(key_of(manifest))

    def _delete_orphan(self, manifest: Manifest) -> None:
        # An object created during the foreground deletion of its owner is deleted as well.
        staying = (o for o in self.store.all(KIND) if not (_deleted(o) and FOREGROUND in _finalizers(o)))
        present = {other["metadata"]["uid"] for other in staying}
        if not present.intersection(owners(manifest, KIND)):
            try:
                self.store.delete(key_of(manifest), uid=manifest["metadata"]["uid"])
            except NotFound:
                return

    def _finish_foreground(self, uid: str) -> None:
        owner = next((o for o in self.store.all(KIND) if o["metadata"]["uid"] == uid), None)
        waits = owner is not None and FOREGROUND in owner["metadata"].get("finalizers", ()) and _deleted(owner)
        if owner is not None and waits and not any(uid in owners(manifest) for manifest in self.store.all()):
            self.store.remove(key_of(owner))


def _finalizers(manifest: Manifest) -> list[str]:
    found: list[str] = manifest["metadata"].get("finalizers", [])
    return found


def _deleted(manifest: Manifest) -> bool:
    return "deletionTimestamp" in manifest["metadata"]
