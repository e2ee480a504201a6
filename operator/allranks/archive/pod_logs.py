"""Follow the log of each pod while it runs, and write its end to the archive when the pod has ended.

The operator deletes the pods of an attempt as soon as it fails. A log that is followed has all lines by then: the
kubelet sends the last ones when the container ends, which is before the pod is deleted. The number of logs that are
read at the same time is limited; pods beyond it are read when they end or are about to be deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from allranks.archive.access import Access, Metrics
from allranks.archive.job_attempts import JobAttempts
from allranks.archive.layout import LogName, job_folder
from allranks.archive.pod_secrets import Reference, SecretValues, references
from allranks.archive.store import ArchiveError
from allranks.archive.tail import Tail
from allranks.archive.writer import Writer
from allranks.core.facts.naming import (
    JOB_LABEL,
    PLACEHOLDER,
    ROLE_LABEL,
    TRAINER,
    pod_name,
)
from allranks.errors import ClusterError
from allranks.kube.bounded_lines import LONGEST_LINE
from allranks.kube.cluster import Cluster
from allranks.kube.pod_logs import Line, LogOptions, follow
from allranks.kube.raw_pod import Meta, State
from allranks.masking import secrets_in
from allranks.shares import Turns

logger = logging.getLogger("allranks.archiver")

SHORTEST_LINE = 32
"""Bytes of an empty line in the archive: its time and a newline. The limit divided by it bounds the lines to read."""
CLOSE_SECONDS = 8.0
"""Time for the last writes, within the grace period of the archiver's pod."""
SELECTOR = f"{JOB_LABEL},{ROLE_LABEL}!={PLACEHOLDER}"


class _Container(msgspec.Struct, rename="camel"):
    name: str = ""
    state: State = msgspec.field(default_factory=State)
    last_state: State = msgspec.field(default_factory=State)


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[dict[str, Any]] = []
    init_containers: list[dict[str, Any]] = []
    restart_policy: str = "Never"


class _Status(msgspec.Struct, rename="camel"):
    phase: str = "Pending"
    container_statuses: list[_Container] | None = None


class RawPod(msgspec.Struct, rename="camel"):
    """The fields of a pod that the archiver decodes."""

    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


@dataclass(eq=False)
class LogSource:
    """A pod whose log is kept."""

    uid: str
    namespace: str
    pod: str
    job: str
    job_uid: str
    folder: str
    log: LogName
    secrets: frozenset[str]
    """Values of variables that are in the pod."""
    references: frozenset[Reference]
    """Secrets that are the source of variables."""
    over: bool = False
    """Its containers have ended, or it is gone."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Over, or about to be deleted."""


def source_of(pod: RawPod) -> LogSource | None:
    """Return the source of a pod's log; None if the pod belongs to no job, or the operator did not create it.

    Anybody who may create pods may set owners and labels. `JobAttempts` says whether there is such a job.
    """
    metadata = pod.metadata
    labels = metadata.labels
    owner = next((owner for owner in metadata.owner_references if owner.controller), None)
    try:
        numbers = [int(labels.attempt), int(labels.index)]
        restart = int(labels.restart or 0)
    except ValueError:
        return None
    role, job = labels.role, labels.job
    # Labels must not lead to a path outside of the folder of the job.
    if owner is None or owner.name != job or not (role.isascii() and role.isalnum()) or "/" in owner.uid:
        return None
    if min(*numbers, restart) < 0 or metadata.name != pod_name(job, role, numbers[1], numbers[0], restart):
        return None
    log = LogName(numbers[0], role, numbers[1], restart)
    folder = job_folder(metadata.namespace, job, owner.uid)
    containers = [*pod.spec.containers, *pod.spec.init_containers]
    secrets, named = frozenset(secrets_in(containers)), frozenset(references(containers))
    return LogSource(metadata.uid, metadata.namespace, metadata.name, job, owner.uid, folder, log, secrets, named)


def has_log(pod: RawPod) -> bool:
    """Return whether the training container has started."""
    states = [
        state
        for container in pod.status.container_statuses or ()
        if container.name == TRAINER
        for state in (container.state, container.last_state)
    ]
    return any(state.running or state.terminated for state in states)


class ObservedPod(NamedTuple):
    """What the archiver keeps of a pod that it has read."""

    uid: str
    source: LogSource | None
    """None also for a pod whose log has a source."""
    over: bool
    closing: bool
    has_log: bool


