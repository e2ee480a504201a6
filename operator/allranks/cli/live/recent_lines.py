"""The lines that pods wrote in the last seconds, through the API server, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from allranks.cli.live.follow import has_log
from allranks.core.model import Pod
from allranks.core.naming import TRAINER
from allranks.errors import ClusterError
from allranks.kube.bounded_lines import lines_of
from allranks.kube.cluster import Cluster
from allranks.kube.paths import core_path

MOST_BYTES = 8 * 2**20
"""Bytes that are read of one pod."""
MOST_PODS = 64
"""Logs that are read at once."""


async def lines_since(
    cluster: Cluster, pods: Sequence[Pod], seconds: int
) -> tuple[list[tuple[Pod, list[bytes]]], list[str]]:
    """The lines that each pod wrote in the last `seconds`, the oldest first, and sentences about what is missing.

    Raises ClusterError.
    """
    notes: list[str] = []
    free = asyncio.Semaphore(MOST_PODS)

    async def one(pod: Pod) -> tuple[Pod, list[bytes]]:
        query: dict[str, str | int | None] = {"container": TRAINER, "sinceSeconds": seconds, "limitBytes": MOST_BYTES}
        found: list[bytes] = []
        path = core_path(cluster.namespace, "pods", pod.name, "log")
        try:
            async with free, cluster.stream(path, query, None) as content:
                async for some in lines_of(content.iter_any(), MOST_BYTES):
                    found += some
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            notes.append(f"{pod.name}: {error}")
        return pod, found

    return list(await asyncio.gather(*(one(pod) for pod in pods if has_log(pod, TRAINER)))), notes
