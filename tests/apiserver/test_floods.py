"""Floods of the largest objects on a real API server, beside operator, archiver and UI.

They are processes with the memory limits of the chart. Another tenant's job starts, restarts, fails, is shown and is
archived meanwhile, and a plain client does the same. ALLRANKS_FLOOD_BYTES is the size of a flood,
ALLRANKS_FLOOD_SECONDS the time after which it ends in any case. `-s` shows the memory of each program, and the times of
the other tenant and of the plain client.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import KIND
from allranks.core.facts.naming import TRAINER
from support import floods, live
from support.api import Api, ApiError, path
from support.controlplane import ControlPlane
from support.frontend_process import get
from support.kubelet import Hand, Program
from support.limited import Limited, limit_mib
from support.live import eventually, job

FLOOD_BYTES = int(os.environ.get("ALLRANKS_FLOOD_BYTES", 60_000_000))
FEW_BYTES = 12_000_000
FLOOD_SECONDS = float(os.environ.get("ALLRANKS_FLOOD_SECONDS", 600))
MOST = 1000
AT_ONCE = 4
NOISY = "noisy"
"""A job of the tenant who floods."""
NIGHTLY = pytest.mark.nightly
EACH_CHANGE = {"jobs with the largest template"}

Seconds = dict[str, float]


class Services:
    """Operator, archiver and UI of a cluster with default values."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self._folder, self._token = folder, control_plane.admin_token
        self.archive = folder / "archive"
        self.archive.mkdir()
        kubeconfig = f"--kubeconfig={control_plane.kubeconfig}"
        local = ("--address=127.0.0.1", "--port=0")
        operator = ("operator", kubeconfig, *local, "--no-leader-election", "--report-port=0", "--log-format=text")
        archiver = ("archiver", kubeconfig, *local, f"--archive={self.archive}", f"--spool={folder}")
        ui = ("ui-server", "--port=0", f"--api-server={control_plane.url}")
        ui += (f"--certificate-authority={control_plane.ca_file}",)
        self._commands = {"operator": operator, "archiver": archiver, "UI": ui}
        self._limits = {
            "operator": limit_mib(),
            "archiver": limit_mib("archive"),
            "UI": limit_mib("ui"),
        }
        self._programs: dict[str, Limited] = {}
        self.peaks: dict[str, float] = {}

    def start(self) -> None:
        """Start all, and wait until they serve. Raises AssertionError if one is killed."""
        for name, command in self._commands.items():
            self._programs[name] = Limited(self._limits[name], self._folder / f"{name}.log", *command)
        self._operator = self._programs["operator"].port("serving /metrics")
        self._archiver = self._programs["archiver"].port("serving /metrics")
        self._ui = self._programs["UI"].port("")
        for port, probe in ((self._operator, "/readyz"), (self._archiver, "/readyz"), (self._ui, "/healthz")):
            self.until(lambda port=port, probe=probe: get(port, probe)[0] == 200, f"{probe} of port {port}")  # type: ignore[misc]
        self.until(lambda: self.ui("/jobs")[0] == 200, "the jobs of all namespaces")

    def stop(self) -> None:
        for name, program in self._programs.items():
            self.peaks[name] = max(program.peak, self.peaks.get(name, 0))
            program.end()
        self._programs.clear()

    def check(self) -> None:
        for program in self._programs.values():
            program.check()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait, unless a program ends."""

        def holds() -> Any:
            self.check()
            with contextlib.suppress(OSError):
                return condition()

        eventually(holds, what=what)

    def ui(self, address: str) -> tuple[int, Any]:
        """Return the answer of the UI to a user who may list all jobs."""
        code, body = get(self._ui, f"/api/v1{address}", Authorization=f"Bearer {self._token}")
        return code, json.loads(body)

    def show(self, namespace: str) -> None:
        """Read everything that the UI lists, of the tenant who floods, also at the same time."""
        addresses = (
            "/nodes",
            "/sweeps",
            *(f"/jobs/{namespace}/{NOISY}/{part}" for part in ("pods", "events", "ranks")),
        )
        with ThreadPoolExecutor(AT_ONCE) as threads:
            assert [code for code, _ in threads.map(self.ui, 2 * addresses)] == [200] * 2 * len(addresses)

    @property
    def metrics(self) -> str:
        return get(self._operator, "/metrics")[1].decode()

    @property
    def archive_metrics(self) -> str:
        return get(self._archiver, "/metrics")[1].decode()


class Reference:
    """A plain client: it sends for a job what the operator sends, and waits for the same changes of pods."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._api = Api(control_plane.url, control_plane.ca_file, control_plane.admin_token)
        self._namespace = namespace
        self._hand = Hand(self._api, namespace, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))

    def start(self, name: str) -> None:
        self._api.create(job(name, managedBy="example.com/reference"), self._namespace)
        service = {"clusterIP": "None", "selector": {"app": name}}
        about = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service}
        self._api.create(about, self._namespace)
        self._run(name, 0)

    def restart(self, name: str) -> None:
        self._hand.end(f"{name}-0-0", 1)
        self._status(name, phase="Restarting", attempt=1)
        self._delete(name, 0)
        self._run(name, 1)

    def failure(self, name: str) -> None:
        self._hand.end(f"{name}-1-0", 1)
        self._status(name, phase="Failed")
        self._delete(name, 1)

    def remove(self, name: str) -> None:
        self._api.delete(KIND, self._namespace, name)
        self._api.delete("Service", self._namespace, name)

    def close(self) -> None:
        self._api.close()

    def _run(self, name: str, attempt: int) -> None:
        names = [f"{name}-{attempt}-{number}" for number in range(2)]
        spec = {"containers": [{"name": TRAINER, "image": "example.org/x:1"}], "restartPolicy": "Never"}
        for pod in names:
            manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec}
            self._api.create(manifest, self._namespace)
        self._status(name, phase="Pending", attempt=attempt)
        for pod in names:
            eventually(lambda pod=pod: self._api.get("Pod", self._namespace, pod)["status"]["phase"] == "Running")  # type: ignore[misc]
        self._status(name, phase="Running")

    def _delete(self, name: str, attempt: int) -> None:
        for number in range(2):
            self._api.delete("Pod", self._namespace, f"{name}-{attempt}-{number}")

    def _status(self, name: str, **status: Any) -> None:
        self._api.patch(KIND, self._namespace, name, {"status": status}, "status")
        self._api.get(KIND, self._namespace, name)


