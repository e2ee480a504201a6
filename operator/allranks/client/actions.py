"""Changes a job on a cluster: suspends, resumes, scales and deletes it."""

from __future__ import annotations

from typing import Any, NamedTuple

from allranks.api.status import FINISHED
from allranks.client.jobs import get_job
from allranks.errors import ClusterError
from allranks.frameworks import FRAMEWORKS
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.paths import job_path
from allranks.text import joined


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
