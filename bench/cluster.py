"""What the operator costs on a real API server, beside what the same server does for a plain client, in one run.

make bench                     # builds etcd and the API server once
python bench/cluster.py --pods 500 --jobs 1000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.cluster.controlplane import ControlPlane  # noqa: E402
from tests.cluster.kubelet import Kubelet, Program  # noqa: E402

from allranks.drivers.kubernetes import paths  # noqa: E402
from allranks.drivers.kubernetes.client import Client  # noqa: E402
from allranks.drivers.kubernetes.connection import Connection  # noqa: E402
from allranks.drivers.kubernetes.operator import Operator  # noqa: E402
from allranks.settings import Settings  # noqa: E402


def job(name: str, workers: int) -> dict[str, Any]:
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": name},
        "spec": {
            "framework": "pytorch",
            "image": "example.org/x:1",
            "command": ["x"],
            "roles": {"master": {"replicas": 1}, "worker": {"replicas": workers - 1}} if workers > 1 else
            {"worker": {"replicas": 1}},
        },
    }  # fmt: skip


class Bench:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.client = Client(connection)
        self.out: dict[str, Any] = {}

    async def namespace(self, name: str) -> str:
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.client.create("/api/v1/namespaces", manifest)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with contextlib.suppress(Exception):
            await self.client.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)
        return name

    @contextlib.asynccontextmanager
    async def operator(self, namespace: str) -> AsyncIterator[Operator]:
        settings = Settings(namespaces=(namespace,), address="127.0.0.1", port=0, pools=False)
        operator, stop = Operator(settings, self.connection), asyncio.Event()
        run = asyncio.create_task(operator.run(stop))
        try:
            await until(lambda: operator.idle)
            yield operator
        finally:
            stop.set()
            await run

    async def phases(self, namespace: str) -> list[str]:
        found = json.loads(await self.client.get(paths.jobs(namespace)))["items"]
        return [item.get("status", {}).get("phase", "") for item in found]


async def until(condition: Callable[[], Any], seconds: float = 300) -> None:
    """Polls inside this process, or asks the API server seldom."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, "it takes too long"
        await asyncio.sleep(0.02)


async def pods_per_second(bench: Bench, pods: int) -> None:
    """The same pods, created by a plain client with the same concurrency, and by the operator."""
    from allranks.api import validate
    from allranks.api.status import Status
    from allranks.core import desired
    from allranks.core.model import Platform

    document = job("raw", pods)
    wanted = desired.objects(validate.parse(document), Status(), Platform(helper_image="x")).pods
    plain, ours = [], []
    for turn in range(3):
        namespace = await bench.namespace(f"raw-{turn}")
        began = time.monotonic()
        path = paths.collection("Pod", namespace)

        def of(pod: dict[str, Any], namespace: str = namespace) -> dict[str, Any]:
            metadata = {k: v for k, v in pod["metadata"].items() if k != "ownerReferences"}
            return {**pod, "metadata": {**metadata, "namespace": namespace}}

        await asyncio.gather(*(bench.client.create(path, of(pod)) for pod in wanted))
        plain.append(pods / (time.monotonic() - began))

        namespace = await bench.namespace(f"ours-{turn}")
        async with bench.operator(namespace) as operator:
            began = time.monotonic()
            await bench.client.create(paths.jobs(namespace), job("ours", pods))
            await until(lambda operator=operator: operator.session and len(operator.session.pods) == pods)
            ours.append(pods / (time.monotonic() - began))
    bench.out["pods"] = pods
    bench.out["plain_pods_per_second"] = round(sorted(plain)[1])
    bench.out["operator_pods_per_second"] = round(sorted(ours)[1])
    bench.out["ratio"] = round(sorted(ours)[1] / sorted(plain)[1], 2)


async def writes_per_job(bench: Bench, pods: int) -> None:
    """From creation to success, with all ranks starting and ending together."""
    namespace = await bench.namespace("writes")
    kubelet = asyncio.create_task(Kubelet(bench.connection, lambda _: Program(seconds=2.0), namespace=namespace).run())
    async with bench.operator(namespace) as operator:
        assert operator.session
        await bench.client.create(paths.jobs(namespace), job("demo", pods))
        await until(lambda: _succeeded(bench, namespace, 1))
        await until(lambda: operator.idle)
        events = json.loads(await bench.client.get(paths.collection("Event", namespace)))["items"]
        told = sum(item["involvedObject"]["kind"] == "DistributedTraining" for item in events)
        writes = operator.session.client.writes
        bench.out["writes_of_one_job"] = {"pods": pods, "writes": writes - told, "events": told}
        before = operator.session.client.writes
        began = time.monotonic()
        await asyncio.sleep(5)
        bench.out["writes_while_settled"] = operator.session.client.writes - before
        assert time.monotonic() - began >= 5
    kubelet.cancel()
    await asyncio.gather(kubelet, return_exceptions=True)


async def _succeeded(bench: Bench, namespace: str, count: int) -> bool:
    await asyncio.sleep(0.2)
    return (await bench.phases(namespace)).count("Succeeded") == count


async def many_jobs(bench: Bench, jobs: int) -> None:
    """So many jobs of one rank at once, and then a new life of the operator."""
    namespace = await bench.namespace("many")
    async with bench.operator(namespace) as operator:
        began = time.monotonic()
        await asyncio.gather(
            *(bench.client.create(paths.jobs(namespace), job(f"job-{number}", 1)) for number in range(jobs))
        )
        bench.out["jobs"] = jobs
        bench.out["jobs_created_seconds"] = round(time.monotonic() - began, 1)
        await until(lambda: operator.session and len(operator.session.pods) == jobs)
        await until(lambda: operator.idle)
        bench.out["jobs_settled_seconds"] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    async with bench.operator(namespace) as operator:
        assert operator.session
        await until(lambda: operator.idle and len(operator.session.controller.jobs) == jobs)  # type: ignore[union-attr]
        bench.out["restart_with_jobs_seconds"] = round(time.monotonic() - began, 1)
        bench.out["writes_after_restart"] = operator.session.client.writes


async def run(connection: Connection, pods: int, jobs: int) -> dict[str, Any]:
    bench = Bench(connection)
    try:
        await pods_per_second(bench, pods)
        await writes_per_job(bench, 64)
        await many_jobs(bench, jobs)
    finally:
        await bench.client.close()
    return bench.out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=256, help="pods of the large job (default 256)")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs at once (default 1000)")
    given = parser.parse_args()
    script = subprocess.run([ROOT / "tools" / "controlplane.sh"], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        control_plane = ControlPlane(Path(script.stdout.strip()), Path(folder))
        control_plane.start(sorted((ROOT / "crds").glob("*.yaml")))
        try:
            connection = Connection(control_plane.url, str(control_plane.ca_file), control_plane.admin_token)
            print(json.dumps(asyncio.run(run(connection, given.pods, given.jobs)), indent=2))
        finally:
            control_plane.stop()


if __name__ == "__main__":
    main()
