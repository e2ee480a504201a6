"""The options of servers that say what they log, and how. The frontend imports no other options, so it stays small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --log-level and --log-format to `command(log_level, log_format, ...)`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--log-level",
        envvar="ALLRANKS_LOG_LEVEL",
        default="info",
        show_default=True,
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="Log level.",
    ),
    click.option(
        "--log-format",
        envvar="ALLRANKS_LOG_FORMAT",
        default="json",
        show_default=True,
        type=click.Choice(["json", "text"]),
        help="json: one object per line; text: human-readable.",
    ),
)
