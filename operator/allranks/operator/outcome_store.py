"""Stores values and exceptions of the functions of ranks in ConfigMaps of the job. Nothing is unpickled here.

A sender gets its answer after its outcome is stored, so that a restart of the operator loses nothing. The names of the
ConfigMaps bound their number (core/facts/naming.py), and ConfigMaps of past attempts are deleted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from allranks.core.facts import naming
from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import owned_metadata
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Conflict, Fenced, NotFound, Refused, Unavailable
from allranks.kube.raw_pod import Raw
from allranks.shares import Share, Turns
from allranks.telemetry.messages import Answer, ReportSource
from allranks.telemetry.outcomes import ERRORS, Outcome, Outcomes, received

logger = logging.getLogger("allranks.reports")


@dataclass(frozen=True, slots=True)
class StoreLimits:
    concurrency: int = 4
    """Concurrent requests. The other request slots of the client are for reconciliation."""
    waiting: int = 32
    """Outcomes that wait for one or have one. Senders of further ones get 503. Namespaces share both."""
    jobs: int = 20_000
    """Whose names are remembered."""
    retry_seconds: float = 5.0
    """A request is retried for this time, then the sender gets 503."""


@dataclass(slots=True)
class _Stored:
    """The outcomes of a job, as far as this session stored them."""

    names: dict[tuple[str, int], tuple[str, int, int]] = field(default_factory=dict)
    """(UID of the pod, rank) -> (name of the ConfigMap, attempt, restart). An exception has -1 - rank."""
    errors: dict[tuple[int, int], int] = field(default_factory=dict)
    """(attempt, restart) -> numbers that are taken."""


class OutcomeStore:
    """`attempt` returns the current attempt of a job, by (namespace, name)."""

    def __init__(
        self,
        client: Client,
        attempt: Callable[[tuple[str, str]], int],
        *,
        limits: StoreLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._attempt = client, attempt
        self._outcomes, self._limits = Outcomes(monotonic=monotonic), limits or StoreLimits()
        self._jobs: OrderedDict[str, _Stored] = OrderedDict()
        self._turns, self._waiting = Turns(self._limits.concurrency), Share(self._limits.waiting)
        self._cleaning: set[asyncio.Task[None]] = set()
        self._decode = msgspec.json.Decoder(Raw).decode

    @property
    def large(self) -> dict[str, float]:
        """Return `Share.large` of the bytes of unfinished outcomes."""
        return self._outcomes.large

    async def receive(self, sender: ReportSource, body: bytes) -> Answer:
        """Take a part of an outcome; store the outcome if it is complete."""
        if sender.attempt < self._attempt(sender.job):
            return Answer(409, {"error": "this attempt is over"})
        recorded = self._jobs.get(sender.job_uid)
        full = recorded is not None and recorded.errors.get((sender.attempt, sender.restart), 0) >= ERRORS
        taken = self._outcomes.take(sender, body, full)
        if isinstance(taken, Answer):
            return taken
        namespace = sender.job[0]
        if not self._waiting.take(namespace):
            return Answer(503, {"error": "too many outcomes are being stored"}, 2.0)
        try:
            async with self._turns.turn(namespace):
                stored = await self._store(sender, taken)
        except (Unavailable, Fenced):
            return Answer(503, {"error": "the API server is unavailable"}, 5.0)
        except ApiError as error:
            logger.warning("cannot store what rank %s of %s/%s %s: %s", taken.rank, *sender.job, taken.kind, error)
            return Answer(422, {"error": f"the API server rejected its ConfigMap: {error.message[:500]}"})
        finally:
            self._waiting.give(namespace)
        return received(len(taken.content), stored)

    def close(self) -> None:
        for task in self._cleaning:
            task.cancel()

    async def _store(self, sender: ReportSource, outcome: Outcome) -> bool:
        """Return False if enough exceptions of this attempt are stored. Raises ApiError."""
        recorded = self._entry(sender.job_uid)
        key = (sender.pod_uid, outcome.rank if outcome.kind == "returned" else -1 - outcome.rank)
        if key in recorded.names:
            return True  # the answer to an earlier message was lost
        for name in self._names(sender, outcome, recorded):
            try:
                created = await self._create(sender, outcome, name)
            except ApiError:
                if outcome.kind == "raised":
                    recorded.errors[sender.attempt, sender.restart] -= 1  # the sender tries again
                raise
            if created:
                recorded.names[key] = (name, sender.attempt, sender.restart)
                self._clean(sender, recorded)
                return True
        return False

    def _names(self, sender: ReportSource, outcome: Outcome, recorded: _Stored) -> Iterator[str]:
        """Yield the names to try, the first one that is free or the sender's own counts."""
        job, uid = sender.job[1], sender.job_uid
        if outcome.kind == "returned":
            yield naming.outcome_value_name(job, uid, sender.attempt, outcome.rank)
            return
        turn = (sender.attempt, sender.restart)
        while (number := recorded.errors.get(turn, 0)) < ERRORS:
            recorded.errors[turn] = number + 1
            yield naming.outcome_error_name(job, uid, *turn, number)

    async def _create(self, sender: ReportSource, outcome: Outcome, name: str) -> bool:
        """Return False if another rank has this name."""
        manifest = _config_map(sender, outcome, name)
        where = paths.collection("ConfigMap", sender.job[0])
        try:
            await self._client.request("POST", where, manifest, retry_timeout=self._limits.retry_seconds)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise Unavailable(error.message, error.status, error.reason) from error  # a quota that is being updated
            return await self._is_own(sender, outcome, name)
        except NotFound as error:  # the namespace is being deleted
            raise Refused(error.message, error.status, error.reason) from error
        return True

    async def _is_own(self, sender: ReportSource, outcome: Outcome, name: str) -> bool:
        try:
            answer = msgspec.json.decode(await self._client.get(paths.item("ConfigMap", sender.job[0], name)))
        except NotFound:
            return False
        metadata = answer["metadata"]
        by = (metadata.get("annotations") or {}).get(naming.POD_ANNOTATION)
        rank = (metadata.get("labels") or {}).get(naming.RANK_LABEL)
        return (by, rank) == (sender.pod, str(outcome.rank))

    def _entry(self, uid: str) -> _Stored:
        recorded = self._jobs.pop(uid, None) or _Stored()
        self._jobs[uid] = recorded
        if len(self._jobs) > self._limits.jobs:
            self._jobs.popitem(last=False)
        return recorded

    def _clean(self, sender: ReportSource, recorded: _Stored) -> None:
        """Delete, in the background, what belongs neither to this attempt nor to the one before."""
        old = {
            key: name
            for key, (name, attempt, restart) in recorded.names.items()
            if attempt < sender.attempt - 1 or (attempt == sender.attempt and restart < sender.restart - 1)
        }
        for key in old:
            del recorded.names[key]
        if old:
            task = asyncio.get_running_loop().create_task(self._delete(sender, list(old.values())))
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)

    async def _delete(self, sender: ReportSource, names: list[str]) -> None:
        for name in names:
            path = paths.item("ConfigMap", sender.job[0], name)
            try:
                async with self._turns.turn(sender.job[0]):
                    metadata = self._decode(await self._client.get(path)).metadata
                    if any(owner.uid == sender.job_uid for owner in metadata.owner_references):
                        await self._client.delete(path, metadata.uid)
            except ApiError as error:
                logger.debug("cannot delete ConfigMap %s: %s", name, error)


def _config_map(sender: ReportSource, outcome: Outcome, name: str) -> Manifest:
    labels = {
        naming.ATTEMPT_LABEL: str(sender.attempt),
        naming.OUTCOME_LABEL: outcome.kind,
        naming.RANK_LABEL: str(outcome.rank),
    }
    metadata = owned_metadata(sender.job, sender.job_uid, name, labels)
    metadata["annotations"] = {naming.POD_ANNOTATION: sender.pod}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "binaryData": {naming.OUTCOME_CONTENT: base64.b64encode(outcome.content).decode()},
    }
