"""The connection of a supervisor to the operator: it says what the program does, and waits for orders (long poll).

Each message has the whole state, so an operator that was restarted knows everything after one message. A change of the
state is sent at once, on a connection of its own; the operator then ends the poll that waits. Needs only the standard
library and `allranks.report`, which is in the same directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from typing import Any, Callable, NamedTuple  # noqa: UP035 (the Python of the image)

POLL_SECONDS = 40.0
"""Longest wait for an answer. The operator answers after about 25 s."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
LONGEST_PAUSE_WHILE_WAITING = 1.0
"""Of a pod whose program does not run. An operator that was restarted then orders the start in about a second. Such a
pod waits for 20 s at most, and the operator accepts one message a second."""
ORDER_SECONDS = 2.0
"""After an order the next poll begins this much later, unless the state changes: the order is repeated until then."""
ANSWER_BYTES = 1 << 20
MESSAGE_BYTES = 6144
"""Of the last lines, as JSON text: a message has at most 8 KiB."""
LARGEST_NUMBER = 2**31
LONGEST_GRACE = 86_400.0


class LastExit(NamedTuple):
    """How the program ended last."""

    attempt: int
    code: int
    """128 + n for signal n."""
    signal: int | None
    at: float
    """On the monotonic clock."""
    message: str


class State(NamedTuple):
    """The process of a pod. `state` is Running, Ended or Down; see `core/facts/processes.py` of the operator."""

    attempt: int
    state: str
    started_at: float | None = None
    last: LastExit | None = None
    number: int = 0
    """Grows with each state: two of them, on two connections, may arrive in any order."""
    code: str | None = None
    """SHA-256 of the job's code in this pod; None if it cannot be replaced."""
    restart: int = 0
    """How often the program was restarted alone in this pod in the attempt."""

    @property
    def process(self) -> tuple[int, int]:
        """Return the attempt and the restart of the process."""
        return self.attempt, self.restart

    def message(self) -> dict[str, Any]:
        """Return the message as sent: ages instead of times."""
        now, last = time.monotonic(), None
        if self.last is not None:
            last = {
                "attempt": self.last.attempt,
                "code": self.last.code,
                "signal": self.last.signal,
                "ago": round(now - self.last.at, 3),
                "message": _bounded(self.last.message),
            }
        started = None if self.started_at is None else round(now - self.started_at, 3)
        return {
            "number": self.number,
            "attempt": self.attempt,
            "state": self.state,
            "started": started,
            "last": last,
            "code": self.code,
            "restart": self.restart,
        }


class Order(NamedTuple):
    """What the operator wants. `action` is Stop, Start or Exit."""

    action: str
    attempt: int
    grace: float
    env: dict[str, str | None]
    code: str = ""
    """SHA-256 of the code to fetch before the start; empty: the pod has it."""
    restart: int = 0
    """How often the program is restarted alone in this pod in the attempt, with this time."""

    @property
    def process(self) -> tuple[int, int]:
        """Return the attempt and the restart. Those of the program only grow."""
        return self.attempt, self.restart


class Channel:
    """Calls `take` with each order, in a thread of its own."""

    def __init__(self, url: str, token_file: str, take: Callable[[Order], None]) -> None:
        self._url = url.rpartition("/")[0] + "/process"
        self._token_file, self._take = token_file, take
        self._changed, self._state = threading.Condition(), State(0, "Down")
        self.answered_at = float("-inf")
        """Time of the last answer, on the monotonic clock."""

    def tell(self, state: State) -> None:
        """Send a new state at once. What is waiting for an answer to the former one ends by itself."""
        with self._changed:
            self._state = state
            self._changed.notify_all()
        with contextlib.suppress(RuntimeError):  # there are too many threads; then the pod ends with its program
            threading.Thread(target=self._poll, args=(state,), name="allranks-orders", daemon=True).start()

    def _poll(self, state: State) -> None:
        import random

        from allranks.report.transport import AttemptOver, Rejected, SendFailed, Transport

        transport, pause = Transport(self._url, self._token_file, ANSWER_BYTES, keep_alive=True), FIRST_PAUSE
        longest = LONGEST_PAUSE if state.state == "Running" else LONGEST_PAUSE_WHILE_WAITING
        while self._state is state:
            try:
                answer = transport.post(state.message(), POLL_SECONDS, again=False)
            except (AttemptOver, Rejected, SendFailed):
                self._wait(state, pause * random.uniform(0.5, 1.5))
                pause = min(longest, 2.0 * pause)
                continue
            pause, self.answered_at = FIRST_PAUSE, time.monotonic()
            order = order_in(answer)
            if order is not None and self._state is state:
                self._take(order)
                self._wait(state, ORDER_SECONDS)
        transport.close()

    def _wait(self, state: State, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state is not state, seconds)


def order_in(answer: dict[str, Any]) -> Order | None:
    """Return the order of an answer; None if there is none, or if it is not valid."""
    action, attempt = answer.get("order"), answer.get("attempt", 0)
    grace, env, code = answer.get("grace", 30), answer.get("env", {}), answer.get("code", "")
    restart = answer.get("restart", 0)
    if action not in ("Stop", "Start", "Exit") or not _is_number(attempt) or not _is_number(restart):
        return None
    if not isinstance(grace, (int, float)) or not 0 <= grace <= LONGEST_GRACE or not isinstance(env, dict):
        return None
    if not all(_is_variable(name, value) for name, value in env.items()):
        return None
    if not isinstance(code, str) or re.fullmatch("([0-9a-f]{64})?", code) is None:
        return None
    return Order(str(action), attempt, float(grace), env, code, restart)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST_NUMBER


def _is_variable(name: str, value: Any) -> bool:
    if not name or "=" in name or not (value is None or isinstance(value, str)):
        return False
    try:
        return b"\0" not in os.fsencode(name + (value or ""))
    except UnicodeEncodeError:
        return False


def _bounded(text: str) -> str:
    """Return the end of a text that fits: a control character takes six bytes as JSON."""
    while len(json.dumps(text)) > MESSAGE_BYTES:
        text = text[len(text) // 8 + 1 :]
    return text
