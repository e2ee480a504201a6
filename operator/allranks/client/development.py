"""What `allranks dev --cluster` does with a job: sends changed code, stays attached, and measures each edit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.client.jobs import Changed, delete_job
from allranks.code.bundle import Bundle
from allranks.code.ship import config_map_of, create_with_code, delete_unused
from allranks.core.facts import development
from allranks.core.facts.restarts import RESTART_ANNOTATION
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.paths import job_path
from allranks.views.format.outcome import failure_line

_OPTIONAL = ("commit", "dirty", "changes")
OnExit = Literal["suspend", "keep", "delete"]


def check_replaceable(job: Manifest) -> None:
    """Raise ClusterError if the job has no code that can be replaced."""
    if not config_map_of(job):
        name = job["metadata"]["name"]
        raise ClusterError(
            f"{name} has no code that can be replaced (spec.code.configMap): submit a job with `code: .` or --code DIR"
        )


async def attach(cluster: Cluster, job: Manifest) -> Manifest:
    """Let failures of the job wait for other code, from now on for some minutes. Raise ClusterError."""
    return await _patch(
        cluster,
        job,
        {"metadata": _annotations({development.ANNOTATION: development.attached_until(datetime.now(UTC))})},
    )


async def leave(cluster: Cluster, job: Manifest, on_exit: OnExit) -> str:
    """End the development of a job. Return what happened to it. Raise ClusterError."""
    name = job["metadata"]["name"]
    if on_exit == "delete":
        await delete_job(cluster, job)
        return f"{name} is deleted"
    finished = status_of(job).phase in FINISHED
    change: dict[str, Any] = {"metadata": _annotations({development.ANNOTATION: None})}
    if on_exit == "suspend" and not finished:
        change["spec"] = {"suspend": True}
    await _patch(cluster, job, change)
    if finished:
        return f"{name} is {status_of(job).phase}"
    if on_exit == "keep":
        return f"{name} continues: allranks logs -f {name} follows it, allranks delete {name} deletes it"
    return f"{name} is suspended: allranks resume {name} continues it, allranks delete {name} deletes it"


async def restart_with_code(cluster: Cluster, job: Manifest, bundle: Bundle) -> Changed:
    """Restart all ranks with this code, also if it is the code that they run. Raise ClusterError and CannotShip."""
    name, status = job["metadata"]["name"], status_of(job)
    if status.phase in FINISHED:
        raise ClusterError(f"{name} is {status.phase}: submit a new job")
    if status.phase in WITHOUT_PODS or status.attempt_time is None:
        raise ClusterError(f"{name} is {status.phase or 'new'}: it has no pods to restart")
    changed = await send_code(cluster, job, bundle, {RESTART_ANNOTATION: str(status.attempt)})
    code = development.short(bundle.sha256)
    return Changed(f"{name} restarts with code {code}: attempt {status.attempt + 1} replaces {status.attempt}", changed)


async def send_code(
    cluster: Cluster, job: Manifest, bundle: Bundle, annotations: dict[str, str | None] | None = None
) -> Manifest:
    """Store the code, and make it the job's. Return the changed job. Raise ClusterError and CannotShip."""
    check_replaceable(job)
    code = {**dict.fromkeys(_OPTIONAL), **bundle.spec}
    change: dict[str, Any] = {"spec": {"code": code}}
    if annotations:
        change["metadata"] = _annotations(annotations)

    async def patched() -> Manifest:
        return await _patch(cluster, job, change)

    return await create_with_code(cluster, job["metadata"]["namespace"], bundle, patched)


async def delete_former_code(cluster: Cluster, job: Manifest, config_maps: list[str]) -> None:
    """Delete code that no other job owns. Without the permission it stays, and goes with the job."""
    for name in config_maps:
        with contextlib.suppress(ClusterError):
            await delete_unused(cluster, job["metadata"]["namespace"], name, job)


def _annotations(values: dict[str, str | None]) -> dict[str, Any]:
    return {"annotations": dict(values)}


async def _patch(cluster: Cluster, job: Manifest, change: dict[str, Any]) -> Manifest:
    """Change this job, and none that has its name by now. Raise ClusterError."""
    metadata = job["metadata"]
    change = {**change, "metadata": {**change.get("metadata", {}), "uid": metadata["uid"]}}
    path = job_path(metadata["namespace"], metadata["name"])
    return await cluster.request("PATCH", path, {"fieldManager": "allranks"}, change)


@dataclass
class Edits:
    """Measures the edits of a session: from the time at which a file was saved until ranks run and make a step.

    Durations in the cluster are measured by its clock only, and those here by the clock of this machine only.
    """

    number: int = 0
    _sha256: str = ""
    _saved_at: float = 0.0
    _attempt: int | None = None
    """The attempt with the code of the edit; None before there is one."""
    _begun: float = 0.0
    """Seconds from the save until its attempt was observed."""
    _reported: set[str] = field(default_factory=set)

    def saved(self, sha256: str, at: float) -> str:
        """Note an edit that was saved `at` a time in seconds. Return a message."""
        self.number, self._sha256, self._saved_at = self.number + 1, sha256, at
        self._attempt, self._reported = None, set()
        return f"edit {self.number}: code {development.short(sha256)}"

    def observe(self, status: Status, now: float) -> Iterator[str]:
        """Yield messages about what a status says of the last edit, each once."""
        if not self.number or status.attempt_time is None:
            return
        runs_it = status.code is not None and status.code.sha256 == self._sha256
        if self._attempt is None and runs_it:
            self._attempt, self._begun = status.attempt, now - self._saved_at
        if self._attempt is None:
            return
        failure = status.last_failure
        if failure and failure.attempt == self._attempt and self._is_new("failed"):
            yield f"edit {self.number} failed after {self._since(failure.time, status):.1f} s: {failure_line(failure)}"
        if not runs_it or status.attempt != self._attempt:
            return
        if status.running_time and self._is_new("runs"):
            seconds = self._since(status.running_time, status)
            yield f"edit {self.number}: all ranks run after {seconds:.1f} s{_how(status)}"
        progress = status.progress
        if progress and progress.first_step_time and self._is_new("step"):
            seconds = self._since(progress.first_step_time, status)
            yield f"step {progress.first_step} of edit {self.number} after {seconds:.1f} s"

    def _since(self, time: datetime, status: Status) -> float:
        began = status.attempt_time if status.attempt == self._attempt else None
        past = next((past.start_time for past in status.history if past.attempt == self._attempt), None)
        return self._begun + max(0.0, (time - (began or past or time)).total_seconds())

    def _is_new(self, event: str) -> bool:
        new = event not in self._reported
        self._reported.add(event)
        return new


def _how(status: Status) -> str:
    last = status.history[-1] if status.history else None
    if last is None or last.attempt != status.attempt - 1 or last.how is None:
        return ""
    return ", in the same pods" if last.how == "InPlace" else f", in new pods: {last.why_new_pods}"
