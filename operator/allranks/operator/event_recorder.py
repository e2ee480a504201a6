"""Records Kubernetes Events, which `kubectl describe` shows. They are sent in the background and never delay a
decision.

As in client-go, repeated Events are one Event with a count, and each job has a rate limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from datetime import datetime
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.core.facts.model import Event, Manifest
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Conflict, NamespaceTerminating, NotFound
from allranks.telemetry.rate_limit import Bucket

BURST = 25
REFILL_SECONDS = 60.0
"""A job may send 25 Events in a row, and one per minute after that."""
_QUEUE_SIZE = 2_000
_CACHE_SIZE = 1_024
_MESSAGE = 1_024
logger = logging.getLogger(__name__)


class Recorder:
    """`record` queues an Event, `run` sends it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue: asyncio.Queue[Manifest] = asyncio.Queue(_QUEUE_SIZE)
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._sending = False
        self.dropped = 0

    @property
    def idle(self) -> bool:
        return self._queue.empty() and not self._sending

    def record(self, job: Manifest, event: Event, now: datetime, attempt: int) -> None:
        """Queue an Event about a job, or about another object of ours."""
        if not self._allowed(job["metadata"]["uid"]) or self._queue.full():
            self.dropped += 1
            return
        self._queue.put_nowait(_manifest(job, event, now, attempt))

    async def run(self) -> None:
        """Run forever. A rejected Event is dropped: the status has the same information."""
        while True:
            manifest = await self._queue.get()
            self._sending = True
            try:
                await self._send(manifest)
            except NamespaceTerminating:
                pass  # it would be deleted at once
            except ApiError as error:
                logger.warning("event rejected: %s", error)
            finally:
                self._sending = False

    async def flush(self, seconds: float) -> None:
        """Send queued Events for at most this time."""
        until = time.monotonic() + seconds
        while not self._queue.empty() and time.monotonic() < until:
            try:
                async with asyncio.timeout(max(0.05, until - time.monotonic())):
                    await self._send(self._queue.get_nowait())
            except (ApiError, TimeoutError):
                return

    async def _send(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > _CACHE_SIZE:
            self._counts.popitem(last=False)
        if count == 1:
            try:
                await self._client.create(paths.collection("Event", namespace), manifest)
                return
            except Conflict:
                count = self._counts[name] = 2  # sent before a restart of the operator
        change = {"count": count, "lastTimestamp": manifest["lastTimestamp"]}
        try:
            await self._client.patch(paths.item("Event", namespace, name), change)
        except NotFound:
            # Events expire after an hour. Or the first one was rejected.
            self._counts[name] = 1
            await self._client.create(paths.collection("Event", namespace), manifest)

    def _allowed(self, uid: str) -> bool:
        now = time.monotonic()
        bucket = self._buckets.setdefault(uid, Bucket(BURST, now))
        self._buckets.move_to_end(uid)
        if len(self._buckets) > _CACHE_SIZE:
            self._buckets.popitem(last=False)
        return bucket.take(now, BURST, 1.0 / REFILL_SECONDS)


def _manifest(job: Manifest, event: Event, now: datetime, attempt: int) -> dict[str, Any]:
    """Return the Event. Its name is computed, so that a repeated create after a lost response is the same Event. Each
    attempt has its own."""
    metadata = job["metadata"]
    identity = f"{metadata['uid']}/{attempt}/{event.reason}/{event.message}"
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": job.get("kind", KIND),
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:_MESSAGE],
        "source": {"component": "allranks"},
        "reportingComponent": "allranks",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
