"""Access to a store from an event loop: in threads, each call within a time limit, repeated until it succeeds.

A store that hangs costs the threads of this module and nothing else. The metrics say what was written and lost, and
whether the store can be used.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from allranks.archive.store import ArchiveError
from allranks.operator.metrics import Shares, share_gauge

T = TypeVar("T")
logger = logging.getLogger("allranks.archiver")

THREADS = 8
FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 30.0


class Access:
    """Runs functions that block in threads."""

    def __init__(self, metrics: Metrics, *, call_seconds: float = 120.0, give_up_seconds: float = 900.0) -> None:
        """`call_seconds`: time limit of one call. `give_up_seconds`: time limit of all tries of a function together."""
        self._metrics, self._call_seconds, self._give_up_seconds = metrics, call_seconds, give_up_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="archive")

    def close(self) -> None:
        """Cancel the calls that have not begun. Do not wait for calls that hang."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def once(self, function: Callable[[], T]) -> T:
        """Return the result of a function, after one try. Raises ArchiveError."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            async with asyncio.timeout(self._call_seconds):
                result = await running
        except TimeoutError:
            error = ArchiveError(f"the archive did not answer within {self._call_seconds:.0f} s")
        except ArchiveError as raised:
            error = raised
        else:
            self._metrics.succeeded()
            return result
        if self._metrics.failed(str(error)):
            logger.error("the archive cannot be used, trying again: %s", error)
        raise error

    async def persistent(self, kind: str, function: Callable[[], T]) -> T:
        """Return the result of a function. Try again after an error, for `give_up_seconds`. Raises ArchiveError.

        `kind`: kind of the file, for metrics.
        """
        until, backoff = time.monotonic() + self._give_up_seconds, FIRST_BACKOFF_SECONDS
        while True:
            try:
                return await self.once(function)
            except ArchiveError:
                self._metrics.failures.labels(kind).inc()
                wait = random.uniform(0.5, 1.0) * backoff
                if time.monotonic() + wait > until:
                    raise
            backoff = min(LAST_BACKOFF_SECONDS, 2 * backoff)
            await asyncio.sleep(wait)


# --- metrics ----------------------------------------------------------------------------------------------------------


NAME = "allranks_archive"


class Metrics(Collector):
    """The metrics of the archiver. `problem`: why the archive cannot be used, as a sentence; empty if it can."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.problem = ""
        name = NAME
        self.written = Counter(f"{name}_written", "Files written to the archive.", ["kind"], registry=self.registry)
        self.failures = Counter(
            f"{name}_write_failures", "Writes that failed. They are tried again.", ["kind"], registry=self.registry
        )
        self.lost = Counter(
            f"{name}_lost",
            "Logs, jobs and sweeps that are not in the archive: it failed for too long, or the pod was deleted before "
            "its log was read.",
            ["kind"],
            registry=self.registry,
        )
        self.followed = Gauge(f"{name}_followed_logs", "Logs that are read at the moment.", registry=self.registry)
        self.waiting = Gauge(f"{name}_waiting_jobs", "Jobs and sweeps that wait to be written.", registry=self.registry)
        self.size = Gauge(f"{name}_bytes", "Bytes of the archive after the last clean-up.", registry=self.registry)
        self.deleted = Counter(
            f"{name}_deleted_jobs",
            "Jobs and sweeps that were deleted because of their age or size.",
            registry=self.registry,
        )
        self.available = Gauge(
            f"{name}_available", "1 if the last access to the archive succeeded.", registry=self.registry
        )
        self.available.set(1)
        self.shares: Callable[[], Shares] = dict
        """Returns which namespaces use much of what all namespaces share."""
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics that are computed when Prometheus scrapes."""
        yield share_gauge(f"{NAME}_shared_resource_ratio", self.shares())

    def succeeded(self) -> None:
        self.problem = ""
        self.available.set(1)

    def failed(self, problem: str) -> bool:
        """Record a problem. Return whether there was none before, so that the log reports it once."""
        news, self.problem = not self.problem, problem
        self.available.set(0)
        return news

    def page(self) -> bytes:
        return generate_latest(self.registry)
