"""Reconciles sweeps: observe (caches), decide (pure core), write the status, create and suspend jobs.

After a crash, the status and the jobs suffice. The cache of sweeps is fed by a watch in each namespace and by the
responses to our own writes. Spec and status stay JSON text until they are needed: as Python objects they take up to
sixty times their size.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from allranks.api.pool import PoolSpec
from allranks.api.sweep import Sweep, SweepSpec
from allranks.api.sweep_status import SweepStatus
from allranks.core.facts.model import Event, Manifest
from allranks.core.sweeps.model import CANNOT_SUGGEST, Suggestion, SweepObserved, SweepPlan
from allranks.core.sweeps.plan import plan
from allranks.kube import compact_jobs, paths, sweep_codec
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Conflict, NotFound, Refused
from allranks.kube.job_codec import DecodeError
from allranks.kube.merge_patch import diff
from allranks.kube.store import Store
from allranks.kube.sweep_codec import RawSweep
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS, Watch
from allranks.operator.cache import JobCache, JobKey
from allranks.operator.event_recorder import Recorder
from allranks.operator.notifier import Notifier
from allranks.operator.receivers import ReceiversFile
from allranks.operator.reconciler import Reconciler, Result, State
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import WorkQueue
from allranks.shares import PART_OF_LARGE, Pace, Turns
from allranks.suggest.process import CannotSuggest

logger = logging.getLogger("allranks.sweeps")

MAX_DECODED_BYTES = 2**20
"""JSON text of all sweeps that are kept decoded: about 60 MB as Python objects."""


class SweepCache:
    """Calls `changed(key)` for each sweep that changes. An operator without the right to read sweeps serves none."""

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str | None],
        renewed_after: int,
        changed: Callable[[JobKey], None],
        received: Callable[[str, int], None] = lambda namespace, size: None,
    ) -> None:
        self._sweeps: Store[JobKey, RawSweep] = Store(lambda sweep: sweep.version)
        self._changed, self._received = changed, received
        self.watches = {
            f"sweeps{f' in {namespace}' if namespace else ''}": self._watch(client, namespace, renewed_after)
            for namespace in namespaces
        }

    def __iter__(self) -> Iterator[JobKey]:
        return iter(self._sweeps)

    def __contains__(self, key: JobKey) -> bool:
        return key in self._sweeps

    def get(self, key: JobKey) -> Manifest | None:
        """Return the sweep, decoded. `spec` is None if it is larger than allowed."""
        raw = self._sweeps.get(key)
        return raw.manifest() if raw else None

    def upsert(self, sweep: RawSweep, deleted: bool = False) -> None:
        key = _key(sweep)
        if self._sweeps.delete(key, sweep.version) if deleted else self._sweeps.put(key, sweep):
            self._changed(key)

    def size(self, key: JobKey) -> int:
        """Return the size of the spec as JSON text, in bytes."""
        raw = self._sweeps.get(key)
        return len(raw.spec) if raw else 0

    def forget(self, key: JobKey) -> None:
        """Remove a sweep that the API server does not find."""
        self._sweeps.forget(key)

    def _watch(self, client: Client, namespace: str | None, renewed_after: int) -> Watch[RawSweep]:
        def listed(sweeps: Sequence[RawSweep], version: int) -> None:
            present = {_key(sweep) for sweep in sweeps}
            for sweep in sweeps:
                self.upsert(sweep)
            for key, _ in self._sweeps.missing_from(present, version, lambda key: namespace in (None, key[0])):
                self._sweeps.delete(key, version)
                self._changed(key)

        def decoded(data: msgspec.Raw) -> RawSweep:
            sweep = sweep_codec.raw_sweep(data)
            self._received(sweep.metadata.namespace, memoryview(data).nbytes)
            return sweep

        def forbidden(message: str) -> None:
            logger.warning("this operator cannot read TrainingSweeps, and serves none: %s", message)

        return Watch(
            client,
            paths.sweeps(namespace),
            decoded,
            listed=listed,
            changed=self.upsert,
            renewed_after=renewed_after,
            forbidden=forbidden,
            page=PAGE_OF_LARGE_OBJECTS,
        )


class DecodedSweeps:
    """The sweeps that were decoded last, of at most `MAX_DECODED_BYTES` of JSON text together."""

    def __init__(self) -> None:
        self._kept: OrderedDict[JobKey, tuple[str, int, int, Sweep]] = OrderedDict()
        """(UID, generation, bytes, sweep); the one that was used last is the last one."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: JobKey) -> bool:
        return key in self._kept

    def get(self, key: JobKey, uid: str, generation: int) -> Sweep | None:
        kept = self._kept.get(key)
        if kept is None or kept[:2] != (uid, generation):
            return None
        self._kept.move_to_end(key)
        return kept[3]

    def keep(self, key: JobKey, uid: str, generation: int, size: int, sweep: Sweep) -> None:
        self.forget(key)
        self._kept[key] = uid, generation, size, sweep
        self._bytes += size
        while self._bytes > MAX_DECODED_BYTES:
            self.forget(next(iter(self._kept)))

    def forget(self, key: JobKey) -> None:
        if kept := self._kept.pop(key, None):
            self._bytes -= kept[2]


