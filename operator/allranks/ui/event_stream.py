"""The form of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import json
from typing import Any

SILENCE_SECONDS = 15.0
"""A comment is sent when nothing happens for so long: it shows both sides that the connection is alive."""
PAUSE_SECONDS = 0.5
"""Changes within this time are sent together."""
HEARTBEAT = ": alive\n\n"


def event(name: str, data: Any) -> str:
    """One event. JSON has no newlines, so no data can become another field."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
