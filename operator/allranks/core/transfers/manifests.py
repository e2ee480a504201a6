"""The pods and init containers that fetch inputs, check destinations and upload outputs on a cluster.

The claim of the setting `data_claim` holds `inputs/KEY/files`, the cache that ranks mount read-only, and
`outputs/UID/NAME`, which ranks write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from allranks import masking
from allranks.api.data import Input, InputStatus, Output, StartingPoint, claim_of
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.api.sweep_values import VARIABLE_PREFIX
from allranks.cache_key import cache_key, pin_of
from allranks.core.facts import naming, pod_security, pod_template, pool_template, resume_source
from allranks.core.facts.data_store import DEFAULT_RESOURCES, UNSEEN, CacheUse, DataStore
from allranks.core.facts.model import ANY_PLATFORM, Manifest, Platform, Pod
from allranks.core.facts.uploads import checkpoint_of, of_checkpoint
from allranks.core.transfers import input_cache
from allranks.core.transfers.input_cache import Place
from allranks.fields import encode
from allranks.version import __version__

VOLUME = "allranks-data"
REQUEST = "ALLRANKS_TRANSFER"
COMMAND = ["python3", "-m", "allranks.data.pod"]
CACHE, _OUTPUTS, _TARGET, _CHECKPOINTS = "/cache", "/outputs", "/target", "/checkpoints"
CONTAINER: Manifest = pod_security.RESTRICTED
GROUP = 65532
"""The group of all pods that mount the claim. The user of the image has the same number."""
_LONGEST_PROVENANCE = 100_000
"""Bytes. A variable of a process has at most 128 KiB."""


def fetch_name(job: Job, name: str) -> str:
    """Return the name of a pod that fetches. Names of inputs begin with a letter, so it is no name of a rank's pod."""
    return f"{job.name}-fetch-{name}"


def upload_name(job: Job, name: str) -> str:
    return f"{job.name}-upload-{name}"


def check_name(job: Job, name: str) -> str:
    return f"{job.name}-check-{name}"


def names(job: Job) -> set[str]:
    fetched = (fetch_name(job, item.name) for item in job.spec.sources if not item.mounted)
    of_outputs = (make(job, item.name) for item in job.spec.outputs or () for make in (check_name, upload_name))
    return {*fetched, *of_outputs}


def key_of(item: Input, revision: str | None) -> str:
    """Return the name of the input's data in the cache."""
    return cache_key(item.source, pin_of(revision, item.sha256, item.unpack))


def choices(item: Input) -> Manifest:
    """Return the part of the request of a fetch that chooses among the files at the source, and unpacks them."""
    if isinstance(item, StartingPoint):
        return {"newest": True, "may_be_empty": item.may_be_empty}
    return {"unpack": True} if item.unpack else {}


def fetch_pod(
    job: Job, item: Input, platform: Platform, store: DataStore, use: CacheUse | None, now: datetime
) -> Manifest:
    name = fetch_name(job, item.name)
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    place = input_cache.place(job, platform)
    by_ranks = place is not None and place.location != "Claim"
    if item.streamed or by_ranks:
        request: Manifest = {"act": "resolve", "uri": item.source, "revision": item.revision, **choices(item)}
        if not item.streamed:
            request |= {"sha256": item.sha256, "pin": True}
        container = _container(request, item.secret, [], store, CONTAINER)
        return _pod(job, name, naming.FETCH, container, [], security, platform)
    request = {
        "act": "fetch",
        "uri": item.source,
        "revision": item.revision,
        "sha256": item.sha256,
        "cache": CACHE,
        "limit": store.cache_bytes,
        "used": list(use.keys) if use else None,
        "since": int((now - UNSEEN).timestamp()),
        **choices(item),
    }
    security |= _volume_group(_first_template(job, platform))
    mounts = [{"name": VOLUME, "mountPath": CACHE, "subPath": "inputs"}]
    container = _container(request, item.secret, mounts, store, CONTAINER)
    return _pod(job, name, naming.FETCH, container, [_claim(VOLUME, store.claim)], security, platform)


def check_pod(job: Job, output: Output, platform: Platform, store: DataStore) -> Manifest:
    """Return the pod that checks whether files can be written to the destination of an output. It has no volume."""
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container = _container({"act": "check", "to": output.to}, output.secret, [], store, CONTAINER)
    return _pod(job, check_name(job, output.name), naming.UPLOAD, container, [], security, platform)


