"""Sweeps where a command also knows jobs: a name that no job has may be that of a sweep."""

from __future__ import annotations

from allranks.api.sweep import KIND
from allranks.errors import ClusterError
from allranks.kube import paths
from allranks.kube.cluster import Cluster, Manifest


async def sweep_instead(cluster: Cluster, name: str, error: ClusterError) -> Manifest | None:
    """The sweep with this name, if `error` says that there is no such job. None if there is no such sweep either."""
    if error.status != 404:
        return None
    try:
        found = await cluster.get(paths.sweeps(cluster.namespace, name))
    except ClusterError:
        return None
    return found if found.get("kind") == KIND else None
