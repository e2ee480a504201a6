"""Runs one pod on this machine as a kubelet does: init containers, main containers, restarts in place, deletion."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from allranks.core.facts.model import CRASH_LOOP, Exit, Manifest, Pod, PodPhase
from allranks.core.facts.naming import (
    ATTEMPT_LABEL,
    INDEX_LABEL,
    RESTART_LABEL,
    ROLE_LABEL,
    TRAINER,
    name_in_attempt,
)
from allranks.core.facts.processes import PodProcess, ProcessExit
from allranks.local.prepare import ContainerPlan, PodPlan
from allranks.local.process import LogFile, Process

GRACE_SECONDS = 30
_STABLE_SECONDS = 600.0
"""A container that ran this long resets its backoff (kubelet: twice the longest backoff)."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A kubelet's backoff between restarts of one container: the first is immediate."""

    first: float = 10.0
    longest: float = 300.0

    def delay(self, restarts: int) -> float:
        """Return the seconds before restart number `restarts` (from 0)."""
        return min(self.first * 2.0 ** min(restarts - 1, 32), self.longest) if restarts else 0.0


class PodHost(Protocol):
    """The part of a run that its pods use."""

    files: int
    """Soft limit of open files for programs."""
    backoff: Backoff
    node: str
    start_lock: asyncio.Lock
    """Held while a process starts, which blocks for milliseconds: between two starts the event loop runs."""

    def changed(self) -> None:
        """Reconcile, because the status of a pod changed."""

    def output(self, pod: Pod, container: str, data: bytes) -> None: ...

    def fail(self, error: Exception) -> None:
        """End the run, because it cannot continue."""

    def shim_killed(self) -> None:
        """Handle the death of a shim."""

    async def acquire_gpus(self, pod: str, count: int) -> Mapping[str, str]:
        """Wait for `count` free GPUs; return the variables that make them visible to the pod."""

    def release_gpus(self, pod: str) -> None:
        """Free the GPUs of the pod."""


def initial_status(manifest: Manifest) -> Pod:
    """Return the status of a new pod."""
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


def _of_program(message: str) -> str:
    """Return the last lines without what the supervisor wrote before it started the program."""
    lines = message.splitlines()
    while lines and lines[0].startswith("allranks: "):
        del lines[0]
    return "\n".join(lines)