class Tenant:
    """Another tenant, with a kubelet that runs its pods."""

    def __init__(self, control_plane: ControlPlane, services: Services, namespace: str) -> None:
        self._api, self._services, self._namespace = control_plane.api, services, namespace
        self._reference = Reference(control_plane, namespace)
        self._hand = Hand(self._api, namespace, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))

    def life(self, name: str) -> Seconds:
        """Return how long a job takes to start, to restart after a failure, and to fail, and until this is shown.

        A plain client does the same at the same time.
        """
        took, plain = Seconds(), f"plain-{name}"
        with ThreadPoolExecutor(1) as thread:

            def step(what: str, act: Callable[[], Any], phase: str, attempt: int) -> None:
                work = thread.submit(_seconds, lambda: getattr(self._reference, what)(plain))
                took[what] = self._time(act, name, phase, attempt)
                took[f"{what}, plain client"] = work.result()

            of_job = job(name, restart={"maxRestarts": 1, "backoffSeconds": 0})
            step("start", lambda: self._api.create(of_job, self._namespace), "Running", 0)
            step("restart", lambda: self._hand.end(f"{name}-worker-0-0", 1), "Running", 1)
            took["shown"] = _seconds(
                lambda: self._services.until(lambda: self._shown(name) == 1, "the restart in the UI")
            )
            step("failure", lambda: self._hand.end(f"{name}-worker-0-1", 1), "Failed", 1)
        archived = lambda: archived_phase(self._services, self._namespace, name) == "Failed"  # noqa: E731
        took["archived"] = _seconds(lambda: self._services.until(archived, "the end of the job in the archive"))
        self._api.delete(KIND, self._namespace, name)
        self._reference.remove(plain)
        return took

    def lives(self, name: str, last: Callable[[], bool]) -> Seconds:
        """Return the medians of one life after another, until `last()` is true."""
        lives = [self.life(f"{name}-0")]
        while not last():
            lives.append(self.life(f"{name}-{len(lives)}"))
        return {step: statistics.median(life[step] for life in lives) for step in lives[0]}

    def close(self) -> None:
        self._reference.close()

    def _shown(self, name: str) -> int | None:
        """Return the attempt in the UI."""
        code, shown = self._services.ui(f"/jobs/{self._namespace}/{name}")
        return shown["status"]["attempt"] if code == 200 and "status" in shown else None

    def _time(self, act: Callable[[], Any], name: str, phase: str, attempt: int) -> float:
        def reached() -> bool:
            status = self._api.get(KIND, self._namespace, name).get("status", {})
            return (status.get("phase"), status.get("attempt", 0)) == (phase, attempt)

        def whole() -> None:
            act()
            self._services.until(reached, f"{name} is {phase} in attempt {attempt}")

        return _seconds(whole)


