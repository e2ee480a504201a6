"""A pod's life on this machine, as a kubelet leads it: init containers, main ones, restarts in place, deletion."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from allranks.core.model import Exit, Manifest, Pod, PodPhase
from allranks.core.naming import ATTEMPT_LABEL, INDEX_LABEL, RESTART_LABEL, ROLE_LABEL, TRAINER
from allranks.local.log_file import LogFile
from allranks.local.prepare import ContainerPlan, PodPlan
from allranks.local.process import Process

GRACE_SECONDS = 30
_STABLE_SECONDS = 600.0
"""A container that ran so long starts its backoff anew (kubelet: twice the longest backoff)."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A kubelet's backoff between restarts of one container: the first is immediate."""

    first: float = 10.0
    longest: float = 300.0

    def delay(self, restarts: int) -> float:
        """Seconds before restart number `restarts` (from 0)."""
        return min(self.first * 2.0 ** min(restarts - 1, 32), self.longest) if restarts else 0.0


class Surroundings(Protocol):
    """What a pod needs of the driver."""

    files: int
    """Soft limit of open files for programs."""
    backoff: Backoff
    node: str
    starting: asyncio.Lock
    """Held while a process is started, which blocks for some milliseconds: output and ends come in between."""

    def changed(self) -> None:
        """A pod's state is another one: look again."""

    def output(self, pod: Pod, container: str, data: bytes) -> None: ...

    def broken(self, error: Exception) -> None:
        """The run cannot go on."""

    def lost_shim(self) -> None:
        """A shim was killed."""

    async def gpus(self, pod: str, count: int) -> Mapping[str, str]:
        """Variables that show a pod its GPUs, once it can have so many."""

    def release(self, pod: str) -> None:
        """Its GPUs are free again."""


def view_of(manifest: Manifest) -> Pod:
    """A pod that was just made."""
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid") or str(uuid.uuid4()),
        role=labels.get(ROLE_LABEL, ""),
        index=int(labels.get(INDEX_LABEL, 0)),
        attempt=int(labels.get(ATTEMPT_LABEL, 0)),
        restart=int(labels.get(RESTART_LABEL, 0)),
        created_at=datetime.now(UTC),
        waiting_reason="ContainerCreating",
    )


