"""Access to a store from an event loop: in threads, each call within a time limit, repeated until it succeeds.

A store that hangs costs the threads of this module and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from allranks.archive.metrics import Metrics
from allranks.archive.store import ArchiveError

T = TypeVar("T")
logger = logging.getLogger("allranks.archiver")

THREADS = 8
FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 30.0


class Access:
    """`call` runs a function in a thread."""

    def __init__(self, metrics: Metrics, *, call_seconds: float = 120.0, give_up_seconds: float = 900.0) -> None:
        """`call_seconds`: after this, one call has failed. `give_up_seconds`: for all tries together."""
        self._metrics, self._call_seconds, self._give_up_seconds = metrics, call_seconds, give_up_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="archive")

    def close(self) -> None:
        """Calls that hang are left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def once(self, function: Callable[[], T]) -> T:
        """Raises ArchiveError."""
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
        """Tries again until it gives up. Raises ArchiveError. `kind`: of the file, for metrics."""
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
