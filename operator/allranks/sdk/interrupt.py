"""What Ctrl-C does while a program waits for a job on a cluster: the job continues, unless the user says otherwise.

An asynchronous program is not asked: asyncio turns Ctrl-C into the cancellation of a task, and a task is also cancelled
by a timeout or by the failure of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import NamedTuple, Protocol

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


class Words(NamedTuple):
    """How a program finds a job again. Fields are formatted with `name` and `namespace`."""

    job: str
    jobs: str

    def continues(self, job: Named) -> str:
        return f"{job.name} continues: {self.job.format(name=job.name, namespace=job.namespace)}"

    def unknown(self, name: str, namespace: str) -> str:
        """The request was sent, and there is no answer."""
        return (
            f"The job {name} may exist, but no answer arrived: {self.jobs.format(namespace=namespace)} lists the jobs"
        )


SYNCHRONOUS = Words(
    "allranks.job({name!r}, namespace={namespace!r}).result() waits for it, .cancel() deletes it",
    "allranks.jobs(namespace={namespace!r})",
)
ASYNCHRONOUS = Words(
    "job = await allranks.job_async({name!r}, namespace={namespace!r}); await job.result() waits for it, "
    "await job.cancel() deletes it",
    "await allranks.jobs_async(namespace={namespace!r})",
)


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
            print(SYNCHRONOUS.continues(job), file=sys.stderr)
        raise


@contextlib.contextmanager
def detached_by_cancellation(job: Named) -> Iterator[None]:
    """CancelledError passes on, after a message."""
    try:
        yield
    except asyncio.CancelledError:
        print(ASYNCHRONOUS.continues(job), file=sys.stderr)
        raise
