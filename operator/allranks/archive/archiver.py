"""The archiver: watches jobs, sweeps and pods, and writes them to the archive. A process of its own, so that a slow or
full archive delays no job."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from allranks.api.job import KIND as JOB
from allranks.api.sweep import KIND as SWEEP
from allranks.archive.access import Access, Metrics
from allranks.archive.job_attempts import JobAttempts
from allranks.archive.pod_logs import SELECTOR, LogSource, ObservedPod, PodLogs, RawPod
from allranks.archive.pod_secrets import SecretValues
from allranks.archive.saved_objects import SavedObjects
from allranks.archive.store import ArchiveError, open_store
from allranks.archive.writer import Writer
from allranks.core.facts.model import Event
from allranks.kube.auth import Connection
from allranks.kube.client import Client, Transport
from allranks.kube.cluster import Cluster
from allranks.kube.decoding import decoder
from allranks.kube.object_text import ObjectText, object_text
from allranks.kube.paths import core_path, job_path, sweeps
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS, Watch
from allranks.operator.event_recorder import Recorder
from allranks.operator.ports.http_servers import METRICS_LIMITS, Server, probe
from allranks.version import __version__

logger = logging.getLogger("allranks.archiver")

CLEAN_UP_SECONDS = 3600.0
SILENT_SECONDS = 300.0
"""A watch without activity for longer fails the liveness probe."""


@dataclass(frozen=True)
class Settings:
    """The options of `allranks archiver`."""

    archive: str
    namespaces: tuple[str, ...] = ()
    """Empty: all of them."""
    log_bytes: int = 4 << 20
    logs: int = 256
    max_age_seconds: float | None = None
    max_bytes: int | None = None
    spool: Path | None = None
    address: str = ""
    port: int = 8080
    call_seconds: float = 120.0
    give_up_seconds: float = 900.0


@dataclass
class Archiver:
    """The process: `run` runs until it is cancelled."""

    settings: Settings
    connection: Connection
    metrics: Metrics = field(default_factory=Metrics)
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        """Raises ArchiveError if `settings.archive` cannot be the address of an archive."""
        self._writer = Writer(open_store(self.settings.archive))
        self._watches: list[Watch[Any]] = []
        routes = {"/metrics": self._answer_metrics, "/healthz": probe(self._health), "/readyz": probe(self._ready)}
        self.server = Server(self.settings.address, self.settings.port, routes, METRICS_LIMITS)

    async def run(self) -> None:
        """Watch, write and clean up until cancelled.

        Raises OSError if the port is in use, or the spool cannot be written.
        """
        settings = self.settings
        client = Client(
            self.connection,
            concurrency=settings.logs + 64,
            user_agent=f"allranks-archiver/{__version__}",
            transport=Transport(self.connection, read_buffer=1 << 18),
        )
        access = Access(self.metrics, call_seconds=settings.call_seconds, give_up_seconds=settings.give_up_seconds)
        spool = Path(tempfile.mkdtemp(prefix="allranks-archiver-", dir=settings.spool))
        recorder = Recorder(client)

        def cluster_of(namespace: str) -> Cluster:
            return Cluster(client, namespace)

        def lost(source: LogSource, reason: str) -> None:
            about = {"name": source.job, "namespace": source.namespace, "uid": source.job_uid}
            text = f"the log of {source.pod} is not in the archive: {reason}"
            recorder.record({"metadata": about}, Event("NotArchived", text, warning=True), _now(), source.log.attempt)

        secrets, attempts = SecretValues(cluster_of), JobAttempts()
        logs = PodLogs(
            cluster_of,
            access,
            self._writer,
            self.metrics,
            secrets,
            attempts,
            spool=spool,
            log_bytes=settings.log_bytes,
            most=settings.logs,
            lost=lost,
        )
        objects = SavedObjects(cluster_of, access, self._writer, self.metrics, secrets, attempts)
        self.metrics.shares = lambda: {
            **logs.large,
            "waiting_jobs": objects.large,
            "received": objects.received.large,
        }
        self._watches = list(self._watching(client, objects, logs))
        try:
            await self.server.start()
            logger.info("archiving to %s; serving /metrics and /healthz on port %s", settings.archive, self.server.port)
            async with asyncio.TaskGroup() as tasks:
                for watch in self._watches:
                    tasks.create_task(watch.run(), name=f"watch {watch.path}")
                tasks.create_task(objects.run(), name="write jobs and sweeps")
                tasks.create_task(self._clean_up(access, objects), name="clean up")
                tasks.create_task(recorder.run(), name="send Events")
        finally:
            await logs.close()
            await self.server.stop()
            await client.close()
            access.close()
            shutil.rmtree(spool, ignore_errors=True)

    def _watching(self, client: Client, objects: SavedObjects, logs: PodLogs) -> Sequence[Watch[Any]]:
        watches: list[Watch[Any]] = []
        for namespace in self.settings.namespaces or (None,):
            for kind, path in ((JOB, job_path(namespace)), (SWEEP, sweeps(namespace))):
                watches.append(_objects_watch(client, path, kind, namespace, objects))
            watches.append(pods_watch(client, namespace, logs))
        return watches

    async def _clean_up(self, access: Access, objects: SavedObjects) -> None:
        """Delete jobs and sweeps that are too old, or do not fit into the archive, now and every hour."""
        settings = self.settings
        for watch in self._watches:
            await watch.synced.wait()  # jobs and sweeps that exist stay
        while True:
            live, now = objects.live, time.time()
            try:
                deleted, size = await access.once(
                    lambda now=now, live=live: self._writer.clean_up(  # type: ignore[misc]
                        now, max_age=settings.max_age_seconds, max_bytes=settings.max_bytes, live=live
                    )
                )
            except ArchiveError as error:
                logger.warning("old jobs cannot be deleted: %s", error)
            else:
                self.metrics.deleted.inc(deleted)
                self.metrics.size.set(size)
            await asyncio.sleep(CLEAN_UP_SECONDS)

    async def _answer_metrics(self, _request: web.BaseRequest, _peer: str) -> web.StreamResponse:
        response = web.Response(body=self.metrics.page(), content_type="text/plain", charset="utf-8")
        response.force_close()
        return response

    async def _health(self) -> str:
        silent = [watch.path for watch in self._watches if watch.age > SILENT_SECONDS]
        return f"no activity: {', '.join(silent)}" if silent else ""

    async def _ready(self) -> str:
        waiting = [watch.path for watch in self._watches if not watch.synced.is_set()]
        return f"not listed yet: {', '.join(waiting)}" if waiting or not self._watches else self.metrics.problem


def pods_watch(client: Client, namespace: str | None, logs: PodLogs) -> Watch[ObservedPod]:
    raw = decoder(RawPod)
    return Watch(
        client,
        core_path(namespace, "pods"),
        lambda data: logs.observed(raw(data)),
        listed=lambda pods, _version: logs.listed(pods, namespace),
        changed=logs.changed,
        parameters={"labelSelector": SELECTOR},
        page=PAGE_OF_LARGE_OBJECTS,
    )


def _objects_watch(
    client: Client, path: str, kind: str, namespace: str | None, objects: SavedObjects
) -> Watch[ObjectText]:
    return Watch(
        client,
        path,
        lambda data: object_text(data, kind),
        listed=lambda texts, _version: objects.listed(texts, namespace, kind),
        changed=objects.changed,
        page=PAGE_OF_LARGE_OBJECTS,
    )


def _now() -> datetime:
    return datetime.now(UTC)
