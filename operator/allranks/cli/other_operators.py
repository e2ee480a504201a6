"""Reads the jobs of other operators from a cluster, with the runtimes that TrainJobs refer to."""

from __future__ import annotations

from collections.abc import Sequence

import click

from allranks.authoring.convert.documents import KINDS, RUNTIME_GROUP, RUNTIMES, Kind, kind_of
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest


async def read(cluster: Cluster, arguments: Sequence[str]) -> list[Manifest]:
    """`arguments`: KIND/NAME, or KIND for all of the namespace. Raises ClusterError and UsageError."""
    wanted = [_parse(argument) for argument in arguments]
    out: list[Manifest] = []
    for kind, name in wanted:
        out += await _jobs(cluster, kind, name)
    runtimes: dict[tuple[str, str], Manifest | None] = {}
    for job in out:
        reference = (job.get("spec") or {}).get("runtimeRef")
        if isinstance(reference, dict):
            key = str(reference.get("kind") or "ClusterTrainingRuntime"), str(reference.get("name"))
            if key not in runtimes:
                runtimes[key] = await _runtime(cluster, *key)
    return [*out, *(found for found in runtimes.values() if found)]


def _parse(argument: str) -> tuple[Kind, str]:
    given, _, name = argument.partition("/")
    for kind in KINDS:
        names = {kind.name.lower(), kind.plural}
        if given.lower() in names | {f"{one}.{kind.group}" for one in names}:
            return kind, name
    kinds = ", ".join(kind.name.lower() for kind in KINDS)
    raise click.UsageError(f"{argument}: --live needs KIND/NAME or KIND, where KIND is one of {kinds}.")


async def _jobs(cluster: Cluster, kind: Kind, name: str) -> list[Manifest]:
    missing: ClusterError | None = None
    for version in kind.versions:
        path = f"{_collection(kind.group, version, cluster.namespace)}/{kind.plural}"
        try:
            found = await cluster.get(f"{path}/{name}" if name else path)
        except ClusterError as error:
            if error.status != 404:
                raise
            missing = missing or error
            continue
        items = [found] if name else found.get("items") or []
        objects = [{"apiVersion": f"{kind.group}/{version}", "kind": kind.name, **item} for item in items]
        # Of Jobs only those with ranks are meant, unless one is named.
        return [item for item in objects if name or kind_of(item)]
    what = f"{kind.name} {name}" if name else f"objects of kind {kind.name}"
    text = f"there is no {what} in namespace {cluster.namespace}, or the cluster does not have this kind"
    raise ClusterError(f"{text} ({missing})", 404, "NotFound")


async def _runtime(cluster: Cluster, kind: str, name: str) -> Manifest | None:
    """None for one that does not exist: it may be a default one of Trainer."""
    namespace = cluster.namespace if kind == "TrainingRuntime" else None
    path = (
        f"{_collection(RUNTIME_GROUP, 'v1alpha1', namespace)}/{RUNTIMES.get(kind, RUNTIMES['TrainingRuntime'])}/{name}"
    )
    try:
        found = await cluster.get(path)
    except ClusterError as error:
        if error.status == 404:
            return None
        raise
    return {"apiVersion": f"{RUNTIME_GROUP}/v1alpha1", "kind": kind, **found}


def _collection(group: str, version: str, namespace: str | None) -> str:
    base = f"/apis/{group}/{version}"
    return f"{base}/namespaces/{namespace}" if namespace else base
