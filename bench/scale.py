"""Ten thousand pods: idle, with churn, and after a restart of the operator; and the jobs of one day in sequence."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from statistics import median
from typing import Any

from allranks.kube import paths
from allranks.kube.client import Client
from bench.common import connection, cpu_seconds, job, log_progress, make_namespace, memory, quiet, until
from bench.creation import plane, server
from bench.life import kubelet
from bench.systems import Allranks

JOBS_AT_ONCE = 50


def scale(programs: Path, jobs: int, pods: int, seconds: float) -> dict[str, Any]:
    """Measures running jobs: idle, with one percent replaced each second, and after a restart of the operator."""

    async def measure(system: Allranks) -> dict[str, Any]:
        client = Client(connection(system.plane), user_agent="bench")
        out: dict[str, Any] = {"jobs": jobs, "pods": jobs * pods}
        uids: dict[int, str] = {}
        try:
            namespace = await make_namespace(client, "scale")
            with system.run():
                await system.ready()
                out["memory_mb_without_jobs"] = round(memory(system.pids[0]))
                for first in range(0, jobs, JOBS_AT_ONCE):
                    numbers = range(first, min(jobs, first + JOBS_AT_ONCE))
                    uids |= await _create(client, namespace, numbers, pods)
                    await until(lambda stop=numbers.stop: _all_run(system, stop), 600, every=0.5)
                    log_progress(f"{numbers.stop} of {jobs} jobs run")
                await quiet(system.pids)
                out["memory_mb"] = round(memory(system.pids[0]))
                out["idle"] = await _idle(system, seconds)
                out["churn"] = await _churn(system, client, namespace, uids, pods, seconds)
                out["churn"]["memory_mb"] = round(memory(system.pids[0]))
            # Pods of the deleted jobs are still being removed, by Kubernetes' garbage collector and the kubelet.
            out["cold_start_beside_removals"] = await _cold_start(system, jobs)
            await until(lambda: _has(client, namespace, jobs * pods), 600, every=1.0)
            await quiet(server(system.plane), share=0.2)
            out["cold_start"] = await _cold_start(system, jobs)
            return out
        finally:
            await client.close()

    with plane(programs) as fresh, kubelet(fresh):
        return asyncio.run(measure(Allranks(fresh, programs)))


async def _create(client: Client, namespace: str, numbers: range, pods: int, **spec: Any) -> dict[int, str]:
    """UIDs by number."""
    manifests = (job(f"job-{number}", pods, **spec) for number in numbers)
    answers = await asyncio.gather(*(client.create(paths.job_path(namespace), manifest) for manifest in manifests))
    return {number: json.loads(text)["metadata"]["uid"] for number, text in zip(numbers, answers, strict=True)}


def metrics(system: Allranks) -> dict[str, float]:
    found = re.findall(r"^(allranks\S+) (\S+)$", system.answers("/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in found}


def _all_run(system: Allranks, jobs: int) -> bool:
    found = metrics(system)
    running = (number for name, number in found.items() if re.match(r'allranks_jobs\{.*phase="Running"', name))
    return sum(running) == jobs


async def _idle(system: Allranks, seconds: float) -> dict[str, float]:
    cpu, of_server, began = cpu_seconds(system.pids), cpu_seconds(server(system.plane)), time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    return {
        "core": round((cpu_seconds(system.pids) - cpu) / took, 4),
        "server_core": round((cpu_seconds(server(system.plane)) - of_server) / took, 3),
    }


async def _churn(
    system: Allranks, client: Client, namespace: str, uids: dict[int, str], pods: int, seconds: float
) -> dict[str, float]:
    """Each second, one percent of the jobs is deleted and as many new ones are submitted."""
    jobs = len(uids)
    each = max(1, jobs // 100)
    cpu, of_server, began = cpu_seconds(system.pids), cpu_seconds(server(system.plane)), time.monotonic()
    late = 0.0
    for turn in range(round(seconds)):
        newest, gone = max(uids) + 1, sorted(uids)[:each]
        await asyncio.gather(
            *(client.delete(paths.job_path(namespace, f"job-{number}"), uids.pop(number)) for number in gone)
        )
        uids |= await _create(client, namespace, range(newest, newest + each), pods)
        late = max(late, time.monotonic() - began - turn - 1)
        await asyncio.sleep(max(0.0, began + turn + 1 - time.monotonic()))
    asked = time.monotonic()
    took = asked - began
    of_operator = (cpu_seconds(system.pids) - cpu) / took
    of_servers = (cpu_seconds(server(system.plane)) - of_server) / took
    await until(lambda: _all_run(system, jobs), 600, every=0.2)
    return {
        "jobs_a_second": each,
        "core": round(of_operator, 3),
        "server_core": round(of_servers, 3),
        "behind_seconds": round(late, 1),
        "settled_after_seconds": round(time.monotonic() - asked, 1),
    }


async def _has(client: Client, namespace: str, wanted: int) -> bool:
    """Whether there are exactly this many pods."""
    page = json.loads(await client.get(paths.collection("Pod", namespace), limit="1"))
    return len(page["items"]) + page["metadata"].get("remainingItemCount", 0) == wanted


async def _cold_start(system: Allranks, jobs: int) -> dict[str, float]:
    """Measures from the start of the process until every job is reconciled and the work queue is empty."""
    system.pids.clear()
    began = time.monotonic()
    with system.run():
        await until(lambda: system.answers("/readyz") == "ok", 120, every=0.05)
        listed = time.monotonic() - began

        def done() -> bool:
            found = metrics(system)
            reconciled = found.get("allranks_reconcile_seconds_count", 0) >= jobs
            return reconciled and found.get("allranks_queue_depth") == 0

        await until(done, 120, every=0.05)
        took = time.monotonic() - began
        found = metrics(system)
        changes = sum(
            value for name, value in found.items() if re.match(r".*requests_total\{.*verb=\"(POST|PATCH|DELETE)", name)
        )
        return {
            "listed_seconds": round(listed, 1),
            "seconds": round(took, 1),
            "changes": changes,
            "memory_mb": round(memory(system.pids[0])),
        }


def day(programs: Path, jobs: int, pods: int) -> dict[str, Any]:
    """Runs the jobs of a busy day, two seconds each; reports memory after each tenth of them."""

    async def measure(system: Allranks) -> dict[str, Any]:
        client = Client(connection(system.plane), user_agent="bench")
        sizes: list[float] = []
        try:
            namespace = await make_namespace(client, "day")
            with system.run():
                await system.ready()
                began = time.monotonic()
                for tenth in range(10):
                    for first in range(tenth * jobs // 10, (tenth + 1) * jobs // 10, JOBS_AT_ONCE):
                        numbers = range(first, min((tenth + 1) * jobs // 10, first + JOBS_AT_ONCE))
                        await _create(client, namespace, numbers, pods, ttlSecondsAfterFinished=1)

                        async def gone() -> bool:
                            found = await client.get(paths.job_path(namespace), resourceVersion="0")
                            return not json.loads(found)["items"]

                        await until(gone, 300, every=0.3)
                    await quiet(system.pids)
                    sizes.append(memory(system.pids[0]))
                    log_progress(f"day: {tenth + 1} of 10, {sizes[-1]:.1f} MB")
                return {
                    "jobs": jobs,
                    "pods": jobs * pods,
                    "seconds": round(time.monotonic() - began),
                    "memory_mb": [round(size, 1) for size in sizes],
                    "growth": round(median(sizes[-3:]) / median(sizes[1:4]), 3),
                }
        finally:
            await client.close()

    with plane(programs) as fresh, kubelet(fresh, "--run-seconds=2"):
        return asyncio.run(measure(Allranks(fresh, programs)))
