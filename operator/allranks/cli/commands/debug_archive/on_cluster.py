"""Collects a job of a cluster: the objects, Events, and the logs of all pods that exist."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from allranks.authoring.yaml_text import dump
from allranks.cli.commands.debug_archive.archive import Archive, Log, log_limit
from allranks.client.jobs import events_of
from allranks.client.submission import read_differences
from allranks.core.facts.naming import JOB_LABEL
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import pods_of
from allranks.kube.paths import core_path
from allranks.kube.pod_logs import LogOptions, read
from allranks.masking import masked, secrets_in
from allranks.version import __version__
from allranks.views.description import describe_job
from allranks.views.report.forms import rendered

CONCURRENT_LOGS = 16
README = """\
The job {name}, collected by `allranks debug` on {at} UTC.

describe.txt   what `allranks describe` prints: start here
report.txt     what `allranks report` prints: attempts, progress, lost time
code.diff      what the code differs from its commit in
job.yaml       the manifest
status.yaml    the status: the last failure, past attempts, restarts
events.yaml    Events of the job and its pods, the oldest first
pods/          the pods that exist
logs/          their logs, one file for each container, with the time (UTC) of each line
stacks/        stack dumps that ranks printed when the job hung
versions.yaml  of allranks, Python and Kubernetes

Masked, as <masked>: values of variables and options whose names contain TOKEN, SECRET, PASSWORD, CREDENTIAL or KEY,
the same values wherever else they occur, and logins in URLs. Other secrets that the program prints or that are passed
in other ways are not recognised: look at the files before you give them to somebody.
{missing}"""


async def collect(cluster: Cluster, job: Manifest, name: str, now: datetime) -> Archive:
    """Raise ClusterError only if nothing can be read; `missing` says what else cannot be."""
    pods, hidden = await _pods(cluster, name)
    uids = {pod.uid for pod in pods_of(job, pods)}
    pods = [pod for pod in pods if pod["metadata"]["uid"] in uids]
    events = await events_of(cluster, job)
    archive = Archive(name, secrets_in([job, pods]))
    archive.missing += [text for text in (hidden, events if isinstance(events, str) else "") if text]

    spec = {key: value for key, value in job.items() if key != "status"}
    archive.add("job.yaml", dump([masked(spec)]))
    archive.add("status.yaml", dump([masked(job.get("status") or {})]))
    for pod in pods:
        archive.add(f"pods/{pod['metadata']['name']}.yaml", dump([masked(pod)]))
    if not isinstance(events, str):
        archive.add("events.yaml", dump(masked(sorted(events, key=_event_order))))
    description = describe_job(job, pods, hidden, events, now)
    lines = (item if isinstance(item, str) else "\n".join(item.plain()) for item in description)
    archive.add("describe.txt", "".join(f"{line}\n" for line in lines))
    code = await read_differences(cluster, job)
    archive.add("report.txt", rendered(job, "text", now, run=code))
    if code.differences:
        archive.add("code.diff", code.differences)
    archive.add("versions.yaml", dump([await _versions(cluster, archive)]))
    await _logs(cluster, archive, pods)
    archive.add("README.txt", README.format(name=name, at=f"{now:%Y-%m-%d %H:%M:%S}", missing=_listed(archive.missing)))
    return archive


def _listed(missing: Iterable[str]) -> str:
    lines = "".join(f"- {line}\n" for line in missing)
    return f"\nNot read:\n\n{lines}" if lines else ""


async def _pods(cluster: Cluster, name: str) -> tuple[list[Manifest], str]:
    try:
        query = {"labelSelector": f"{JOB_LABEL}={name}"}
        pods: list[Manifest] = (await cluster.get(core_path(cluster.namespace, "pods"), query))["items"]
    except ClusterError as error:
        return [], f"pods: {error}"
    for pod in pods:  # a list has them only once, for all its items
        pod.update({"apiVersion": "v1", "kind": "Pod", **pod})
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"])), ""


def _event_order(event: Manifest) -> tuple[str, str]:
    return event["metadata"]["creationTimestamp"], event["metadata"]["name"]


async def _versions(cluster: Cluster, archive: Archive) -> dict[str, Any]:
    client = {"allranks": __version__, "python": platform.python_version(), "system": platform.platform()}
    try:
        server = await cluster.get("/version")
    except ClusterError as error:
        archive.missing.append(f"the version of the API server: {error}")
        return client
    return {**client, "kubernetes": server.get("gitVersion", "")}


async def _logs(cluster: Cluster, archive: Archive, pods: list[Manifest]) -> None:
    """Add the logs of all containers that have started, and of their previous runs."""
    logs = [(pod["metadata"]["name"], *run) for pod in pods for run in _containers(pod)]
    limit = log_limit(len(logs))
    slots = asyncio.Semaphore(CONCURRENT_LOGS)

    async def add(pod: str, container: str, previous: bool) -> str:
        """Add a log. Return why it cannot be read."""
        log = Log(limit)
        options = LogOptions(container, previous, tail=limit)  # no line is shorter than a byte
        async with slots:
            try:
                async for lines in read(cluster, cluster.namespace, pod, options):
                    for line in lines:
                        log.add(line.time + b" " + line.text if line.time else line.text)
            except ClusterError as error:
                which = f"the previous log of {container}" if previous else f"the log of {container}"
                return f"{which} in pod {pod}: {error}"
        archive.add_log(f"{pod}/{container}{'.previous' if previous else ''}", log)
        return ""

    failed = await asyncio.gather(*(add(*run) for run in logs))
    archive.missing += [text for text in failed if text]


def _containers(pod: Manifest) -> Iterable[tuple[str, bool]]:
    """Yield the container of each log, and whether it is the log of its previous run."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        if "running" in state or "terminated" in state:
            yield container["name"], False
        if container.get("restartCount") or (container.get("lastState") or {}).get("terminated"):
            yield container["name"], True
