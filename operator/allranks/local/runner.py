"""Carries out plans on this machine: observe, reconcile, apply, until the job is over and no process is left.

The job and its status are in memory, which counts as the API server. Nothing polls: the loop wakes when a process
starts or ends, and at the time a plan asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

from allranks.api.job import Job
from allranks.api.status import FINISHED, Status
from allranks.core.manifests import pods as desired
from allranks.core.model import Event, Manifest, Observed, Plan, Platform, Pod
from allranks.core.reconcile import reconcile
from allranks.core.rules.cleanup import CLEANUP_GRACE
from allranks.errors import CannotRun
from allranks.local import ports
from allranks.local.environment import machine_environment
from allranks.local.errors import Broken, explain
from allranks.local.gpus import Gpus, list_gpus
from allranks.local.pod import Backoff, LocalPod, view_of
from allranks.local.prepare import Machine, PodPlan, prepare
from allranks.local.reaper import Orphans
from allranks.local.report_server import EXAMPLE_URL, LocalReports
from allranks.local.state_file import Record
from allranks.local.unsupported_fields import notes
from allranks.local.volumes import Volumes
from allranks.open_files import more_open_files

How = Literal["finished", "suspended", "stopped", "settled"]
"""Why the run is over: the job's verdict, `suspend: true`, `stop` was called, or nothing more can happen."""

_FILES_PER_POD = 4
_OWN_FILES = 64
_REST = 5.0
"""After a decision, so many times as long as it took are spent otherwise."""
_LONGEST_WAIT = 86_400.0
"""An event loop's timer takes no arbitrarily long times."""
_BROKEN_GRACE = 5.0
"""Seconds that ranks get when the run itself is broken."""


class Listener(Protocol):
    """Who is told what happens. Called on the event loop's thread: must not block."""

    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...

    def event(self, event: Event) -> None: ...

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        """What a container wrote, cut anywhere; empty when it ended."""


