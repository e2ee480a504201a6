"""What Ctrl-C does while a program waits for a job on a cluster: the job continues, unless the user says otherwise."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

from allranks.cli import interrupt


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
        if interrupt.can_ask() and interrupt.wants_to_cancel(job.name):
            job.cancel()
            print(f"{job.name} is deleted", file=sys.stderr)
        else:
            again = f"allranks.job({job.name!r}, namespace={job.namespace!r})"
            print(f"{job.name} continues: {again}.result() waits for it, .cancel() deletes it", file=sys.stderr)
        raise
