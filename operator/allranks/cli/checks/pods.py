"""Checks of the pods that a job becomes: mounts without a volume, and what the layers of a template add up to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from allranks.api.job import Job
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.cli.checks import quantities, references
from allranks.cli.checks.layers import Layers
from allranks.cli.checks.problem import Problem
from allranks.cli.checks.template import CONTAINER_LISTS
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.naming import ROLE_LABEL
from allranks.core.objects.pods import objects


def problems(job: Job, pool: PoolSpec | None, parameters: Sequence[str] = ()) -> Iterator[Problem]:
    """Problems of the first pod of each role of a job that has no other errors.

    A job may name a pool that is not in the files (`pool` is None). The pool may have what is missing here, so such
    problems are warnings. `parameters`: names of the parameters of the sweep whose trials are this job.
    """
    platform = Platform(helper_image="helper", report_url="http://localhost", pool=pool)
    first = {(role, 0) for role, _ in job.spec.roles.items()}
    pods = objects(job, Status(), platform, first).pods
    for problem in (*_of_pods(job, pods), *references.problems(job, pods, parameters)):
        if job.spec.pool is None or pool is not None:
            yield problem
        else:
            unless = f"unless pool {job.spec.pool} has it, which is not in these files"
            yield problem._replace(message=f"{problem.message} ({unless})", severity="warning")


def _of_pods(job: Job, pods: Sequence[Manifest]) -> Iterator[Problem]:
    for pod in pods:
        yield from _of_pod(pod["spec"], Layers.of(job, pod["metadata"]["labels"][ROLE_LABEL]))


def _of_pod(spec: Manifest, layers: Layers) -> Iterator[Problem]:
    volumes = [volume["name"] for volume in spec.get("volumes") or ()]
    for name in dict.fromkeys(name for name in volumes if volumes.count(name) > 1):
        yield Problem(f"{layers.volume(name)}.name", f"allranks adds a volume named {name}: rename this one")
    claims = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    for kind in CONTAINER_LISTS:
        for container in spec.get(kind) or ():
            name = container["name"]
            if not container.get("image"):  # that of the training container is checked before
                what = f"an image is needed: container {name} runs beside the training container"
                yield Problem(f"{layers.container(kind, name)}.image", what)
            for mount in container.get("volumeMounts") or ():
                if mount["name"] not in volumes:
                    path = layers.mount(kind, name, mount["mountPath"])
                    yield Problem(f"{path}.name", _no_volume(mount["name"], volumes))
            for resource, message in _conflicts(container.get("resources") or {}):
                yield Problem(layers.request(kind, name, resource), message)
            for claim in (container.get("resources") or {}).get("claims") or ():
                if claim.get("name") not in claims:
                    what = f"no item of the pod's resourceClaims is named {claim.get('name')}"
                    yield Problem(f"{layers.container(kind, name)}.resources.claims", what)


def _no_volume(name: str, volumes: list[str]) -> str:
    own = [volume for volume in volumes if not volume.startswith("allranks-")]
    if near := difflib.get_close_matches(name, own, n=1):
        return f"no volume is named {name}, did you mean {near[0]}?"
    existing = f"; the pod has {', '.join(own)}" if own else ""
    return f"no volume is named {name}: add it under volumes of the pod template{existing}"


def _conflicts(resources: Manifest) -> Iterator[tuple[str, str]]:
    """(resource, message) of requests that do not fit the limits."""
    limits, requests = (resources.get(part) or {} for part in ("limits", "requests"))
    for name, amount in requests.items():
        device = "/" in name or name.startswith("hugepages-")
        limit = limits.get(name)
        if limit is None:
            if device:
                yield name, "needs the same amount under limits: a device or huge page is not shared"
        elif device and _differ(amount, limit):
            yield name, f"must be equal to the limit, {limit}, not {amount}: a device or huge page is not shared"
        elif not device and _differ(amount, limit) > 0:
            yield name, f"must not be larger than the limit: {amount} is more than {limit}"


def _differ(one: Any, other: Any) -> int:
    """-1, 0 or 1; 0 if one of them is no quantity, which is reported elsewhere."""
    try:
        left, right = quantities.value(one), quantities.value(other)
    except ValueError:
        return 0
    return (left > right) - (left < right)
