"""Collects a job of a cluster: the objects, Events, and the logs of all pods that exist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from allranks.cli.commands.debug_archive.archive import Archive, Log, log_limit
from allranks.cli.commands.debug_archive.overview import README, versions
from allranks.cli.commands.describe import described, events_of
from allranks.cli.commands.report import rendered
from allranks.cli.format.yaml import dump
from allranks.cli.job_report.run_files import read_differences
from allranks.core.naming import JOB_LABEL
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import pods_of
from allranks.kube.paths import core_path
from allranks.kube.pod_logs import LogOptions, read
from allranks.masking import masked, secrets_in

CONCURRENT_LOGS = 16


async def collect(cluster: Cluster, job: Manifest, name: str, now: datetime) -> Archive:
    """Raises ClusterError only if nothing can be read; the rest is in `missing`."""
    pods, hidden = await _pods(cluster, name)
    own = {pod.uid for pod in pods_of(job, pods)}
    pods = [pod for pod in pods if pod["metadata"]["uid"] in own]
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
    description = described(job, pods, hidden, events, now)
    lines = (item if isinstance(item, str) else "\n".join(item.plain()) for item in description)
    archive.add("describe.txt", "".join(f"{line}\n" for line in lines))
    code = await read_differences(cluster, job)
    archive.add("report.txt", rendered(job, "text", now, run=code))
    if code.differences:
        archive.add("code.diff", code.differences)
    archive.add("versions.yaml", dump([versions(await _versions(cluster, archive))]))
    await _logs(cluster, archive, pods)
    archive.add("README.txt", README.format(name=name, at=f"{now:%Y-%m-%d %H:%M:%S}", missing=_listed(archive.missing)))
    return archive


def _listed(missing: Iterable[str]) -> str:
    found = "".join(f"- {line}\n" for line in missing)
    return f"\nNot read:\n\n{found}" if found else ""


async def _pods(cluster: Cluster, name: str) -> tuple[list[Manifest], str]:
    try:
        query = {"labelSelector": f"{JOB_LABEL}={name}"}
        found: list[Manifest] = (await cluster.get(core_path(cluster.namespace, "pods"), query))["items"]
    except ClusterError as error:
        return [], f"pods: {error}"
    for pod in found:  # a list has them only once, for all its items
        pod.update({"apiVersion": "v1", "kind": "Pod", **pod})
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"])), ""


def _event_order(event: Manifest) -> tuple[str, str]:
    return event["metadata"]["creationTimestamp"], event["metadata"]["name"]


async def _versions(cluster: Cluster, archive: Archive) -> dict[str, Any]:
    try:
        server = await cluster.get("/version")
    except ClusterError as error:
        archive.missing.append(f"the version of the API server: {error}")
        return {}
    return {"kubernetes": server.get("gitVersion", "")}


async def _logs(cluster: Cluster, archive: Archive, pods: list[Manifest]) -> None:
    """Adds the logs of all containers that have started, and of their previous runs."""
    wanted = [(pod["metadata"]["name"], *each) for pod in pods for each in _containers(pod)]
    limit = log_limit(len(wanted))
    slots = asyncio.Semaphore(CONCURRENT_LOGS)

    async def one(pod: str, container: str, previous: bool) -> str:
        """Adds a log. Returns why it cannot be read."""
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

    failed = await asyncio.gather(*(one(*each) for each in wanted))
    archive.missing += [text for text in failed if text]


def _containers(pod: Manifest) -> Iterable[tuple[str, bool]]:
    """(container, previous run) of each log."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        if "running" in state or "terminated" in state:
            yield container["name"], False
        if container.get("restartCount") or (container.get("lastState") or {}).get("terminated"):
            yield container["name"], True
