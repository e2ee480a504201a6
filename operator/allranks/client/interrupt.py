"""Ctrl-C while somebody waits for a job on a cluster: a terminal asks, and the job continues by default.

A script and a notebook are not asked: their interrupt may be meant for something else, and a job that was deleted by
mistake has lost its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from allranks.kube.cluster import Cluster, Manifest


@contextlib.contextmanager
def signals_wake_the_loop() -> Iterator[None]:
    """Let signals wake the running loop of the main thread.

    Without it, a Ctrl-C that arrives right before the loop starts to wait has no effect until something else wakes the
    loop: `asyncio.run` sets a handler, but no wakeup fd.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in another thread
        return
    loop, (woken, wake) = asyncio.get_running_loop(), os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    loop.add_reader(woken, os.read, woken, 4096)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        loop.remove_reader(woken)
        os.close(woken)
        os.close(wake)


@contextlib.asynccontextmanager
async def asks_on_interrupt(
    cluster: Cluster, job: Manifest, delete: Callable[[Cluster, Manifest], Awaitable[None]], *, detach: bool
) -> AsyncIterator[None]:
    """Ask on Ctrl-C within the block whether to delete the job; `detach`: do not ask. Raises the errors of `delete`."""
    try:
        yield
    except asyncio.CancelledError:
        name, task = job["metadata"]["name"], asyncio.current_task()
        if task and not detach and can_ask() and wants_to_cancel(name):
            task.uncancel()
            await delete(cluster, job)
            cluster.interrupted = f"{name} is deleted"
        raise


@contextlib.asynccontextmanager
async def deletes_on_interrupt(
    cluster: Cluster, jobs: Sequence[Manifest], delete: Callable[[Cluster, Manifest], Awaitable[None]]
) -> AsyncIterator[None]:
    """Delete the jobs on Ctrl-C, SIGTERM and SIGHUP within the block, and when the reader of the output has ended. The
    interrupt is raised again. Raises the errors of `delete`."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, signal.raise_signal, signal.SIGINT)
    try:
        yield
    except (asyncio.CancelledError, BrokenPipeError):
        if task:
            task.uncancel()
        for job in jobs:
            cluster.namespace = job["metadata"]["namespace"]
            await delete(cluster, job)
        cluster.interrupted = "\n".join(f"{job['metadata']['name']} is deleted" for job in jobs)
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def can_ask() -> bool:
    return "ipykernel" not in sys.modules and sys.stdin.isatty() and sys.stderr.isatty()


def wants_to_cancel(name: str) -> bool:
    """Ask whether to delete the job. Without an answer, or after a second Ctrl-C, return False."""
    print(
        f"\nStop waiting for {name}? Enter: it continues without this program. c: delete it. ",
        end="",
        file=sys.stderr,
    )
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("c", "cancel")
    except KeyboardInterrupt:
        return False
