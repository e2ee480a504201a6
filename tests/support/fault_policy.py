"""Draws a fault for each request from a seed. The number of faults is limited, so that every run ends.

The draw depends only on the seed, the request and how often it was made, not on concurrent requests. So a seed
reproduces a failure although threads never run twice in the same order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

READ = ("429", "500", "503", "reset", "hang", "slow", "slow")
WRITE = (
    *("429", "500", "503", "reset", "hang", "slow", "outage"),
    # Carried out, but the response is lost or wrong.
    *("reset after", "reset after", "hang after", "504 after", "slow after"),
)
"""outage: all requests get 503, for longer than the operator retries a request."""
STATUS = (*WRITE, "409", "409", "409")
CREATE = (*WRITE, "409", "409 after", "409 after")
"""409: two requests updated a ResourceQuota at the same time. 409 after: a retry by a proxy conflicts with its first
try."""
LIST = (*READ, "pages", "pages", "expired", "expired")
"""pages: one object per page. expired: the same, and the continue token expires."""
WATCH = (
    *("429", "500", "503", "410", "reset", "hang"),
    *("cut", "cut", "cut", "error 410", "error 410", "error 500", "late", "late", "late", "again", "again"),
    *("silent", "silent"),
)


_LONG = frozenset(("hang", "hang after", "silent", "outage"))


@dataclass(frozen=True)
class Fault:
    """`kind` is one of the above. `seconds`: the delay, or the Retry-After. `lines`: after so many lines a watch
    fails."""

    kind: str
    seconds: float = 0.0
    lines: int = 0


@dataclass
class Policy:
    """`times`: maximum faults per request. `long`: maximum faults that take seconds, in total."""

    seed: int
    times: int = 5
    long: int = 5
    met: list[str] = field(default_factory=list)
    """Faults so far, as text."""
    _long: int = 0
    _made: dict[str, int] = field(default_factory=dict)
    _met: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.often = random.Random(self.seed).choice((0.1, 0.25, 0.5))

    def draw(self, request: str, kinds: tuple[str, ...]) -> Fault | None:
        """The fault of this request, if any."""
        number = self._made[request] = self._made.get(request, 0) + 1
        dice = random.Random(f"{self.seed} {request} {number}")
        if dice.random() > self.often or self._met.get(request, 0) >= self.times:
            return None
        fault = _fault(dice, dice.choice(kinds))
        if fault.kind in _LONG:
            self._long += 1
            if self._long > self.long:
                return None
        self._met[request] = self._met.get(request, 0) + 1
        self.met.append(f"{request} #{number}: {fault.kind}")
        return fault


def _fault(dice: random.Random, kind: str) -> Fault:
    seconds: Any = {"429": dice.choice((0, 0, 1)), "late": dice.choice((0.05, 0.2, 1.0))}
    return Fault(kind, seconds.get(kind, dice.choice((0.02, 0.1, 0.5))), dice.choice((0, 0, 1, 2, 5)))
