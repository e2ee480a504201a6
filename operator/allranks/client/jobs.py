"""Reads and changes a job of a cluster, and reads its Events."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from allranks.api.status import FINISHED, WITHOUT_PODS
from allranks.core.facts.forgiveness import FORGIVEN_ANNOTATION, as_text, forgiven_nodes
from allranks.core.facts.restarts import RESTART_ANNOTATION
from allranks.errors import ClusterError
from allranks.frameworks import FRAMEWORKS
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.paths import job_path
from allranks.text import joined


async def get_job(cluster: Cluster, name: str) -> Manifest:
    """Read a job. Raises ClusterError; if there is no such job, the error suggests similar names."""
    try:
        return await cluster.get(job_path(cluster.namespace, name))
    except ClusterError as error:
        raise await with_suggestion(cluster, name, error) from error


async def with_suggestion(cluster: Cluster, name: str, error: ClusterError) -> ClusterError:
    """Add similar names, or other namespaces that have the job, to an error that says that a job does not exist."""
    if error.reason != "NotFound" or f'"{name}" not found' not in str(error):
        return error
    hint = ""
    try:
        jobs = await cluster.get(job_path(cluster.namespace))
        names = [item["metadata"]["name"] for item in jobs["items"]]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.6) or [n for n in names if name in n or n in name]
        if near:
            hint = f", did you mean {joined(near[:3], 'or')}?"
        else:
            everywhere = await cluster.get(job_path(None), {"fieldSelector": f"metadata.name={name}"})
            elsewhere = [item["metadata"]["namespace"] for item in everywhere["items"]]
            if elsewhere:
                hint = f", but there is one in {joined(elsewhere[:3], 'and')}: select that namespace"
            elif names:
                hint = ": allranks get lists the jobs"
    except ClusterError:
        pass  # without permission to list jobs there is no hint
    return ClusterError(f"there is no job {name} in namespace {cluster.namespace}{hint}", 404, "NotFound")


async def events_of(cluster: Cluster, job: Manifest) -> list[Manifest] | str:
    """Read the Events of a job and its pods, or return the error if the user may not list them."""
    from allranks.kube.events import events_of_job

    try:
        return await events_of_job(cluster, {**job["metadata"], "namespace": cluster.namespace})
    except ClusterError as error:
        if error.status != 403:
            raise
        return str(error)


class Changed(NamedTuple):
    """The result of a change: a line for a person, and the changed job for a program."""

    line: str
    job: Manifest


async def set_suspended(cluster: Cluster, job: Manifest, suspended: bool) -> Changed:
    """Suspend or resume a job. Raises ClusterError for a finished job."""
    name = job["metadata"]["name"]
    done, action = ("suspended", "suspend") if suspended else ("resumed", "resume")
    status = status_of(job)
    held = suspended and status.hold is not None
    if status.phase in FINISHED and not held:
        raise ClusterError(f"{name} is {status.phase}: there is nothing to {action}")
    if bool(job["spec"].get("suspend")) == suspended:
        return Changed(f"{name} is already suspended" if suspended else f"{name} is not suspended", job)
    return Changed(f"{name} {done}", await patch_job(cluster, name, {"suspend": suspended}))


async def restart_job(cluster: Cluster, job: Manifest) -> Changed:
    """Request a new attempt in place of the current one. Raises ClusterError if the job has none."""
    name, status = job["metadata"]["name"], status_of(job)
    if status.phase in FINISHED:
        raise ClusterError(f"{name} is {status.phase}: submit a new job")
    if status.phase in WITHOUT_PODS or status.attempt_time is None:
        raise ClusterError(f"{name} is {status.phase or 'new'}: it has no pods to restart")
    change = {"metadata": {"annotations": {RESTART_ANNOTATION: str(status.attempt)}}}
    changed = await cluster.request("PATCH", job_path(cluster.namespace, name), {"fieldManager": "allranks"}, change)
    return Changed(f"{name} restarts: attempt {status.attempt + 1} replaces attempt {status.attempt}", changed)


async def forgive_nodes(cluster: Cluster, job: Manifest, nodes: Collection[str], now: datetime) -> Changed | None:
    """Let a job that avoids some of these nodes run there again. Return None if it avoids none."""
    metadata, status = job["metadata"], status_of(job)
    avoided = [node for node in status.avoided_nodes if node in nodes]
    if not avoided or status.phase in FINISHED:
        return None
    before = forgiven_nodes((metadata.get("annotations") or {}).get(FORGIVEN_ANNOTATION, ""))
    forgiven = {node: time for node, time in before.items() if node in status.avoided_nodes}
    text = as_text(forgiven | dict.fromkeys(avoided, now))
    path = job_path(metadata["namespace"], metadata["name"])
    change = {"metadata": {"annotations": {FORGIVEN_ANNOTATION: text}}}
    changed = await cluster.request("PATCH", path, {"fieldManager": "allranks"}, change)
    return Changed(f"{metadata['namespace']}/{metadata['name']} may run on {joined(avoided, 'and')} again", changed)


async def scale_job(cluster: Cluster, job: Manifest, replicas: int) -> Changed:
    """Change the number of workers. Raises ClusterError if the job has none, has finished, or forbids the number."""
    name, spec, status = job["metadata"]["name"], job["spec"], status_of(job)
    roles = spec.get("roles") or {}
    if "worker" not in roles:
        raise ClusterError(f"{name} has no workers to scale: its roles are {joined(sorted(roles), 'and')}")
    if status.phase in FINISHED:
        raise ClusterError(f"{name} is {status.phase}: submit a new job with the size you want")
    elastic = spec.get("elastic")
    if elastic and not elastic["minReplicas"] <= replicas <= elastic["maxReplicas"]:
        bounds = f"{elastic['minReplicas']} to {elastic['maxReplicas']} workers"
        raise ClusterError(f"{name} is elastic from {bounds} (spec.elastic): {replicas} is outside that range")
    before = (roles["worker"] or {}).get("replicas", 1)
    workers = f"{replicas} worker{'s' * (replicas != 1)}"
    if before == replicas:
        return Changed(f"{name} already has {workers}", job)
    await patch_job(cluster, name, {"replicas": replicas}, "scale")
    consequence = (
        scaling_effect(spec, replicas > before) if status.phase in ("Running", "Restarting", "Pending") else ""
    )
    return Changed(f"{name} scaled from {before} to {workers}{consequence}", await get_job(cluster, name))


def scaling_effect(spec: Manifest, grows: bool) -> str:
    """Say what a new number of workers does to a job that has started, as the end of a sentence."""
    framework = FRAMEWORKS.get(spec.get("framework", ""))
    if spec.get("elastic") and framework and framework.elastic == "absorbs":
        return ": the other ranks keep running"
    if not spec.get("elastic"):
        text = ": it is not elastic, so all ranks restart at the new size"
    else:
        text = f": all ranks restart {'when there is capacity for more' if grows else 'at the new size'}"
    return text + ("" if spec.get("checkpoint") else ", from the beginning unless the program saves checkpoints")


async def delete_job(cluster: Cluster, job: Manifest, cascade: str = "background") -> None:
    """Delete a job with its objects. `cascade`: background, foreground or orphan. Raises ClusterError."""
    metadata = job["metadata"]
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": cascade.capitalize(),
        "preconditions": {"uid": metadata["uid"]},  # never a new job of the same name
    }
    await cluster.request("DELETE", job_path(metadata["namespace"], metadata["name"]), body=options)


async def patch_job(cluster: Cluster, name: str, spec: dict[str, Any], subresource: str = "") -> Manifest:
    """Merge `spec` into the spec of a job, or of a subresource such as scale, and return the changed object."""
    path = job_path(cluster.namespace, name, subresource)
    return await cluster.request("PATCH", path, {"fieldManager": "allranks"}, {"spec": spec})