class LocalPod:
    """One pod. Its task runs from `start` until all of its processes have ended."""

    def __init__(self, plan: PodPlan, logs: Path, grace: float | None, host: PodHost) -> None:
        """Make a pod that does not run yet. `grace`: seconds that replace the manifest's
        terminationGracePeriodSeconds."""
        spec = plan.manifest["spec"]
        seconds = spec.get("terminationGracePeriodSeconds")
        self.grace: float = grace if grace is not None else GRACE_SECONDS if seconds is None else seconds
        self.status = replace(initial_status(plan.manifest), node=host.node)
        self.gone = asyncio.Event()
        """Set when the pod was deleted and no process is left."""
        self._plan = plan
        self._policy = spec.get("restartPolicy", "Always")
        self._logs = logs
        self._host = host
        self._running: dict[str, Process] = {}
        self._started: set[str] = set()
        self._exits: dict[str, Exit] = {}
        self._begun = self.status.attempt, 0
        """The attempt, and the restart alone in it, of the last program that was started in the pod."""
        self._explained: tuple[ProcessExit, ProcessExit] | None = None
        """The last end of a program: as its supervisor reported it, and with what this machine knows."""
        self._stop = asyncio.Event()
        self._sidecars: list[asyncio.Task[None]] = []
        self._extra_env: Mapping[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def log_path(self, container: str) -> Path:
        name = self.status.name if container == TRAINER else f"{self.status.name}.{container}"
        return self._logs / f"{name}.log"

    @property
    def alive(self) -> bool:
        """Return whether it has, or will have, processes."""
        return self._task is not None and not self._task.done()

    def shims(self) -> list[int]:
        return [process.shim_pid for process in self._running.values()]

    def begin_attempt(self, attempt: int, restart: int) -> None:
        """Begin another log for the program of a further attempt in this pod. Restarts alone share the log of their
        attempt."""
        process = self._running.get(TRAINER)
        if process is None or (attempt, restart) <= self._begun:
            return
        self._begun = attempt, restart
        name = name_in_attempt(self.status.name, self.status.role, self.status.index, attempt)
        process.begin_program(None if restart else self._logs / f"{name}.log")

    def _in_attempt(self) -> Pod:
        return replace(self.status, attempt=self._begun[0]) if self._begun[0] != self.status.attempt else self.status

    def explained(self, process: PodProcess) -> PodProcess:
        """Return what a supervisor reports, with the last lines in the log, and whether memory ran out."""
        reported, container = process.last_exit, self._running.get(TRAINER)
        if reported is None:
            return process
        if self._explained is None or self._explained[0] != reported:
            end = reported
            if container is not None:
                message = _of_program(container.last_lines()) or reported.message
                end = replace(reported, message=message, reason=container.reason(reported.code, message))
            self._explained = reported, end
        return replace(process, last_exit=self._explained[1])

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_pod(), name=self.status.name)

    def delete(self, grace: float | None = None) -> None:
        """Send SIGTERM now, and SIGKILL to all processes after the grace period, or after `grace` seconds if that is
        less. Another call can only shorten the wait."""
        grace = self.grace if grace is None else min(grace, self.grace)
        if not self.status.deleted_at:
            self.status = replace(self.status, deleted_at=datetime.now(UTC))
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
        """Send SIGKILL to every process."""
        self._stop.set()
        for process in self._running.values():
            process.kill()

    async def _run_pod(self) -> None:
        try:
            if await self._acquire_gpus() and await self._run_init_containers():
                self._update_status(waiting_reason="ContainerCreating")
                await asyncio.gather(*(self._supervise(container) for container in self._plan.main))
                exits = [self._exits.get(container.name) for container in self._plan.main]
                succeeded = all(exit is not None and exit.code == 0 for exit in exits)
                self._set_finished("Succeeded" if succeeded else "Failed")
        except Exception as error:
            self._host.fail(error)
        finally:
            await self._stop_remaining()
            self._host.release_gpus(self.status.name)
            if self.status.deleted_at:
                self._finish_deletion()
            self._host.changed()

    async def _acquire_gpus(self) -> bool:
        """Wait until pods of an earlier attempt release their GPUs. Return False if the pod was deleted meanwhile."""
        if self._plan.gpus is None:
            return not self._stop.is_set()
        self._update_status(waiting_reason="Unschedulable", waiting_message="waiting for GPUs")
        getting = asyncio.ensure_future(self._host.acquire_gpus(self.status.name, self._plan.gpus))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((getting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not getting.done():
            getting.cancel()
            return False
        self._extra_env = getting.result()
        return not self._stop.is_set()

    async def _run_init_containers(self) -> bool:
        """Run the init containers in order. Return False if the pod is finished."""
        for container in self._plan.init:
            self._update_status(waiting_reason="PodInitializing", waiting_message=f"init container {container.name}")
            if container.restarts:
                self._sidecars.append(asyncio.create_task(self._supervise(container, always=True)))
                continue
            await self._supervise(container, init=True)
            exit = self._exits.get(container.name)
            if exit is None or exit.code or self._stop.is_set():
                if exit is not None and exit.code:
                    message = f"init container {container.name} failed\n{exit.message}".rstrip()
                    self.status = replace(self.status, exit=replace(exit, message=message))
                self._set_finished("Failed")
                return False
        return not self._stop.is_set()

    async def _supervise(self, container: ContainerPlan, *, init: bool = False, always: bool = False) -> None:
        """Run a container and restart it according to the restart policy."""
        log = LogFile(self.log_path(container.name))
        restarts = 0
        loop = asyncio.get_running_loop()
        try:
            while not self._stop.is_set():
                began = loop.time()
                exit = await self._run(container, log, init or always)
                if exit is None:
                    return
                policy = container.policy or self._policy
                on_failure = policy == "OnFailure" or (init and policy == "Always")
                again = (always or (policy == "Always" and not init)) or (on_failure and exit.code != 0)
                over = self._stop.is_set() or not again
                if container.name == TRAINER:
                    ending = {"exit": exit} if over else {"container_restarts": self.status.container_restarts + 1}
                    self.status = replace(self.status, **ending)
                if not (init or always):
                    self._host.changed()
                if over:
                    return
                if loop.time() - began > _STABLE_SECONDS:
                    restarts = 0
                delay = self._host.backoff.delay(restarts)
                restarts += 1
                if delay:
                    if not always:
                        message = f"back-off {delay:g}s restarting failed container {container.name}"
                        last = exit if container.name == TRAINER else self.status.last_exit
                        self._update_status(
                            self.status.phase, waiting_reason=CRASH_LOOP, waiting_message=message, last_exit=last
                        )
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await self._stop.wait()
        finally:
            log.close()

    async def _run(self, container: ContainerPlan, log: LogFile, auxiliary: bool) -> Exit | None:
        """Run a container once; return None if the pod stopped before the start. `auxiliary`: init container or
        sidecar."""
        command = replace(container.command, env={**container.command.env, **self._extra_env})
        async with self._host.start_lock:
            await asyncio.sleep(0)
            if self._stop.is_set():
                return None
            process = Process(
                command,
                log,
                files=self._host.files,
                output=lambda data: self._host.output(self._in_attempt(), container.name, data),
                on_shim_killed=self._host.shim_killed,
            )
        self._running[container.name] = process
        await process.started()
        if not auxiliary and process.started_at:
            self._started.add(container.name)
            if len(self._started) == len(self._plan.main):
                began = self.status.started_at or process.started_at
                self._update_status("Running", started_at=began, waiting_reason="", waiting_message="", last_exit=None)
        exit = await process.ended()
        del self._running[container.name]
        self._exits[container.name] = exit
        return exit

    async def _stop_remaining(self) -> None:
        """End the sidecars, and after an error all containers."""
        self._stop.set()
        for process in self._running.values():
            process.terminate()
        timer = asyncio.get_running_loop().call_later(self.grace, self.kill)
        await asyncio.gather(*(process.ended() for process in list(self._running.values())))
        timer.cancel()
        for outcome in await asyncio.gather(*self._sidecars, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._host.fail(outcome)

    def _update_status(self, phase: PodPhase = "Pending", **fields: object) -> None:
        self.status = replace(self.status, phase=phase, **fields)  # type: ignore[arg-type]
        self._host.changed()

    def _set_finished(self, phase: PodPhase) -> None:
        self.status = replace(self.status, phase=phase, waiting_reason="", waiting_message="")

    def _finish_deletion(self) -> None:
        if self._timer:
            self._timer.cancel()
        self.gone.set()
        self._host.changed()
