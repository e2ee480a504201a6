"""A table of the connections of a port, which bounds them: of the operator's ports, and of the web UI's.

Connections are limited in total and per address, in their duration, and in their unanswered bytes. An idle sender can
reconnect without loss, so the connection that is idle longest is closed when there is no room. Each state of a
connection has a deadline, so that slow senders do not affect others.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from allranks.open_files import raise_open_files
from allranks.telemetry.rate_limit import Bucket


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, numbers and bytes."""

    connections: int = 10_000
    connections_of_peer: int = 256
    """Per address. Some networks hide all pods of a node behind its address."""
    new_of_peer: float = 512
    new_per_second: float = 32.0
    """Per address: burst, and rate, of new connections."""
    first_seconds: float = 10.0
    """From connecting until the head of the first request is complete."""
    idle_seconds: float = 75.0
    """Between a response and the next request head: more than two intervals."""
    request_seconds: float = 20.0
    """From the head of a request until its response: the body, and authentication."""
    unanswered_bytes: int = 65_536
    """Bytes that a connection may send before a response. A head with a token and a body take a quarter of that."""
    hold_seconds: float = 1.0
    """Rejections are delayed by this (tarpit)."""
    wait_seconds: float = 10.0
    """A 429 is delayed by its Retry-After, at most by this, which enforces the wait."""
    rejections: int = 64
    """Invalid tokens of one address in a row, plus one per second. Further tokens of its new connections are not
    checked."""
    peers: int = 4096
    """Addresses whose rate limits are remembered."""
    lingering_seconds: float = 1.0
    """After a response that closes the connection, the rest of its request is read for this long."""
    sweep_seconds: float = 1.0
    """Interval at which expired connections are closed."""


class Place:
    """The place of a connection in the table, while it is open."""

    def __init__(self, table: Connections, wire: asyncio.Transport) -> None:
        self.peer = str((wire.get_extra_info("peername") or ("",))[0])
        self.trusted = False
        """Its last token was valid."""
        self.state: OrderedDict[Place, float] | None = None
        self._table, self._wire = table, wire
        self._unanswered = 0

    def receives(self, size: int) -> bool:
        """Count bytes of a request. Return False if there are too many: then the connection is closed."""
        self._unanswered += size
        if self._unanswered > self._table.limits.unanswered_bytes:
            self.cut()
            return False
        return True

    def begins(self) -> None:
        """Note that a request head has arrived."""
        self._table.moved(self, self._table.busy)

    def is_served(self) -> None:
        """Note that the sender of the request is authenticated: its answer may take any time."""
        self.trusted = True
        self._table.moved(self, self._table.served)

    def answered(self) -> None:
        self._unanswered = 0
        self._table.moved(self, self._table.idle)

    def lost(self) -> None:
        """Note that the connection is closed."""
        self._table.lost(self)

    def cut(self) -> None:
        """Close the connection without sending anything, which the peer might not read."""
        self._wire.abort()


class Connections:
    """All connections of a port by state, in each state ordered by when they entered it."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._monotonic = limits, monotonic
        self.first: OrderedDict[Place, float] = OrderedDict()
        """Those whose first request head is not complete."""
        self.idle: OrderedDict[Place, float] = OrderedDict()
        self.busy: OrderedDict[Place, float] = OrderedDict()
        self.served: OrderedDict[Place, float] = OrderedDict()
        """Those that wait for the answer to an authenticated sender, without a deadline."""
        self._of_peer: dict[str, set[Place]] = {}
        self._new: OrderedDict[str, Bucket] = OrderedDict()
        self._room = room(limits.connections)

    def __len__(self) -> int:
        return len(self.first) + len(self.idle) + len(self.busy) + len(self.served)

    def open(self, wire: asyncio.Transport) -> Place | None:
        """Return the place of a new connection, or None if there is none: then the connection is closed."""
        place = Place(self, wire)
        if self._admits(place.peer):
            self._add(place)
        else:
            place.cut()
        return place if place.state is not None else None

    def _admits(self, peer: str) -> bool:
        """Return whether the rate limit of an address allows a new connection."""
        limits, moment = self.limits, self._monotonic()
        bucket = self._new.pop(peer, None) or Bucket(limits.new_of_peer, moment)
        self._new[peer] = bucket
        if len(self._new) > limits.peers:
            self._new.popitem(last=False)
        return bucket.take(moment, limits.new_of_peer, limits.new_per_second)

    def _add(self, new: Place) -> None:
        others = self._of_peer.get(new.peer, set())
        dropped: Place | None = None
        if len(others) >= self.limits.connections_of_peer:
            free = (place for place in others if place.state is not self.busy and place.state is not self.served)
            dropped = min(free, key=self._since, default=new)
        elif len(self) >= self._room:
            fronts = [next(iter(state)) for state in (self.idle, self.first) if state]
            dropped = min(fronts, key=self._since, default=new)
        if dropped is not None:
            self._drop(dropped)
        if dropped is not new:
            self._of_peer.setdefault(new.peer, set()).add(new)
            new.state = self.first
            new.state[new] = self._monotonic()

    def moved(self, place: Place, state: OrderedDict[Place, float]) -> None:
        """Note that a connection has another state."""
        if place.state is not None:
            del place.state[place]
            place.state = state
            place.state[place] = self._monotonic()

    def lost(self, place: Place) -> None:
        """Note that a connection is closed."""
        if place.state is not None:
            del place.state[place]
            place.state = None
        others = self._of_peer.get(place.peer)
        if others is not None:
            others.discard(place)
            if not others:
                del self._of_peer[place.peer]

    def sweep(self) -> None:
        """Close connections whose deadline has passed."""
        moment, limits = self._monotonic(), self.limits
        for state, seconds in (
            (self.first, limits.first_seconds),
            (self.idle, limits.idle_seconds),
            (self.busy, limits.request_seconds),
        ):
            while state:
                place, since = next(iter(state.items()))
                if moment - since <= seconds:
                    break
                self._drop(place)

    def _drop(self, place: Place) -> None:
        self.lost(place)
        place.cut()

    def _since(self, place: Place) -> float:
        return place.state[place] if place.state is not None else self._monotonic()


_OTHER_FILES = 256
"""Open files of the process besides these connections: those to the API server, and of the ports for metrics and
probes."""


def room(requested: int) -> int:
    """Return the number of connections that the limit of open files allows."""
    return min(requested, max(16, raise_open_files(requested + _OTHER_FILES) - _OTHER_FILES))


class Rejections:
    """The invalid tokens of each address, for which the rate is bounded."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._monotonic = limits, monotonic
        self._of_peer: OrderedDict[str, Bucket] = OrderedDict()

    def allow(self, peer: str) -> bool:
        """Return whether another token of the address is checked."""
        bucket = self._of_peer.get(peer)
        return bucket is None or bucket.left(self._monotonic(), self._limits.rejections, 1.0) >= 1.0

    def count(self, peer: str) -> None:
        """Count an invalid token."""
        moment, limits = self._monotonic(), self._limits
        bucket = self._of_peer.pop(peer, None) or Bucket(limits.rejections, moment)
        bucket.take(moment, limits.rejections, 1.0)
        self._of_peer[peer] = bucket
        if len(self._of_peer) > limits.peers:
            self._of_peer.popitem(last=False)