def _seconds(act: Callable[[], Any]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def archived_phase(services: Services, namespace: str, name: str) -> str:
    for file in (services.archive / namespace).glob(f"{name}-*/job.json"):
        return str(json.loads(file.read_bytes())["status"]["phase"])
    return ""


@pytest.fixture
def flooder(control_plane: ControlPlane) -> Iterator[str]:
    """The namespace of the tenant who floods."""
    name = f"{floods.NAMESPACE}-{secrets.token_hex(4)}"
    api = control_plane.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    eventually(lambda: api.find("ServiceAccount", name, "default"))
    yield name
    api.delete("Namespace", None, name)


def flood(
    control_plane: ControlPlane, noisy: dict[str, Any], kind: str, size: int
) -> list[tuple[str, str | None, str]]:
    """Create as many objects as fit into the size and the time, beside a job. Return (kind, namespace, name) of each.

    Events are about the job.
    """
    until, namespace = time.monotonic() + FLOOD_SECONDS, noisy["metadata"]["namespace"]
    make = partial(floods.event_of_job, job=noisy) if kind == floods.EVENTS else floods.KINDS[kind]
    count = min(MOST, max(2, size // floods.size(make("x" * 20))))
    names = [f"flood-{secrets.token_hex(3)}-{number}" for number in range(count)]

    def create(part: list[str]) -> list[tuple[str, str | None, str]]:
        api = Api(control_plane.url, control_plane.ca_file, control_plane.admin_token)
        with contextlib.closing(api):
            return [
                entry for name in part if time.monotonic() < until for entry in _created(api, make(name), namespace)
            ]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        parts = threads.map(create, [names[begin::AT_ONCE] for begin in range(AT_ONCE)])
        return [entry for part in parts for entry in part]


def _created(api: Api, manifest: dict[str, Any], namespace: str) -> list[tuple[str, str | None, str]]:
    """Return the object; nothing if the API server is too busy to accept it."""
    where = None if manifest["kind"] in floods.CLUSTER_WIDE else namespace
    try:
        api.create(manifest, where)
    except ApiError as answer:
        if answer.code < 500:
            raise
        return []
    return [(manifest["kind"], where, manifest["metadata"]["name"])]


def removed(api: Api, objects: list[tuple[str, str | None, str]]) -> None:
    for kind, where, name in objects:
        if kind == KIND:
            with contextlib.suppress(ApiError):
                api.patch(kind, where, name, {"metadata": {"finalizers": None}})
    for kind in {kind for kind, where, _ in objects if where}:
        where = next(where for other, where, _ in objects if other == kind)
        with contextlib.suppress(ApiError):
            api.request("DELETE", path(kind, where), {"gracePeriodSeconds": 0})
    for kind, where, name in objects:
        if where is None:
            api.delete(kind, None, name)


CASES = [pytest.param(kind, marks=() if kind in EACH_CHANGE else NIGHTLY, id=kind) for kind in floods.KINDS]


@pytest.mark.parametrize("kind", CASES)
def test_another_tenant_is_served_and_memory_stays_in_the_limits_of_the_chart(
    kind: str, control_plane: ControlPlane, namespace: str, flooder: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    nightly = "nightly" in str(request.config.option.markexpr).replace("not nightly", "")
    services = Services(control_plane, tmp_path)
    tenant = Tenant(control_plane, services, namespace)
    objects: list[tuple[str, str | None, str]] = []
    kubelet = live.kubelet(live.connection(control_plane), Program(seconds=None, stop_seconds=0.1), namespace=namespace)
    try:
        with kubelet:
            services.start()
            noisy = control_plane.api.create(job(NOISY, roles={"worker": {"replicas": 1}}), flooder)
            tenant.life("warm")
            quiet = tenant.lives("quiet", iter([False, False, True]).__next__)
            with ThreadPoolExecutor(1) as thread:
                size = FLOOD_BYTES if nightly or "ALLRANKS_FLOOD_BYTES" in os.environ else FEW_BYTES
                work = thread.submit(flood, control_plane, noisy, kind, size)
                during = tenant.lives("during", work.done)
                objects = work.result()
            services.show(flooder)
            control_plane.api.patch(KIND, flooder, NOISY, {"spec": {"suspend": True}})
            services.until(
                lambda: archived_phase(services, flooder, NOISY) == "Suspended", "the flooded job in the archive"
            )
            services.check()
            services.stop()
            until_ready = _seconds(services.start)
            is_named = lambda: named(services, kind, flooder, control_plane.api, len(objects))  # noqa: E731
            until_named = _seconds(lambda: services.until(is_named, f"the name of {flooder}"))
            services.show(flooder)
            after = tenant.lives("after", iter([False, False, True]).__next__)
    finally:
        services.stop()
        tenant.close()
        removed(control_plane.api, objects)
    peaks = ", ".join(f"{name} {peak:.0f} MiB" for name, peak in services.peaks.items())
    print(f"\n{kind}: {len(objects)} objects; peak of the {peaks}")
    print(f"  after a restart: all ready after {until_ready:.0f} s, named after {until_named:.0f} s")
    for step, seconds in quiet.items():
        ratios = [f"{took[step]:.2f} s ({took[step] / max(seconds, 0.01):.1f})" for took in (during, after)]
        print(f"  {step}: {seconds:.2f} s, during the flood {ratios[0]}, after a restart {ratios[1]}")


def named(services: Services, kind: str, namespace: str, api: Api, count: int) -> bool:
    """Return whether a metric or an Event names the namespace. Objects without one are the platform team's own."""
    if kind == "sweeps that are too large":
        return any(event["reason"] == "InvalidSpec" for event in api.list("Event", namespace))
    if kind.startswith(("pools", "nodes", "namespaces")):
        return True
    if not kind.startswith("jobs"):
        metrics = services.archive_metrics if kind == floods.EVENTS else services.metrics
        return (
            re.search(rf'shared_resource_ratio{{job_namespace="{namespace}",resource="received"}} ', metrics)
            is not None
        )
    jobs = re.findall(rf'allranks_jobs{{[^}}]*job_namespace="{namespace}"[^}}]*}} (\S+)', services.metrics)
    return sum(map(float, jobs)) > count
