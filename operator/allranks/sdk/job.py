"""A job on a cluster: `allranks.submit` returns it, `allranks.job` and `allranks.jobs` find it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from allranks.api.status import ProgressStatus, Status
from allranks.cli.format.events import EventGroup
from allranks.errors import AllranksError
from allranks.kube.cluster import Manifest
from allranks.sdk import background, job_view, notebook
from allranks.sdk.async_job import AsyncJob
from allranks.sdk.interrupt import detached_by_interrupt
from allranks.sdk.job_view import JobView
from allranks.sdk.logs import LogLine
from allranks.sdk.report import Report


class Job:
    """Each method and property asks the API server. The job continues when this object, or this program, ends.

    `asynchronous` is the same job with coroutines.
    """

    def __init__(self, job: AsyncJob) -> None:
        self.asynchronous = job

    @property
    def name(self) -> str:
        return self.asynchronous.name

    @property
    def namespace(self) -> str:
        return self.asynchronous.namespace

    @property
    def manifest(self) -> Manifest:
        """The job as it was read last, with its defaults: what `kubectl get -o json` prints."""
        return self.asynchronous.manifest

    @property
    def status(self) -> Status:
        """The status as the operator wrote it: `status.phase`, `status.attempt`, `status.last_failure`, ...

        Raises JobDeleted, ClusterError.
        """
        return background.run(self.asynchronous.status())

    @property
    def progress(self) -> ProgressStatus | None:
        """Steps, metrics, throughput and slow ranks; None before the first report."""
        return background.run(self.asynchronous.progress())

    def logs(self, *, follow: bool = False, ranks: Collection[int] = (), tail: int | None = None) -> Iterator[LogLine]:
        """The lines of all ranks, or of some. `follow`: until the job has finished. `tail`: the last lines of each."""
        return background.iterate(self.asynchronous.logs(follow=follow, ranks=ranks, tail=tail))

    def events(self) -> list[EventGroup]:
        """The Events of the job and its pods; equal ones of many pods are one."""
        return background.run(self.asynchronous.events())

    def wait(self, timeout: float | None = None) -> Status:
        """Waits until the job has finished, and returns its status. Raises WaitTimeout, JobDeleted, ClusterError."""
        with detached_by_interrupt(self):
            return background.run(self.asynchronous.wait(timeout))

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the value that the function returned in rank 0; None for a script.

        Raises RankFailed with the exception of the rank that failed first, ResultError if the job succeeded and its
        value cannot be had, WaitTimeout, JobDeleted, ClusterError.
        """
        with detached_by_interrupt(self):
            return background.run(self.asynchronous.result(timeout))

    def results(self, timeout: float | None = None) -> list[Any]:
        """The same of all ranks, in their order, for a job that was submitted with `every_rank=True`."""
        with detached_by_interrupt(self):
            return background.run(self.asynchronous.results(timeout))

    def show(self, *, logs: bool = True) -> None:
        """Prints progress, and the logs of all ranks, until the job has finished. In a notebook it also shows a
        progress bar, the curves and the ranks."""
        with detached_by_interrupt(self), notebook.displayed(self._view(), job_view.REFRESH_SECONDS):
            background.run(self.asynchronous.show(logs=logs))

    def cancel(self) -> None:
        """Deletes the job with its pods and results. Checkpoints are kept. A job that is gone is no error."""
        background.run(self.asynchronous.cancel())

    def suspend(self) -> None:
        """Deletes the pods and keeps the job. Raises ClusterError for a finished job."""
        background.run(self.asynchronous.suspend())

    def resume(self) -> None:
        """Starts the ranks of a suspended job again, from their checkpoint."""
        background.run(self.asynchronous.resume())

    def scale(self, replicas: int) -> None:
        """Changes the number of workers."""
        background.run(self.asynchronous.scale(replicas))

    def report(self) -> Report:
        """The one-page report: attempts, progress, lost time, outcome. `str()` is its text."""
        return background.run(self.asynchronous.report())

    def _view(self) -> JobView:
        return JobView(self.name, lambda: background.run(self.asynchronous.refresh()))

    def __repr__(self) -> str:
        return repr(self.asynchronous)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the job as it is now. None, for the plain text, if it cannot be read."""
        view = self._view()
        with contextlib.suppress(AllranksError):
            view.read()
            return view._repr_html_()
        return None