class _Nobody:
    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...

    def event(self, event: Event) -> None: ...

    def output(self, pod: Pod, container: str, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """How one job is run."""

    run_dir: Path
    """Holds logs and volumes; made when the run starts."""
    workdir: Path = field(default_factory=Path.cwd)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Name of a volume or claim -> the directory it is."""
    claims: dict[str, Path] = field(default_factory=dict)
    """Directories of claims that are not in `volumes`, filled as they are met: jobs run with one dict share them."""
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL, instead of each pod's own."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    backoff: Backoff = field(default_factory=Backoff)


class LocalRun:
    """One job on this machine."""

    def __init__(
        self,
        job: Job,
        options: Options,
        *,
        reconcile: Callable[[Observed], Plan] = reconcile,
        listens: Callable[[Job, Status], Sequence[tuple[str, int]]] = desired.listens,
    ) -> None:
        metadata = {"uid": str(uuid.uuid4()), "creation_timestamp": datetime.now(UTC)}
        self.job = job.model_copy(
            update={
                "metadata": job.metadata.model_copy(update=metadata),
                "spec": job.spec.model_copy(update={"managed_by": None}),
            }
        )
        self.status = Status()
        self.options = options
        self.logs = options.run_dir / "logs"
        self.node = os.uname().nodename
        self.backoff = options.backoff
        self.starting = asyncio.Lock()
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._listener: Listener = _Nobody()
        self._reconcile = reconcile
        self._listens = listens
        self._volumes = Volumes(options.run_dir.absolute(), options.volumes, options.claims)
        environ = machine_environment(options.environ)
        self._machine = Machine(environ, self._volumes, options.workdir)
        self._gpus: Gpus | None = None
        self._pods: dict[str, LocalPod] = {}
        self._endpoints: tuple[int, Mapping[tuple[str, int], tuple[str, int]]] | None = None
        self._wake = asyncio.Event()
        self._broken: Exception | None = None
        self._stopping = False
        self._orphans = Orphans()
        key, uid = (self.job.namespace, self.job.name), self.job.metadata.uid
        self._reports = LocalReports(key, uid, self.node, options.run_dir.absolute(), self._wake.set)
        self._record = Record(options.run_dir / "job.json", self.job)

    def preview(self) -> list[Manifest]:
        """The pods of the first attempt, with ports as they might be chosen: the same every time. Touches nothing."""
        wanted = self._listens(self.job, self.status)
        endpoints = {key: ("127.0.0.1", min(key[1] + number, 65535)) for number, key in enumerate(wanted)}
        metadata = self.job.metadata.model_copy(update={"uid": str(uuid.UUID(int=0))})
        job = self.job.model_copy(update={"metadata": metadata})
        return [manifest for manifest in self._first_objects(job, endpoints) if manifest["kind"] == "Pod"]

    def check(self) -> list[str]:
        """What the first attempt lacks here, as notes for people. Raises CannotRun where it cannot run at all."""
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
        self._check_files(len(plans))
        self._gpus.shared_out = sum(plan.gpus or 0 for plan in plans) <= self._gpus.count
        return notes(self.job, plans, self._volumes, self._gpus.count, str(self.options.workdir))

    @property
    def volume_names(self) -> set[str]:
        """The volumes and claims of this job's pods, which `options.volumes` may map; known after `check`."""
        return self._volumes.names

    async def run(self, listener: Listener) -> How:
        """Runs the job to its end, once; by then no process of it is left.

        Raises Broken where this machine did not let it go on, CannotRun where nothing could be started.
        """
        self._listener = listener
        if self._gpus is None:
            self.check()
        self._make_run_dir()
        with more_open_files(), self._orphans:
            try:
                await self._reports.start()
                how = await self._pursue()
                grace = None
            except BaseException:
                grace = _BROKEN_GRACE
                raise
            finally:
                await self._end_pods(grace)
                await self._reports.stop()
                self._record.write(self.status)
        return how

    def stop(self, at_once: bool = False) -> None:
        """Ends the run: SIGTERM and the grace period, or SIGKILL at once."""
        self._stopping = True
        for pod in self._pods.values():
            pod.delete(0 if at_once else None)
        self._wake.set()

    @property
    def running(self) -> int:
        """How many pods have processes."""
        return sum(pod.alive for pod in self._pods.values())

    @property
    def grace(self) -> float:
        """The longest time that `stop` takes, in seconds."""
        return max((pod.grace for pod in self._pods.values() if pod.alive), default=0.0)

    async def _pursue(self) -> How:
        while True:
            if self._broken:
                raise self._broken
            if self._stopping:
                # What stop does to the pods is no failure of theirs: the core never sees it. A verdict stands.
                return "finished" if self.status.phase in FINISHED else "stopped"
            began = time.monotonic()
            plan = self._reconcile(self._observe())
            took = time.monotonic() - began
            self._apply(plan)
            # Output and ends of processes come in between two plans too.
            await asyncio.sleep(0)
            if not plan.empty:
                continue
            # What has changed in this moment, the end of the last process perhaps, the plan knows nothing of.
            if not self._wake.is_set() and (how := self._over(plan)):
                return how
            await self._wait(plan.wake_at)
            # With a thousand pods that start or end one after the other, deciding must not take all the time.
            await asyncio.sleep(_REST * took)

    def _observe(self) -> Observed:
        self._wake.clear()
        self._forget_gone()
        if self._endpoints is None or self._endpoints[0] != self.status.attempt:
            wanted = self._listens(self.job, self.status)
            self._endpoints = (self.status.attempt, ports.choose(wanted))
        platform = Platform("allranks", local=True, endpoints=self._endpoints[1], report_url=self._reports.url)
        self._listener.status(self.status, self._views())
        reports = self._reports.of(self.status.attempt)
        return Observed(self.job, self.status, self._views(), datetime.now(UTC), platform, reports=reports)

    def _apply(self, plan: Plan) -> None:
        if plan.status:
            self.status = plan.status
            self._record.seldom(self.status)
        if plan.stack_dump_id:
            self._reports.stack_dump_id(plan.stack_dump_id)
        for event in plan.events:
            self._listener.event(event)
        if plan.write_ahead:
            return
        for manifest in plan.create:
            self._create(manifest)
        for ref in plan.delete:
            pod = self._pods.get(ref.name)
            if pod and pod.view.uid == ref.uid:
                pod.delete()

    def _create(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] in ("ConfigMap", "Secret"):
            self._volumes.add_files(manifest)
        if manifest["kind"] != "Pod" or name in self._pods:
            return
        # A pod's UID is given by the API server, and its variables may refer to it.
        identified = {**manifest, "metadata": {**manifest["metadata"], "uid": str(uuid.uuid4())}}
        plan, problems = prepare(self._reports.equip(identified, view_of(identified)), self._machine)
        if plan is None:
            raise Broken("; ".join(problems))
        for volume, _ in plan.directories:
            self._volumes.make(name, volume)
        self._volumes.make_folders(plan.folders)
        pod = LocalPod(plan, self.logs, self.options.grace, self)
        self._pods[name] = pod
        pod.start()

    def _over(self, plan: Plan) -> How | None:
        """Whether there is nothing left to wait for."""
        alive = [pod for pod in self._pods.values() if pod.alive]
        if plan.delete_job:
            return "finished"
        if self.status.phase in FINISHED:
            return "finished" if not alive or self._linger_until() <= datetime.now(UTC) else None
        if alive:
            return None
        if self.status.phase == "Suspended":
            return "suspended"
        return None if plan.wake_at else "settled"

    def _linger_until(self) -> datetime:
        """With cleanPodPolicy None a cluster leaves pods running after the end; here they end with the run."""
        if self.job.spec.clean_pod_policy == "None" and self.status.completion_time:
            return self.status.completion_time + CLEANUP_GRACE
        return datetime.max.replace(tzinfo=UTC)

    async def _wait(self, until: datetime | None) -> None:
        until = min(until or self._linger_until(), self._linger_until())
        seconds = min((until - datetime.now(UTC)).total_seconds(), _LONGEST_WAIT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.0, seconds))

    def _views(self) -> tuple[Pod, ...]:
        return tuple(pod.view for pod in self._pods.values())

    def _forget_gone(self) -> None:
        for name, pod in list(self._pods.items()):
            if pod.gone.is_set():
                del self._pods[name]
                self._volumes.remove(name)

    async def _end_pods(self, grace: float | None) -> None:
        for pod in self._pods.values():
            pod.delete(None if grace is None else min(grace, pod.grace))
        while self._pods:
            self._wake.clear()
            self._forget_gone()
            self._listener.status(self.status, self._views())
            if self._pods:
                await self._wake.wait()
        self._orphans.end(())

    def _first_objects(self, job: Job, endpoints: Mapping[tuple[str, int], tuple[str, int]]) -> list[Manifest]:
        """What the core creates first, from a status that is not kept."""
        asked = job.spec.progress is not None or job.spec.hang is not None
        platform = Platform("allranks", local=True, endpoints=endpoints, report_url=EXAMPLE_URL if asked else "")
        status = self.status
        while True:
            plan = self._reconcile(Observed(job, status, (), datetime.now(UTC), platform))
            if plan.create or plan.empty:
                return list(plan.create)
            status = plan.status or status

    def _check_files(self, pods: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        needed = pods * _FILES_PER_POD + _OWN_FILES
        if hard not in (resource.RLIM_INFINITY, -1) and needed > hard:
            raise CannotRun(
                f"{pods} pods need {needed} open files, and {hard} are allowed: raise the limit (ulimit -n) or run "
                "fewer replicas"
            )

    def _make_run_dir(self) -> None:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotRun(f"the run directory {self.options.run_dir} cannot be made: {explain(error)}") from error

    # What pods need of us (`pods.Surroundings`).

    def changed(self) -> None:
        self._wake.set()

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        self._listener.output(pod, container, data)

    def broken(self, error: Exception) -> None:
        self._broken = self._broken or error
        self._wake.set()

    def lost_shim(self) -> None:
        """A shim was killed: what it guarded is ours now."""
        self._orphans.end(pid for pod in self._pods.values() for pid in pod.shims())

    async def gpus(self, pod: str, count: int) -> Mapping[str, str]:
        return await self._gpus.take(pod, count) if self._gpus else {}

    def release(self, pod: str) -> None:
        if self._gpus:
            self._gpus.release(pod)