def _volume_group(template: Manifest) -> Manifest:
    """Return the group to which the kubelet gives the claim: the group of the ranks.

    With another one the pods of a job would take the claim from each other.
    """
    context = template["spec"].get("securityContext") or {}
    group = {key: context[key] for key in ("fsGroup", "fsGroupChangePolicy") if key in context}
    if "fsGroup" not in group:
        return {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return with_group(group)


def with_group(security: Manifest) -> Manifest:
    """Return the security context of a pod that mounts the claim, as a member of the group of pods that fetch."""
    groups = security.get("supplementalGroups") or []
    return {**security, "supplementalGroups": [*groups, *([] if GROUP in groups else [GROUP])]}


def _first_template(job: Job, platform: Platform) -> Manifest:
    return next(iter(pod_template.role_templates(job, platform).values()))


def upload_pod(
    job: Job, output: Output, status: Status, platform: Platform, store: DataStore, ranks: Sequence[Pod] = ()
) -> Manifest:
    """Return the pod that uploads an output, as the user of the ranks: others may not be able to read their files.

    A checkpoint is uploaded from a copy in the claim, because the program continues. `ranks`: the pods that exist.
    """
    mounts: list[Manifest] = [{"name": VOLUME, "mountPath": _OUTPUTS, "subPath": f"outputs/{job.metadata.uid}"}]
    volumes, to = [_claim(VOLUME, store.claim)], output.to
    if output.scheme == "claim":
        claim, below = claim_of(output.to)
        volume = VOLUME if claim == store.claim else "allranks-target"
        if volume != VOLUME:
            volumes.append(_claim(volume, claim))
        mount = {"name": volume, "mountPath": _TARGET}
        mounts.append({**mount, "subPath": below} if below else mount)
        to = _TARGET
    request = {
        "act": "upload",
        "directory": f"{_OUTPUTS}/{output.name}",
        "to": to,
        "shown": output.to,
        "provenance": _bounded(provenance(job, status, ranks)),
    }
    state = next((item for item in status.outputs if item.name == output.name), None)
    if output.when == "Checkpoint" and state and (checkpoint := checkpoint_of(state)):
        saved = job.spec.checkpoint
        assert saved is not None
        volumes.append({"name": resume_source.CHECKPOINT_VOLUME, **resume_source.volume_source(saved)})
        folder = {"subPath": saved.sub_path} if saved.sub_path else {}
        mounts.append({"name": resume_source.CHECKPOINT_VOLUME, "mountPath": _CHECKPOINTS, "readOnly": True, **folder})
        request = of_checkpoint(request, _CHECKPOINTS, checkpoint)
    template = _first_template(job, platform)
    context = pod_template.trainer(template).get("securityContext") or {}
    user = {key: context[key] for key in ("runAsUser", "runAsGroup", "runAsNonRoot") if key in context}
    security = with_group(
        {"seccompProfile": {"type": "RuntimeDefault"}, **(template["spec"].get("securityContext") or {})}
    )
    rights = CONTAINER
    named = "runAsUser" in {*user, *security}
    if not named and (user_and_group := _user_of(ranks)):
        user["runAsUser"], group = user_and_group  # the user of the image of the ranks
        if "runAsGroup" not in {*user, *security}:
            user["runAsGroup"] = group
    elif not named and not (security.get("runAsNonRoot") or user.get("runAsNonRoot")):
        # No status names the user of the image of the ranks: only root can stand for it.
        user["runAsUser"] = 0
        rights = {**CONTAINER, "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}}
    container = _container(request, output.secret, mounts, store, {**rights, **user})
    name = upload_name(job, output.name)
    pod = _pod(job, name, naming.UPLOAD, container, volumes, security, platform)
    if state and state.start_time:
        pod["metadata"]["labels"][naming.RESTART_LABEL] = "1"  # a try after the end of the program: `Upload.final`
    return pod


def _user_of(ranks: Sequence[Pod]) -> tuple[int, int] | None:
    """Return (user, group) of the programs, if all have the same one, and not root."""
    users = {pod.user for pod in ranks if pod.owned and pod.user}
    return users.pop() if len(users) == 1 and all(user for user, _ in users) else None


def _bounded(document: dict[str, Any]) -> dict[str, Any]:
    return document if len(json.dumps(document)) <= _LONGEST_PROVENANCE else {**document, "programs": {}}


def _container(
    request: Manifest,
    secret: str | None,
    mounts: list[Manifest],
    store: DataStore,
    security: Manifest,
    *,
    # Kubelets, logs and the operator find the main container of every pod by this name.
    name: str = naming.TRAINER,
    resources: Manifest | None = None,
) -> Manifest:
    return {
        "name": name,
        "image": store.image,
        "command": COMMAND,
        "env": [{"name": REQUEST, "value": json.dumps(request)}, {"name": "HOME", "value": "/tmp"}],
        **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        **({"resources": resources} if resources else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        "securityContext": security,
    }


def _pod(
    job: Job,
    name: str,
    role: str,
    container: Manifest,
    volumes: Iterable[Manifest],
    security: Manifest,
    platform: Platform,
) -> Manifest:
    secrets = [{"name": secret} for secret in platform.helper_pull_secrets]
    chosen = _data_pods(job, platform)
    spec = {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "containers": [{**container, "resources": chosen.pop("resources")}],
        "volumes": list(volumes),
        **chosen,
        **({"imagePullSecrets": secrets} if secrets else {}),
    }
    metadata = naming.object_metadata(job, name, {naming.ROLE_LABEL: role})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _data_pods(job: Job, platform: Platform) -> Manifest:
    """Return the resources, the node selector and the tolerations of a pod that transfers: from the pool
    of rank 0, else from the operator's settings."""
    assert platform.data is not None
    pool = pool_template.pool_of_ranks(job, platform)
    out: Manifest = {"resources": DEFAULT_RESOURCES.model_dump(by_alias=True, exclude_none=True, mode="json")}
    for choice in (platform.data.pods, pool.data if pool else None):
        if choice is not None:
            out |= choice.model_dump(by_alias=True, exclude_none=True, mode="json")
    return {name: value for name, value in out.items() if value or name == "resources"}


def _claim(name: str, claim: str) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


_MOST_IMAGES = 16
"""Limit for one role, which has several if a tag was given to another image while the job ran."""


def provenance(job: Job, status: Status, ranks: Iterable[Pod] | None = None) -> dict[str, Any]:
    """Return the job, its code, the revisions of its inputs, and its parameters, as JSON.

    It is written beside the files, so that a model can be traced to its code and data. Values of other variables are
    left out, because they may be secret, and secrets in the rest are masked as in an archive. `ranks`: the pods that
    exist; None for processes, which have no image.
    """
    images: dict[str, set[str]] = {role: set() for role in job.spec.roles}
    for pod in ranks or ():
        if pod.owned and pod.image_id and pod.role in images:
            images[pod.role].add(pod.image_id)
    inputs = {item.name: item for item in status.inputs}
    programs = {}
    for role, template in pod_template.role_templates(job, ANY_PLATFORM).items():
        trainer = pod_template.trainer(template)
        variables = trainer.get("env", [])
        programs[role] = {
            "replicas": job.spec.roles[role].replicas,
            "image": trainer.get("image"),
            "imageIDs": "not used" if ranks is None else sorted(images[role])[:_MOST_IMAGES],
            "command": trainer.get("command"),
            "args": trainer.get("args"),
            "parameters": {
                item["name"]: item.get("value") for item in variables if item["name"].startswith(VARIABLE_PREFIX)
            },
        }
    document = {
        "allranks": __version__,
        "job": job.name,
        "namespace": job.namespace,
        "uid": job.metadata.uid,
        "framework": job.spec.framework,
        "attempt": status.attempt,
        "startTime": status.start_time.isoformat() if status.start_time else None,
        "code": encode(status.code) if status.code else None,
        "packages": job.spec.packages,
        "programs": programs,
        "inputs": [
            {"name": item.name, "from": item.source, **_contents(inputs.get(item.name))} for item in job.spec.sources
        ],
        "step": status.progress.step if status.progress else None,
    }
    return dict(masking.masked(document))


def _contents(state: InputStatus | None) -> Manifest:
    """Return the recorded facts about the contents of an input."""
    facts = {"revision": state.revision, "sha256": state.sha256, "bytes": state.bytes} if state else {}
    return {name: value for name, value in facts.items() if value is not None}


_AS_ROOT: Manifest = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
"""Without capabilities. The kubelet makes the directory of a namespace, and only root can write there."""


def fetch_containers(job: Job, status: Status, platform: Platform, resources: Manifest) -> list[Manifest]:
    states = {item.name: item for item in status.inputs}
    out = []
    for item in job.spec.sources:
        state = states.get(item.name)
        place = input_cache.place_of(item, state, job, platform)
        if isinstance(item, StartingPoint) and not resume_source.needed(job, status, platform.local):
            continue
        if place and place.location != "Claim":
            out.append(_fetch_container(item, state.revision if state else None, place, platform, resources))
    return out


def _fetch_container(
    item: Input, revision: str | None, place: Place, platform: Platform, resources: Manifest
) -> Manifest:
    store = platform.data
    assert store is not None
    on_node = place.location == "Node"
    evictable = store.evictable if on_node else None
    request = {
        "act": "fetch-for-ranks",  # an older image refuses it: ranks would start after its errors
        "uri": item.source,
        "revision": revision,
        "sha256": item.sha256,
        "cache": CACHE,
        "limit": place.limit,
        "used": list(evictable.used) if evictable else None,
        "since": evictable.since if evictable else 0,
        "where": f"{place.host_path} on the node" if on_node else "the emptyDir of the pod",
        **choices(item),
    }
    mounts = [{"name": input_cache.VOLUME, "mountPath": CACHE}]
    security = {**CONTAINER, **(_AS_ROOT if on_node else {})}
    name = naming.FETCH_CONTAINER + item.name
    return _container(request, item.secret, mounts, store, security, name=name, resources=resources)
