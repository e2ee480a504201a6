"""The record of the metrics of a process: the values of each between two messages, within bounds.

The program's thread only appends its reports. The thread that sends messages sorts them by metric: of a metric with few
values since the last message it sends all of them, of one with many the first, lowest, highest and last one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

VALUES = 16
"""Values of a metric that a message has at most."""
FOLD_AT = 4096
"""After so many reports the background thread sorts them, also if no message is due: a power of two."""
MOST_NUMBERS = 16 * 3 * FOLD_AT
"""If it cannot, because a message takes long, older values are dropped."""
BYTES = 3072
"""Of a message for the record."""


class Value(NamedTuple):
    """A value of a metric."""

    step: int
    value: float
    at: float
    """Monotonic clock."""


class Series:
    """One metric: what happened since the start of the process, and since the last message that has arrived."""

    def __init__(self) -> None:
        self.first: Value | None = None
        self.lowest: Value | None = None
        self.highest: Value | None = None
        self.not_finite: int | None = None
        """The step of the first value that is NaN or infinite."""
        self.clear()

    def clear(self) -> None:
        """Forget the values that have arrived."""
        self.values: list[Value] = []
        self.count = self._numbers = 0
        self._sum = 0.0

    def add(self, flat: list[float]) -> None:
        """Add (value, step, time) of several reports, one after another: a long list is read by built-in functions."""
        self.first = self.first or value_at(flat, 0)
        numbers = flat[::3]
        self.count += len(numbers)
        total = sum(numbers)
        if total - total != 0.0:
            numbers = self._finite(flat)
            total = sum(numbers)
        if len(flat) <= 3 * VALUES:
            self.values += (value_at(flat, place) for place in range(len(flat) // 3))
        else:
            self.values += (value_at(flat, 0), value_at(flat, len(flat) // 3 - 1))
        if numbers:
            low, high = (value_at(flat, flat[::3].index(extreme(numbers))) for extreme in (min, max))
            self.lowest = low if self.lowest is None or low.value < self.lowest.value else self.lowest
            self.highest = high if self.highest is None or high.value > self.highest.value else self.highest
            self.values += (low, high)
        self.values = sorted(dict.fromkeys(self.values), key=itemgetter(2))
        self.values = self.values if self.count <= VALUES else characteristic(self.values)
        self._numbers += len(numbers)
        self._sum += total

    def _finite(self, flat: list[float]) -> list[float]:
        """Return the finite values, and record the first of the others."""
        finite = list(map(math.isfinite, flat[::3]))
        if not all(finite):  # finite values may have an infinite sum
            other = value_at(flat, finite.index(False))
            self.values.append(other)
            self.not_finite = other.step if self.not_finite is None else self.not_finite
        return [value for value in flat[::3] if math.isfinite(value)]

    def message(self, now: float) -> dict[str, Any]:
        """Return the part of a message. A value that is not finite is null."""
        content: dict[str, Any] = {
            name: [value.step, number(value.value)]
            for name, value in (("first", self.first), ("lowest", self.lowest), ("highest", self.highest))
            if value is not None
        }
        content["values"] = [
            [value.step, number(value.value), round(max(now - value.at, 0.0), 3)] for value in self.values
        ]
        if self.not_finite is not None:
            content["notFinite"] = self.not_finite
        if self.count > len(self.values) and self._numbers:
            content["count"] = self._numbers
            content["mean"] = number(self._sum / self._numbers)
        return content


class Record:
    """The metrics of a process. The program's thread calls `add` and `limit`, the background thread the others."""

    def __init__(self) -> None:
        self.reported: dict[str, list[float]] = {}
        """Metric -> (value, step, time) of its reports, one after another. A list of numbers costs less than an object
        for each report, which the garbage collector would look at."""
        self._series: dict[str, Series] = {}
        """The one that was sent least recently is first."""

    def add(self, name: str, value: float, step: int, now: float) -> None:
        """Record a value of a metric that may be new."""
        self.reported.setdefault(name, []).extend((value, step, now))

    def limit(self) -> None:
        """Drop values that the background thread cannot read in time."""
        for numbers in self.reported.values():
            del numbers[: max(0, len(numbers) - MOST_NUMBERS)]

    def fold(self) -> None:
        """Read the reports."""
        for name, numbers in list(self.reported.items()):
            # The program's thread only appends, except in `limit`: what is deleted here was copied before.
            if flat := numbers[: len(numbers)]:
                del numbers[: len(flat)]
                self._series.setdefault(name, Series()).add(flat)

    def message(self, now: float, room: int) -> dict[str, dict[str, Any]]:
        """Return what has not arrived yet, in at most `room` bytes of JSON."""
        self.fold()
        content: dict[str, dict[str, Any]] = {}
        for name, series in self._series.items():
            if not series.count:
                continue
            part = series.message(now)
            room -= len(json.dumps({name: part})) + 2
            if room < 0:
                break
            content[name] = part
        return content

    def fits(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message has all that has not arrived yet."""
        return all(name in message for name, series in self._series.items() if series.count)

    def arrived(self, names: Mapping[str, Any]) -> None:
        """Forget the values that the operator has received."""
        for name in names:
            series = self._series.pop(name)
            series.clear()
            self._series[name] = series


def value_at(flat: list[float], place: int) -> Value:
    value, step, at = flat[3 * place : 3 * place + 3]
    return Value(int(step), value, at)


def characteristic(values: list[Value]) -> list[Value]:
    """Return the first, lowest, highest and last value, and the first one that is not finite, in their order."""
    finite = [place for place, value in enumerate(values) if math.isfinite(value.value)]
    places = {0, len(values) - 1}
    if finite:
        places |= {extreme(finite, key=lambda place: values[place].value) for extreme in (min, max)}
    places |= {next((place for place, value in enumerate(values) if not math.isfinite(value.value)), 0)}
    return [values[place] for place in sorted(places)]


def number(value: float) -> float | None:
    """Return the value with seven digits, as many as single precision has; None if it is not finite."""
    short = float(f"{value:.7g}")
    return short if math.isfinite(short) else value if math.isfinite(value) else None
