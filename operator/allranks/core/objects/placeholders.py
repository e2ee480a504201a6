"""Idle pods in the place of workers without room: the scheduler itself shows when there is room for one more."""

from __future__ import annotations

from collections.abc import Iterable

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import naming, pod_template, topology
from allranks.core.facts.model import Manifest
from allranks.core.facts.topology import ELASTIC_ROLE
from allranks.core.objects.gangs import members


def placeholders(job: Job, status: Status, pods: Iterable[Manifest]) -> list[Manifest]:
    """Return idle pods, one for each waiting worker, that look like workers to the scheduler.

    `pods` are the manifests of the current attempt.
    """
    worker = members.without_membership(
        next(pod for pod in pods if pod["metadata"]["labels"][naming.ROLE_LABEL] == ELASTIC_ROLE)
    )
    trainer = next(c for c in worker["spec"]["containers"] if c["name"] == naming.TRAINER)
    idle = [_idle(container, container["image"]) for container in worker["spec"]["containers"]]
    spec = {**worker["spec"], "containers": idle, "terminationGracePeriodSeconds": 0}
    if "initContainers" in spec:
        spec["initContainers"] = [_idle(container, trainer["image"], True) for container in spec["initContainers"]]
    shared = {key: value for key, value in worker["metadata"]["labels"].items() if key != naming.RESTART_LABEL}
    out = []
    for place in topology.waiting(job, status):
        labels = {**shared, naming.ROLE_LABEL: naming.PLACEHOLDER, naming.INDEX_LABEL: str(place.index)}
        annotations = pod_template.evictable(worker["metadata"].get("annotations") or {})
        metadata = {**worker["metadata"], "name": place.hostname, "labels": labels, "annotations": annotations}
        out.append({**worker, "metadata": metadata, "spec": {**spec, "hostname": place.hostname}})
    return out


def _idle(container: Manifest, image: str, first: bool = False) -> Manifest:
    """Return an idle container that looks the same to the scheduler.

    `first`: an init container, which must exit unless it is a sidecar.
    """
    kept = ("name", "imagePullPolicy", "resources", "securityContext", "restartPolicy")
    ends = first and container.get("restartPolicy") != "Always"
    ports = [port for port in container.get("ports", ()) if "hostPort" in port]
    return {
        **{key: container[key] for key in kept if key in container},
        **({"ports": ports} if ports else {}),
        "image": image,
        "command": ["sleep", "0" if ends else "infinity"],
    }
