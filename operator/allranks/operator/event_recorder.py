"""Kubernetes Events: what `kubectl describe` shows. They are told in the background, and never hold up a decision.

What repeats itself is one Event that is counted; a job that has too much to say is cut short, as client-go does it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.core.model import Event, Manifest
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Conflict, NotFound

BURST = 25
REFILL_SECONDS = 60.0
"""A job may tell 25 Events at once, and one a minute after that."""
_WAITING = 2_000
_REMEMBERED = 1_024
_MESSAGE = 1_024
logger = logging.getLogger(__name__)


@dataclass
class _Bucket:
    left: float
    at: float


class Recorder:
    """`tell` is called at once, `run` sends."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue: asyncio.Queue[Manifest] = asyncio.Queue(_WAITING)
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._sending = False
        self.dropped = 0

    @property
    def idle(self) -> bool:
        return self._queue.empty() and not self._sending

    def tell(self, job: Manifest, event: Event, now: datetime, attempt: int) -> None:
        if not self._allowed(job["metadata"]["uid"]) or self._queue.full():
            self.dropped += 1
            return
        self._queue.put_nowait(_manifest(job, event, now, attempt))

    async def run(self) -> None:
        """For ever. An Event that cannot be told is given up: the status says the same."""
        while True:
            manifest = await self._queue.get()
            self._sending = True
            try:
                await self._send(manifest)
            except ApiError as error:
                logger.warning("an Event was not accepted: %s", error)
            finally:
                self._sending = False

    async def flush(self, seconds: float) -> None:
        """What is waiting is sent, within that time."""
        until = time.monotonic() + seconds
        while not self._queue.empty() and time.monotonic() < until:
            try:
                await asyncio.wait_for(self._send(self._queue.get_nowait()), max(0.05, until - time.monotonic()))
            except (ApiError, TimeoutError):
                return

    async def _send(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
        if count == 1:
            try:
                await self._client.create(paths.collection("Event", namespace), manifest)
                return
            except Conflict:
                count = self._counts[name] = 2  # a former life of ours told it
        change = {"count": count, "lastTimestamp": manifest["lastTimestamp"]}
        try:
            await self._client.patch(paths.item("Event", namespace, name), change)
        except NotFound:
            # Events are kept for an hour; or the first one was not accepted.
            self._counts[name] = 1
            await self._client.create(paths.collection("Event", namespace), manifest)

    def _allowed(self, uid: str) -> bool:
        now = time.monotonic()
        bucket = self._buckets.setdefault(uid, _Bucket(BURST, now))
        self._buckets.move_to_end(uid)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        bucket.left = min(BURST, bucket.left + (now - bucket.at) / REFILL_SECONDS)
        bucket.at = now
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True


def _manifest(job: Manifest, event: Event, now: datetime, attempt: int) -> dict[str, Any]:
    """Its name is computed: told again after a lost answer, it is the same Event. Another attempt's is another one."""
    metadata = job["metadata"]
    what = f"{metadata['uid']}/{attempt}/{event.reason}/{event.message}"
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.sha256(what.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
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
