"""Latency of the operator: from a pod change to the job's status, and from failed pods to their replacements.

Both times are measured from outside: the response to the change, and the watch event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.kube import paths
from allranks.kube.client import Client
from bench.common import Manifest, connection, job, log_progress, make_namespace, percentiles, watching
from bench.creation import plane
from bench.systems import Allranks
from support.kubelet import binding
from support.simulator import pod_status

EXIT_CODE = 138
PODS = 8
clock = time.perf_counter


class Followed:
    """All objects of a kind in a namespace, from a watch."""

    def __init__(self) -> None:
        self.objects: dict[str, Manifest] = {}
        self.first_event_at: dict[str, float] = {}
        self._changed = asyncio.Condition()

    async def take(self, lines: list[bytes]) -> None:
        async with self._changed:
            for line in lines:
                self._show(json.loads(line))
            self._changed.notify_all()

    def _show(self, change: Manifest) -> None:
        name = change["object"]["metadata"]["name"]
        if change["type"] == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = change["object"]
            self.first_event_at.setdefault(name, clock())

    async def when(self, condition: Callable[[dict[str, Manifest]], bool], seconds: float = 120) -> float:
        """Waits for the condition; returns the time at which it became true."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: condition(self.objects))
            return clock()


class Watcher:
    """One namespace: watches its jobs and pods, and acts as the kubelet."""

    def __init__(self, client: Client, namespace: str, jobs: Followed, pods: Followed) -> None:
        self.client, self.namespace, self.jobs, self.pods = client, namespace, jobs, pods

    async def start(self, name: str, pods: int, **spec: Any) -> list[str]:
        """Creates a job and returns the names of its pods once they exist."""
        await self.client.create(paths.job_path(self.namespace), job(name, pods, **spec))
        await self.pods.when(lambda found: len(self.of(found, name)) == pods)
        return sorted(self.of(self.pods.objects, name))

    def of(self, found: dict[str, Manifest], name: str) -> list[str]:
        return [pod for pod in found if pod.startswith(f"{name}-")]

    async def run(self, pod: str) -> float:
        """Binds the pod and sets it to running; returns the time of the response."""
        manifest = self.pods.objects[pod]
        path = paths.item("Pod", self.namespace, pod)
        await self.client.create(f"{path}/binding", binding(manifest, "fake-0"))
        return await self._report(path, pod_status.running({**manifest, "status": {}}, datetime.now(UTC)))

    async def end(self, pod: str, code: int) -> float:
        manifest = self.pods.objects[pod]
        return await self._report(
            paths.item("Pod", self.namespace, pod), pod_status.exited(manifest, datetime.now(UTC), code)
        )

    async def _report(self, path: str, status: Manifest) -> float:
        await self.client.patch(f"{path}/status", {"status": status})
        return clock()

    async def phase(self, name: str, phase: str) -> float:
        return await self.jobs.when(lambda found: found[name].get("status", {}).get("phase") == phase)


@contextlib.asynccontextmanager
async def observing(client: Client, namespace: str) -> AsyncIterator[Watcher]:
    await make_namespace(client, namespace)
    jobs, pods = Followed(), Followed()
    async with (
        watching(client, paths.job_path(namespace), jobs.take),
        watching(client, paths.collection("Pod", namespace), pods.take),
    ):
        yield Watcher(client, namespace, jobs, pods)


async def pod_to_status(watcher: Watcher, rounds: int) -> dict[str, Any]:
    """Milliseconds from the response to a pod change to the job's new phase; 0 if the watch event came first."""
    running, failed, succeeded = [], [], []
    for number in range(rounds):
        name = f"job-{number}"
        pods = await watcher.start(name, PODS, restart={"maxRestarts": 3, "backoffSeconds": 0})
        await asyncio.gather(*(watcher.run(pod) for pod in pods[1:]))
        await asyncio.sleep(1.6)  # pod counts are written, so that no debounced write delays the next one
        at = await watcher.run(pods[0])
        running.append(max(0.0, await watcher.phase(name, "Running") - at))

        await asyncio.sleep(1.6)
        at = await watcher.end(pods[1], EXIT_CODE)
        observed_at = await watcher.jobs.when(lambda found, name=name: found[name]["status"].get("attempt") == 1)
        failed.append(max(0.0, observed_at - at))
        again = [f"{pod[:-1]}1" for pod in pods]
        await watcher.pods.when(lambda found, again=again: all(pod in found for pod in again))
        await asyncio.gather(*(watcher.run(pod) for pod in again))
        await watcher.phase(name, "Running")

        await asyncio.sleep(1.6)
        await asyncio.gather(*(watcher.end(pod, 0) for pod in again[1:]))
        await asyncio.sleep(1.6)
        at = await watcher.end(again[0], 0)
        succeeded.append(max(0.0, await watcher.phase(name, "Succeeded") - at))
        log_progress(f"pod -> status: round {number + 1} of {rounds}")
    every = {"last_pod_runs": running, "a_pod_failed": failed, "last_pod_succeeded": succeeded}
    return {"rounds": rounds, "unit": "ms", **{what: percentiles(1000 * s for s in of) for what, of in every.items()}}


async def many_failures(watcher: Watcher, pods: int, failing: int, rounds: int) -> dict[str, Any]:
    """`failing` pods of a large job whose pods restart alone fail at once."""
    names = await watcher.start("large", pods, restart={"maxRestarts": 9999, "scope": "Pod", "backoffSeconds": 0})
    await asyncio.gather(*(watcher.run(pod) for pod in names))
    await watcher.phase("large", "Running")
    each, all_of_them = [], []
    for turn in range(rounds):
        await asyncio.sleep(3)
        # The backoff of a repeatedly failing pod grows, so each round uses other pods.
        chosen = names[1 + turn * failing : 1 + (turn + 1) * failing]
        answered = dict(
            zip(chosen, await asyncio.gather(*(watcher.end(pod, EXIT_CODE) for pod in chosen)), strict=True)
        )
        await watcher.pods.when(lambda found, chosen=chosen: all(f"{pod}-1" in found for pod in chosen))
        took = [watcher.pods.first_event_at[f"{pod}-1"] - answered[pod] for pod in chosen]
        each += took
        all_of_them.append(max(took))
        await asyncio.gather(*(watcher.run(f"{pod}-1") for pod in chosen))
        log_progress(f"{failing} of {pods} fail: round {turn + 1} of {rounds}, {max(took):.3f} s")
    return {
        "pods": pods,
        "failing": failing,
        "rounds": rounds,
        "unit": "ms",
        "a_replacement": percentiles(1000 * seconds for seconds in each),
        "all_replacements": percentiles(1000 * seconds for seconds in all_of_them),
    }


def latencies(programs: Path, rounds: int, large: tuple[int, int]) -> dict[str, Any]:
    async def measure(system: Allranks) -> dict[str, Any]:
        client = Client(connection(system.plane), user_agent="bench")
        try:
            with system.run():
                await system.ready()
                async with observing(client, "status") as watcher:
                    status = await pod_to_status(watcher, rounds)
                async with observing(client, "failures") as watcher:
                    failures = await many_failures(watcher, *large, rounds=min(rounds, (large[0] - 1) // large[1], 10))
            return {"pod_to_status": status, "failed_to_replacements": failures}
        finally:
            await client.close()

    with plane(programs) as fresh:
        return asyncio.run(measure(Allranks(fresh, programs)))
