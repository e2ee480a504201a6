"""What Ctrl-C does while somebody waits for a job on a cluster: a terminal asks, and the job continues by default.

A script and a notebook are not asked: their interrupt may be meant for something else, and a job that was deleted by
mistake has lost its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from allranks.kube.cluster import Cluster, Manifest


@contextlib.asynccontextmanager
async def asks_on_interrupt(
    cluster: Cluster, job: Manifest, delete: Callable[[Cluster, Manifest], Awaitable[None]], *, detach: bool
) -> AsyncIterator[None]:
    """A command waits for the job within it. `detach`: do not ask. Raises what `delete` raises."""
    try:
        yield
    except asyncio.CancelledError:
        name, task = job["metadata"]["name"], asyncio.current_task()
        if task and not detach and can_ask() and wants_to_cancel(name):
            task.uncancel()
            await delete(cluster, job)
            cluster.interrupted = f"{name} is deleted"
        raise


def can_ask() -> bool:
    return "ipykernel" not in sys.modules and sys.stdin.isatty() and sys.stderr.isatty()


def wants_to_cancel(name: str) -> bool:
    """No answer, and a second Ctrl-C, leave the job alone."""
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