class LocalPod:
    """One pod. Its task runs from `start` until no process of it is left."""

    def __init__(self, plan: PodPlan, logs: Path, grace: float | None, surroundings: Surroundings) -> None:
        """`grace` in seconds replaces the manifest's terminationGracePeriodSeconds."""
        spec = plan.manifest["spec"]
        wanted = spec.get("terminationGracePeriodSeconds")
        self.grace: float = grace if grace is not None else GRACE_SECONDS if wanted is None else wanted
        self.view = replace(view_of(plan.manifest), node=surroundings.node)
        self.gone = asyncio.Event()
        """Deletion was asked for and no process is left."""
        self._plan = plan
        self._policy = spec.get("restartPolicy", "Always")
        self._logs = logs
        self._around = surroundings
        self._running: dict[str, Process] = {}
        self._started: set[str] = set()
        self._exits: dict[str, Exit] = {}
        self._stop = asyncio.Event()
        self._sidecars: list[asyncio.Task[None]] = []
        self._extra_env: Mapping[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def log_path(self, container: str) -> Path:
        name = self.view.name if container == TRAINER else f"{self.view.name}.{container}"
        return self._logs / f"{name}.log"

    @property
    def alive(self) -> bool:
        """It has, or will have, processes."""
        return self._task is not None and not self._task.done()

    def shims(self) -> list[int]:
        return [process.shim_pid for process in self._running.values()]

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=self.view.name)

    def delete(self, grace: float | None = None) -> None:
        """SIGTERM now, SIGKILL to everything after the grace period. Asking again only ever shortens the wait."""
        grace = self.grace if grace is None else grace
        if not self.view.deleted_at:
            self.view = replace(self.view, deleted_at=datetime.now(UTC))
            self._stop.set()
            for process in self._running.values():
                process.terminate()
        loop = asyncio.get_running_loop()
        if self._timer is None or loop.time() + grace < self._timer.when():
            if self._timer:
                self._timer.cancel()
            self._timer = loop.call_later(grace, self.kill)
        if self._task is None or self._task.done():
            self._finish_deletion()

    def kill(self) -> None:
        """SIGKILL to every process."""
        self._stop.set()
        for process in self._running.values():
            process.kill()

    async def _live(self) -> None:
        try:
            if await self._get_gpus() and await self._initialise():
                self._show(waiting_reason="ContainerCreating")
                await asyncio.gather(*(self._keep(container) for container in self._plan.main))
                exits = [self._exits.get(container.name) for container in self._plan.main]
                succeeded = all(exit is not None and exit.code == 0 for exit in exits)
                self._over("Succeeded" if succeeded else "Failed")
        except Exception as error:
            self._around.broken(error)
        finally:
            await self._end_rest()
            self._around.release(self.view.name)
            if self.view.deleted_at:
                self._finish_deletion()
            self._around.changed()

    async def _get_gpus(self) -> bool:
        """Waits, as a scheduler would, until pods of an earlier attempt have left theirs. False: deleted meanwhile."""
        if self._plan.gpus is None:
            return not self._stop.is_set()
        self._show(waiting_reason="Unschedulable", waiting_message="waiting for GPUs")
        getting = asyncio.ensure_future(self._around.gpus(self.view.name, self._plan.gpus))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((getting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not getting.done():
            getting.cancel()
            return False
        self._extra_env = getting.result()
        return not self._stop.is_set()

    async def _initialise(self) -> bool:
        """Runs the init containers in their order. False: the pod is over."""
        for container in self._plan.init:
            self._show(waiting_reason="PodInitializing", waiting_message=f"init container {container.name}")
            if container.restarts:
                self._sidecars.append(asyncio.create_task(self._keep(container, always=True)))
                continue
            await self._keep(container, init=True)
            exit = self._exits.get(container.name)
            if exit is None or exit.code or self._stop.is_set():
                if exit is not None and exit.code:
                    told = f"init container {container.name} failed\n{exit.message}".rstrip()
                    self.view = replace(self.view, exit=replace(exit, message=told))
                self._over("Failed")
                return False
        return not self._stop.is_set()

    async def _keep(self, container: ContainerPlan, *, init: bool = False, always: bool = False) -> None:
        """Runs a container, again and again as the restart policy says."""
        log = LogFile(self.log_path(container.name))
        restarts = 0
        loop = asyncio.get_running_loop()
        try:
            while not self._stop.is_set():
                began = loop.time()
                exit = await self._run(container, log, init or always)
                if exit is None:
                    return
                on_failure = self._policy == "OnFailure" or (init and self._policy == "Always")
                again = (always or (self._policy == "Always" and not init)) or (on_failure and exit.code != 0)
                if self._stop.is_set() or not again:
                    return
                if loop.time() - began > _STABLE_SECONDS:
                    restarts = 0
                delay = self._around.backoff.delay(restarts)
                restarts += 1
                if delay:
                    if not always:
                        told = f"back-off {delay:g}s restarting failed container {container.name}"
                        self._show(self.view.phase, waiting_reason="CrashLoopBackOff", waiting_message=told)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stop.wait(), delay)
        finally:
            log.close()

    async def _run(self, container: ContainerPlan, log: LogFile, beside: bool) -> Exit | None:
        """Runs a container once. `beside`: it is none of the main ones. None: it was not started any more."""
        command = replace(container.command, env={**container.command.env, **self._extra_env})
        async with self._around.starting:
            await asyncio.sleep(0)
            if self._stop.is_set():
                return None
            process = Process(
                command,
                log,
                files=self._around.files,
                output=lambda data: self._around.output(self.view, container.name, data),
                broken=self._around.broken,
                lost=self._around.lost_shim,
            )
        self._running[container.name] = process
        await process.started()
        if not beside and process.started_at:
            self._started.add(container.name)
            if len(self._started) == len(self._plan.main):
                began = self.view.started_at or process.started_at
                self._show("Running", started_at=began, waiting_reason="", waiting_message="")
        exit = await process.ended()
        del self._running[container.name]
        self._exits[container.name] = exit
        if container.name == TRAINER:
            self.view = replace(self.view, exit=exit)
        if not beside:
            self._around.changed()
        return exit

    async def _end_rest(self) -> None:
        """What runs beside the main containers ends after them; so does everything when something went wrong."""
        self._stop.set()
        for process in self._running.values():
            process.terminate()
        timer = asyncio.get_running_loop().call_later(self.grace, self.kill)
        await asyncio.gather(*(process.ended() for process in list(self._running.values())))
        timer.cancel()
        for outcome in await asyncio.gather(*self._sidecars, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._around.broken(outcome)

    def _show(self, phase: PodPhase = "Pending", **fields: object) -> None:
        self.view = replace(self.view, phase=phase, **fields)  # type: ignore[arg-type]
        self._around.changed()

    def _over(self, phase: PodPhase) -> None:
        self.view = replace(self.view, phase=phase, waiting_reason="", waiting_message="")

    def _finish_deletion(self) -> None:
        if self._timer:
            self._timer.cancel()
        self.gone.set()
        self._around.changed()
