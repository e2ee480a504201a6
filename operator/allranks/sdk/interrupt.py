"""What Ctrl-C does while a program waits for a job on a cluster: the job continues, unless the user says otherwise.

An asynchronous program is not asked: asyncio turns Ctrl-C into the cancellation of a task, and a task is also cancelled
by a timeout or by the failure of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

from allranks.cli import interrupt


class Named(Protocol):
    """The job that was waited for."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...


class Interrupted(Named, Protocol):
    """One that the user may delete."""

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


@contextlib.contextmanager
def detached_by_cancellation(job: Named) -> Iterator[None]:
    """CancelledError passes on, after a message."""
    try:
        yield
    except asyncio.CancelledError:
        again = f"job = await allranks.job_async({job.name!r}, namespace={job.namespace!r})"
        how = f"{again}; await job.result() waits for it, await job.cancel() deletes it"
        print(f"{job.name} continues: {how}", file=sys.stderr)
        raise
