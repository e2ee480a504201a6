"""Runs work that blocks for asynchronous programs, in a thread of its own. `background` is for the others."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def run(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """The result of `work`. Each cancellation calls `stop`; CancelledError is raised when the work has ended."""
    threads = ThreadPoolExecutor(1, "allranks-run")
    context = contextvars.copy_context()
    future = asyncio.get_running_loop().run_in_executor(threads, lambda: context.run(_outcome, work))
    threads.shutdown(wait=False)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
            stop()
    if cancelled:
        raise cancelled
    return future.result()()


def _outcome(work: Callable[[], T]) -> Callable[[], T]:
    """A function that returns or raises what `work` does: a KeyboardInterrupt would end the loop that waits for it."""
    try:
        result = work()
    except BaseException as error:
        raised = error

        def fail() -> T:
            raise raised

        return fail
    return lambda: result
