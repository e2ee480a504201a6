"""How the command line prints and reads durations.

Measured time is printed exactly (`elapsed`, `clock`); ages and estimates are printed as kubectl prints them (`human`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from allranks.text import human_duration

human = human_duration
"""The same form as in `status.progress.eta`."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def elapsed(seconds: float) -> str:
    """Write a measured time: `12.3s`, `2:05`, `1:02:03`."""
    return f"{seconds:.1f}s" if seconds < 100 else clock(seconds)


def clock(seconds: float) -> str:
    """Write a time in whole seconds: `0:00`, `2:05`, `1:02:03`."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def moment(seconds: float, whole: float) -> str:
    """Write a point on a time axis of `whole` seconds, in the same unit as `elapsed(whole)`: `12.3s`, `0:12`."""
    if whole >= 100:
        return clock(seconds)
    return f"{seconds}s" if isinstance(seconds, int) else f"{seconds:.1f}s"


def age(timestamp: str | datetime | None, now: datetime | None = None) -> str:
    """Write the time since the timestamp, as kubectl prints it."""
    if not timestamp:
        return "<unknown>"
    then = datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
    return human(((now or datetime.now(UTC)) - then).total_seconds())


def parse(text: str) -> float:
    """Parse `90`, `90s`, `1m30s`, `2h`, `1d` into seconds. Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
    if text and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text} is not a duration: use for example 90s, 5m or 1h30m")
    return value
