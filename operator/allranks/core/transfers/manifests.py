"""The pods that fetch inputs and upload outputs on a cluster: one for each input that is not a volume, and one for each
output.

An input that the program streams, or that the pods of ranks fetch (`rank_fetches.py`), has such a pod as well, which
only looks up its revision.

They have no GPU, no token and only the Secret of their own input or output. The claim of the setting `data_claim` holds

    inputs/KEY/files        the cache, which ranks mount read-only
    outputs/UID/NAME        what ranks write
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from allranks.api.data import Input, Output
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.cache_key import cache_key
from allranks.core.facts import naming, ownership, pod_template, resume_source
from allranks.core.facts.model import Manifest, Platform, Pod
from allranks.core.facts.uploads import UNSEEN, CacheUse, DataStore, checkpoint_of, of_checkpoint
from allranks.core.transfers import input_cache
from allranks.core.transfers.provenance import provenance

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
    metadata = ownership.metadata(job, name, {naming.ROLE_LABEL: role})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _claim(name: str, claim: str) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}
