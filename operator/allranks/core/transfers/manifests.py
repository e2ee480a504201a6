"""The pods and init containers that fetch inputs, check destinations and upload outputs on a cluster.

The claim of the setting `data_claim` holds `inputs/KEY/files`, the cache that ranks mount read-only, and
`outputs/UID/NAME`, which ranks write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from allranks.api.data import Input, Output
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.cache_key import cache_key
from allranks.core.facts import naming, pod_template, resume_source
from allranks.core.facts.model import ANY_PLATFORM, Manifest, Platform, Pod
from allranks.core.facts.uploads import UNSEEN, CacheUse, DataStore, checkpoint_of, of_checkpoint
from allranks.core.transfers import input_cache
from allranks.core.transfers.input_cache import Place
from allranks.version import __version__

VOLUME = "allranks-data"
REQUEST = "ALLRANKS_TRANSFER"
COMMAND = ["python3", "-m", "allranks.data.pod"]
CACHE, _OUTPUTS, _TARGET, _CHECKPOINTS = "/cache", "/outputs", "/target", "/checkpoints"
CONTAINER: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
GROUP = 65532
"""The group of all pods that mount the claim. The user of the image has the same number."""
_RESOURCES: Manifest = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
_LONGEST_PROVENANCE = 100_000
"""Bytes. A variable of a process has at most 128 KiB."""


def fetch_name(job: Job, name: str) -> str:
    """The name of an input begins with a letter, so it is no name of a rank's pod."""
    return f"{job.name}-fetch-{name}"


def upload_name(job: Job, name: str) -> str:
    return f"{job.name}-upload-{name}"


def check_name(job: Job, name: str) -> str:
    return f"{job.name}-check-{name}"


def names(job: Job) -> set[str]:
    fetched = (fetch_name(job, each.name) for each in job.spec.inputs or () if not each.mounted)
    of_outputs = (make(job, each.name) for each in job.spec.outputs or () for make in (check_name, upload_name))
    return {*fetched, *of_outputs}


def key_of(each: Input, revision: str | None) -> str:
    """The name of the input's data in the cache."""
    return cache_key(each.source, f"sha256:{each.sha256}" if each.sha256 else revision or "")


def fetch_pod(
    job: Job, each: Input, status: Status, platform: Platform, store: DataStore, use: CacheUse | None, now: datetime
) -> Manifest:
    name = fetch_name(job, each.name)
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    place = input_cache.place(job, platform)
    by_ranks = place is not None and place.location != "Claim"
    if each.streamed or by_ranks:
        request: Manifest = {"act": "resolve", "uri": each.source, "revision": each.revision}
        if not each.streamed:
            request |= {"sha256": each.sha256, "pin": True}
        container = _container(request, each.secret, [], store, CONTAINER)
        return _pod(job, name, naming.FETCH, container, [], security, platform)
    request = {
        "act": "fetch",
        "uri": each.source,
        "revision": each.revision,
        "sha256": each.sha256,
        "cache": CACHE,
        "limit": store.cache_bytes,
        "used": list(use.keys) if use else None,
        "since": int((now - UNSEEN).timestamp()),
    }
    security |= _volume_group(_first_template(job, platform))
    mounts = [{"name": VOLUME, "mountPath": CACHE, "subPath": "inputs"}]
    container = _container(request, each.secret, mounts, store, CONTAINER)
    return _pod(job, name, naming.FETCH, container, [_claim(VOLUME, store.claim)], security, platform)


def check_pod(job: Job, output: Output, platform: Platform, store: DataStore) -> Manifest:
    """Asks whether files can be written to the destination of an output. It has no volume."""
    security: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container = _container({"act": "check", "to": output.to}, output.secret, [], store, CONTAINER)
    return _pod(job, check_name(job, output.name), naming.UPLOAD, container, [], security, platform)


