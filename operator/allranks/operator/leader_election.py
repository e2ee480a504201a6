"""Leader election with a coordination.k8s.io/v1 Lease, as in client-go.

A standby takes over when the Lease has not changed for its duration by the standby's own clock. The leader stops
earlier, by a clock that also runs during suspension, so that two leaders are never active.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime
from typing import Any

import msgspec

from allranks.core.facts.model import Manifest
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Conflict, NotFound
from allranks.operator.timing import Clock

logger = logging.getLogger(__name__)

_CONFLICTS = 3
"""Conflicts in a row after which a try ends."""


class Lease:
    """`client` must not be fenced by this lease."""

    def __init__(
        self, client: Client, namespace: str, name: str, identity: str, seconds: int, clock: Clock | None = None
    ) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self.identity, self._seconds = identity, seconds
        self._clock = clock or Clock()
        self._valid_until = float("-inf")
        self._observed: tuple[str, float] = ("", 0.0)
        """(resourceVersion of another holder's Lease, when we first read it)"""
        self._held: Manifest | None = None
        self._failing = False
        """The last try ended with an API error."""

    @property
    def held(self) -> bool:
        """Return whether this replica is the leader right now."""
        return self._clock.boottime() < self._valid_until

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        logged = False
        while not await self._try():
            if not logged:
                logger.info("not the leader; waiting for lease %s/%s", self._namespace, self._name)
                logged = True
            await asyncio.sleep(self._seconds / 5 * random.uniform(0.8, 1.2))
        logger.info("became the leader; holding lease %s/%s", self._namespace, self._name)

    async def keep(self) -> None:
        """Renew the Lease. Returns when it is lost."""
        while self.held:
            await asyncio.sleep(self._seconds / 5)
            if not self.held:
                break
            try:
                if not await self._try():
                    break
            except Exception:
                logger.exception("cannot renew the lease")
        self._valid_until = float("-inf")
        logger.warning("lost lease %s/%s; no longer the leader", self._namespace, self._name)

    async def release(self) -> None:
        """Let another replica take over immediately."""
        if not self.held or self._held is None:
            return
        self._valid_until = float("-inf")
        try:
            lease = await self._read() or self._held  # a renewal whose answer was lost made ours outdated
            if lease["spec"].get("holderIdentity") == self.identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._ask("PUT", self._name, {**lease, "spec": spec})
        except ApiError as error:
            logger.warning("cannot release the lease: %s", error)

    async def _try(self) -> bool:
        """Acquire or renew the Lease. Return whether this replica holds it, also after an API error.

        A conflict says only that the Lease changed since it was read: by our own write, whose answer was lost, or by a
        tool that edits annotations. The holder decides.
        """
        for _ in range(_CONFLICTS):
            began = self._clock.boottime()
            try:
                lease = await self._read()
                written = await (self._create() if lease is None else self._take(lease))
            except Conflict:
                continue
            except ApiError as error:
                level = logging.DEBUG if self._failing else logging.WARNING  # a warning for each series of errors
                logger.log(level, "cannot read or write lease %s/%s: %s", self._namespace, self._name, error)
                self._failing = True
                return self.held
            self._failing = False
            if written is None:
                return False
            self._held = written
            # Renew deadline: a third of the duration remains before another replica may take over.
            self._valid_until = began + self._seconds * 2 / 3
            return True
        return self.held

    async def _read(self) -> Manifest | None:
        try:
            return await self._ask("GET", self._name)
        except NotFound:
            return None

    async def _create(self) -> Manifest:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec({}),
        }
        return await self._ask("POST", "", body)

    async def _take(self, lease: Manifest) -> Manifest | None:
        """Take the Lease. Return None if another replica holds it."""
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self.identity) and not self._expired(lease, spec):
            return None
        return await self._ask("PUT", self._name, {**lease, "spec": self._spec(spec)})

    async def _ask(self, verb: str, name: str, body: Manifest | None = None) -> Manifest:
        path = paths.lease(self._namespace, name)
        answer = await self._client.request(verb, path, body, retry_timeout=self._seconds / 5)
        return msgspec.json.decode(answer, type=dict[str, Any])

    def _expired(self, lease: Manifest, spec: Manifest) -> bool:
        """Return whether the Lease has not changed for its duration by our clock: clocks of machines differ."""
        version, now = lease["metadata"]["resourceVersion"], self._clock.boottime()
        if self._observed[0] != version:
            self._observed = (version, now)
        duration = spec.get("leaseDurationSeconds") or self._seconds
        return now - self._observed[1] > duration

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
