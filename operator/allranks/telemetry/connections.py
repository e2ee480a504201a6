"""Connections of senders, within bounds: how many, from one address, for how long, and how much may come unanswered.

A sender that is idle can connect again at any time without loss, so where there is no room the one that was silent
longest goes. Slow or silent ones hold up nobody: each state that a connection can be in has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from allranks.telemetry.rate_limit import Bucket


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, numbers and bytes."""

    connections: int = 10_000
    connections_of_peer: int = 256
    """Of one address: a node's, where the network hides its pods behind it."""
    new_of_peer: int = 512
    new_per_second: float = 32.0
    """Of one address: so many in a row may connect, and so many more each second."""
    first_seconds: float = 10.0
    """From the connection until the first request's head is complete."""
    idle_seconds: float = 75.0
    """Between an answer and the next request's head: more than two intervals."""
    request_seconds: float = 20.0
    """From the head of a request until its answer: the body, and asking who sent it."""
    unanswered_bytes: int = 65_536
    """That a connection may send before it waits for an answer: a token's head and a body are a quarter of that."""
    hold_seconds: float = 1.0
    """What is refused is refused so late: whoever goes on asking does it slowly."""
    wait_seconds: float = 10.0
    """Who asks too much is told so as late as it is told to wait, but not later than this: so it does wait."""
    refusals: int = 64
    """Of one address in a row; one more each second. Beyond that, tokens of its new connections are not looked at."""
    peers: int = 4096
    """Addresses that are remembered for what they did."""


class Connection(web.RequestHandler):
    """A sender's, as aiohttp serves it. What is added needs nothing of aiohttp's inside."""

    def __init__(self, manager: web.Server, table: Connections, **how: Any) -> None:
        super().__init__(manager, **how)
        self.peer = ""
        self.trusted = False
        """Its last token was somebody's."""
        self._table = table
        self._unanswered = 0
        self.state: OrderedDict[Connection, float] | None = None
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = self._wire = cast("asyncio.Transport", transport)  # uvloop's are none of asyncio's classes
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._table.welcome(self.peer):
            wire.abort()
            return
        super().connection_made(transport)
        self._table.made(self)

    def data_received(self, data: bytes) -> None:
        self._unanswered += len(data)
        if self._unanswered > self._table.limits.unanswered_bytes:
            self.cut()
        else:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._table.lost(self)
        super().connection_lost(exc)
        self._wire = None

    def begins(self) -> None:
        """A request is there."""
        self._table.moved(self, busy=True)

    def answered(self) -> None:
        self._unanswered = 0
        self._table.moved(self, busy=False)

    def cut(self) -> None:
        """Without a farewell, which the other end might not read."""
        if self._wire is not None:
            self._wire.abort()


class Connections:
    """All of a server's, by what they are doing, and in each state the one that began first comes first."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float]) -> None:
        self.limits, self._monotonic = limits, monotonic
        self._first: OrderedDict[Connection, float] = OrderedDict()
        self._idle: OrderedDict[Connection, float] = OrderedDict()
        self._busy: OrderedDict[Connection, float] = OrderedDict()
        self._of_peer: dict[str, set[Connection]] = {}
        self._new: OrderedDict[str, Bucket] = OrderedDict()
        self._room = min(limits.connections, _files(limits.connections))

    def __len__(self) -> int:
        return len(self._first) + len(self._idle) + len(self._busy)

    def welcome(self, peer: str) -> bool:
        """Who connects all the time costs no more than a look at its address."""
        limits, moment = self.limits, self._monotonic()
        bucket = self._new.pop(peer, None) or Bucket(limits.new_of_peer, moment)
        self._new[peer] = bucket
        if len(self._new) > limits.peers:
            self._new.popitem(last=False)
        return bucket.take(moment, limits.new_of_peer, limits.new_per_second)

    def made(self, new: Connection) -> None:
        others = self._of_peer.setdefault(new.peer, set())
        if len(others) >= self.limits.connections_of_peer:
            self._drop(min((c for c in others if c.state is not self._busy), key=self._since, default=new))
        elif len(self) >= self._room:
            fronts = [next(iter(state)) for state in (self._idle, self._first) if state]
            self._drop(min(fronts, key=self._since, default=new))
        if new._wire is not None and not new._wire.is_closing():
            others = self._of_peer.setdefault(new.peer, set())
            others.add(new)
            new.state = self._first
            new.state[new] = self._monotonic()
        elif not others:
            self._of_peer.pop(new.peer, None)

    def moved(self, connection: Connection, busy: bool) -> None:
        if connection.state is not None:
            del connection.state[connection]
            connection.state = self._busy if busy else self._idle
            connection.state[connection] = self._monotonic()

    def lost(self, connection: Connection) -> None:
        if connection.state is not None:
            del connection.state[connection]
            connection.state = None
        others = self._of_peer.get(connection.peer)
        if others is not None:
            others.discard(connection)
            if not others:
                del self._of_peer[connection.peer]

    def sweep(self) -> None:
        """Cuts those whose time is over."""
        moment, limits = self._monotonic(), self.limits
        for state, seconds in (
            (self._first, limits.first_seconds),
            (self._idle, limits.idle_seconds),
            (self._busy, limits.request_seconds),
        ):
            while state:
                connection, since = next(iter(state.items()))
                if moment - since <= seconds:
                    break
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self.lost(connection)
        connection.cut()

    def _since(self, connection: Connection) -> float:
        return connection.state[connection] if connection.state is not None else self._monotonic()


_OTHER_FILES = 256
"""That the process has beside these connections."""


def _files(wanted: int) -> int:
    """How many connections the process may have. Container runtimes begin with 1,024 files and let it ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < most:
        soft = most if hard == resource.RLIM_INFINITY else min(hard, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft - _OTHER_FILES))
