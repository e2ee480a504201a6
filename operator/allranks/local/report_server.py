"""Receives the reports of local ranks and supervisors as on a cluster: over HTTP, with a token for each pod, on the
loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.api.status import Status
from allranks.core.facts import rank_reports
from allranks.core.facts.model import Manifest, Pod
from allranks.core.facts.naming import TRAINER, replica_key
from allranks.core.facts.processes import Order, Processes
from allranks.core.facts.rank_reports import TOKEN_FILE, CheckpointDue, MetricValues, Reports
from allranks.core.objects.report_env import IN_PLACE, WARM_FOLDER, disabled, trainer_variables
from allranks.local import run_directories
from allranks.pod_bundle import copy_library, copy_startup
from allranks.report.step_log import DIRECTORY as STEP_LOG

if TYPE_CHECKING:
    from allranks.telemetry import messages, processes, server, store

EXAMPLE_URL = "http://127.0.0.1:8081/v1/report"
"""A placeholder for manifests that are only printed."""


_CONNECTIONS = 10_000
"""All pods have the same address."""


class LocalReports:
    """The report server of one run. Calls `wake` when a report requires a reconcile."""

    def __init__(
        self,
        job: tuple[str, str],
        uid: str,
        node: str,
        run_dir: Path,
        wake: Callable[[], None],
        step_log: Path | None = None,
        recorded: Callable[[int, list[MetricValues]], None] | None = None,
    ) -> None:
        """`step_log`: the directory in which ranks record all of their reports. `recorded`: see `ReportStore`."""
        self._recorded = recorded
        self._job, self._uid, self._node, self._run_dir, self._wake = job, uid, node, run_dir, wake
        self._step_log = step_log
        self._sources: dict[str, messages.ReportSource] = {}
        self._status = Status()
        self._store: store.ReportStore | None = None
        self._processes: processes.ProcessStore | None = None
        """None where a supervisor cannot adopt the processes that its program leaves."""
        self._server: server.Server[messages.ReportSource] | None = None
        self.url = ""
        """Empty without a server: aiohttp, of the extra `cli`, is not installed."""

    async def start(self) -> None:
        try:
            from allranks.telemetry import connections, processes, server, store
        except ImportError:
            return
        # A person watches a single job: few ranks report more often than on a cluster, many ranks as often as there.
        limits = store.StoreLimits(interval_min=2.0, interval_max=5.0, job_interval=1.0, target_rate=50.0)
        self._store = store.ReportStore(
            lambda: datetime.now(UTC), lambda _: self._wake(), limits=limits, recorded=self._recorded
        )
        if sys.platform == "linux":
            self._processes = processes.ProcessStore(lambda: datetime.now(UTC), lambda *_: self._wake())
        self._server = server.Server(
            self._identify,
            self._store.ingest,
            process=self._processes.poll if self._processes else None,
            address="127.0.0.1",
            limits=connections.Limits(connections_of_peer=_CONNECTIONS, new_of_peer=_CONNECTIONS, new_per_second=1e3),
        )
        await self._server.start()
        self.url = f"http://127.0.0.1:{self._server.port}{server.PATH}"
        copy_library(self._run_dir / "python")
        copy_startup(self._run_dir / "startup")

    async def stop(self) -> None:
        if self._processes:
            self._processes.close()
        if self._server:
            await self._server.stop()
            for name in ("tokens", "python", "startup", "warm"):
                shutil.rmtree(self._run_dir / name, ignore_errors=True)

    def snapshot(self, status: Status) -> Reports | None:
        self._status = status
        if not self._store:
            return None
        # The loopback has no outages: silence comes from the ranks.
        return replace(self._store.snapshot(self._job, self._uid, status.attempt), any_job_at=datetime.now(UTC))

    def processes(self, pods: Collection[str]) -> Processes | None:
        """Return what the supervisors in `pods` (UIDs) report; None if no program can restart in its pod."""
        return self._processes.snapshot(self._job, self._uid, pods) if self._processes else None

    def order(self, orders: Iterable[Order]) -> None:
        if self._processes:
            self._processes.order(self._job, orders)

    def request_stack_dump(self, stack_dump_id: str, attempt: int) -> None:
        """Request a stack dump for a hang, or if another process has requested one."""
        request = run_directories.stack_request(self._run_dir)
        question = stack_dump_id or rank_reports.stack_dump_id(request, attempt)
        if self._store and question:
            self._store.stack_dump_id(self._job, question)

    def request_checkpoint(self, number: int) -> None:
        if self._store:
            self._store.request_checkpoint(self._job, number)

    def schedule_checkpoint(self, due: CheckpointDue | None) -> None:
        if self._store:
            self._store.schedule_checkpoint(self._job, due)

    def inject_token(self, manifest: Manifest, pod: Pod) -> Manifest:
        """Return the manifest with a token for the pod, and with the report library on its PYTHONPATH."""
        if not self._store:
            return manifest
        from allranks.telemetry.messages import ReportSource

        token = secrets.token_urlsafe(32)
        path = self._run_dir / "tokens" / pod.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(token)
        self._sources[token] = ReportSource(
            self._job,
            self._uid,
            pod.name,
            pod.uid,
            pod.role,
            pod.index,
            pod.attempt,
            pod.restart,
            self._node,
        )
        containers = [
            self._with_token(container, path) if container["name"] == TRAINER else container
            for container in manifest["spec"]["containers"]
        ]
        return {**manifest, "spec": {**manifest["spec"], "containers": containers}}

    def _with_token(self, container: Manifest, token: Path) -> Manifest:
        env = list(container.get("env") or ())
        if not self._processes:
            env = [variable for variable in env if variable["name"] != IN_PLACE]
        inherited = [{"name": name, "value": value} for name, value in os.environ.items()]
        added = {TOKEN_FILE: str(token), **trainer_variables(self.url, str(token), [*inherited, *env])}
        if any(variable["name"] == IN_PLACE for variable in env):
            added[WARM_FOLDER] = str(self._run_dir / "warm" / token.name)
        if self._step_log:
            added[STEP_LOG] = str(self._step_log)
        paths = [str(self._run_dir / "python")]
        if not disabled({**os.environ, **{variable["name"]: str(variable.get("value")) for variable in env}}):
            paths.insert(0, str(self._run_dir / "startup"))
        # That of the manifest, also of `code`, replaces the one of the command, and gets the library as well.
        present = next((variable for variable in env if variable["name"] == "PYTHONPATH"), None)
        before = os.environ.get("PYTHONPATH", "") if present is None else str(present.get("value") or "")
        if present is None or "valueFrom" not in present:
            env = [variable for variable in env if variable is not present]
            added["PYTHONPATH"] = os.pathsep.join(path for path in (*paths, before) if path)
        return {**container, "env": [*env, *({"name": name, "value": value} for name, value in added.items())]}

    async def _identify(self, token: str) -> messages.ReportSource | None:
        source, status = self._sources.get(token), self._status
        if source is None:
            return None
        if source.attempt == status.pods_of_attempt:  # a later attempt restarts in its pods
            source = replace(source, attempt=status.attempt)
        entry = status.replica_restarts.get(replica_key(source.role, source.index))
        if entry and entry.in_pod and entry.count - entry.in_pod == source.restart:
            source = replace(source, restart=entry.count)
        return source
