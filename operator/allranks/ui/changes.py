"""Passes changes of jobs and runs on to any number of viewers.

A slow viewer gets the newest state of each job, not every change: what waits for it is bounded by the number of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from allranks.ui.entries import Entry, Key

Kind = Literal["added", "changed", "deleted"]


class Change(NamedTuple):
    """`entry` is the job or run after the change, or before its deletion."""

    kind: Kind
    entry: Entry


class Viewer:
    """Receives the changes that `wanted` selects."""

    def __init__(self, wanted: Callable[[Entry], bool]) -> None:
        self._wanted = wanted
        self._waiting: dict[Key, Change] = {}
        self._news = asyncio.Event()

    def put(self, change: Change) -> None:
        if self._wanted(change.entry):
            self._waiting[change.entry.key] = change
            self._news.set()

    def wake(self) -> None:
        """Makes `take` return, for example because the connection to the cluster was lost."""
        self._news.set()

    async def take(self, seconds: float) -> list[Change]:
        """What has changed since the last call; waits for it, but at most so long. Empty: nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())


class Hub:
    """The viewers of a server."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.closed = False
        """The server ends: streams end, too."""

    @contextlib.contextmanager
    def viewer(self, wanted: Callable[[Entry], bool]) -> Iterator[Viewer]:
        viewer = Viewer(wanted)
        self.viewers.add(viewer)
        try:
            yield viewer
        finally:
            self.viewers.discard(viewer)

    def publish(self, kind: Kind, entry: Entry) -> None:
        for viewer in self.viewers:
            viewer.put(Change(kind, entry))

    def close(self) -> None:
        self.closed = True
        self.wake()

    def wake(self) -> None:
        for viewer in self.viewers:
            viewer.wake()
