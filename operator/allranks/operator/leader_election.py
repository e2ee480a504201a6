"""Who acts, when there are several replicas: the holder of a Lease (coordination.k8s.io), as in client-go.

Another takes over when the Lease has not changed for its whole duration by the other's own clock. The holder stops
earlier, by a clock that also runs while the process or the machine is asleep: two are never at work.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from allranks.core.model import Manifest
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Conflict, NotFound

logger = logging.getLogger(__name__)


def awake_clock() -> float:
    """Seconds, those of suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """`client` must not be fenced by this very lease."""

    def __init__(self, client: Client, namespace: str, name: str, identity: str, seconds: int) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self.identity, self._seconds = identity, seconds
        self._valid_until = float("-inf")
        self._seen: tuple[str, float] = ("", 0.0)
        """(resourceVersion of the other's Lease, when we first saw it)"""
        self._held: Manifest | None = None

    @property
    def held(self) -> bool:
        """Whether we may act right now."""
        return awake_clock() < self._valid_until

    async def acquire(self) -> None:
        """Waits until the Lease is ours."""
        told = False
        while not await self._try():
            if not told:
                logger.info("another replica acts: waiting for its Lease %s/%s", self._namespace, self._name)
                told = True
            await asyncio.sleep(self._seconds / 5 * random.uniform(0.8, 1.2))
        logger.info("this replica acts: it holds the Lease %s/%s", self._namespace, self._name)

    async def keep(self) -> None:
        """Renews it; returns when it is lost."""
        while self.held:
            await asyncio.sleep(self._seconds / 5)
            if not self.held:
                break
            try:
                if not await self._try():
                    break
            except Exception:
                logger.exception("the Lease could not be renewed")
        self._valid_until = float("-inf")
        logger.warning("the Lease %s/%s is lost: this replica stops acting", self._namespace, self._name)

    async def release(self) -> None:
        """Lets another one take over at once."""
        if not self.held or self._held is None:
            return
        self._valid_until = float("-inf")
        body = {**self._held, "spec": {**self._held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
        try:
            await self._ask("PUT", self._name, body)
        except ApiError as error:
            logger.warning("the Lease could not be released: %s", error)

    async def _try(self) -> bool:
        """Takes or renews it. Errors of the API server count as no for now, without giving up what is held."""
        began = awake_clock()
        try:
            found = await self._read()
            written = await (self._create() if found is None else self._take(found))
        except ApiError as error:
            logger.debug("Lease: %s", error)
            return self.held
        if written is None:
            return False
        self._held = written
        # A third of the duration is left between our stopping and another's start.
        self._valid_until = began + self._seconds * 2 / 3
        return True

    async def _read(self) -> Manifest | None:
        try:
            return await self._ask("GET", self._name)
        except NotFound:
            return None

    async def _create(self) -> Manifest | None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec({}),
        }
        return await self._write("POST", "", body)

    async def _take(self, found: Manifest) -> Manifest | None:
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self.identity) and not self._expired(found, spec):
            return None
        return await self._write("PUT", self._name, {**found, "spec": self._spec(spec)})

    async def _write(self, verb: str, name: str, body: Manifest) -> Manifest | None:
        """None: another was quicker."""
        try:
            return await self._ask(verb, name, body)
        except Conflict:
            return None

    async def _ask(self, verb: str, name: str, body: Manifest | None = None) -> Manifest:
        path = paths.lease(self._namespace, name)
        answer = await self._client.request(verb, path, body, retry_timeout=self._seconds / 5)
        return msgspec.json.decode(answer, type=dict[str, Any])

    def _expired(self, found: Manifest, spec: Manifest) -> bool:
        """It has not changed for its duration, by our clock: clocks of machines differ."""
        version, now = found["metadata"]["resourceVersion"], awake_clock()
        if self._seen[0] != version:
            self._seen = (version, now)
        duration = spec.get("leaseDurationSeconds") or self._seconds
        return now - self._seen[1] > duration

    def _spec(self, before: Manifest) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = before.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._seconds,
            "acquireTime": before.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": (before.get("leaseTransitions") or 0) + (0 if ours else 1),
        }