def _key(sweep: RawSweep) -> JobKey:
    return sweep.metadata.namespace, sweep.metadata.name


Suggest = Callable[[SweepSpec, Suggestion], Awaitable[dict[str, str]]]
Decide = Callable[[SweepObserved], SweepPlan]


@dataclass
class _State(State):
    """`retry_at`: when jobs that were refused are tried again."""

    suggested: dict[int, dict[str, str]] = field(default_factory=dict)
    rejected: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a job -> (reason, message) with which its creation was refused."""
    unsuggested: str = ""
    """Why there are no parameters for the next trial."""
    wrote_at: float = float("-inf")


class SweepController(Reconciler[_State]):
    """Reconciles the sweeps in the queue."""

    kind, logger = "sweep", logger

    def __init__(
        self,
        client: Client,
        jobs: JobCache,
        recorder: Recorder,
        suggest: Suggest,
        enqueue_job: Callable[[JobKey], None],
        *,
        namespaces: tuple[str | None, ...],
        renewed_after: int,
        timing: Timing,
        clock: Clock,
        decide: Decide = plan,
        receivers: ReceiversFile | None = None,
        pool: Callable[[str, str | None], PoolSpec | None] = lambda namespace, name: None,
        received: Callable[[str, int], None] = lambda namespace, size: None,
    ) -> None:
        """`pool(namespace, name)`: the spec of the named pool, or of the namespace's default.

        Calls `received(namespace, bytes)` for each sweep that the watches bring.
        """
        queue: WorkQueue[JobKey] = WorkQueue(clock, lambda failures: min(timing.retry_max, 2.0 ** min(failures, 9)))
        super().__init__(queue, recorder, _State, timing=timing, clock=clock)
        self._decide, self._pool = decide, pool
        self.notifier = Notifier(receivers or ReceiversFile(""), self._enqueue)
        self._client, self._jobs, self._suggest, self._enqueue_job = client, jobs, suggest, enqueue_job
        self.sweeps = SweepCache(client, namespaces, renewed_after, self._enqueue, received)
        self._decoded = DecodedSweeps()
        self._turns, self._pace = Turns(), Pace(PART_OF_LARGE)
        self._open: set[str | None] = set()

    @property
    def idle(self) -> bool:
        return not len(self.queue)

    def open(self, namespace: str | None) -> None:
        """Begin, as the jobs of the namespace (None: of all) are listed. Before that, trials would seem to have no
        job."""
        self._open.add(namespace)
        for key in self.sweeps:
            if namespace in (None, key[0]):
                self._enqueue(key)

    def on_job(self, job: Manifest) -> None:
        """Take a job that changed, or is gone."""
        if name := sweep_codec.sweep_of(job):
            self._enqueue((job["metadata"].get("namespace", ""), name))

    async def run(self) -> None:
        """Watch and reconcile until `close`."""
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(watch.run()) for watch in self.sweeps.watches.values()]
            await super().run()
            for watch in watches:
                watch.cancel()

    def _enqueue(self, key: JobKey) -> None:
        if None in self._open or key[0] in self._open:
            self.queue.add(key)

    async def _reconcile(self, key: JobKey, state: _State) -> Result:
        tried = await self._reconcile_once(key, state)
        if not (state.rejected or state.unsuggested):
            return Result.DONE
        return Result.RETRY if tried else Result.WAIT

    def _exists(self, key: JobKey) -> bool:
        return key in self.sweeps

    def _forget(self, key: JobKey) -> None:
        self._decoded.forget(key)

    async def _reconcile_once(self, key: JobKey, state: _State) -> bool:
        """Return whether jobs were created, or refused, or a request for parameters had no answer."""
        tried = False
        unanswered = state.unsuggested != "" and self._waits(state)
        while True:
            if large := self.sweeps.size(key) > compact_jobs.LARGE_BYTES and key not in self._decoded:
                await self._pace.wait(key[0])
            raw = self.sweeps.get(key)
            if raw is None or raw["metadata"].get("deletionTimestamp"):
                return tried  # its jobs are deleted by the garbage collector
            try:
                with self._pace.piece() if large else contextlib.nullcontext():
                    sweep, status = self._decode(key, raw), sweep_codec.status(raw)
                await self._read_missing(key[0], status)
                plan = self._decide(self._observe(key, sweep, status, state))
            except DecodeError as error:
                await self._report_invalid(key, raw, state, "InvalidSpec", str(error))
                return tried
            except ApiError:
                raise
            except Exception as error:
                exception = f"{type(error).__name__}: {error}"
                message = f"the operator cannot evaluate this sweep ({exception}): correct its spec, or report a bug"
                await self._report_invalid(key, raw, state, "InvalidSpec", message, error)
                return tried
            state.invalid = ""
            if plan.ask is None:
                state.unsuggested = state.unsuggested if plan.write_ahead else ""
            elif not unanswered:
                unanswered = not await self._ask(key, sweep, plan.ask, state)
                tried = tried or unanswered
                if unanswered:
                    continue
            if plan.status is not None and not self._postponed(key, plan, state):
                written = await self._write(key, raw, plan.status)
                state.wrote_at = self._clock.monotonic()
                if written:
                    self._emit(raw, plan.events)
                    self._emit_refusals(raw, plan.status, status)
                    state.suggested = {} if plan.write_ahead else state.suggested
                continue
            if plan.write_ahead:
                continue
            create = [] if tried and state.rejected else self._due(plan.create, state)
            await self._create(key[0], create, state)
            await self._suspend(key[0], plan.stop, True)
            await self._suspend(key[0], plan.resume, False)
            tried = tried or bool(create)
            if not (create or plan.stop or plan.resume or (plan.ask and not unanswered)):
                return tried

    def _due(self, manifests: Iterable[Manifest], state: _State) -> list[Manifest]:
        """Return the jobs to create now: refused ones wait for their backoff."""
        waits = self._waits(state)
        return [manifest for manifest in manifests if not (waits and manifest["metadata"]["name"] in state.rejected)]

    def _waits(self, state: _State) -> bool:
        return state.retry_at is not None and self._clock.monotonic() < state.retry_at

    def _decode(self, key: JobKey, raw: Manifest) -> Sweep:
        """Raises DecodeError."""
        uid, generation = raw["metadata"]["uid"], raw["metadata"].get("generation", 1)
        sweep = self._decoded.get(key, uid, generation)
        if sweep is None:
            sweep = sweep_codec.sweep(raw)
            self._decoded.keep(key, uid, generation, self.sweeps.size(key), sweep)
        return sweep

    def _observe(self, key: JobKey, sweep: Sweep, status: SweepStatus, state: _State) -> SweepObserved:
        namespace = key[0]
        names = {trial.job for trial in status.trials}
        cached = {name: job for name in names if (job := self._jobs.get((namespace, name))) is not None}
        jobs = {name: sweep_codec.trial_job(job, sweep.metadata.uid) for name, job in cached.items()}
        observed = SweepObserved(sweep, status, jobs, self._clock.now(), state.suggested, state.rejected)
        observed = replace(observed, unsuggested=state.unsuggested)
        notifies = self.notifier.for_all(namespace)
        if not (notifies or status.notifications):
            return observed
        pools = filter(None, (self._pool(namespace, name) for name in _pools_of_trials(sweep)))
        pool_notify = [entry for pool in pools for entry in pool.notify or ()]
        observed = replace(observed, notifies=notifies, pool_notify=pool_notify)
        return replace(observed, notified=self.notifier.exchange_sweep(key, observed))

    async def _read_missing(self, namespace: str, status: SweepStatus) -> None:
        """Read jobs that are not cached. Such a job may only not be watched yet: it counts as deleted if the API server
        has none."""
        for trial in status.trials:
            if trial.observed and not trial.ended and self._jobs.get((namespace, trial.job)) is None:
                await self._read_job(namespace, trial.job)

    async def _read_job(self, namespace: str, name: str) -> None:
        try:
            self._upsert_job(await self._client.get(paths.job_path(namespace, name)))
        except NotFound:
            return

    def _upsert_job(self, answer: bytes) -> None:
        """Cache a job. The watch of jobs will not report this version as news."""
        job = compact_jobs.job(answer)
        if self._jobs.upsert(job):
            self._enqueue_job((job["metadata"]["namespace"], job["metadata"]["name"]))

    async def _ask(self, key: JobKey, sweep: Sweep, request: Suggestion, state: _State) -> bool:
        """Ask for the parameters of a trial. Return False if there are none; then it is asked again with a backoff.

        One answer is computed at a time: its process is in the container of the operator, with the operator's limit
        of memory.
        """
        try:
            async with self._turns.turn(key[0]):
                state.suggested[request.number] = await self._suggest(sweep.spec, request)
        except CannotSuggest as error:
            state.unsuggested = str(error)
            return False
        state.unsuggested = ""
        return True

    def _postponed(self, key: JobKey, plan: SweepPlan, state: _State) -> bool:
        """Return whether the status waits: progress is written at most every few seconds, decisions at once."""
        due = state.wrote_at + self._timing.progress_min_interval - self._clock.monotonic()
        if plan.write_ahead or due <= 0:
            return False
        self.queue.add_after(key, due)
        return True

    async def _write(self, key: JobKey, raw: Manifest, status: SweepStatus) -> bool:
        """Return False if the sweep changed in the meantime; then it is read again."""
        return await self._patch_status(key, raw, diff(raw.get("status") or {}, sweep_codec.encode(status)))

    async def _patch_status(self, key: JobKey, raw: Manifest, change: Manifest) -> bool:
        metadata = raw["metadata"]
        guard = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        written = True
        try:
            answer = await self._client.patch(paths.sweeps(*key, "status"), {"metadata": guard, "status": change})
        except (Conflict, NotFound):
            written = False
            try:
                answer = await self._client.get(paths.sweeps(*key))
            except NotFound:
                self.sweeps.forget(key)
                return False
        self.sweeps.upsert(sweep_codec.raw_sweep(answer))
        return written

    async def _create(self, namespace: str, manifests: Iterable[Manifest], state: _State) -> None:
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            state.rejected.pop(name, None)
            try:
                answer = await self._client.create(paths.job_path(namespace), manifest)
            except Conflict as error:
                await self._read_job(namespace, name)
                if self._jobs.get((namespace, name)) is None:
                    state.rejected[name] = error.reason or "Conflict", str(error)
            except (Refused, NotFound) as error:
                state.rejected[name] = error.reason or "Refused", error.message
            else:
                self._upsert_job(answer)

    async def _suspend(self, namespace: str, names: Iterable[str], suspend: bool) -> None:
        """Suspend or resume jobs. The ranks of a suspended job are asked for a checkpoint, then its pods are
        deleted."""
        for name in names:
            job = self._jobs.get((namespace, name))
            if job is None:
                continue
            change = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": {"suspend": suspend}}
            try:
                self._upsert_job(await self._client.patch(paths.job_path(namespace, name), change))
            except (Conflict, NotFound):
                await self._read_job(namespace, name)

    def _invalid_patch(self, raw: Manifest, reason: str, message: str) -> Manifest | None:
        return sweep_codec.invalid_patch(raw, message, self._clock.now())

    def _emit_refusals(self, raw: Manifest, after: SweepStatus, before: SweepStatus) -> None:
        running, was = after.condition("Running"), before.condition("Running")
        if running and running.status == "False" and not after.finished and (not was or was.message != running.message):
            reason = CANNOT_SUGGEST if running.reason == CANNOT_SUGGEST else "TrialRefused"
            self._emit(raw, [Event(reason, running.message, warning=True)])


def _pools_of_trials(sweep: Sweep) -> list[str | None]:
    """Return the pools that the roles of the trials name, each once; None for the default of the namespace."""
    roles, of_job = sweep.template.get("roles"), sweep.template.get("pool")
    of_roles = (
        [role.get("pool") for role in roles.values() if isinstance(role, dict)] if isinstance(roles, dict) else [None]
    )
    names = (name or of_job for name in of_roles)
    return list(dict.fromkeys(name if isinstance(name, str) else None for name in names))
