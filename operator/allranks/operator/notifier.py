"""Delivers notifications in the background: with retries, at most a few at once for each receiver, never waited for.

`exchange` is called with each observation of a job. It starts the deliveries that the persisted status asks for, and
returns the results of those that are over, which the core writes to the status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from allranks.api.notify import Target
from allranks.core.accounting import notifications
from allranks.core.facts import limits
from allranks.core.facts.model import Observed
from allranks.core.sweeps import plan
from allranks.core.sweeps.model import SweepObserved
from allranks.operator.cache import JobKey
from allranks.operator.notification_text import Note, cloud_event, job_note, slack, sweep_note
from allranks.operator.receivers import ReceiverConfig, Receivers, ReceiversFile
from allranks.shares import Share, Turns

logger = logging.getLogger("allranks.operator")

Id = tuple[str, str]
"""(UID of the job or sweep, entry of its status)"""


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds, in seconds. Tests use shorter ones."""

    delays: tuple[float, ...] = (2, 10, 60, 300)
    """Between tries: five of them in about six minutes."""
    timeout: float = 10
    at_once: int = 4
    """Deliveries to one receiver at the same time. Namespaces share them."""
    most: int = 2000
    """Deliveries under way, of all receivers. Further ones wait; namespaces share this number."""


@dataclass(frozen=True, slots=True)
class _About:
    """The parts of a job or sweep that its deliveries need."""

    uid: str
    entries: Sequence[str]
    """The outbox in its status."""
    targets: Callable[[], Mapping[str, Target]]
    """Name of a receiver -> the entry that names it."""
    note: Callable[[str, Receivers], Note]
    """Makes the notification of an entry."""


class DeliveryError(Exception):
    """`again` is set if another try can help."""

    def __init__(self, text: str, again: bool) -> None:
        super().__init__(text)
        self.again = again


class Notifier:
    """Two for each session: of jobs and of sweeps. `wake` has one reconciled, so that a result is written."""

    def __init__(self, file: ReceiversFile, wake: Callable[[JobKey], None], pace: Pace | None = None) -> None:
        self._file, self._wake, self._pace = file, wake, pace or Pace()
        self._tasks: dict[Id, asyncio.Task[None]] = {}
        self._results: dict[Id, str] = {}
        self._at_once: dict[str, Turns] = {}
        self._share = Share(self._pace.most)
        self._waiting: dict[JobKey, None] = {}
        """Jobs with deliveries for which there was no room, the next one first."""
        self._session: aiohttp.ClientSession | None = None

    @property
    def idle(self) -> bool:
        return not self._tasks

    @property
    def large(self) -> Mapping[str, float]:
        """Return `Share.large` of the deliveries under way."""
        return self._share.large

    def for_all(self, namespace: str) -> Mapping[str, tuple[str, ...]]:
        """Return `Platform.notifies` of the jobs of a namespace; empty without receivers."""
        return self._file.read().for_all(namespace) if self._file.enabled else {}

    def exchange(self, key: JobKey, observed: Observed) -> Mapping[str, str]:
        """Start the deliveries of pending entries. Return the results of the deliveries that are over, by entry."""
        return self._exchange(
            key,
            _About(
                observed.job.metadata.uid,
                observed.persisted.notifications,
                # A job in the default pool of its namespace notifies the receivers of this pool, too.
                lambda: dict(
                    notifications.named_notifications(limits.with_default_fields(observed).job, observed.platform)
                ),
                lambda entry, receivers: job_note(observed, entry, receivers.link),
            ),
        )

    def exchange_sweep(self, key: JobKey, observed: SweepObserved) -> Mapping[str, str]:
        """Do the same for a sweep."""
        return self._exchange(
            key,
            _About(
                observed.sweep.metadata.uid,
                observed.status.notifications,
                lambda: plan.targets(observed),
                lambda entry, receivers: sweep_note(observed, entry, receivers.sweep_link),
            ),
        )

    def _exchange(self, key: JobKey, about: _About) -> Mapping[str, str]:
        uid, entries = about.uid, notifications.pending(about.entries)
        if not entries and not self._results:
            return {}
        for delivery in [delivery for delivery in self._results if delivery[0] == uid and delivery[1] not in entries]:
            del self._results[delivery]
        for entry in entries:
            delivery = uid, entry
            if delivery not in self._results and delivery not in self._tasks:
                self._start(delivery, key, about)
        return {entry: self._results[uid, entry] for entry in entries if (uid, entry) in self._results}

    def _start(self, delivery: Id, key: JobKey, about: _About) -> None:
        receivers = self._file.read()
        name = delivery[1].rpartition(" ")[2]
        try:
            receiver = receivers.resolve(name, about.targets(), key[0])
        except ValueError as error:
            logger.warning("notification %s of %s: %s", delivery[1], "/".join(key), error)
            self._results[delivery] = notifications.FAILED
            return
        if not self._share.take(key[0]):
            self._waiting[key] = None
            return
        note = about.note(delivery[1], receivers)
        task = asyncio.get_running_loop().create_task(self._deliver(delivery, key, receiver, note))
        self._tasks[delivery] = task
        task.add_done_callback(lambda _: self._ended(delivery, key[0]))

    def _ended(self, delivery: Id, namespace: str) -> None:
        """Give the room of a delivery to the next job that waits and may use it."""
        self._tasks.pop(delivery, None)
        self._share.give(namespace)
        waiting = next((key for key in self._waiting if self._share.fits(key[0])), None)
        if waiting:
            del self._waiting[waiting]
            self._wake(waiting)

    async def _deliver(self, delivery: Id, key: JobKey, receiver: ReceiverConfig, note: Note) -> None:
        limit = self._at_once.setdefault(receiver.name, Turns(self._pace.at_once))
        result = notifications.FAILED
        for delay in (*self._pace.delays, None):
            try:
                async with limit.turn(key[0]):
                    await self._send(receiver, note)
                result = notifications.SENT
                break
            except DeliveryError as error:
                # The address is not logged: it may hold a secret.
                logger.warning("notification %s of %s: %s", delivery[1], "/".join(key), error)
                if not error.again or delay is None:
                    break
            await asyncio.sleep(delay)
        self._results[delivery] = result
        self._tasks.pop(delivery, None)
        self._wake(key)

    async def _send(self, receiver: ReceiverConfig, note: Note) -> None:
        """Raises DeliveryError."""
        is_slack = receiver.type == "Slack"
        kind = "application/json" if is_slack else "application/cloudevents+json"
        headers = {**receiver.headers, "Content-Type": kind, "User-Agent": "allranks"}
        body = slack(note) if is_slack else cloud_event(note)
        try:
            await self._post(receiver.url, headers, body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise DeliveryError(type(error).__name__, again=not isinstance(error, ValueError)) from error

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._pace.timeout), cookie_jar=aiohttp.DummyCookieJar()
            )
        # No redirects: they would lead to hosts that are not allowed. The body of the answer is not read.
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            status = answer.status
        if not 200 <= status < 300:
            raise DeliveryError(f"HTTP {status}", again=status in (408, 425, 429) or status >= 500)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
