"""What Ctrl-C does while a program waits for a job on a cluster: the job continues, unless the user says otherwise.

A terminal asks. A script and a notebook detach: their interrupt may be meant for something else, and a job that was
deleted by mistake has lost its work.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol


class Interrupted(Protocol):
    """The job that was waited for."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    def cancel(self) -> None: ...


@contextlib.contextmanager
def detached_by_interrupt(job: Interrupted) -> Iterator[None]:
    """KeyboardInterrupt passes on, after a question or a message."""
    try:
        yield
    except KeyboardInterrupt:
        if _can_ask() and _wants_to_cancel(job):
            job.cancel()
            print(f"{job.name} is deleted", file=sys.stderr)
        else:
            again = f"allranks.job({job.name!r}, namespace={job.namespace!r})"
            print(f"{job.name} continues: {again}.result() waits for it, .cancel() deletes it", file=sys.stderr)
        raise


def _can_ask() -> bool:
    return "ipykernel" not in sys.modules and sys.stdin.isatty() and sys.stderr.isatty()


def _wants_to_cancel(job: Interrupted) -> bool:
    """No answer, and a second Ctrl-C, leave the job alone."""
    print(
        f"\nStop waiting for {job.name}? Enter: it continues without this program. c: delete it. ",
        end="",
        file=sys.stderr,
    )
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("c", "cancel")
    except KeyboardInterrupt:
        return False
