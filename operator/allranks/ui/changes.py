"""Changes of jobs and runs for any number of viewers, as server-sent events.

A slow viewer gets the newest state of each job, not every change: its queue is bounded by the number of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from allranks.ui.entries import Entry, Key

SILENCE_SECONDS = 15.0
"""A comment is sent after this time without an event: it shows both sides that the connection is alive."""
PAUSE_SECONDS = 0.5
"""Changes within this time are sent together."""
HEARTBEAT = ": alive\n\n"
Kind = Literal["added", "changed", "deleted"]


def event(name: str, data: Any) -> str:
    """Return a server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"  # JSON has no newlines


class Change(NamedTuple):
    """`entry` is the job or run after the change, or before its deletion."""

    kind: Kind
    entry: Entry


class Viewer:
    """Receives the changes of the entries that `selects` accepts."""

    def __init__(self, selects: Callable[[Entry], bool]) -> None:
        self._selects = selects
        self._waiting: dict[Key, Change] = {}
        self._news = asyncio.Event()

    def put(self, change: Change) -> None:
        if self._selects(change.entry):
            self._waiting[change.entry.key] = change
            self._news.set()

    def wake(self) -> None:
        """Make `take` return, for example because the connection to the cluster was lost."""
        self._news.set()

    async def take(self, seconds: float) -> list[Change]:
        """Return the changes since the last call; wait up to `seconds` for one."""
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
        """True when the server ends: all streams end with it."""

    @contextlib.contextmanager
    def viewer(self, selects: Callable[[Entry], bool]) -> Iterator[Viewer]:
        viewer = Viewer(selects)
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