class PodLogs:
    """Collects the logs of the pods that a watch reports to `listed` and `changed`.

    `lost(source, reason)` is called for a log that is not in the archive.
    """

    def __init__(
        self,
        cluster_of: Callable[[str], Cluster],
        access: Access,
        writer: Writer,
        metrics: Metrics,
        secrets: SecretValues,
        attempts: JobAttempts,
        *,
        spool: Path,
        log_bytes: int,
        most: int,
        lost: Callable[[LogSource, str], None],
    ) -> None:
        """`most`: logs that are read at the same time. A quarter of them is reserved for pods that end."""
        self._cluster_of, self._access, self._writer, self._metrics = cluster_of, access, writer, metrics
        self._secrets, self._spool, self._log_bytes, self._lost = secrets, spool, log_bytes, lost
        self._ending = Turns(max(1, most // 4))
        self._following = Turns(max(1, most - most // 4))
        self._sources: dict[str, LogSource] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._done: set[str] = set()
        self._attempts = attempts
        self._unknown: dict[str, dict[str, LogSource]] = {}
        """Folder -> UID -> a pod with a log whose job, or its attempt, the watch of jobs has not shown."""
        attempts.changed = self._job_changed

    @property
    def idle(self) -> bool:
        return not self._tasks

    @property
    def large(self) -> dict[str, dict[str, float]]:
        """Return `Turns.large` of the logs that are followed, and of those of pods that end."""
        return {"followed_logs": self._following.large, "ending_logs": self._ending.large}

    def observed(self, pod: RawPod) -> ObservedPod:
        """Return what `listed` and `changed` need of a pod. The values of its secrets are read only once."""
        uid = pod.metadata.uid
        over = pod.status.phase in ("Succeeded", "Failed") or _trainer_ended(pod)
        closing = over or pod.metadata.deletion_timestamp is not None
        return ObservedPod(uid, None if uid in self._sources else source_of(pod), over, closing, has_log(pod))

    def listed(self, pods: Sequence[ObservedPod], namespace: str | None) -> None:
        """Take all pods of a namespace; None: of all namespaces. Pods that are missing are deleted."""
        for pod in pods:
            self.changed(pod, False)
        uids = {pod.uid for pod in pods}
        for uid, source in list(self._sources.items()):
            if uid not in uids and namespace in (None, source.namespace):
                self._gone(source)

    def changed(self, pod: ObservedPod, deleted: bool) -> None:
        uid = pod.uid
        source = self._sources.get(uid)
        if source is None:
            source = None if deleted else pod.source
            if source is None:
                return
            self._sources[uid] = source
        if deleted:
            self._gone(source)
            return
        source.over = pod.over
        if pod.closing:
            source.closing.set()
        if uid not in self._tasks and uid not in self._done and pod.has_log:
            self._begin(source)

    def _begin(self, source: LogSource) -> None:
        """Read the log of a pod, once its job and its attempt were shown: the watch of pods may be ahead."""
        if not self._attempts.has(source.folder, source.log.attempt):
            self._unknown.setdefault(source.folder, {})[source.uid] = source
            return
        task = asyncio.create_task(self._collect(source), name=f"log of {source.pod}")
        self._tasks[source.uid] = task
        task.add_done_callback(lambda _: self._finished(source))

    def _job_changed(self, folder: str) -> None:
        for source in self._unknown.pop(folder, {}).values():
            self._begin(source)

    def _gone(self, source: LogSource) -> None:
        source.over = True
        source.closing.set()
        self._sources.pop(source.uid, None)
        self._done.discard(source.uid)
        if self._unknown.get(source.folder, {}).pop(source.uid, None):
            logger.warning(
                "the log of %s/%s is not archived: no watch has shown attempt %d of a job %s with UID %s",
                *(source.namespace, source.pod, source.log.attempt, source.job, source.job_uid),
            )
            if not self._unknown[source.folder]:
                del self._unknown[source.folder]

    def _finished(self, source: LogSource) -> None:
        self._tasks.pop(source.uid, None)
        if source.uid in self._sources:
            self._done.add(source.uid)

    async def close(self) -> None:
        """Write the logs of pods that have ended or are being deleted, for at most CLOSE_SECONDS.

        The next archiver reads the logs of other pods.
        """
        for source in self._sources.values():
            source.over |= source.closing.is_set()  # nothing watches the pods any more
        ending = [task for uid, task in self._tasks.items() if uid not in self._sources or self._sources[uid].over]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_SECONDS)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _collect(self, source: LogSource) -> None:
        release = await self._slot(source)
        self._metrics.followed.inc()
        try:
            await self._keep(source)
        except ArchiveError as error:
            self._report_lost(source, str(error))
        except Exception as error:
            logger.exception("the log of %s is not archived", source.pod)
            self._report_lost(source, str(error))
        finally:
            self._metrics.followed.dec()
            release()

    async def _slot(self, source: LogSource) -> Callable[[], None]:
        """Acquire a slot: for following, or for pods that end if none is free before the pod ends. Return what releases
        it. Namespaces share the slots."""
        release = functools.partial(self._following.release, source.namespace)
        if source.closing.is_set():
            return await self._slot_of_ending(source)
        free = asyncio.ensure_future(self._following.acquire(source.namespace))
        closing = asyncio.ensure_future(source.closing.wait())
        try:
            await asyncio.wait({free, closing}, return_when=asyncio.FIRST_COMPLETED)
            if free.done():
                return release
        except BaseException:
            if free.done() and not free.cancelled():
                release()
            raise
        finally:
            free.cancel()
            closing.cancel()
        return await self._slot_of_ending(source)

    async def _slot_of_ending(self, source: LogSource) -> Callable[[], None]:
        await self._ending.acquire(source.namespace)
        return functools.partial(self._ending.release, source.namespace)

    async def _keep(self, source: LogSource) -> None:
        """Follow a log until its end, and write it. Raises ArchiveError."""
        if source.over and await self._access.persistent(
            "log", lambda: self._writer.has_log(source.folder, source.log)
        ):
            return  # written before a restart of the archiver
        try:
            tail = Tail(self._spool / source.uid.replace("/", "_"), self._log_bytes)
        except OSError as error:
            raise ArchiveError(f"the spool cannot be written: {error.strerror}") from error
        # Secrets are read twice: the program has the values of its start, and a restarted container has later ones.
        # A Secret may be deleted with its job.
        secrets_at_start = asyncio.create_task(self._secrets.read(source.namespace, source.references))
        try:
            answered, problem = await self._read(source, tail)
            if tail.empty and (problem or not answered):
                self._report_lost(source, problem or "the pod was deleted before its log was read")
                return
            if problem:
                logger.warning("the end of the log of %s/%s is not archived: %s", source.namespace, source.pod, problem)
                with contextlib.suppress(OSError):
                    tail.add([Line(b"", f"[the end is missing: {problem}]".encode())])
            values = await secrets_at_start | await self._secrets.read(source.namespace, source.references)
            packed = await asyncio.to_thread(tail.packed, source.secrets | values)
            await self._access.persistent("log", lambda: self._writer.save_log(source.folder, source.log, packed))
            self._metrics.written.labels("log").inc()
        finally:
            secrets_at_start.cancel()
            tail.close()

    async def _read(self, source: LogSource, tail: Tail) -> tuple[bool, str]:
        """Read a log until its end. Return whether there was one, perhaps empty, and why its end cannot be read."""
        answers: list[None] = []
        options = LogOptions(tail=max(1, self._log_bytes // SHORTEST_LINE), longest_line=LONGEST_LINE)
        batches = follow(
            self._cluster_of(source.namespace),
            source.namespace,
            source.pod,
            options,
            b"",
            lambda: source.over,
            on_open=lambda: answers.append(None),
        )
        try:
            async with aclosing(batches):
                async for lines in batches:
                    tail.add(lines)
        except ClusterError as error:
            return bool(answers), str(error)
        except OSError as error:
            # The file may end in the middle of a line: it is archived nevertheless.
            return bool(answers), f"the spool cannot be written: {error.strerror}"
        return bool(answers), ""

    def _report_lost(self, source: LogSource, reason: str) -> None:
        self._metrics.lost.labels("log").inc()
        with contextlib.suppress(Exception):
            self._lost(source, reason)
        logger.warning("the log of %s/%s is not archived: %s", source.namespace, source.pod, reason)


def _trainer_ended(pod: RawPod) -> bool:
    """Return whether the training container has ended and the kubelet will not restart it. Sidecars may still run."""
    status = next((status for status in pod.status.container_statuses or () if status.name == TRAINER), None)
    if status is None or status.state.terminated is None:
        return False
    container = next((container for container in pod.spec.containers if container.get("name") == TRAINER), {})
    policy = container.get("restartPolicy") or pod.spec.restart_policy
    return policy != "OnFailure" or status.state.terminated.exit_code == 0 or bool(pod.metadata.deletion_timestamp)
