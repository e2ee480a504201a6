"""A job on a cluster: `allranks.submit` returns it, `allranks.job` and `allranks.jobs` find it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from allranks.api.status import FINISHED, Phase, ProgressStatus, Status
from allranks.client import interrupt
from allranks.client.follow import Deleted, Follower
from allranks.client.jobs import delete_job, events_of, get_job, restart_job, scale_job, set_suspended
from allranks.client.submission import read_differences
from allranks.client.waiting import wait_for_job
from allranks.core.facts.model import Pod
from allranks.errors import AllranksError, ClusterError, JobDeleted, WaitTimeout
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import status_of
from allranks.kube.paths import job_path
from allranks.kube.pod_logs import Line, LogOptions
from allranks.sdk import background, notebook, results
from allranks.sdk.history import table
from allranks.sdk.logs import LogLine, log_lines
from allranks.sdk.run_view import ClusterJobView
from allranks.sdk.trust import Trust
from allranks.views.format.events import EventGroup, group_events
from allranks.views.report.forms import SUFFIXES, rendered
from allranks.views.report.history import of_job
from allranks.views.report.run_files import RunFiles

T = TypeVar("T")


class Job:
    """A job on a cluster. Each method and property asks the API server.

    The job continues when this object, or this program, ends.
    """

    def __init__(self, manifest: Manifest, where: Where, key: bytes | None = None) -> None:
        """`key`: of the submission, if this process made it (`sdk/result_key.py`)."""
        self._key = key
        metadata = manifest["metadata"]
        self._manifest = manifest
        self._where = Where(metadata["namespace"], where.context, where.kubeconfig)

    @property
    def name(self) -> str:
        return str(self._manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self._manifest["metadata"]["namespace"])

    @property
    def manifest(self) -> Manifest:
        """The job as it was read last, with its defaults: what `kubectl get -o json` prints."""
        return self._manifest

    @property
    def status(self) -> Status:
        """The status as the operator wrote it: `status.phase`, `status.attempt`, `status.last_failure`, ...

        Raises JobDeleted, ClusterError.
        """
        return status_of(self._refresh())

    @property
    def progress(self) -> ProgressStatus | None:
        """Steps, metrics, throughput and slow ranks; None before the first report."""
        return self.status.progress

    def logs(self, *, follow: bool = False, ranks: Collection[int] = (), tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of all ranks, or of some.

        `follow`: until the job has finished. `tail`: the last lines of each rank.
        """

        async def lines() -> AsyncGenerator[LogLine]:
            async with Cluster.connect(self._where) as cluster:
                job = await self._read(cluster)
                async with contextlib.aclosing(
                    log_lines(cluster, job, follow=follow, ranks=ranks, tail=tail)
                ) as of_ranks:
                    async for line in of_ranks:
                        yield line

        return background.iterate(lines())

    def events(self) -> list[EventGroup]:
        """Return the Events of the job and its pods; equal ones of many pods are one. Raises ClusterError."""
        events = self._run(events_of)
        if isinstance(events, str):
            raise ClusterError(events, 403, "Forbidden")
        return group_events(events)

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until the job has finished, and return its status. Raises WaitTimeout, JobDeleted, ClusterError."""
        with _detached_by_interrupt(self):
            return self._run(lambda cluster, job: self._finished(cluster, job, timeout))

    def result(self, timeout: float | None = None, *, allow_pickle: bool = False) -> Any:
        """Wait for the value that the function returned in rank 0; None for a script.

        `allow_pickle`: load a pickle, which runs code, also if another user stored it. The process that submitted the
        job does not need it, and none needs it for a value of numbers, texts, lists, dictionaries and arrays of NumPy.

        Raises RankFailed with the exception of the rank that failed first, ResultError if the job succeeded and its
        value cannot be had, WaitTimeout, JobDeleted, ClusterError.
        """
        return self._result(results.value, timeout, allow_pickle)

    def results(self, timeout: float | None = None, *, allow_pickle: bool = False) -> list[Any]:
        """Wait for the values of all ranks, in their order, of a job that was submitted with `every_rank=True`.

        `allow_pickle` and the errors are those of `result`.
        """
        return self._result(results.values, timeout, allow_pickle)

    def show(self, *, logs: bool = True) -> None:
        """Print progress, and the logs of all ranks, until the job has finished.

        In a notebook it also shows a progress bar, the curves and the ranks.
        """
        options = LogOptions() if logs else None
        with _detached_by_interrupt(self), notebook.displayed(self._view(), notebook.JOB_SECONDS):
            self._run(lambda cluster, job: wait_for_job(cluster, job, "finished", sys.stdout, logs=options))

    def cancel(self) -> None:
        """Delete the job with its pods and results. Checkpoints are kept. A job that is gone is no error."""
        with contextlib.suppress(JobDeleted):
            self._run(delete_job)

    def suspend(self) -> None:
        """Delete the pods and keep the job. Raises ClusterError for a finished job."""
        self._run(lambda cluster, job: set_suspended(cluster, job, True))

    def resume(self) -> None:
        """Start the ranks of a suspended job again, from their checkpoint."""
        self._run(lambda cluster, job: set_suspended(cluster, job, False))

    def restart(self, *, code: str | os.PathLike[str] | None = None) -> None:
        """Restart all ranks, from their checkpoint: in their pods where that is possible, else in new ones.

        `code`: a directory whose code they run then, for a job that was submitted with code. Raises ClusterError for a
        job without pods, and CannotShip.
        """
        if code is None:
            self._run(restart_job)
            return
        from allranks.client.development import restart_with_code
        from allranks.code.bundle import collect

        bundle = collect(Path(code))
        self._run(lambda cluster, job: restart_with_code(cluster, job, bundle))

    def scale(self, replicas: int) -> None:
        """Change the number of workers."""
        self._run(lambda cluster, job: scale_job(cluster, job, replicas))

    def report(self) -> Report:
        """Return the one-page report: attempts, progress, lost time, outcome. `str()` is its text."""
        differences = self._run(read_differences)
        return Report(self._manifest, datetime.now(UTC), differences)

    def history(self) -> Any:
        """Return the values of metrics that the status has, in the form of `allranks.history`: 64 points of the main
        metric, and the first, lowest, highest and last value of each one."""
        return table(of_job(self._refresh()))

    def __repr__(self) -> str:
        return f"<allranks job {self.namespace}/{self.name}: {status_of(self._manifest).phase}>"

    def _repr_html_(self) -> str | None:
        """Show the job as it is now in a notebook; None, for the plain text, if it cannot be read."""
        view = self._view()
        with contextlib.suppress(AllranksError):
            view.read()
            return view._repr_html_()
        return None

    def _view(self) -> ClusterJobView:
        return ClusterJobView(self.name, self._refresh)

    def _refresh(self) -> Manifest:
        async def job_itself(_cluster: Cluster, job: Manifest) -> Manifest:
            return job

        return self._run(job_itself)

    def _run(self, work: Callable[[Cluster, Manifest], Awaitable[T]]) -> T:
        """Read the job over a new connection, and run `work` on it. Raises JobDeleted, ClusterError."""

        async def connected() -> T:
            async with Cluster.connect(self._where) as cluster:
                return await work(cluster, await self._read(cluster))

        return background.run(connected())

    async def _read(self, cluster: Cluster) -> Manifest:
        """Read the job. Raises JobDeleted, also if there is a new job of the same name."""
        try:
            job = await cluster.get(job_path(self.namespace, self.name))
        except ClusterError as error:
            if error.status != 404:
                raise
            raise JobDeleted(f"{self.name} in namespace {self.namespace} was deleted") from error
        if job["metadata"]["uid"] != self._manifest["metadata"]["uid"]:
            raise JobDeleted(f"{self.name} in namespace {self.namespace} was deleted, and another job has its name now")
        self._manifest = job
        return job

    def _result(
        self, read: Callable[[Cluster, Manifest, Trust], Awaitable[T]], timeout: float | None, allow_pickle: bool
    ) -> T:
        trust = Trust(self._key, allow_pickle)

        async def result(cluster: Cluster, job: Manifest) -> T:
            if (await self._finished(cluster, job, timeout)).phase == "Failed":
                raise await results.failure(cluster, self._manifest, trust)
            return await read(cluster, self._manifest, trust)

        with _detached_by_interrupt(self):
            return self._run(result)

    async def _finished(self, cluster: Cluster, job: Manifest, timeout: float | None) -> Status:
        status = status_of(job)
        if status.phase in FINISHED:
            return status
        follower = Follower(cluster, job, _Silent())
        try:
            async with asyncio.timeout(timeout):
                status = await follower.follow(lambda now: now.phase in FINISHED)
        except TimeoutError:
            phase = status_of(follower.job).phase
            raise WaitTimeout(f"{self.name} is still {phase} after {timeout:g} s; it continues") from None
        except Deleted as error:
            raise JobDeleted(str(error)) from error
        self._manifest = follower.job
        return status


class _Silent:
    """Shows nothing."""

    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...
    def lines(self, pod: Pod, lines: list[Line]) -> None: ...
    def message(self, text: str) -> None: ...


class Report:
    """The report that `allranks report` prints, at one moment."""

    def __init__(self, job: Manifest, now: datetime, run: RunFiles | None = None) -> None:
        self._job, self._now, self._run = job, now, run

    def _rendered(self, form: str) -> str:
        return rendered(self._job, form, self._now, run=self._run)

    @property
    def text(self) -> str:
        return self._rendered("text")

    @property
    def html(self) -> str:
        """A self-contained page."""
        return self._rendered("html")

    @property
    def data(self) -> dict[str, Any]:
        """The numbers, as `allranks report -o json` prints them."""
        data: dict[str, Any] = json.loads(self._rendered("json"))
        return data

    @property
    def diff(self) -> str:
        """The difference between the code and its commit, as a unified diff."""
        return self._rendered("diff")

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the report in the format of the suffix: .txt, .html, .json or .diff. Raises ValueError, OSError."""
        path = Path(file)
        if (form := SUFFIXES.get(path.suffix.lower())) is None:
            raise ValueError(f"{path}: the name must end in .txt, .html, .json or .diff")
        path.write_text(self._rendered(form), encoding="utf-8")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def job(name: str, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None) -> Job:
    """Find the job with this name, from whatever program it was submitted.

    Raises ClusterError; if there is no such job, the error suggests similar names.
    """
    where = Where(namespace, context, kubeconfig)

    async def read() -> Manifest:
        async with Cluster.connect(where) as cluster:
            return await get_job(cluster, name)

    return Job(background.run(read()), where)


