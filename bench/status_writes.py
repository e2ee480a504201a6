"""What a status write costs the API server, by the rules of the CRD: `python bench/status_writes.py NAME=CRD.yaml ...`

Each CRD has an API server of its own. Rounds are interleaved; the result is the median of CPU milliseconds of the API
server per status write. `none` is the first CRD without rules.
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

from allranks.kube import paths  # noqa: E402
from allranks.kube.client import Client  # noqa: E402
from bench.common import connection, cpu_seconds, make_namespace, programs  # noqa: E402
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
        await client.create(paths.jobs("bench"), job())
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crds", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--writes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    named = dict(crd.split("=", 1) for crd in asked.crds)
    first = yaml.safe_load(Path(next(iter(named.values()))).read_text())
    with contextlib.ExitStack() as stack:
        planes = {}
        for name in (*named, "none"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            crd = folder / "crd.yaml"
            crd.write_text(Path(named[name]).read_text() if name in named else yaml.safe_dump(without_rules(first)))
            planes[name] = ControlPlane(programs(), folder)
            stack.callback(planes[name].stop)
            planes[name].start([crd])
            asyncio.run(set_up(planes[name]))
        found: dict[str, list[float]] = {name: [] for name in planes}
        for _ in range(asked.rounds + 1):
            for name, plane in planes.items():
                found[name].append(asyncio.run(write(plane, asked.writes)))
    # The first round warms up.
    print(json.dumps({name: round(median(each[1:]), 3) for name, each in found.items()}))


if __name__ == "__main__":
    main()
