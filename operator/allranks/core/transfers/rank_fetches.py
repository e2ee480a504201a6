"""The init containers that fetch inputs in the pods of ranks, one for each input, if there is no claim for them.

They have the revision that `status.inputs` has, so all pods of a job read the same data, and only the Secret of their
own input. Pods of one namespace on a node share a directory and its locks, so one of them fetches and the others wait.
"""

from __future__ import annotations

import json

from allranks.api.data import Input
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import naming
from allranks.core.facts.model import Manifest, Platform
from allranks.core.transfers import input_cache
from allranks.core.transfers import manifests as transfers
from allranks.core.transfers.input_cache import Place

_AS_ROOT: Manifest = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
"""Without capabilities. The kubelet makes the directory of a namespace, and only root can write there."""


def containers(job: Job, status: Status, platform: Platform, resources: Manifest) -> list[Manifest]:
    states = {each.name: each for each in status.inputs}
    out = []
    for each in job.spec.inputs or ():
        state = states.get(each.name)
        place = input_cache.place_of(each, state, job, platform)
        if place and place.location != "Claim":
            out.append(_container(each, state.revision if state else None, place, platform, resources))
    return out


def _container(each: Input, revision: str | None, place: Place, platform: Platform, resources: Manifest) -> Manifest:
    store = platform.data
    assert store is not None
    on_node = place.location == "Node"
    evictable = store.evictable if on_node else None
    where = f"{place.host_path} on the node" if on_node else "the emptyDir of the pod"
    request = {
        "act": "fetch-for-ranks",  # an older image refuses it: ranks would start after its errors
        "uri": each.source,
        "revision": revision,
        "sha256": each.sha256,
        "cache": transfers.CACHE,
        "limit": place.limit,
        "used": list(evictable.used) if evictable else None,
        "since": evictable.since if evictable else 0,
        "where": where,
    }
    return {
        "name": naming.FETCH_CONTAINER + each.name,
        "image": store.image,
        "command": transfers.COMMAND,
        "env": [
            {"name": transfers.REQUEST, "value": json.dumps(request)},
            {"name": "HOME", "value": "/tmp"},
        ],
        **({"envFrom": [{"secretRef": {"name": each.secret}}]} if each.secret else {}),
        **({"resources": resources} if resources else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": input_cache.VOLUME, "mountPath": transfers.CACHE}],
        "securityContext": {**transfers.CONTAINER, **(_AS_ROOT if on_node else {})},
    }
