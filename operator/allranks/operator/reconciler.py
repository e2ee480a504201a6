"""Reconciles the objects of a kind: a worker for each key in the queue, the answer to each error, the report of objects
that cannot be evaluated.

Each object is reconciled by one worker at a time, and any number of requests before that are one reconcile. Nothing
kept here is needed for correctness: after a crash, the objects themselves suffice.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Generic, TypeVar

from allranks.core.facts.model import Event, Manifest
from allranks.kube import job_codec
from allranks.kube.errors import ApiError, Fenced, NamespaceTerminating, Unavailable
from allranks.operator.cache import JobKey
from allranks.operator.event_recorder import Recorder
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import ShutDown, WorkQueue

_YIELD_EVERY = 50
"""Yield to the event loop after this many objects at start-up, so that lease renewal and probes do not starve."""


class Result(Enum):
    """The result of a reconcile for the queue."""

    DONE = auto()
    """The next failure is the first one."""
    RETRY = auto()
    """Something met a conflict or was rejected: try again with a backoff."""
    WAIT = auto()
    """An earlier retry is still due."""


@dataclass
class State:
    """State of an object between two reconciles. All moments are of the monotonic clock."""

    retry_at: float | None = None
    invalid: str = ""
    """Why the object cannot be decoded or evaluated, once it is reported."""
    namespace_terminating: bool = False
    """Nothing is done about the object any more: it is deleted with its namespace."""


S = TypeVar("S", bound=State)


class Reconciler(ABC, Generic[S]):
    """The parts of a controller that are the same for all kinds; a kind adds its `_reconcile`."""

    kind: ClassVar[str]
    """In logs."""
    logger: ClassVar[logging.Logger]

    def __init__(
        self,
        queue: WorkQueue[JobKey],
        recorder: Recorder,
        new_state: Callable[[], S],
        *,
        timing: Timing,
        clock: Clock,
    ) -> None:
        self.queue, self._recorder, self._new_state = queue, recorder, new_state
        self._timing, self._clock = timing, clock
        self._states: dict[JobKey, S] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False

    @abstractmethod
    async def _reconcile(self, key: JobKey, state: S) -> Result:
        """Reconcile an object, which may be gone. Raises whatever its requests and rules raise."""

    @abstractmethod
    def _exists(self, key: JobKey) -> bool: ...

    @abstractmethod
    def _forget(self, key: JobKey) -> None:
        """Forget an object that is gone."""

    @abstractmethod
    def _invalid_patch(self, raw: Manifest, reason: str, message: str) -> Manifest | None:
        """Return the change of the status that marks an object as invalid; None if nothing changes."""

    @abstractmethod
    async def _patch_status(self, key: JobKey, raw: Manifest, change: Manifest) -> bool:
        """Patch the status, and cache the answer. Return False after a conflict; then the object is read again."""

    def _schedule(self, key: JobKey, state: S) -> None:
        """Enqueue an object for a deadline of its state."""

    def _log_fields(self, key: JobKey, state: S) -> dict[str, Any]:
        return {self.kind: "/".join(key)}

    async def run(self) -> None:
        """Start a worker for each key until `close`. The client bounds the requests of all workers."""
        started = 0
        while True:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            if self._closed:
                return
            worker = asyncio.create_task(self._work(key), name=f"{self.kind} {'/'.join(key)}")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
            started += 1
            if started % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Cancel the workers and wait for them: they send no request after the Lease is given back."""
        self._closed = True
        self.queue.shut_down()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self, key: JobKey) -> None:
        state = self._states.setdefault(key, self._new_state())
        try:
            if state.namespace_terminating:
                return
            result = await self._reconcile(key, state)
            if result is Result.RETRY:
                self._retry(key, state)
            elif result is Result.DONE:
                self.queue.forget(key)
        except Fenced:
            # Either the session ends, or the Lease was renewed too late: then no other replica takes care of it.
            self._retry(key, state)
        except NamespaceTerminating:
            state = self._states[key] = self._new_state()
            state.namespace_terminating = True
            message = "the namespace is being deleted: nothing more is decided about this %s"
            self.logger.info(message, self.kind, extra=self._log_fields(key, state))
        except Unavailable as error:
            self.logger.warning("%s", error, extra=self._log_fields(key, state))
            self._retry(key, state, self._timing.unavailable_retry_max)
        except ApiError as error:
            self.logger.error("API request rejected: %s", error, extra=self._log_fields(key, state))
            self._retry(key, state)
        except Exception:
            self.logger.exception("reconcile failed", extra=self._log_fields(key, state))
            self._retry(key, state)
        finally:
            self.queue.done(key)
            exists = self._exists(key)
            if exists and not state.namespace_terminating:
                self._schedule(key, state)
            else:
                if not exists:
                    self._states.pop(key, None)
                self.queue.forget(key)
                self._forget(key)

    def _retry(self, key: JobKey, state: S, longest: float = float("inf")) -> None:
        state.retry_at = self._clock.monotonic() + self.queue.add_rate_limited(key, longest)

    def _emit(self, raw: Manifest, events: Iterable[Event], attempt: int | None = None) -> None:
        name = f"{raw['metadata'].get('namespace', '')}/{raw['metadata']['name']}"
        for event in events:
            self._recorder.record(raw, event, self._clock.now(), attempt or 0)
            level = logging.WARNING if event.warning else logging.INFO
            fields = {self.kind: name, "event": event.reason} | ({} if attempt is None else {"attempt": attempt})
            self.logger.log(level, "%s", event.message, extra=fields)

    async def _report_invalid(
        self, key: JobKey, raw: Manifest, state: S, reason: str, message: str, error: Exception | None = None
    ) -> None:
        """Mark an object that cannot be decoded or evaluated. Others are not affected."""
        message = job_codec.shortened(message)
        change = self._invalid_patch(raw, reason, message)
        if change is None and (reason, message) in job_codec.marks(raw):
            return
        if state.invalid != message:
            # The Event comes first: the API server may reject every status of such an object.
            fields = self._log_fields(key, state)
            self.logger.error("the %s is invalid: %s", self.kind, message, exc_info=error, extra=fields)
            self._recorder.record(raw, Event(reason, message, warning=True), self._clock.now(), 0)
        state.invalid = message
        if change is not None and not await self._patch_status(key, raw, change):
            self.queue.add(key)
