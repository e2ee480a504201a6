"""Memory and start of the operator in a cluster with many nodes and namespaces.

python -m bench.namespaces                                # 5,000 nodes, 500 namespaces, a job of 10 pods in each
python -m bench.namespaces --namespaces 50 --nodes 500

One pod runs on each node. The operator serves all namespaces, and then each of them by name, as a release that is
confined to namespaces: it has a watch of jobs, pods and sweeps for each. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from allranks.kube.client import Client
from bench.common import connection, cpu_seconds, job, log_progress, make_namespace, memory, programs, quiet, until
from bench.creation import plane
from bench.life import kubelet
from bench.scale import _all_run, metrics
from bench.systems import Allranks
from support.controlplane import ControlPlane

AT_ONCE = 25
IDLE_SECONDS = 20.0


class Confined(Allranks):
    """The operator of a release for namespaces."""

    namespaces: tuple[str, ...] = ()

    def command(self) -> list[str]:
        names = f"--namespaces={','.join(self.namespaces)}"
        return [*super().command(), *([names, "--no-pools"] if self.namespaces else [])]


async def fill(client: Client, system: Allranks, names: list[str], nodes: int) -> None:
    """Create the nodes, and run a job in each namespace."""
    for first in range(0, nodes, 100):
        manifests = [{"metadata": {"name": f"node-{number}"}} for number in range(first, min(nodes, first + 100))]
        await asyncio.gather(*(client.create("/api/v1/nodes", manifest) for manifest in manifests))
    for first in range(0, len(names), AT_ONCE):
        part = names[first : first + AT_ONCE]
        await asyncio.gather(*(make_namespace(client, name) for name in part))
        pods = max(1, nodes // len(names))
        where = "/apis/allranks.dev/v1alpha1/namespaces/{}/distributedtrainings"
        await asyncio.gather(*(client.create(where.format(name), job("demo", pods)) for name in part))
        count = first + len(part)
        await until(lambda count=count: _all_run(system, count), 900, every=0.5)
        log_progress(f"{count} of {len(names)} jobs run")


async def start(system: Allranks, jobs: int) -> dict[str, Any]:
    """Return the time from the start of the process until it is ready and has reconciled every job, and its memory."""
    system.pids.clear()
    began = time.monotonic()
    with system.run():
        await until(lambda: system.answers("/readyz") == "ok", 600, every=0.05)
        ready = time.monotonic() - began

        def done() -> bool:
            found = metrics(system)
            reconciled = found.get("allranks_reconcile_seconds_count", 0) >= jobs
            return reconciled and found.get("allranks_queue_depth") == 0

        await until(done, 600, every=0.05)
        settled = time.monotonic() - began
        [pid] = system.pids
        await quiet([pid], share=0.2)
        cpu, idle_from = cpu_seconds([pid]), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        return {
            "ready_seconds": round(ready, 1),
            "settled_seconds": round(settled, 1),
            "memory_mb": round(memory(pid)),
            "peak_mb": round(memory(pid, "VmHWM")),
            "idle_core": round((cpu_seconds([pid]) - cpu) / (time.monotonic() - idle_from), 3),
        }


async def measure(fresh: ControlPlane, count: int, nodes: int) -> dict[str, Any]:
    names = [f"team-{number}" for number in range(count)]
    system, client = Confined(fresh, programs()), Client(connection(fresh), user_agent="bench")
    try:
        with system.run():
            await until(lambda: system.answers("/readyz") == "ok", 600)
            await fill(client, system, names, nodes)
    finally:
        await client.close()
    out: dict[str, Any] = {"nodes": nodes, "namespaces": count, "all namespaces": await start(system, count)}
    system.namespaces = tuple(names)
    return out | {"each namespace": await start(system, count)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespaces", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=5000)
    options = parser.parse_args()
    with plane(programs()) as fresh, kubelet(fresh):
        print(json.dumps(asyncio.run(measure(fresh, options.namespaces, options.nodes)), indent=2))


if __name__ == "__main__":
    main()
