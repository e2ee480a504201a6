"""Logging of the operator: one JSON object per line, or text, with the job and its attempt."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter

_FIELDS = ("job", "sweep", "attempt", "event")
_QUIET = ("kopf", "aiohttp", "asyncio")
"""Loggers of libraries: only warnings."""


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [f"{name}={getattr(record, name)}" for name in _FIELDS if hasattr(record, name)]
        about = f" [{' '.join(parts)}]" if parts else ""
        return f"{self.formatTime(record)} {record.levelname.lower():7} {super().format(record)}{about}"


class _Json(JsonFormatter):
    """Writes no other attributes of a record: libraries add objects to theirs that cannot be written as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        attributes = {name: value for name, value in vars(record).items() if name in _WRITTEN}
        return super().format(logging.makeLogRecord(attributes))


_WRITTEN = frozenset({*vars(logging.makeLogRecord({})), *_FIELDS})


def configure(level: str, style: str) -> None:
    """Replace the configuration of logging. `style` is json or text."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        names = {"levelname": "level", "asctime": "time", "name": "logger"}
        handler.setFormatter(_Json("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names, datefmt=None))
    else:
        handler.setFormatter(_Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
