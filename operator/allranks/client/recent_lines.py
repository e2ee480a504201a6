"""The lines that pods wrote in the last seconds, through the API server, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from allranks.client.follow import has_log
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.pod_logs import open_log

MOST_BYTES = 8 * 2**20
"""Bytes that are read of one pod."""
MOST_PODS = 64
"""Logs that are read at once."""


async def lines_since(
    cluster: Cluster, pods: Sequence[Pod], seconds: int
) -> tuple[list[tuple[Pod, list[bytes]]], list[str]]:
    """Return the lines that each pod wrote in the last `seconds`, the oldest first, and notes about missing ones.

    Raise ClusterError.
    """
    notes: list[str] = []
    free = asyncio.Semaphore(MOST_PODS)

    async def read(pod: Pod) -> tuple[Pod, list[bytes]]:
        query: dict[str, str | int | None] = {"container": TRAINER, "sinceSeconds": seconds, "limitBytes": MOST_BYTES}
        lines: list[bytes] = []
        try:
            async with free, open_log(cluster, cluster.namespace, pod.name, query, limit=MOST_BYTES) as log:
                async for batch in log:
                    lines += batch
        except ClusterError as error:
            if error.status in (401, 403):
                raise
            notes.append(f"{pod.name}: {error}")
        return pod, lines

    return list(await asyncio.gather(*(read(pod) for pod in pods if has_log(pod, TRAINER)))), notes
