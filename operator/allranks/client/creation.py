"""Creates an object in such a way that an interrupt leaves nothing half done: it is complete, or not created at all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from allranks.errors import AllranksError, ClusterError

T = TypeVar("T")
R = TypeVar("R")

PATIENCE_SECONDS = 1.0
"""An API server that takes longer is the reason why an interrupt seems to have no effect: a message says so."""


class Creation(Generic[T]):
    """One object, and how far its creation has come when the caller is interrupted."""

    def __init__(self) -> None:
        self.stopped = False
        """The caller was interrupted: what has not been sent must not be sent."""
        self.sent = False
        """The request has been sent. Without a result it may have been carried out."""
        self.result: T | None = None

    def check(self) -> None:
        """Raises CancelledError if nothing more may be sent."""
        if self.stopped:
            raise asyncio.CancelledError

    async def send(self, request: Awaitable[T]) -> T:
        """Its result. `request` creates the object. Raises ClusterError."""
        self.sent = True
        try:
            self.result = await request
        except ClusterError as error:
            self.sent = error.uncertain
            raise
        return self.result

    async def run(self, work: Coroutine[Any, Any, R], tell: Callable[[AllranksError | None], None]) -> R:
        """The result of `work`, which calls `send`.

        A cancellation of the caller sets `stopped`, waits for the end of `work`, calls `tell`, with the error if `work`
        failed, and raises CancelledError. A second one does not wait.
        """
        task = asyncio.create_task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.stopped = True
            try:
                await _wait(task)
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait([task])
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, AllranksError):
                raise error from None
            tell(error)
            raise


async def _wait(task: asyncio.Task[Any]) -> None:
    if (await asyncio.wait([task], timeout=PATIENCE_SECONDS))[0]:
        return
    print(
        "Interrupted: waiting for the API server's answer to a request that was sent; a second interrupt does not wait",
        file=sys.stderr,
        flush=True,
    )
    await asyncio.wait([task])