def _volume_group(template: Manifest) -> Manifest:
    """The group to which the kubelet gives the claim: that of the ranks, because with another one the pods of a job
    would take the claim from each other."""
    own = template["spec"].get("securityContext") or {}
    found = {key: own[key] for key in ("fsGroup", "fsGroupChangePolicy") if key in own}
    if "fsGroup" not in found:
        return {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return with_group(found)


def with_group(security: Manifest) -> Manifest:
    """The security context of a pod that mounts the claim, as a member of the group to which a pod that fetches may
    have given it."""
    groups = security.get("supplementalGroups") or []
    return {**security, "supplementalGroups": [*groups, *([] if GROUP in groups else [GROUP])]}


def _first_template(job: Job, platform: Platform) -> Manifest:
    return next(iter(pod_template.role_templates(job, platform).values()))


def upload_pod(
    job: Job, output: Output, status: Status, platform: Platform, store: DataStore, ranks: Sequence[Pod] = ()
) -> Manifest:
    """It has the user of the ranks: others may not be able to read their files. A checkpoint is uploaded from a copy in
    the claim, because the program continues. `ranks`: the pods that exist."""
    mounts: list[Manifest] = [{"name": VOLUME, "mountPath": _OUTPUTS, "subPath": f"outputs/{job.metadata.uid}"}]
    volumes, to = [_claim(VOLUME, store.claim)], output.to
    if output.scheme == "claim":
        claim, _, below = output.to.partition("://")[2].partition("/")
        volume = VOLUME if claim == store.claim else "allranks-target"
        if volume != VOLUME:
            volumes.append(_claim(volume, claim))
        mount = {"name": volume, "mountPath": _TARGET}
        mounts.append({**mount, "subPath": below.strip("/")} if below.strip("/") else mount)
        to = _TARGET
    request = {
        "act": "upload",
        "directory": f"{_OUTPUTS}/{output.name}",
        "to": to,
        "shown": output.to,
        "provenance": _bounded(provenance(job, status, ranks)),
    }
    state = next((each for each in status.outputs if each.name == output.name), None)
    if output.when == "Checkpoint" and state and (checkpoint := checkpoint_of(state)):
        saved = job.spec.checkpoint
        assert saved is not None
        volumes.append({"name": resume_source.CHECKPOINT_VOLUME, **resume_source.volume_source(saved)})
        folder = {"subPath": saved.sub_path} if saved.sub_path else {}
        mounts.append({"name": resume_source.CHECKPOINT_VOLUME, "mountPath": _CHECKPOINTS, "readOnly": True, **folder})
        request = of_checkpoint(request, _CHECKPOINTS, checkpoint)
    template = _first_template(job, platform)
    own = pod_template.trainer(template).get("securityContext") or {}
    user = {key: own[key] for key in ("runAsUser", "runAsGroup", "runAsNonRoot") if key in own}
    security = with_group(
        {"seccompProfile": {"type": "RuntimeDefault"}, **(template["spec"].get("securityContext") or {})}
    )
    rights = CONTAINER
    named = "runAsUser" in {*user, *security}
    if not named and (found := _user_of(ranks)):
        user["runAsUser"], group = found  # that of the image of the ranks
        if "runAsGroup" not in {*user, *security}:
            user["runAsGroup"] = group
    elif not named and not (security.get("runAsNonRoot") or user.get("runAsNonRoot")):
        # No status names the user of the image of the ranks: only root can stand for it.
        user["runAsUser"] = 0
        rights = {**CONTAINER, "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}}
    container = _container(request, output.secret, mounts, store, {**rights, **user})
    name = upload_name(job, output.name)
    made = _pod(job, name, naming.UPLOAD, container, volumes, security, platform)
    if state and state.start_time:
        made["metadata"]["labels"][naming.RESTART_LABEL] = "1"  # a try after the end of the program: `Upload.final`
    return made


def _user_of(ranks: Sequence[Pod]) -> tuple[int, int] | None:
    """(user, group) of the programs, if all have the same one, and not root."""
    users = {pod.user for pod in ranks if pod.owned and pod.user}
    return users.pop() if len(users) == 1 and all(user for user, _ in users) else None


def _bounded(found: dict[str, Any]) -> dict[str, Any]:
    return found if len(json.dumps(found)) <= _LONGEST_PROVENANCE else {**found, "programs": {}}


def _container(
    request: Manifest, secret: str | None, mounts: list[Manifest], store: DataStore, security: Manifest
) -> Manifest:
    return {
        # Kubelets, logs and the operator find the main container of every pod by this name.
        "name": naming.TRAINER,
        "image": store.image,
        "command": COMMAND,
        "env": [{"name": REQUEST, "value": json.dumps(request)}, {"name": "HOME", "value": "/tmp"}],
        **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        "resources": _RESOURCES,
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
    spec = {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "containers": [container],
        "volumes": list(volumes),
        **({"imagePullSecrets": secrets} if secrets else {}),
    }
    metadata = naming.object_metadata(job, name, {naming.ROLE_LABEL: role})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _claim(name: str, claim: str) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


_PARAMETERS = "ALLRANKS_PARAM_"
_MOST_IMAGES = 16
"""Of one role. There are several if a tag was given to another image while the job ran."""


def provenance(job: Job, status: Status, ranks: Iterable[Pod] | None = None) -> dict[str, Any]:
    """The job, its code, the revisions of its inputs, and its parameters, as JSON. Values of other variables are not
    part of it, because they may be secret. `ranks`: the pods that exist; None: processes, which have no image."""
    images: dict[str, set[str]] = {role: set() for role in job.spec.roles}
    for pod in ranks or ():
        if pod.owned and pod.image_id and pod.role in images:
            images[pod.role].add(pod.image_id)
    inputs = {each.name: each for each in status.inputs}
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
                each["name"]: each.get("value") for each in variables if each["name"].startswith(_PARAMETERS)
            },
        }
    return {
        "allranks": __version__,
        "job": job.name,
        "namespace": job.namespace,
        "uid": job.metadata.uid,
        "framework": job.spec.framework,
        "attempt": status.attempt,
        "startTime": status.start_time.isoformat() if status.start_time else None,
        "code": status.code.model_dump(by_alias=True, exclude_none=True, mode="json") if status.code else None,
        "packages": job.spec.packages,
        "programs": programs,
        "inputs": [
            {
                "name": each.name,
                "from": each.source,
                **(
                    inputs[each.name].model_dump(include={"revision", "sha256", "bytes"}, exclude_none=True)
                    if each.name in inputs
                    else {}
                ),
            }
            for each in job.spec.inputs or ()
        ],
        "step": status.progress.step if status.progress else None,
    }


_AS_ROOT: Manifest = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
"""Without capabilities. The kubelet makes the directory of a namespace, and only root can write there."""


def fetch_containers(job: Job, status: Status, platform: Platform, resources: Manifest) -> list[Manifest]:
    states = {each.name: each for each in status.inputs}
    out = []
    for each in job.spec.inputs or ():
        state = states.get(each.name)
        place = input_cache.place_of(each, state, job, platform)
        if place and place.location != "Claim":
            out.append(_fetch_container(each, state.revision if state else None, place, platform, resources))
    return out


def _fetch_container(
    each: Input, revision: str | None, place: Place, platform: Platform, resources: Manifest
) -> Manifest:
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
        "cache": CACHE,
        "limit": place.limit,
        "used": list(evictable.used) if evictable else None,
        "since": evictable.since if evictable else 0,
        "where": where,
    }
    return {
        "name": naming.FETCH_CONTAINER + each.name,
        "image": store.image,
        "command": COMMAND,
        "env": [
            {"name": REQUEST, "value": json.dumps(request)},
            {"name": "HOME", "value": "/tmp"},
        ],
        **({"envFrom": [{"secretRef": {"name": each.secret}}]} if each.secret else {}),
        **({"resources": resources} if resources else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": input_cache.VOLUME, "mountPath": CACHE}],
        "securityContext": {**CONTAINER, **(_AS_ROOT if on_node else {})},
    }
