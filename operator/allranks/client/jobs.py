"""Reads a job of a cluster, and its Events."""

from __future__ import annotations

import difflib

from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.paths import core_path, job_path
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
    path, uid = core_path(cluster.namespace, "events"), job["metadata"]["uid"]
    try:
        of_job = await cluster.get(path, {"fieldSelector": f"involvedObject.uid={uid}"})
        of_pods = await cluster.get(path, {"fieldSelector": "involvedObject.kind=Pod", "limit": 5000})
    except ClusterError as error:
        if error.status != 403:
            raise
        return str(error)
    prefix = f"{job['metadata']['name']}-"
    since = job["metadata"]["creationTimestamp"]
    pods = [
        event
        for event in of_pods["items"]
        if event["involvedObject"].get("name", "").startswith(prefix)
        and event["metadata"]["creationTimestamp"] >= since
    ]
    return [*of_job["items"], *pods]
