"""A job on a cluster, for asynchronous programs. `job.Job` is the same for all others."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from allranks.api.status import FINISHED, ProgressStatus, Status
from allranks.cli.commands.delete import delete_job
from allranks.cli.commands.describe import events_of
from allranks.cli.commands.scale import scale_job
from allranks.cli.commands.suspend import set_suspended
from allranks.cli.commands.wait import wait_for_job
from allranks.cli.format.events import EventGroup, group_events
from allranks.cli.job_report.run_files import read_differences
from allranks.cli.live.follow import Deleted, Follower
from allranks.cli.options import get_job
from allranks.core.model import Pod
from allranks.errors import ClusterError, JobDeleted, WaitTimeout
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import status_of
from allranks.kube.paths import job_path
from allranks.kube.pod_logs import Line, LogOptions
from allranks.sdk import results
from allranks.sdk.logs import LogLine, log_lines
from allranks.sdk.report import Report
from allranks.sdk.words import connected


class AsyncJob:
    """Each method asks the API server, over a connection of its own. Awaiting the job is awaiting `result()`."""

    def __init__(self, manifest: Manifest, where: Where) -> None:
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
    def uid(self) -> str:
        return str(self._manifest["metadata"]["uid"])

    @property
    def manifest(self) -> Manifest:
        """The job as it was read last."""
        return self._manifest

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<allranks job {self.namespace}/{self.name}: {status_of(self._manifest).phase}>"

    async def status(self) -> Status:
        """Raises JobDeleted, ClusterError."""
        async with self._connected() as cluster:
            return status_of(await self._read(cluster))

    async def progress(self) -> ProgressStatus | None:
        """Steps, metrics, throughput and slow ranks; None before the first report."""
        return (await self.status()).progress

    async def logs(
        self, *, follow: bool = False, ranks: Collection[int] = (), tail: int | None = None
    ) -> AsyncGenerator[LogLine]:
        """The lines of all ranks, or of some. `follow`: until the job has finished. `tail`: the last lines of each."""
        async with self._connected() as cluster:
            job = await self._read(cluster)
            lines = log_lines(cluster, job, follow=follow, ranks=ranks, tail=tail)
            async with contextlib.aclosing(lines):
                async for line in lines:
                    yield line

    async def events(self) -> list[EventGroup]:
        """The Events of the job and its pods; equal ones of many pods are one. Raises ClusterError."""
        async with self._connected() as cluster:
            found = await events_of(cluster, await self._read(cluster))
        if isinstance(found, str):
            raise ClusterError(found, 403, "Forbidden")
        return group_events(found)

    async def wait(self, timeout: float | None = None) -> Status:
        """Waits until the job has finished, and returns its status. Raises WaitTimeout, JobDeleted, ClusterError."""
        async with self._connected() as cluster:
            return await self._finished(cluster, timeout)

    async def result(self, timeout: float | None = None) -> Any:
        """Waits for the value that the function returned in rank 0; None for a script.

        Raises RankFailed with the exception of the rank that failed first, ResultError if the job succeeded and its
        value cannot be had, WaitTimeout, JobDeleted, ClusterError.
        """
        async with self._connected() as cluster:
            if (await self._finished(cluster, timeout)).phase == "Failed":
                raise await results.failure(cluster, self._manifest)
            return await results.value(cluster, self._manifest)

    async def results(self, timeout: float | None = None) -> list[Any]:
        """The same of all ranks, in their order, for a job that was submitted with `every_rank=True`."""
        async with self._connected() as cluster:
            if (await self._finished(cluster, timeout)).phase == "Failed":
                raise await results.failure(cluster, self._manifest)
            return await results.values(cluster, self._manifest)

    async def show(self, *, logs: bool = True, file: TextIO | None = None) -> None:
        """Prints progress, and the logs of all ranks, until the job has finished."""
        async with self._connected() as cluster:
            job = await self._read(cluster)
            wanted = LogOptions() if logs else None
            await wait_for_job(cluster, job, "finished", file or sys.stdout, wanted=wanted)

    async def cancel(self) -> None:
        """Deletes the job with its pods and results. Checkpoints are kept. A job that is gone is no error."""
        async with self._connected() as cluster:
            with contextlib.suppress(JobDeleted):
                await delete_job(cluster, await self._read(cluster))

    async def suspend(self) -> None:
        """Deletes the pods and keeps the job. Raises ClusterError for a finished job."""
        async with self._connected() as cluster:
            await set_suspended(cluster, await self._read(cluster), True)

    async def resume(self) -> None:
        """Starts the ranks of a suspended job again, from their checkpoint."""
        async with self._connected() as cluster:
            await set_suspended(cluster, await self._read(cluster), False)

    async def scale(self, replicas: int) -> None:
        """Changes the number of workers."""
        async with self._connected() as cluster:
            await scale_job(cluster, await self._read(cluster), replicas)

    async def report(self) -> Report:
        """The one-page report: attempts, progress, lost time, outcome."""
        async with self._connected() as cluster:
            job = await self._read(cluster)
            return Report(job, datetime.now(UTC), await read_differences(cluster, job))

    async def refresh(self) -> Manifest:
        """Reads the job again."""
        async with self._connected() as cluster:
            return await self._read(cluster)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Cluster]:
        async with connected(self._where) as cluster:
            yield cluster

    async def _read(self, cluster: Cluster) -> Manifest:
        """Raises JobDeleted, also if there is a new job of the same name."""
        try:
            found = await cluster.get(job_path(self.namespace, self.name))
        except ClusterError as error:
            if error.status != 404:
                raise
            raise JobDeleted(f"{self.name} in namespace {self.namespace} was deleted") from error
        if found["metadata"]["uid"] != self.uid:
            raise JobDeleted(f"{self.name} in namespace {self.namespace} was deleted, and another job has its name now")
        self._manifest = found
        return found

    async def _finished(self, cluster: Cluster, timeout: float | None) -> Status:
        job = await self._read(cluster)
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


async def find(name: str, where: Where) -> AsyncJob:
    """Raises ClusterError; if there is no such job, it suggests similar names."""
    async with connected(where) as cluster:
        return AsyncJob(await get_job(cluster, name), where)


async def find_all(where: Where, selected: Callable[[Status], bool], labels: str | None) -> list[AsyncJob]:
    """The jobs of the namespace, the newest first. Raises ClusterError."""
    async with connected(where) as cluster:
        found = await cluster.get(job_path(cluster.namespace), {"labelSelector": labels})
    items = sorted(found["items"], key=lambda item: item["metadata"]["creationTimestamp"], reverse=True)
    return [AsyncJob(item, where) for item in items if selected(status_of(item))]
