"""Caches of what the platform of a job depends on: TrainingPools, and labels and policies of namespaces.

Pools are watched. The namespaces that have jobs are read one by one when they are needed: a watch would need the right
to list all Namespaces, which a Role in one namespace cannot grant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError

from allranks.api.pool import PoolSpec
from allranks.core.facts import pod_security
from allranks.core.facts.policy import InvalidPolicy, Policy, for_namespace
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.decoding import ObjectMeta, decoder
from allranks.kube.errors import ApiError, NamespaceTerminating, NotFound, Refused
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS, Watch
from allranks.operator.settings import Settings
from allranks.operator.timing import Clock, Timing

logger = logging.getLogger(__name__)


class _Raw(msgspec.Struct):
    """A pool with its spec, not yet validated."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}


_raw = decoder(_Raw)


class Pool(NamedTuple):
    name: str
    spec: PoolSpec | None
    """None for an invalid pool."""


class Pools:
    """Calls `changed(name)` for each pool that changes; None means all pools."""

    def __init__(self, client: Client, settings: Settings, changed: Callable[[str | None], None]) -> None:
        self._pools: dict[str, PoolSpec] = {}
        self._changed = changed
        self.synced = asyncio.Event()
        self.refused = ""
        self.watch: Watch[Pool] | None = None
        if not settings.pools:
            self.refused = "this operator does not serve TrainingPools (setting `pools`)"
            self.synced.set()
            return
        self.watch = Watch(
            client,
            paths.pools(),
            _pool,
            listed=self._listed,
            changed=self._upsert,
            renewed_after=settings.watch_timeout,
            forbidden=self._forbidden,
            page=PAGE_OF_LARGE_OBJECTS,
        )

    async def run(self) -> None:
        """Run forever."""
        await (self.watch.run() if self.watch else asyncio.Event().wait())

    def get(self, name: str) -> PoolSpec | None:
        return self._pools.get(name)

    def _listed(self, pools: Sequence[Pool], _: int) -> None:
        self._pools = {pool.name: pool.spec for pool in pools if pool.spec}
        self.refused = ""
        self.synced.set()
        self._changed(None)

    def _upsert(self, pool: Pool, deleted: bool) -> None:
        if deleted or pool.spec is None:
            self._pools.pop(pool.name, None)
        else:
            self._pools[pool.name] = pool.spec
        self._changed(pool.name)

    def _forbidden(self, message: str) -> None:
        """Note that the ClusterRole that reads pools, or their CRD, is missing. Jobs without a pool are not
        affected."""
        missing = "its ClusterRole for them, or their CustomResourceDefinition, is missing"
        self.refused = f"this operator cannot read TrainingPools ({message}): {missing}"
        self.synced.set()
        self._changed(None)


def _pool(data: msgspec.Raw) -> Pool:
    """Return the pool in JSON. The core reports errors inside the template to the jobs that use the pool."""
    raw = _raw(data)
    try:
        return Pool(raw.metadata.name, PoolSpec.model_validate(raw.spec, by_alias=True, by_name=False))
    except ValidationError as error:
        # Without the values: environment variables may hold secrets.
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        details = "; ".join(f"{'.'.join(map(str, ('spec', *detail['loc'])))}: {detail['msg']}" for detail in wrong)
        logger.error("TrainingPool %s is invalid and treated as missing: %s", raw.metadata.name, details)
        return Pool(raw.metadata.name, None)


MOST_LABELS = 256
"""Of a namespace. They stay in memory, because the selector of any pool may name them."""


class NamespaceNotUsable(Exception):
    """A new job has to wait, because the policy of its namespace is invalid or cannot be read."""


