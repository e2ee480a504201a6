"""Measures the full lifecycle of pods: created, placed, running, ended, deleted with their job.

Reports CPU time, memory, and writes from the API server's audit log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allranks.kube import paths
from allranks.kube.client import Client
from bench.common import connection, cpu_seconds, log_progress, make_namespace, memory, process, quiet, until
from bench.creation import plane, server
from bench.systems import Shape, System
from support.controlplane import ControlPlane

SHAPES = (Shape(1, 256), Shape(100, 4))
RUN_SECONDS = 5.0
POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}
  - {level: None}
"""


@contextlib.contextmanager
def kubelet(of: ControlPlane, *arguments: str) -> Iterator[None]:
    """The fake kubelet, in its own process."""
    command = [sys.executable, "-m", "support.kubelet", f"--kubeconfig={of.kubeconfig}", *arguments]
    with process(command, of.folder / "kubelet.log", env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}):
        yield


def lives(programs: Path, systems: Sequence[type[System]], shapes: Sequence[Shape]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for kind in systems:
        for shape in shapes:
            with plane(programs, kind.definitions(), POLICY) as fresh, kubelet(fresh, f"--run-seconds={RUN_SECONDS}"):
                found = asyncio.run(_life(kind(fresh, programs), shape))
            out.setdefault(kind.name, {})[shape.name] = found
            log_progress(f"lifecycle: {kind.name}, {shape.name}: {found['cpu_ms_per_pod']} ms per pod")
    return out


async def _life(system: System, shape: Shape) -> dict[str, Any]:
    client = Client(connection(system.plane), user_agent="bench")
    try:
        with system.run():
            await system.ready()
            namespace = await make_namespace(client, "life")
            before, of_server = cpu_seconds(system.pids), cpu_seconds(server(system.plane))
            idle = max(memory(pid) for pid in system.pids)
            jobs = f"{system.group}/namespaces/{namespace}/{system.plural}"
            await system.submit(client, namespace, shape)

            async def items(path: str) -> list[Any]:
                return list(json.loads(await client.get(path, resourceVersion="0"))["items"])

            async def over() -> bool:
                found = await items(jobs)
                return len(found) == shape.jobs and all(system.finished(item) for item in found)

            await until(over, 600, every=1.0)
            await quiet(system.pids)
            options = {"propagationPolicy": "Background"}
            for item in await items(jobs):
                await client.request("DELETE", f"{jobs}/{item['metadata']['name']}", options)

            async def gone() -> bool:
                return not await items(paths.collection("Pod", namespace))

            await until(gone, 300, every=1.0)
            await quiet(system.pids)
            cpu = cpu_seconds(system.pids) - before
            return {
                "cpu_ms_per_pod": round(1000 * cpu / shape.total, 2),
                "server_cpu_ms_per_pod": round(1000 * (cpu_seconds(server(system.plane)) - of_server) / shape.total, 2),
                "memory_mb_idle": round(idle),
                "memory_mb_peak": round(max(memory(pid, "VmHWM") for pid in system.pids)),
                "writes_per_job": writes(system.plane.audit_log, namespace, shape.jobs),
            }
    finally:
        await client.close()


def writes(log: Path, namespace: str, jobs: int) -> dict[str, dict[str, float]]:
    """Successful writes per job, by user agent, then verb and resource."""
    counts: Counter[tuple[str, str]] = Counter()
    with log.open() as lines:
        for line in lines:
            event = json.loads(line)
            what = event.get("objectRef", {})
            if what.get("namespace") != namespace or event["responseStatus"]["code"] >= 300:
                continue
            resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
            counts[agent(event.get("userAgent", "")), f"{event['verb']} {resource}"] += 1
    out: dict[str, dict[str, float]] = {}
    for (who, change), count in sorted(counts.items()):
        out.setdefault(who, {})[change] = round(count / jobs, 2)
    return out


def agent(text: str) -> str:
    """`kube-controller-manager/v1.36.3 (linux/amd64) .../job-controller` -> first and last word."""
    program = text.split("/", 1)[0]
    rest = text.rpartition("/")[2] if " " in text else ""
    return f"{program}/{rest}" if rest and not any(c.isdigit() for c in rest) else program
