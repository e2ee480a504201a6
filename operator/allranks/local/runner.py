"""Runs a job on this machine: observe, reconcile, apply, until the job is finished and no process is left.

Memory takes the place of the API server for the job and its status. The loop does not poll: it wakes when a process
starts or ends, and at the time that the plan requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from allranks.api.job import Job
from allranks.api.status import FINISHED, Status
from allranks.core import checkpoints as checkpoint
from allranks.core.diagnosis.processes import with_processes
from allranks.core.facts import development
from allranks.core.facts.model import ANY_PLATFORM, Event, Manifest, Observed, Plan, Pod
from allranks.core.facts.processes import Order, Processes
from allranks.core.facts.restarts import RESTART_ANNOTATION
from allranks.core.facts.topology import CLEANUP_GRACE
from allranks.core.objects import commands, pods
from allranks.core.reconcile import reconcile
from allranks.core.transfers import uploads
from allranks.errors import CannotRun
from allranks.local import ports, run_directories
from allranks.local.code import CodeVersion, LocalCode
from allranks.local.environment import machine_environment
from allranks.local.errors import LocalRunError
from allranks.local.gpus import Gpus, list_gpus
from allranks.local.inputs import LocalInputs, with_given_directories
from allranks.local.options import Listener, NullListener, Options, Outcome
from allranks.local.outputs import LocalOutputs, provide
from allranks.local.pod import LocalPod, initial_status
from allranks.local.prepare import Machine, PodPlan, prepare
from allranks.local.process import Reaper
from allranks.local.records import ProgressLog, StateFile
from allranks.local.report_server import EXAMPLE_URL, LocalReports
from allranks.local.resume import LocalCheckpoints
from allranks.local.unsupported_fields import unsupported_field_notes
from allranks.local.volumes import Volumes
from allranks.open_files import more_open_files, require_open_files

_FILES_PER_POD = 4
_OWN_FILES = 64
_IDLE_FACTOR = 5.0
"""Idle time after each reconcile, as a multiple of the time it took: limits its share of the CPU."""
_MAX_WAIT = 86_400.0
"""Event loop timers do not accept arbitrarily long delays."""
_REMAINING_PODS_AFTER = timedelta(seconds=2)
"""Time after the end of a job, from which a line says which pods have not ended."""
_RENEWED_BEFORE = timedelta(seconds=development.ATTACHED_SECONDS - development.RENEWAL_SECONDS)
_ERROR_GRACE = 5.0
"""Grace period in seconds after an internal error of the run."""


class LocalRun:
    """One job on this machine."""

    def __init__(
        self,
        job: Job,
        options: Options,
        *,
        reconcile: Callable[[Observed], Plan] = reconcile,
        listens: Callable[[Job, Status], Sequence[tuple[str, int]]] = pods.listening_ports,
    ) -> None:
        metadata = {"uid": str(uuid.uuid4()), "creation_timestamp": datetime.now(UTC)}
        self.job = job.model_copy(
            update={
                "metadata": job.metadata.model_copy(update=metadata),
                "spec": job.spec.model_copy(update={"managed_by": None}),
            }
        )
        self.job = with_given_directories(self.job, options.volumes)
        self.status = Status()
        self.options = options
        self.logs = options.run_dir / "logs"
        self.node = os.uname().nodename
        self.backoff = options.backoff
        self.start_lock = asyncio.Lock()
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._listener: Listener = NullListener()
        self._reconcile = reconcile
        self._listens = listens
        self._code = LocalCode(self.job, options.code, options.run_dir.absolute(), options.environ)
        run_dir, environ = options.run_dir.absolute(), options.environ
        self._inputs = LocalInputs(self.job, options.volumes, run_dir, environ)
        wake = self._wake = asyncio.Event()
        of_outputs = (options.volumes, options.claims, run_dir, environ, wake.set)
        self._outputs = LocalOutputs(self.job, *of_outputs, lambda: self._checkpoints.folder)
        provided = self._code.directories | self._inputs.directories | self._outputs.directories
        self._volumes = Volumes(run_dir, {**provided, **options.volumes}, options.claims)
        self._checkpoints = LocalCheckpoints(self.job, self._volumes, run_dir)
        self._machine = Machine(
            machine_environment(options.environ),
            self._volumes,
            options.workdir,
            pods.ranks_of_one_machine(self.job, options.platform({}, "")),
        )
        self._gpus: Gpus | None = None
        self._pods: dict[str, LocalPod] = {}
        self._reported_remaining = False
        self._removed: dict[str, Pod] = {}
        """Name -> last state of a pod that was deleted, and had not succeeded."""
        self._endpoints: tuple[int, Mapping[tuple[str, int], tuple[str, int]]] | None = None
        self._error: Exception | None = None
        self._stopping = self._saving = False
        self._developed_until: datetime | None = None
        """When the run says again that somebody develops the job; None if it does not."""
        self.started = False
        """True if everything was ready for the ranks. A run that ends before that leaves no files."""
        self._reaper = Reaper()
        key, uid = (self.job.namespace, self.job.name), self.job.metadata.uid
        self._progress_log = ProgressLog(options.run_dir / run_directories.PROGRESS_FILE)
        recorded = self._progress_log.record
        self._reports = LocalReports(key, uid, self.node, run_dir, self._wake.set, options.step_log, recorded)
        self._state_file = StateFile(options.run_dir / run_directories.RUN_FILE, self.job, options.state_interval)

    def preview(self) -> list[Manifest]:
        """Return the pods of the first attempt with placeholder ports: the same for every call. Change nothing on
        disk."""
        listeners = self._listens(self.job, self.status)
        endpoints = {key: ("127.0.0.1", min(key[1] + number, 65535)) for number, key in enumerate(listeners)}
        metadata = self.job.metadata.model_copy(update={"uid": str(uuid.UUID(int=0))})
        job = self.job.model_copy(update={"metadata": metadata})
        return [manifest for manifest in self._first_objects(job, endpoints) if manifest["kind"] == "Pod"]

    def check(self) -> list[str]:
        """Return notes on settings that have no effect here. Raise CannotRun if the first attempt cannot run here."""
        self._code.check()
        self._inputs.check()
        self._checkpoints.check()
        self._gpus = Gpus(list_gpus(self._machine.environ), self._machine.environ)
        objects = self._first_objects(self.job, {})
        for manifest in objects:
            if manifest["kind"] in ("ConfigMap", "Secret"):
                self._volumes.add_files(manifest)
        plans: list[PodPlan] = []
        problems: dict[str, list[str]] = {}
        for manifest in objects:
            if manifest["kind"] == "Pod":
                plan, wrong = prepare(manifest, self._machine)
                plans += [plan] if plan else []
                for problem in wrong:
                    problems.setdefault(problem, []).append(manifest["metadata"]["name"])
        if problems:
            raise CannotRun("\n".join(problems))
        require_open_files(len(plans) * _FILES_PER_POD + _OWN_FILES, f"{len(plans)} pods")
        self._gpus.enabled = sum(plan.gpus or 0 for plan in plans) <= self._gpus.count
        notes = unsupported_field_notes(self.job, plans, self._volumes, self._gpus.count, str(self.options.workdir))
        notes += self._advice(without_gpus=not (self._gpus.count and self._gpus.enabled))
        return [*self._code.notes(), *self._inputs.notes(), *self._outputs.notes(), *notes]

    def _advice(self, *, without_gpus: bool) -> list[str]:
        """Return the advice that follows from this machine alone: commands print that of the manifest."""
        platform = self.options.platform({}, EXAMPLE_URL)
        printed = commands.advice(self.job, ANY_PLATFORM)
        advice = commands.advice(self.job, platform, without_gpus=without_gpus)
        return [f"{path}: {text}" for path, text in advice if (path, text) not in printed]

    @property
    def volume_names(self) -> set[str]:
        """The volumes and claims of this job's pods, which `options.volumes` may map. Call `check` first."""
        return self._volumes.names | self._inputs.names | self._outputs.names

    async def run(self, listener: Listener) -> Outcome:
        """Run the job to its end; then none of its processes is left. Call it once.

        Raise LocalRunError if the machine prevents the run from continuing, CannotRun if nothing could be started.
        """
        self._listener = listener
        if self._gpus is None:
            self.check()
        run_dir = self.options.run_dir
        with run_directories.prepared(run_dir, lambda: self.started), run_directories.in_use(run_dir):
            # Commands also find a run that is killed while it fetches its inputs.
            self._state_file.write_first(self.status)
            await self._code.provide()
            try:
                return await self._run_with_inputs()
            finally:
                self._inputs.release()

    async def _run_with_inputs(self) -> Outcome:
        self.status = replace(self.status, inputs=await provide(self._inputs, self._outputs, self._listener.event))
        await self._checkpoints.provide(self._listener.event)
        if self._stopping:
            return "stopped"
        self.started = not self.job.spec.suspend
        if self.started and self.options.link_latest:
            run_directories.link_latest(self.options.run_dir)
        # Its process must exist before the reaper, which kills later ones.
        code = CodeVersion(self.options.workdir) if self.options.code is None else None
        with more_open_files(), self._reaper:
            recording = asyncio.create_task(self._state_file.keep_current(lambda: self.status))
            try:
                await self._reports.start()
                how = await self._reconcile_until_done()
                grace = None
            except BaseException:
                grace = _ERROR_GRACE
                raise
            finally:
                self.status = await self._outputs.end(self.status)
                await self._end_pods(grace)
                await self._reports.stop()
                recording.cancel()
                self._state_file.write(self.status)
                if code:
                    code.write(self.options.run_dir / run_directories.CODE_FILE)
        return how

    def develop(self) -> None:
        """Let failures wait for a call of `restart`, to the end of the run."""
        self._developed_until = datetime.now(UTC)

    def restart(self) -> None:
        """Begin a new attempt, with the files as they are now."""
        self._annotate(RESTART_ANNOTATION, str(self.status.attempt))
        self._wake.set()

    def _annotate(self, name: str, value: str) -> None:
        annotations = {**self.job.metadata.annotations, name: value}
        metadata = self.job.metadata.model_copy(update={"annotations": annotations})
        self.job = self.job.model_copy(update={"metadata": metadata})

    def _stay_attached(self) -> None:
        """Say again from time to time that somebody develops the job."""
        now = datetime.now(UTC)
        if self._developed_until and self._developed_until - now < _RENEWED_BEFORE:
            self._developed_until = now + timedelta(seconds=development.ATTACHED_SECONDS)
            self._annotate(development.ANNOTATION, development.attached_until(now))

    def save_and_stop(self) -> int:
        """Ask the ranks for a checkpoint, and end the run when it is stored, as for a suspension. Return the longest
        wait in seconds; 0 if no rank stores checkpoints on request: then call `stop`."""
        seconds = (
            0
            if self.options.grace == 0 or uploads.uploading(self.status)
            else checkpoint.longest_wait(self.job, self.status, datetime.now(UTC))
        )
        if seconds and not self._stopping:
            self._saving = True
            self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update={"suspend": True})})
            self._wake.set()
        return seconds

    def stop(self, at_once: bool = False) -> None:
        """End the run: SIGTERM and the grace period, or SIGKILL at once."""
        self._stopping = True
        self._code.stop()
        self._inputs.stop()
        self._outputs.stop_checks()
        for pod in self._pods.values():
            pod.delete(0 if at_once else None)
        self._wake.set()

    @property
    def running(self) -> int:
        """The number of pods that have processes."""
        return sum(pod.alive for pod in self._pods.values())

    @property
    def grace(self) -> float:
        """The longest time that `stop` takes, in seconds."""
        return max((pod.grace for pod in self._pods.values() if pod.alive), default=0.0)

    async def _reconcile_until_done(self) -> Outcome:
        while True:
            if self._error:
                raise self._error
            if self._stopping:
                # Pods that `stop` ends have not failed, so there is no reconcile. A finished job stays finished.
                return "finished" if self.status.phase in FINISHED else "stopped"
            began = time.monotonic()
            plan = self._reconcile(self._observe())
            took = time.monotonic() - began
            if self._saving and plan.next and plan.next.phase == "Suspended":
                self.status = replace(self.status, checkpoint_request=None)
                self.stop()
                continue
            if plan.create and self.status.rollback:
                await self._checkpoints.set_aside(self.status.rollback, self._listener.event)
            self._apply(plan)
            # Lets the event loop read output and exits of processes between two plans.
            await asyncio.sleep(0)
            if not plan.empty:
                continue
            # A change during this iteration, such as the exit of the last process, is not in the plan.
            if not self._wake.is_set() and (how := self._outcome(plan)):
                return how
            self._report_remaining_pods()
            await self._wait(plan.wake_at)
            # When a thousand pods start or end one after another, reconciling must not use all CPU time.
            await asyncio.sleep(_IDLE_FACTOR * took)

    def _observe(self) -> Observed:
        self._wake.clear()
        self._stay_attached()
        self._drop_deleted_pods()
        if self._endpoints is None or self._endpoints[0] != self.status.pod_attempt:
            listeners = self._listens(self.job, self.status)
            self._endpoints = (self.status.pod_attempt, ports.choose(listeners))
        platform = self.options.platform(self._endpoints[1], self._reports.url)
        observed = Observed(
            self.job,
            self.status,
            self._pod_statuses(),
            datetime.now(UTC),
            platform,
            reports=self._reports.snapshot(self.status),
            processes=self._processes(),
            uploads=dict(self._outputs.uploads),
            removed=dict(self._removed),
        )
        self._listener.status(self.status, with_processes(observed).pods)
        return observed

    def _processes(self) -> Processes | None:
        """Return what the supervisors report, with what this machine knows about programs that ended."""
        by_uid = {pod.status.uid: pod for pod in self._pods.values()}
        processes = self._reports.processes(by_uid)
        if processes is None:
            return None
        return replace(
            processes, by_pod={uid: by_uid[uid].explained(process) for uid, process in processes.by_pod.items()}
        )

    def _apply(self, plan: Plan) -> None:
        if plan.next:
            self.status = plan.next
            self._state_file.write_throttled(self.status, at_once=self._progress_log.note(self.status))
        self._reports.request_stack_dump(plan.stack_dump_id, self.status.attempt)
        self._reports.request_checkpoint(plan.checkpoint_request)
        self._reports.schedule_checkpoint(plan.checkpoint_due)
        for event in plan.events:
            self._listener.event(event)
        self._reports.order(self._prepared(plan.orders))
        if plan.write_ahead:
            return
        for manifest in plan.create:
            self._create(manifest)
        for ref in plan.delete:
            pod = self._pods.get(ref.name)
            if pod and pod.status.uid == ref.uid:
                pod.delete(ref.grace_seconds)

    def _prepared(self, orders: Iterable[Order]) -> Iterator[Order]:
        """Yield the orders for the supervisors, after their pods have begun other logs for what they start."""
        by_uid = {pod.status.uid: pod for pod in self._pods.values()}
        for order in orders:
            pod = by_uid.get(order.pod_uid)
            if pod and order.action == "Start":
                pod.begin_attempt(order.attempt, order.restart)
            yield replace(order, grace_seconds=min(order.grace_seconds, math.ceil(pod.grace))) if pod else order

    def _create(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Secret":
            manifest = {**manifest, "stringData": {"secret": secrets.token_urlsafe(32)}}
        if manifest["kind"] in ("ConfigMap", "Secret"):
            self._volumes.add_files(manifest)
        if manifest["kind"] != "Pod" or name in self._pods:
            return
        # On a cluster the API server assigns the UID. Variables may refer to it.
        identified = {**manifest, "metadata": {**manifest["metadata"], "uid": str(uuid.uuid4())}}
        plan, problems = prepare(self._reports.inject_token(identified, initial_status(identified)), self._machine)
        if plan is None:
            raise LocalRunError("; ".join(problems))
        for volume, _ in plan.directories:
            self._volumes.make(name, volume)
        self._volumes.make_folders(plan.folders)
        pod = LocalPod(plan, self.logs, self.options.grace, self)
        self._pods[name] = pod
        pod.start()

    def _outcome(self, plan: Plan) -> Outcome | None:
        """Return the outcome, or None if the run has something to wait for."""
        alive = [pod for pod in self._pods.values() if pod.alive]
        self._outputs.start(self.status, bool(alive), self._listener.event)
        if self._outputs.busy:
            return None
        if plan.delete_job:
            return "finished"
        if self.status.phase in FINISHED:
            return "finished" if not alive or self._linger_until() <= datetime.now(UTC) else None
        if alive:
            return None
        if self.status.phase == "Suspended":
            return "suspended"
        return None if plan.wake_at else "settled"

    def _report_remaining_pods(self) -> None:
        """Say once which pods of a finished job still end, and how long that may take."""
        ended = self.status.completion_time
        if ended is None or self._reported_remaining or datetime.now(UTC) - ended < _REMAINING_PODS_AFTER:
            return
        self._reported_remaining = True
        remaining = sorted((pod for pod in self._pods.values() if pod.alive), key=lambda pod: pod.status.name)
        if remaining:
            names = ", ".join(pod.status.name for pod in remaining[:8])
            ending = all(pod.status.deleted_at for pod in remaining)  # others may continue for some time
            limit = f": at most {max(pod.grace for pod in remaining):g} s of grace period" if ending else ""
            self._listener.event(Event("Waiting", f"waits for the end of {names}{limit}"))

    def _linger_until(self) -> datetime:
        """Return the time when pods that still run end. With cleanPodPolicy None a cluster keeps them; here they end
        too."""
        if self.job.spec.clean_pod_policy == "None" and self.status.completion_time:
            return self.status.completion_time + CLEANUP_GRACE
        return datetime.max.replace(tzinfo=UTC)

    async def _wait(self, until: datetime | None) -> None:
        until = min(until or self._linger_until(), self._linger_until())
        if self.status.completion_time and not self._reported_remaining:
            until = min(until, self.status.completion_time + _REMAINING_PODS_AFTER)
        if self._developed_until:
            until = min(until, self._developed_until - _RENEWED_BEFORE)
        seconds = min((until - datetime.now(UTC)).total_seconds(), _MAX_WAIT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()

    def _pod_statuses(self) -> tuple[Pod, ...]:
        return tuple(pod.status for pod in self._pods.values())

    def _drop_deleted_pods(self) -> None:
        for name, pod in list(self._pods.items()):
            if pod.gone.is_set():
                del self._pods[name]
                self._volumes.remove(name)
                if pod.status.exit and pod.status.exit.code:
                    self._removed[name] = pod.status
        # Their output may show what ended this attempt, or the one before.
        for name, removed in list(self._removed.items()):
            if removed.attempt < self.status.attempt - 1:
                del self._removed[name]

    async def _end_pods(self, grace: float | None) -> None:
        for pod in self._pods.values():
            pod.delete(grace)
        while self._pods:
            self._wake.clear()
            self._drop_deleted_pods()
            self._listener.status(self.status, self._pod_statuses())
            if self._pods:
                await self._wake.wait()
        self._reaper.kill_orphans(())

    def _first_objects(self, job: Job, endpoints: Mapping[tuple[str, int], tuple[str, int]]) -> list[Manifest]:
        """Return the objects that the core creates first. The status of the run stays as it is."""
        reports = job.spec.progress is not None or job.spec.hang is not None
        platform = self.options.platform(endpoints, EXAMPLE_URL if reports else "")
        status = self.status
        while True:
            plan = self._reconcile(Observed(job, status, (), datetime.now(UTC), platform))
            if plan.create or plan.empty:
                return list(plan.create)
            status = plan.next or status

    # Implements `PodHost`, which pods call.

    def changed(self) -> None:
        self._wake.set()

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        self._listener.output(pod, container, data)

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake.set()

    def shim_killed(self) -> None:
        """Kill the processes of a killed shim, which become children of this process."""
        self._reaper.kill_orphans([*self._outputs.pids, *(pid for pod in self._pods.values() for pid in pod.shims())])

    async def acquire_gpus(self, pod: str, count: int) -> Mapping[str, str]:
        return await self._gpus.acquire(pod, count) if self._gpus else {}

    def release_gpus(self, pod: str) -> None:
        if self._gpus:
            self._gpus.release(pod)