def jobs(
    *,
    phase: Phase | Collection[Phase] | None = None,
    labels: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
) -> list[Job]:
    """List the jobs of a namespace, the newest first: of a phase or of several, with labels such as `team=nlp`.

    Raises ClusterError.
    """
    where = Where(namespace, context, kubeconfig)
    phases = {phase} if isinstance(phase, str) else set(phase or ())

    async def read() -> list[Manifest]:
        async with Cluster.connect(where) as cluster:
            listed = await cluster.get(job_path(cluster.namespace), {"labelSelector": labels})
            return list(listed["items"])

    items = sorted(background.run(read()), key=lambda item: str(item["metadata"]["creationTimestamp"]), reverse=True)
    return [Job(item, where) for item in items if not phases or status_of(item).phase in phases]


def continues(job: Job) -> str:
    """Say that the job continues, and how a program finds it again."""
    lookup = f"allranks.job({job.name!r}, namespace={job.namespace!r})"
    return f"{job.name} continues: {lookup}.result() waits for it, .cancel() deletes it"


@contextlib.contextmanager
def _detached_by_interrupt(job: Job) -> Iterator[None]:
    """Pass KeyboardInterrupt on, after a question or a message: the job continues, unless the user deletes it."""
    try:
        yield
    except KeyboardInterrupt:
        if interrupt.can_ask() and interrupt.wants_to_cancel(job.name):
            job.cancel()
            print(f"{job.name} is deleted", file=sys.stderr)
        else:
            print(continues(job), file=sys.stderr)
        raise
