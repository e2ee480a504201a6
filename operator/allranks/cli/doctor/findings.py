"""Findings of checks, and how checks run: all at the same time, each with a time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from allranks.errors import AllranksError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the result. A problem makes the exit status 1; a note may be intended."""

    check: str
    status: Literal["ok", "note", "problem"]
    message: str
    cure: str = ""

    def data(self, section: str) -> dict[str, str]:
        return {"section": section, **asdict(self)}


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def note(check: str, message: str, cure: str = "") -> Finding:
    return Finding(check, "note", message, cure)


def problem(check: str, message: str, cure: str) -> Finding:
    return Finding(check, "problem", message, cure)


def not_checked(check: str, reason: str) -> Finding:
    return note(check, f"not checked: {reason}")


Check = Callable[[], Iterable[Finding]]


def run_checks(checks: Mapping[str, Check], seconds: float) -> Iterator[Finding]:
    """Yield the findings in the order of the checks. A check that fails or takes too long is a note."""
    started = {name: _started(check) for name, check in checks.items()}
    deadline = time.monotonic() + seconds
    for name, results in started.items():
        try:
            result = results.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            yield not_checked(name, f"there was no answer within {seconds:g} s")
            continue
        if isinstance(result, Exception):
            yield not_checked(name, describe_error(result))
        else:
            yield from result


def _started(check: Check) -> queue.Queue[list[Finding] | Exception]:
    """Run the check on a thread. Return a queue that gets its findings, or its error."""
    results: queue.Queue[list[Finding] | Exception] = queue.Queue()

    def work() -> None:
        try:
            results.put(list(check()))
        except Exception as error:  # a check must not hide the others
            results.put(error)

    # A daemon: a file system that does not answer must not keep the command from ending.
    threading.Thread(target=work, daemon=True).start()
    return results


def describe_error(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    text = " ".join(str(error).split())
    return text if isinstance(error, AllranksError) else f"{type(error).__name__}: {text}"
