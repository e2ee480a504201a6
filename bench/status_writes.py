"""What the rules of the CRD cost the API server: `python bench/status_writes.py [NAME=CRD.yaml ...] [--jobs]`

`merged` is today's CRD, `single` the same with each rule apart, `none` without rules; files are compared with them.
Each CRD has an API server of its own, and rounds are interleaved. The result is the median of CPU milliseconds of the
API server per status write. With `--jobs` the operator creates 100 jobs of 4 pods: CPU seconds of the API server and
etcd, and seconds until all pods exist.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from allranks.api.crd import crd, root_schema  # noqa: E402
from allranks.api.job import KIND  # noqa: E402
from allranks.kube import paths  # noqa: E402
from allranks.kube.client import Client  # noqa: E402
from bench import creation  # noqa: E402
from bench.common import connection, cpu_seconds, make_namespace, programs  # noqa: E402
from bench.systems import Allranks, Shape  # noqa: E402
from support.controlplane import ControlPlane  # noqa: E402
from support.live import job  # noqa: E402


def without_rules(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: without_rules(child) for name, child in node.items() if name != "x-kubernetes-validations"}
    return [without_rules(child) for child in node] if isinstance(node, list) else node


async def set_up(plane: ControlPlane) -> None:
    client = Client(connection(plane))
    try:
        await make_namespace(client, "bench")
        await client.create(paths.job_path("bench"), job())
    finally:
        await client.close()


async def write(plane: ControlPlane, writes: int) -> float:
    """CPU milliseconds of the API server per status write."""
    client = Client(connection(plane))
    try:
        path = paths.job_path("bench", "demo", "status")
        pid = [plane.pids["kube-apiserver"]]
        before = cpu_seconds(pid)
        for number in range(writes):
            status = {"status": {"ready": f"{number % 5}/4", "observedGeneration": 1, "attempt": number}}
            await client.patch(path, status)
        return 1000 * (cpu_seconds(pid) - before) / writes
    finally:
        await client.close()


async def jobs(plane: ControlPlane, number: int) -> tuple[float, float]:
    """(CPU seconds of API server and etcd, seconds until all pods exist) for 100 jobs of 4 pods."""
    system = Allranks(plane, programs())
    with system.run():
        await system.ready()
        sample = await creation.once(system, SHAPE, f"jobs-{number}", 900)
    return sample["server_cpu"], sample["seconds"]


SHAPE = Shape(100, 4)


def definitions(files: dict[str, Path]) -> dict[str, Any]:
    """Name -> CRD of jobs."""
    merged = crd(KIND)
    single = json.loads(json.dumps(merged))
    single["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = root_schema(KIND)
    read = {name: yaml.safe_load(file.read_text()) for name, file in files.items()}
    return {**read, "single": single, "merged": merged, "none": without_rules(merged)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crds", nargs="*", metavar="NAME=FILE")
    parser.add_argument("--writes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", action="store_true", help="also 100 jobs of 4 pods, with the operator")
    asked = parser.parse_args()
    named = {name: Path(file) for name, file in (item.split("=", 1) for item in asked.crds)}
    pools = ROOT / "crds" / "trainingpools.yaml"
    found: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        planes = {}
        for name, definition in definitions(named).items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / "crd.yaml").write_text(yaml.safe_dump(definition))
            planes[name] = ControlPlane(programs(), folder)
            stack.callback(planes[name].stop)
            planes[name].start([folder / "crd.yaml", pools])
            asyncio.run(set_up(planes[name]))
            found[name] = {"ms of CPU per status write": []}
        for number in range(asked.rounds + 1):
            for name, plane in planes.items():
                found[name]["ms of CPU per status write"].append(asyncio.run(write(plane, asked.writes)))
                if asked.jobs:
                    cpu, seconds = asyncio.run(jobs(plane, number))
                    found[name].setdefault(f"{SHAPE.name}: s of CPU", []).append(cpu)
                    found[name].setdefault(f"{SHAPE.name}: s", []).append(seconds)
                print(f"round {number}: {name}: {json.dumps(found[name])}", file=sys.stderr)
    # The first round warms up.
    medians = {name: {what: round(median(each[1:]), 3) for what, each in of.items()} for name, of in found.items()}
    print(json.dumps(medians, indent=2))


if __name__ == "__main__":
    main()
