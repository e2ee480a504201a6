"""`allranks dev --cluster`: follows a job on a cluster, and sends its code again when a file changes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from allranks.api.job import KIND
from allranks.api.status import FINISHED, Status
from allranks.cli.file_changes import LONGEST_MS, POLL_MS, QUIET_MS, named_files, source_filter
from allranks.cli.options import BAD_MANIFEST, job_name, print_error, print_problem
from allranks.cli.suggestions import FILES
from allranks.client import development
from allranks.client.development import Edits, OnExit
from allranks.client.follow import Follower
from allranks.client.jobs import delete_job, get_job, set_suspended
from allranks.client.submission import Session
from allranks.client.waiting import ToRenderer
from allranks.code.bundle import Bundle, collect
from allranks.code.ship import config_map_of, create_with_code
from allranks.core.facts.development import ANNOTATION, RENEWAL_SECONDS, attached_until, short
from allranks.core.facts.model import Pod
from allranks.errors import AllranksError, ClusterError, InvalidManifest
from allranks.frameworks import FRAMEWORKS
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.paths import job_path
from allranks.kube.pod_logs import LogOptions
from allranks.views.format.outcome import summary
from allranks.views.live.renderer import Renderer
from allranks.views.safe_output import use_colour

GONE_SECONDS = 0.2
"""Interval in which a job is looked for that is being deleted."""


async def develop(cluster: Cluster, file: str, code: Path | None, watched: Sequence[Path], on_exit: OnExit) -> int:
    """Run until Ctrl-C. Return the exit status."""
    try:
        job, directory = await _begin(cluster, file, code)
    except InvalidManifest as error:
        print_error(error)
        return BAD_MANIFEST
    task = asyncio.current_task()
    assert task
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, signal.raise_signal, signal.SIGINT)
    loop = _Loop(cluster, job, directory, watched)
    try:
        await loop.run()
    except asyncio.CancelledError:
        task.uncancel()
        cluster.interrupted = await development.leave(cluster, loop.job, on_exit)
        raise
    return 0


async def _begin(cluster: Cluster, file: str, code: Path | None) -> tuple[Manifest, Path]:
    """Return the job, which exists and is developed from now on, and the directory of its code.

    Raise ClusterError, CannotShip and InvalidManifest.
    """
    if not file.endswith(FILES):
        job, directory = await get_job(cluster, job_name(file)), code or Path()
        cluster.namespace = job["metadata"]["namespace"]
        _check_unfinished(job)
        development.check_replaceable(job)
        job = await development.attach(cluster, job)
        bundle = collect(directory)
        if (job["spec"]["code"] or {}).get("sha256") != bundle.sha256:
            job = await development.send_code(cluster, job, bundle)
    else:
        job, directory = await _submit(cluster, file, code)
    if job["spec"].get("suspend"):
        job = (await set_suspended(cluster, job, False)).job
    return job, directory


async def _submit(cluster: Cluster, file: str, code: Path | None) -> tuple[Manifest, Path]:
    """Create the job of a manifest, or change the one that exists. The code of both is what the directory has now."""
    from allranks.authoring.manifests import load

    loaded = load([file], code=code)
    jobs = [document for document in loaded.documents if document.get("kind") == KIND]
    if len(jobs) != 1:
        raise ClusterError(f"{file} has {len(jobs)} jobs: allranks dev --cluster develops one")
    [document] = jobs
    bundle = loaded.bundles.get(config_map_of(document))
    if bundle is None:
        raise ClusterError(f"{file}: the job names no directory: write `code: .` in its spec, or use --code DIR")
    for severity, text in loaded.notes():
        print_problem(severity, text)
    document["metadata"].setdefault("annotations", {})[ANNOTATION] = attached_until(datetime.now(UTC))
    session, job = Session(cluster, False, loaded.bundles), document
    for other in loaded.documents:
        verb, stored = await session.apply(other)
        click.echo(f"{session.title(stored)} {verb}")
        job = stored if other is document else job
    cluster.namespace = job["metadata"]["namespace"]
    _check_unfinished(job)
    return job, Path(bundle.source)


def _check_unfinished(job: Manifest) -> None:
    name, phase = job["metadata"]["name"], status_of(job).phase
    if phase in FINISHED:
        raise ClusterError(f"{name} is {phase}: delete it first (allranks delete {name}), or use another name")


class _Loop:
    """Follows one job, or the next one of its name after it has finished."""

    def __init__(self, cluster: Cluster, job: Manifest, directory: Path, watched: Sequence[Path]) -> None:
        self.job = job
        self._cluster, self._directory, self._watched = cluster, directory, list(watched) or [directory]
        self._edits, self._former = Edits(), list[str]()
        self._renderer = Renderer(
            sys.stdout,
            live=sys.stdout.isatty(),
            colour=use_colour(sys.stdout),
            on_closed=lambda: None,
        )
        self._finished: asyncio.Event = asyncio.Event()

    async def run(self) -> None:
        """Run until the task is cancelled, or the job is deleted. Raise ClusterError."""
        framework = FRAMEWORKS.get(self.job["spec"].get("framework", ""))
        self._renderer.begin(self.job["metadata"]["name"], framework.log if framework else None)
        code = short((self.job["spec"].get("code") or {}).get("sha256") or "")
        self._renderer.message(f"code {code}; each save below {self._directory} is sent to the ranks (Ctrl-C ends)")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew())
                tasks.create_task(self._follow())
                tasks.create_task(self._watch())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._renderer.end()

    async def _renew(self) -> None:
        """Stay attached. A renewal that fails is repeated: the job waits for some minutes without one."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            if status_of(self.job).phase not in FINISHED:
                try:
                    await development.attach(self._cluster, self.job)
                except ClusterError as error:
                    self._renderer.message(f"the job may stop to wait for code: {error}")

    async def _follow(self) -> None:
        while True:
            follower = Follower(self._cluster, self.job, _Listener(self), LogOptions())
            await follower.list_pods()
            status = await follower.follow(lambda now: now.phase in FINISHED)
            self.job = follower.job
            name, seconds = self.job["metadata"]["name"], self._renderer.seconds
            created = datetime.fromisoformat(self.job["metadata"]["creationTimestamp"])
            self._renderer.message(summary(name, status, created, seconds, "finished"))
            self._renderer.message("the next save creates the job again")
            uid = self.job["metadata"]["uid"]
            self._finished.set()
            while self.job["metadata"]["uid"] == uid:
                await asyncio.sleep(GONE_SECONDS)

    async def _watch(self) -> None:
        from watchfiles import awatch

        async for changes in awatch(
            *self._watched, watch_filter=source_filter(), debounce=LONGEST_MS, step=QUIET_MS, rust_timeout=POLL_MS
        ):
            try:
                await self._send(changes)
            except AllranksError as error:
                self._renderer.message(f"error: {error}")

    async def _send(self, changes: set[tuple[Any, str]]) -> None:
        """Send the code if it differs. Raise CannotShip and ClusterError."""
        saved = _saved_at(changes)
        bundle = await asyncio.to_thread(collect, self._directory)
        if self._finished.is_set():
            await self._create_again(bundle, saved)
        elif (self.job["spec"].get("code") or {}).get("sha256") != bundle.sha256:
            former = config_map_of(self.job)
            self._renderer.message(f"{named_files(changes)}: {self._edits.saved(bundle.sha256, saved)}")
            self.job = await development.send_code(self._cluster, self.job, bundle)
            self._former = [*(name for name in self._former if name != bundle.config_map), former]

    async def _create_again(self, bundle: Bundle, saved: float) -> None:
        """Replace a job that has finished. Raise CannotShip and ClusterError."""
        namespace, name = self.job["metadata"]["namespace"], self.job["metadata"]["name"]
        document = _document(self.job, bundle)
        self._renderer.message(f"{self._edits.saved(bundle.sha256, saved)}, in a new job")
        await delete_job(self._cluster, self.job, "foreground")
        while await self._exists():
            await asyncio.sleep(GONE_SECONDS)

        async def created() -> Manifest:
            return await self._cluster.request("POST", job_path(namespace), {"fieldManager": "allranks"}, document)

        self._finished.clear()
        self._former = []
        self.job = await create_with_code(self._cluster, namespace, bundle, created)
        assert self.job["metadata"]["name"] == name

    async def _exists(self) -> bool:
        metadata = self.job["metadata"]
        try:
            job = await self._cluster.get(job_path(metadata["namespace"], metadata["name"]))
        except ClusterError as error:
            if error.status != 404:
                raise
            return False
        return bool(job["metadata"]["uid"] == metadata["uid"])

    def observe(self, status: Status) -> None:
        """Print what a status says of the last edit, and delete code that is not used any more."""
        for message in self._edits.observe(status, time.time()):
            self._renderer.message(message)
        code = (self.job["spec"].get("code") or {}).get("sha256")
        if self._former and status.running_time and status.code and status.code.sha256 == code:
            former, self._former = self._former, []
            self._deleting = asyncio.ensure_future(development.delete_former_code(self._cluster, self.job, former))

    @property
    def renderer(self) -> Renderer:
        return self._renderer


class _Listener(ToRenderer):
    """Shows a job, and tells the loop about each status."""

    def __init__(self, loop: _Loop) -> None:
        super().__init__(loop.renderer)
        self._loop = loop

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        super().status(status, pods)
        self._loop.observe(status)


def _document(job: Manifest, bundle: Bundle) -> Manifest:
    """Return a new job like one that has finished, with other code."""
    metadata, spec = job["metadata"], copy.deepcopy(job["spec"])
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if metadata.get(key)}
    path = {"path": spec["code"]["path"]} if spec["code"].get("path") else {}
    spec["code"] = {**bundle.spec, **path}
    kept["annotations"] = {ANNOTATION: attached_until(datetime.now(UTC))}
    return {"apiVersion": job["apiVersion"], "kind": KIND, "metadata": kept, "spec": spec}


def _saved_at(changes: set[tuple[Any, str]]) -> float:
    """Return when the last of these files was saved, in seconds since the epoch."""
    now, times = time.time(), list[float]()
    for _, path in changes:
        with contextlib.suppress(OSError):
            times.append(Path(path).stat().st_mtime)
    newest = max(times, default=now)
    return newest if now - 10.0 < newest <= now else now
