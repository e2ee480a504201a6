"""Time from submission until all pods exist: each system on its own API server, with interleaved rounds."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from allranks.kube import paths
from allranks.kube.client import Client
from bench import cores
from bench.common import ROOT, connection, cpu_seconds, log_progress, make_namespace, memory, quiet, watching
from bench.systems import Shape, System
from support.controlplane import ControlPlane

SHAPES = (Shape(1, 256), Shape(1, 1000), Shape(100, 4), Shape(1000, 1))
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
Sample = dict[str, float]


@contextlib.contextmanager
def plane(programs: Path, definitions: Iterable[Path] = (), audit_policy: str = "") -> Iterator[ControlPlane]:
    """An API server with etcd, containing only the CRDs of allranks and `definitions`."""
    with tempfile.TemporaryDirectory() as folder:
        started = ControlPlane(programs, Path(folder), audit_policy)
        started.start([*sorted((ROOT / "crds").glob("*.yaml")), *definitions])
        cores.give_to_server(server(started))
        try:
            yield started
        finally:
            started.stop()


def server(of: ControlPlane) -> list[int]:
    """etcd and API server."""
    return [of.pids["etcd"], of.pids["kube-apiserver"]]


class Count:
    """Counts the pods created in a namespace, from a metadata watch whose events are not decoded."""

    def __init__(self, wanted: int) -> None:
        self.at = 0.0
        """Time of the last one."""
        self.reached = asyncio.Event()
        self._left = wanted

    async def take(self, lines: list[bytes]) -> None:
        self._left -= sum(line.startswith(b'{"type":"ADDED"') for line in lines)
        if self._left <= 0 and not self.reached.is_set():
            self.at = time.perf_counter()
            self.reached.set()


async def once(system: System, shape: Shape, namespace: str, seconds: float) -> Sample:
    """Measures one shape, from the first submission to the last pod; CPU time until the system is idle again."""
    client = Client(connection(system.plane), user_agent="bench")
    try:
        await make_namespace(client, namespace)
        system.prepare(namespace, shape)
        own, of_server = cpu_seconds(system.pids), cpu_seconds(server(system.plane))
        count = Count(shape.total)
        async with watching(client, paths.collection("Pod", namespace), count.take, Accept=METADATA):
            began = time.perf_counter()
            await system.submit(client, namespace, shape)
            await asyncio.wait_for(count.reached.wait(), seconds)
        await quiet(system.pids)
        return {
            "seconds": count.at - began,
            "cpu": cpu_seconds(system.pids) - own,
            "server_cpu": cpu_seconds(server(system.plane)) - of_server,
            "memory": max(memory(pid) for pid in system.pids),
        }
    finally:
        await client.close()


def rounds(
    programs: Path, systems: Sequence[type[System]], shapes: Sequence[Shape], number: int
) -> dict[str, dict[str, list[Sample]]]:
    """Samples by system and shape. Throttled systems run only in the first round."""
    out: dict[str, dict[str, list[Sample]]] = {kind.name: {shape.name: [] for shape in shapes} for kind in systems}
    for turn in range(number):
        # Each round starts with another system.
        ordered = [*systems[turn % len(systems) :], *systems[: turn % len(systems)]]
        for kind in ordered:
            if turn and kind.throttled:
                continue
            with plane(programs, kind.definitions()) as fresh:
                asyncio.run(_round(kind(fresh, programs), shapes, turn, out))
    return out


async def _round(system: System, shapes: Sequence[Shape], turn: int, out: dict[str, dict[str, list[Sample]]]) -> None:
    await quiet(system.plane.pids.values(), share=0.3)
    with system.run():
        await system.ready()
        for shape in shapes:
            sample = await once(system, shape, f"n{turn}-{shape.jobs}-{shape.pods}", 900)
            out[system.name][shape.name].append(sample)
            log_progress(f"round {turn + 1}: {system.name}, {shape.name}: {sample['seconds']:.3f} s")


def summary(samples: dict[str, dict[str, list[Sample]]], limit: str) -> dict[str, Any]:
    """Medians, minima and maxima, and the ratio to the limit in the same run."""
    out: dict[str, Any] = {}
    for name, by_shape in samples.items():
        out[name] = {}
        for shape, of in by_shape.items():
            if not of:
                continue
            seconds = [sample["seconds"] for sample in of]
            against = samples.get(limit, {}).get(shape)
            out[name][shape] = {
                "rounds": len(of),
                "seconds": round(median(seconds), 3),
                "from": round(min(seconds), 3),
                "to": round(max(seconds), 3),
                "cpu_seconds": round(median(sample["cpu"] for sample in of), 2),
                "server_cpu_seconds": round(median(sample["server_cpu"] for sample in of), 2),
                "memory_mb": round(median(sample["memory"] for sample in of)),
            }
            if against:
                best = median(sample["seconds"] for sample in against)
                out[name][shape]["of_the_limit"] = round(best / median(seconds), 2)
    return out