class _Meta(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletionTimestamp: str | None = None


class _Namespace(msgspec.Struct):
    metadata: _Meta


@dataclass
class _Entry:
    policy: Policy
    """The last valid one."""
    labels: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""
    read_at: float = 0.0
    problem: str = ""
    """Why new jobs have to wait."""
    terminating: bool = False
    why_restricted: str = pod_security.NOT_READ


class Namespaces:
    """Calls `changed(namespace)` when its labels or its policy changed."""

    def __init__(
        self, client: Client, settings: Settings, changed: Callable[[str], None], timing: Timing, clock: Clock
    ) -> None:
        self._client, self._changed, self._timing, self._clock = client, changed, timing, clock
        self._enabled, self._base = settings.namespace_policies, settings.policy
        self._entries: dict[str, _Entry] = {}
        self._reading: dict[str, asyncio.Future[None]] = {}

    def policy(self, namespace: str) -> Policy:
        entry = self._entries.get(namespace)
        return entry.policy if entry else self._base

    def labels(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels of a namespace; None if namespaces are not read."""
        entry = self._entries.get(namespace)
        return entry.labels if entry else None

    def why_restricted(self, namespace: str) -> str:
        """Return why the pods of a namespace must be restricted; empty if they need not be."""
        entry = self._entries.get(namespace)
        return entry.why_restricted if entry else pod_security.NOT_READ

    def uid(self, namespace: str) -> str:
        """Return the UID of a namespace; empty if namespaces are not read."""
        entry = self._entries.get(namespace)
        return entry.uid if entry else ""

    async def prepare(self, namespace: str, new_job: bool) -> None:
        """Read the namespace before a job of it is reconciled: once, and again for a new job if that was long ago.

        Raises NamespaceNotUsable for a new job, ApiError if the API server does not answer. Older jobs continue with
        the last valid policy.
        """
        if not self._enabled:
            return
        entry = self._entries.get(namespace)
        now = self._clock.monotonic()
        if entry is None or (new_job and now - entry.read_at > self._timing.namespace_max_age):
            await self._read_once(namespace)
            entry = self._entries[namespace]
        if new_job and entry.problem:
            raise NamespaceNotUsable(entry.problem)

    async def confirm(self, namespace: str) -> None:
        """Read the namespace again. Raises NamespaceTerminating if it is being deleted, ApiError if the API server does
        not answer."""
        if not self._enabled:
            return
        await self._read_once(namespace)
        if self._entries[namespace].terminating:
            raise NamespaceTerminating(f"namespace {namespace} is being deleted")

    async def run(self, in_use: Callable[[], Iterable[str]]) -> None:
        """Read the namespaces that have jobs again from time to time, and forget the others. Runs forever."""
        while True:
            await asyncio.sleep(self._timing.namespace_refresh)
            used = set(in_use())
            for namespace in list(self._entries):
                if namespace not in used:
                    del self._entries[namespace]
                    continue
                try:
                    await self._read_once(namespace)
                except ApiError as error:
                    logger.warning("cannot read namespace %s: %s", namespace, error)

    async def _read_once(self, namespace: str) -> None:
        """Read a namespace, with one request for all jobs of it that begin together."""
        if (reading := self._reading.get(namespace)) is None:
            reading = asyncio.ensure_future(self._read(namespace))
            self._reading[namespace] = reading
            reading.add_done_callback(lambda _: self._reading.pop(namespace, None))
        await asyncio.shield(reading)

    async def _read(self, namespace: str) -> None:
        """Raises ApiError."""
        before = self._entries.get(namespace)
        entry = _Entry(
            before.policy if before else self._base, before.labels if before else {}, before.uid if before else ""
        )
        entry.why_restricted = before.why_restricted if before else entry.why_restricted
        entry.read_at = self._clock.monotonic()
        try:
            answer = msgspec.json.decode(await self._client.get(paths.namespace(namespace)), type=_Namespace)
            entry.uid = answer.metadata.uid
            if (count := len(answer.metadata.labels)) > MOST_LABELS:
                raise InvalidPolicy(f"namespace {namespace} has {count} labels, and at most {MOST_LABELS} fit")
            entry.terminating = answer.metadata.deletionTimestamp is not None
            entry.labels = answer.metadata.labels
            annotations = answer.metadata.annotations
            entry.why_restricted = pod_security.why_restricted(namespace, entry.labels, annotations)
            entry.policy = for_namespace(self._base, namespace, annotations)
        except NotFound:
            pass  # it was deleted, and its jobs with it
        except (InvalidPolicy, msgspec.DecodeError) as error:
            entry.problem = f"{error}: ask the platform team to correct it"
        except Refused as error:
            problem = f"the operator cannot read namespace {namespace} ({error})"
            entry.problem = f"{problem}: grant it `get` of namespaces, or disable its setting `namespace_policies`"
        if entry.problem and not (before and before.problem == entry.problem):
            logger.error("new jobs of namespace %s wait: %s", namespace, entry.problem)
        self._entries[namespace] = entry
        if before and _decisive(before) != _decisive(entry):
            self._changed(namespace)


def _decisive(entry: _Entry) -> tuple[object, ...]:
    """Return what the jobs of the namespace depend on."""
    return entry.policy, entry.labels, entry.problem, entry.why_restricted
