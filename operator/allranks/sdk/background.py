"""Runs coroutines for callers that are not asynchronous, in one event loop in a thread of its own.

A notebook has a running loop in its main thread already, in which nothing may block.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result. After Ctrl-C the coroutine is cancelled, and KeyboardInterrupt raised when it has ended."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            concurrent.futures.wait([future], timeout=10)
        raise


def iterate(items: AsyncGenerator[T]) -> Iterator[T]:
    """The items of an asynchronous generator, which is closed with the iterator."""
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
