"""Time from a job's admission by Kueue until all its pods exist, beside a job of the same size that is in no queue.

python -m bench.admission                    # 256 pods, five rounds
python -m bench.admission --pods 1000 --rounds 3

Both are created on the same API server, with the same operator and with a real Kueue, whose webhooks see every pod. The
job of the queue is measured from the watch event in which its Workload is admitted, the other one from its submission.
Prints JSON: medians in seconds, and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from allranks.api.job import KIND
from allranks.kube import paths
from allranks.kube.client import Client
from bench.common import connection, job, log_progress, make_namespace, programs, quiet, watching
from bench.creation import METADATA, Count
from bench.systems import Allranks
from support import front_proxy
from support import kueue as kueue_support
from support.api import path
from support.controlplane import ControlPlane

ROOT = Path(__file__).parents[1]


class Queueing(Allranks):
    """The operator, with queues."""

    def command(self) -> list[str]:
        return [*super().command(), "--queues"]


class Admission:
    """When the Workload of a namespace was admitted."""

    def __init__(self) -> None:
        self.at = 0.0

    async def take(self, lines: list[bytes]) -> None:
        for line in lines:
            conditions = json.loads(line)["object"].get("status", {}).get("conditions") or ()
            if not self.at and any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions):
                self.at = time.perf_counter()


async def once(system: Queueing, pods: int, namespace: str, queued: bool) -> float:
    """Seconds from the admission, or from the submission, to the last pod."""
    client = Client(connection(system.plane), user_agent="bench")
    try:
        await make_namespace(client, namespace)
        kueue_support.add_queue(system.plane.api, namespace, namespace, {"cpu": str(pods), "memory": f"{pods}Gi"})
        resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
        manifest = job("bench", pods, resources=resources, **({"scheduling": {"queue": namespace}} if queued else {}))
        created, admission = Count(pods), Admission()
        workloads = path(kueue_support.WORKLOAD, namespace)
        async with (
            watching(client, paths.collection("Pod", namespace), created.take, Accept=METADATA),
            watching(client, workloads, admission.take),
        ):
            began = time.perf_counter()
            await client.create(f"{system.group}/namespaces/{namespace}/{system.plural}", manifest)
            await asyncio.wait_for(created.reached.wait(), 300)
        system.plane.api.delete(KIND, namespace, "bench")
        await quiet(system.pids)
        return created.at - (admission.at if queued else began)
    finally:
        await client.close()


async def measure(system: Queueing, pods: int, rounds: int) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {"queued": [], "unqueued": []}
    with system.run():
        await system.ready()
        for turn in range(rounds):
            for name in ("queued", "unqueued") if turn % 2 else ("unqueued", "queued"):
                seconds = await once(system, pods, f"{name}-{turn}", name == "queued")
                out[name].append(seconds)
                log_progress(f"round {turn + 1}: {name}: {seconds:.3f} s")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=256, help="pods of each job (default 256)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind (default 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-admission-") as name:
        folder = Path(name)
        plane = ControlPlane(programs(), folder, api_server_options=front_proxy.options(folder))
        plane.start(sorted((ROOT / "crds").glob("*.yaml")))
        kueue = kueue_support.Kueue(plane, kueue_support.build())
        try:
            kueue.install()
            kueue.start()
            found = asyncio.run(measure(Queueing(plane, programs()), options.pods, options.rounds))
        finally:
            kueue.stop()
            plane.stop()
    medians = {name: round(median(seconds), 3) for name, seconds in found.items()}
    spread = {name: [round(min(seconds), 3), round(max(seconds), 3)] for name, seconds in found.items()}
    ratio = round(medians["queued"] / medians["unqueued"], 2)
    print(
        json.dumps(
            {"pods": options.pods, "rounds": options.rounds, "seconds": medians, "from_to": spread} | {"ratio": ratio}
        )
    )


if __name__ == "__main__":
    main()
