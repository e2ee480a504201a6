"""Runs coroutines for callers that are not asynchronous, in one event loop in a background thread.

A notebook has a running loop in its main thread already, in which nothing may block.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], late: Callable[[T], None] = lambda _result: None) -> T:
    """Run a coroutine, and return its result.

    Ctrl-C cancels the coroutine, and KeyboardInterrupt is raised when it has ended. A second Ctrl-C cancels it again,
    and waits for at most ten seconds. `late` gets the result if the coroutine had ended before Ctrl-C arrived.
    """
    loop = _loop()
    task: asyncio.Task[Any] | None = None

    async def in_loop() -> T:
        nonlocal task
        task = asyncio.current_task()
        return await work

    future = asyncio.run_coroutine_threadsafe(in_loop(), loop)
    try:
        return future.result()
    except BaseException:
        try:
            if not future.cancel() and future.exception() is None:
                late(future.result())
            concurrent.futures.wait([future])
        except KeyboardInterrupt:
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)
            concurrent.futures.wait([future], timeout=10)
        raise


def iterate(items: AsyncGenerator[T]) -> Iterator[T]:
    """Yield the items of an asynchronous generator, and close it with the iterator."""
    try:
        while True:
            try:
                yield run(_next(items))
            except StopAsyncIteration:
                return
    finally:
        run(_close(items))


async def _next(items: AsyncGenerator[T]) -> T:
    return await anext(items)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # A daemon: it must not keep the interpreter from ending.
    thread = threading.Thread(target=loop.run_forever, name="allranks", daemon=True)
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        if not thread.is_alive():
            loop.close()

    atexit.register(end)
    return loop
