"""Delivers notifications in the background: with retries, at most a few at once for each receiver, never waited for.

`exchange` is called with each observation of a job. It starts the deliveries that the persisted status asks for, and
returns the results of those that are over, which the core writes to the status.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import aiohttp

from allranks.api.job import PLURAL as JOBS
from allranks.api.job import Metadata
from allranks.api.notify import Target
from allranks.api.status import Status
from allranks.api.sweep import PLURAL as SWEEPS
from allranks.core.accounting import notifications
from allranks.core.diagnosis.root_cause import describe_failure
from allranks.core.facts import limits
from allranks.core.facts.model import Observed
from allranks.core.sweeps import plan
from allranks.core.sweeps.model import SweepObserved
from allranks.fields import Model
from allranks.masking import mask_log, secrets_in
from allranks.operator.cache import JobKey
from allranks.operator.receivers import ReceiverConfig, Receivers, ReceiversFile

_PLURALS = {"job": JOBS, "sweep": SWEEPS}
_VERBS = {
    "Succeeded": "succeeded",
    "Failed": "failed",
    "Hung": "hangs",
    "Preempted": "was preempted",
    "Straggling": "has slow ranks",
    "LowUtilization": "trains too little",
}
_LAST_LINES = 1500


@dataclass(frozen=True, slots=True)
class Note:
    """One notification. `id` is the same in every delivery of it."""

    id: str
    occasion: str
    namespace: str
    name: str
    attempt: int | None
    """None for a sweep."""
    time: str
    title: str
    details: str
    """The first failure or the slow ranks, with the last lines of the log, in which secrets are masked."""
    link: str
    cost: str = ""
    kind: Literal["job", "sweep"] = "job"


def job_note(observed: Observed, entry: str, link: str) -> Note:
    """Return the notification of an entry of a job's outbox."""
    job, status = observed.job, observed.persisted
    occasion, _, number = entry.split(" ")[0].partition("/")
    attempt = int(number or 0)
    details = mask_log(_details(occasion, attempt, status), _secrets(job.spec))
    cost = status.cost.summary if status.cost else ""
    return _note("job", job.metadata, entry, observed.now, link, details, attempt=attempt, cost=cost)


def sweep_note(observed: SweepObserved, entry: str, link: str) -> Note:
    """Return the notification of the end of a sweep: the best trial, or the reason of the failure."""
    sweep, status = observed.sweep, observed.status
    condition = status.condition("Complete" if entry.startswith("Succeeded") else "Failed")
    counts = ", ".join(f"{count} {phase}" for phase, count in status.counts.model_dump().items() if count)
    best = status.best.parameters if status.best else {}
    lines = [
        condition.message if condition else "",
        f"Best parameters: {', '.join(f'{key}={value}' for key, value in best.items())}" if best else "",
        f"Trials: {status.summary} ended, {counts}" if counts else "",
    ]
    details = mask_log(_joined(lines), _secrets(sweep.spec))
    return _note("sweep", sweep.metadata, entry, observed.now, link, details)


def _note(
    kind: Literal["job", "sweep"], metadata: Metadata, entry: str, now: datetime, link: str, details: str, **more: Any
) -> Note:
    occasion = entry.split(" ")[0].partition("/")[0]
    namespace, name = metadata.namespace, metadata.name
    return Note(
        id=f"{metadata.uid}/{entry.replace(' ', '/')}",
        occasion=occasion,
        namespace=namespace,
        name=name,
        time=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        title=f"{'sweep ' if kind == 'sweep' else ''}{namespace}/{name} {_VERBS[occasion]}",
        details=details,
        link=link.replace("{namespace}", namespace).replace("{name}", name),
        kind=kind,
        **{"attempt": None, **more},
    )


def _secrets(spec: Model) -> Any:
    return secrets_in(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


def _joined(lines: list[str]) -> str:
    return "\n".join(line for line in lines if line)


def _details(occasion: str, attempt: int, status: Status) -> str:
    if occasion in ("Failed", "Hung"):
        condition, failure = status.condition("Failed"), status.last_failure
        reason = condition.message if condition and occasion == "Failed" else ""
        if failure is None:
            return reason
        node = f" on {failure.node}" if failure.node else ""
        return _joined([reason, f"First failure: {describe_failure(failure)}{node}", failure.message[-_LAST_LINES:]])
    if occasion == "Preempted":
        reasons = [past.reason for past in status.history if past.attempt == attempt]
        return f"Attempt {attempt} ended: {reasons[0]}" if reasons else ""
    if occasion == "Straggling" and status.progress:
        slow = status.progress.stragglers[:8]
        return "\n".join(f"{rank.replica} on {rank.node or '?'}: {rank.slowdown:.2g}x" for rank in slow)
    condition = status.condition("LowUtilization" if occasion == "LowUtilization" else "Complete")
    return condition.message if condition else ""


def slack(note: Note) -> bytes:
    """Return the body of a request to an incoming webhook. Slack's control characters are escaped."""

    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    lines = [f"*{escaped(note.title)}*", escaped(note.details).replace("```", "'''")]
    lines += [escaped(note.cost), f"<{note.link}|open>" if note.link else ""]
    return json.dumps({"text": _joined(lines)}).encode()


def cloud_event(note: Note) -> bytes:
    """Return a CloudEvent 1.0 in structured mode."""
    data: dict[str, Any] = {
        "namespace": note.namespace,
        "name": note.name,
        "attempt": note.attempt,
        "occasion": note.occasion,
        "message": note.title,
        "details": note.details,
        "cost": note.cost,
        "link": note.link,
    }
    event = {
        "specversion": "1.0",
        "id": note.id,
        "source": f"/apis/allranks.dev/namespaces/{note.namespace}/{_PLURALS[note.kind]}/{note.name}",
        "type": f"dev.allranks.{note.kind}.{note.occasion.lower()}",
        "subject": f"{note.namespace}/{note.name}",
        "time": note.time,
        "datacontenttype": "application/json",
        "data": {key: value for key, value in data.items() if value not in ("", None)},
    }
    return json.dumps(event).encode()


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
    """Deliveries to one receiver at the same time."""
    most: int = 2000
    """Deliveries under way or waiting, of all receivers. Further ones fail at once."""


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
        self._at_once: dict[str, asyncio.Semaphore] = {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def idle(self) -> bool:
        return not self._tasks

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
            if len(self._tasks) >= self._pace.most:
                raise ValueError("too many notifications are under way")
        except ValueError as error:
            logger.warning("notification %s of %s: %s", delivery[1], "/".join(key), error)
            self._results[delivery] = notifications.FAILED
            return
        note = about.note(delivery[1], receivers)
        task = asyncio.get_running_loop().create_task(self._deliver(delivery, key, receiver, note))
        self._tasks[delivery] = task
        task.add_done_callback(lambda _: self._tasks.pop(delivery, None))

    async def _deliver(self, delivery: Id, key: JobKey, receiver: ReceiverConfig, note: Note) -> None:
        limit = self._at_once.setdefault(receiver.name, asyncio.Semaphore(self._pace.at_once))
        result = notifications.FAILED
        for delay in (*self._pace.delays, None):
            try:
                async with limit:
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
