"""The operator in the simulation: observe, reconcile, apply. It can be killed after any of its writes.

It executes a plan as the operator on a cluster does:
1. a plan with `write_ahead` writes status, at the version that was observed, and nothing else;
2. otherwise objects of optional kinds are deleted and patched, then objects other than pods are restored and created,
   and older ConfigMaps are deleted: if a creation fails, no pods are created;
3. then pods are created and deleted, in any order;
4. then status is written, and Events are recorded.
After a conflict the job is read and reconciled again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from allranks.api.job import KIND, Job
from allranks.core.facts.model import (
    Event,
    Manifest,
    ObjectPatch,
    Observed,
    Plan,
    Platform,
    Pod,
    PodRef,
    RejectedCreate,
)
from allranks.core.facts.optional_kinds import BY_ID, OptionalObjects
from allranks.kube import job_codec
from allranks.operator.other_jobs import Contenders

from . import codec
from .informer import OPTIONAL, Informer, Lag, Timer
from .ranks import Ranks
from .store import AlreadyExists, ApiError, Conflict, Key, NotFound, Store, controller_of, key_of
from .supervisors import Supervisors

Reconcile = Callable[[Observed], Plan]

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0
"""Backoff of rejected creations, which doubles. A change of a pod of the job also causes a retry."""


@dataclass
class Audit:
    """Successful requests of all controllers since the start that changed the store."""

    creates: Counter[Key] = field(default_factory=Counter)
    deletes: Counter[str] = field(default_factory=Counter)
    """By UID. A repeated deletion counts once."""
    writes: int = 0
    events: list[tuple[Key, Event, datetime]] = field(default_factory=list)
    decisions: list[tuple[Observed, Plan]] = field(default_factory=list)
    """Every plan that was not empty, with its input."""
    reconciles: int = 0


class Killed(Exception):
    """Raised to kill the operator after a write succeeded, before it receives the response."""


class Host(Timer, Protocol):
    """The part of a cluster that a controller needs."""

    served: dict[str, str]

    @property
    def now(self) -> datetime: ...
    def shuffled(self, items: Sequence[Callable[[], None]]) -> list[Callable[[], None]]: ...


class Controller:
    """One process of the operator. Its memory (informer, rejections, timers) is lost when it is killed."""

    def __init__(
        self,
        store: Store,
        host: Host,
        reconcile: Reconcile,
        platform: Platform,
        audit: Audit,
        lag: Lag,
        ranks: Ranks,
        supervisors: Supervisors,
    ) -> None:
        self._store, self._host, self._reconcile, self._platform = store, host, reconcile, platform
        self._audit, self._ranks, self._since = audit, ranks, host.now
        self._supervisors = supervisors
        self._queued: set[Key] = set()
        self._rejected: dict[Key, dict[Key, RejectedCreate]] = {}
        self._retry_seconds: dict[Key, float] = {}
        self._timers: dict[Key, datetime] = {}
        self._pods: dict[Key, tuple[Manifest, str, Pod]] = {}
        self._jobs: dict[Key, tuple[Manifest, Manifest, Job]] = {}
        self._contenders = Contenders(lambda key: self.enqueue((KIND, *key)))
        self.alive = True
        self.writes_left: int | None = None
        """Number of writes after which it is killed; None: it is not."""
        self.unsent: list[Callable[[], None]] = []
        """Requests in flight when it was killed. They may still arrive."""
        self.informer = Informer(store, host, lag, self.enqueue)
        for key in self.informer.jobs:
            self.enqueue(key)
        supervisors.connect(self._process_changed)

    def kill(self) -> None:
        self.alive = False
        self.informer.close()

    def enqueue(self, key: Key) -> None:
        """Schedules a reconcile of the job. Further calls before it runs are coalesced."""
        if key not in self._queued:
            self._queued.add(key)
            self._host.after(0, lambda: self._reconcile_once(key))

    def _process_changed(self, job_uid: str) -> None:
        for key, job in self.informer.jobs.items():
            if job["metadata"]["uid"] == job_uid:
                self.enqueue(key)

    def _reconcile_once(self, key: Key) -> None:
        if not self.alive:
            return
        self._queued.discard(key)
        job = self.informer.jobs.get(key)
        if job is None:
            self._rejected.pop(key, None)
            self._contenders.forget(key[1:])
            return
        before = (self.informer.changes, dict(self._rejected.get(key, {})))
        observed = self.observe(job)
        plan = self._reconcile(observed)
        self._audit.reconciles += 1
        if not plan.empty:
            self._audit.decisions.append((observed, plan))
        if plan.stack_dump_id:
            self._ranks.request_stacks(plan.stack_dump_id)
        self._ranks.checkpoint_request = plan.checkpoint_request
        self._supervisors.carry_out(plan.orders)
        self._apply(key, job, plan)
        if plan.wake_at:
            self._wake_at(key, plan.wake_at)
        if (self.informer.changes, self._rejected.get(key, {})) != before:
            self.enqueue(key)

    def _wake_at(self, key: Key, moment: datetime) -> None:
        planned = self._timers.get(key)
        if planned is not None and self._host.now < planned <= moment:
            return
        self._timers[key] = moment
        self._host.after(max(0.0, (moment - self._host.now).total_seconds()), lambda: self.enqueue(key))

    def observe(self, job: Manifest) -> Observed:
        uid, status = job["metadata"]["uid"], job_codec.status(job)
        pods = tuple(self._decode_pod(pod, uid) for pod in self.informer.pods_of(job))
        observed = Observed(
            job=self._decode_job(job),
            persisted=status,
            pods=pods,
            now=self._host.now,
            platform=self._platform_of(job),
            refused=tuple(self._rejected.get(key_of(job), {}).values()),
            reports=self._ranks.of(pods, status.attempt, self._since),
            optional=self._optional(uid),
            processes=self._supervisors.observed(uid, self._since),
        )
        return replace(observed, contention=self._contenders.observe(key_of(job)[1:], observed))

    def _optional(self, uid: str) -> OptionalObjects:
        served = dict(self._host.served)
        objects = self.informer.optional_objects(served)
        return OptionalObjects(
            versions=served,
            problems={kind: f"this cluster does not serve {kind}" for kind in BY_ID if kind not in served},
            of_job=tuple(each for each in objects.values() if controller_of(each) == uid),
            shared=objects,
        )

    def _platform_of(self, job: Manifest) -> Platform:
        pools = {name: codec.pool(manifest) for name, manifest in self.informer.pools_of(job).items()}
        return replace(self._platform, pools=pools) if pools else self._platform

    def _decode_pod(self, manifest: Manifest, owner: str) -> Pod:
        """Cached by the identity of the manifest, which is never changed in place."""
        key = key_of(manifest)
        cached = self._pods.get(key)
        if cached is None or cached[0] is not manifest or cached[1] != owner:
            cached = self._pods[key] = (manifest, owner, codec.pod(manifest, owner))
        return cached[2]

    def _decode_job(self, manifest: Manifest) -> Job:
        """Cached, because the operator's own writes change only status and resourceVersion."""
        key, metadata = key_of(manifest), {**manifest["metadata"], "resourceVersion": ""}
        cached = self._jobs.get(key)
        if cached is None or cached[0] is not manifest["spec"] or cached[1] != metadata:
            cached = self._jobs[key] = (manifest["spec"], metadata, job_codec.job(manifest))
        return cached[2]

    def _apply(self, key: Key, job: Manifest, plan: Plan) -> None:
        if plan.write_ahead:
            self._write_status(key, job, plan)
            return
        for manifest in plan.remove:
            self._remove(manifest)
        for patch in plan.patch:
            self._patch(patch)
        companions = [manifest for manifest in plan.create if manifest["kind"] != "Pod"]
        pods = [manifest for manifest in plan.create if manifest["kind"] == "Pod"]
        first: list[Callable[[], None]] = [
            lambda m=m: self._create(key, job, m)  # type: ignore[misc]
            for m in (*plan.restore, *companions)
        ]
        first += [lambda n=n: self._delete_config_map(job, n) for n in plan.superseded]  # type: ignore[misc]
        self._send(first)
        if any(key_of(companion) in self._rejected.get(key, {}) for companion in companions):
            pods = []
        requests: list[Callable[[], None]] = [lambda m=m: self._create(key, job, m) for m in pods]  # type: ignore[misc]
        requests += [lambda r=r: self._delete(job, r) for r in plan.delete]  # type: ignore[misc]
        self._send(requests)
        self._note_rejections(key, plan)
        self._write_status(key, job, plan)
        if plan.delete_job:
            self._delete_job(key, job)
        if plan.suspend_job:
            self._suspend(key)

    def _send(self, requests: Sequence[Callable[[], None]]) -> None:
        """Sends requests in any order. Those not sent when the operator is killed may arrive later."""
        waiting = self._host.shuffled(requests)
        while waiting:
            self.unsent = waiting
            waiting.pop()()
        self.unsent = []

    def _write_status(self, key: Key, job: Manifest, plan: Plan) -> None:
        if plan.next is not None:
            try:
                written = self._store.write_status(key, job_codec.encode(plan.next), job["metadata"]["resourceVersion"])
            except (Conflict, NotFound):
                self.informer.refresh(key)
                return
            self._wrote()
            self.informer.remember(written)
        self._audit.events += [(key, event, self._host.now) for event in plan.events]

    def _create(self, key: Key, job: Manifest, manifest: Manifest) -> None:
        mine = self._rejected.setdefault(key, {})
        wanted = key_of(manifest)
        try:
            created = self._store.create(manifest)
        except AlreadyExists:
            found = self._store.get(wanted)
            if controller_of(found) == job["metadata"]["uid"]:
                mine.pop(wanted, None)
                self._remember(found)
            else:
                message = "an object with this name exists and belongs to another owner; it is left alone"
                mine[wanted] = RejectedCreate(wanted[0], wanted[2], "AlreadyExists", message)
        except ApiError as answer:
            mine[wanted] = RejectedCreate(wanted[0], wanted[2], answer.reason, str(answer))
        else:
            self._audit.creates[wanted] += 1
            self._wrote()
            mine.pop(wanted, None)
            self._remember(created)

    def _remember(self, manifest: Manifest) -> None:
        if self.alive and manifest["kind"] in ("Pod", *OPTIONAL):
            self.informer.remember(manifest)

    def _delete(self, job: Manifest, reference: PodRef) -> None:
        key = ("Pod", job["metadata"].get("namespace", "default"), reference.name)
        before = self._store.version
        try:
            self._store.delete(key, uid=reference.uid)
        except (NotFound, Conflict):
            return
        if self._store.version != before:
            self._audit.deletes[reference.uid] += 1
            self._wrote()

    def _remove(self, manifest: Manifest) -> None:
        uid = manifest["metadata"]["uid"]
        try:
            self._store.delete(key_of(manifest), uid=uid)
        except (NotFound, Conflict):
            return
        self._audit.deletes[uid] += 1
        self._wrote()
        self.informer.refresh(key_of(manifest))

    def _patch(self, patch: ObjectPatch) -> None:
        key, metadata = key_of(patch.object), patch.object["metadata"]
        before = self._store.version
        try:
            after = self._store.patch_version(
                key, patch.change, metadata["uid"], metadata["resourceVersion"], patch.subresource == "status"
            )
        except (NotFound, Conflict):
            self.informer.refresh(key)
            return
        if self._store.version != before:
            self._wrote()
            self._remember(after)

    def _delete_config_map(self, job: Manifest, name: str) -> None:
        key = ("ConfigMap", job["metadata"].get("namespace", "default"), name)
        found = self._store.find(key)
        if found is None or controller_of(found) != job["metadata"]["uid"]:
            return
        self._store.delete(key, uid=found["metadata"]["uid"])
        self._audit.deletes[found["metadata"]["uid"]] += 1
        self._wrote()

    def _delete_job(self, key: Key, job: Manifest) -> None:
        try:
            self._store.delete(key, uid=job["metadata"]["uid"])
        except (NotFound, Conflict):
            self.informer.refresh(key)
            return
        self._audit.deletes[job["metadata"]["uid"]] += 1
        self._wrote()
        self.informer.refresh(key)

    def _suspend(self, key: Key) -> None:
        try:
            self._store.patch(key, {"spec": {"suspend": True}})
        except NotFound:
            self.informer.refresh(key)
            return
        self._wrote()

    def _wrote(self) -> None:
        self._audit.writes += 1
        if self.alive and self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                raise Killed

    def _note_rejections(self, key: Key, plan: Plan) -> None:
        """Forgets rejections of objects that are no longer planned, and schedules a retry of the others."""
        wanted = {key_of(manifest) for manifest in plan.create}
        kept = {name: rejection for name, rejection in self._rejected.get(key, {}).items() if name in wanted}
        self._rejected[key] = kept
        if not kept:
            self._retry_seconds.pop(key, None)
            return
        wait = self._retry_seconds.get(key, FIRST_RETRY_SECONDS)
        self._retry_seconds[key] = min(LAST_RETRY_SECONDS, 2 * wait)
        self._host.after(wait, lambda: self.enqueue(key))
