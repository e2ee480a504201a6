"""Stores a bundle in an immutable ConfigMap that every job with this code owns.

Jobs with the same code share one ConfigMap, because its name is the hash of the content. The garbage collector deletes
it with its last job. The order is: ConfigMap, job, owner reference. An interrupt of the client waits for the request
that is under way: before the job the ConfigMap is deleted again, after it the job becomes an owner. What is left behind
if the client is killed, or the API server does not answer:

- between ConfigMap and job: a ConfigMap without an owner. The next submission in the namespace deletes it (`_sweep`),
  but not in its first hour, in which the client may still be on its way.
- between job and owner reference: the job runs. The next submission of the job, or of the same code, adds the owner.
- the ConfigMap disappears before the owner is added, because its last other job was deleted: it is created again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from allranks.api.job import API_VERSION, KIND, PLURAL
from allranks.code.bundle import MAX_SHIPPED_BYTES, Bundle
from allranks.code.differences import compressed, decompressed
from allranks.core.objects.code import ARCHIVE
from allranks.errors import ClusterError
from allranks.kube.cluster import METADATA, METADATA_OF_ONE, STRATEGIC_MERGE_PATCH, Cluster, Manifest

LABEL = "allranks.dev/code"
DIFFERENCES = "changes.diff.gz"
"""Key of the ConfigMap with the differences of the code from its commit, as far as there is room."""
_SWEEP_AGE = timedelta(hours=1)
_FIELD_MANAGER = {"fieldManager": "allranks"}


async def create_with_code(
    cluster: Cluster,
    namespace: str,
    bundle: Bundle,
    create: Callable[[], Awaitable[Manifest]],
    *,
    dry_run: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Store the code, and return the result of `create`: the job, whose `spec.code` is `bundle.spec`. Raise
    ClusterError.

    `check` raises CancelledError if the client was interrupted. It is called before each request that creates
    something. After it, and if the API server rejects the job, a ConfigMap that this call created is deleted again. If
    the job may exist, because no answer arrived, the ConfigMap is kept.
    """
    check()
    created = await _create(cluster, namespace, bundle, dry_run)
    sent = False
    try:
        check()
        sent = True
        job = await create()
    except (ClusterError, asyncio.CancelledError) as error:
        unused = error.uncertain is False if isinstance(error, ClusterError) else not sent
        if created and unused and not dry_run:
            await _delete(cluster, namespace, created["metadata"])
        raise
    if dry_run:
        return job
    try:
        await _add_owners(cluster, namespace, bundle, [job, *([] if created else await _other_users(cluster, job))])
    except ClusterError as error:
        name = f"{job['metadata']['name']} was created and continues"
        kept = f"its code will not be deleted with it, because it cannot own the ConfigMap {bundle.config_map}"
        raise ClusterError(f"{name}; {kept}: {error}", error.status, error.reason) from error
    if created:
        await _sweep(cluster, namespace)
    return job


async def add_owner(cluster: Cluster, namespace: str, config_map: str, job: Manifest) -> None:
    """Make a job that was created with the code of another one an owner. Raise ClusterError."""
    change = {"metadata": {"ownerReferences": [owner_reference(job)]}}
    path = f"{_path(namespace)}/{config_map}"
    await cluster.request("PATCH", path, _FIELD_MANAGER, change, content=STRATEGIC_MERGE_PATCH)


async def stored_differences(cluster: Cluster, namespace: str, config_map: str) -> str:
    """Return the differences of the code from its commit; empty if the ConfigMap has none. Raise ClusterError,
    ValueError.

    Users may have written the ConfigMap: the text can hold anything."""
    stored = await cluster.get(f"{_path(namespace)}/{config_map}")
    content = (stored.get("binaryData") or {}).get(DIFFERENCES)
    return decompressed(base64.b64decode(content)) if content else ""


async def delete_unused(cluster: Cluster, namespace: str, config_map: str, job: Manifest) -> None:
    """Delete code that a job does not use any more, if it is the only owner. Raise ClusterError."""
    metadata = (await cluster.get(f"{_path(namespace)}/{config_map}", accept=METADATA_OF_ONE))["metadata"]
    owners = [owner.get("uid") for owner in metadata.get("ownerReferences") or ()]
    if owners == [job["metadata"]["uid"]] and LABEL in (metadata.get("labels") or {}):
        await _delete(cluster, namespace, metadata)


def config_map_of(job: Manifest) -> str:
    """Return the name of the job's ConfigMap with code; empty without one."""
    code = (job.get("spec") or {}).get("code")
    return str(code.get("configMap") or "") if isinstance(code, dict) else ""


def manifest(bundle: Bundle, namespace: str, *owners: Manifest) -> Manifest:
    """Return the ConfigMap. The differences from the commit are not part of its name: the same files may have been
    stored before, from another commit."""
    data = {ARCHIVE: bundle.archive}
    if bundle.differences and (more := compressed(bundle.differences, MAX_SHIPPED_BYTES - len(bundle.archive))):
        data[DIFFERENCES] = more
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": bundle.config_map,
            "namespace": namespace,
            "labels": {LABEL: "true", "app.kubernetes.io/managed-by": "allranks"},
            **({"ownerReferences": [owner_reference(job) for job in owners]} if owners else {}),
        },
        "immutable": True,  # kubelets need not watch it
        "binaryData": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def owner_reference(job: Manifest) -> dict[str, Any]:
    """Return the owner reference of a job. It is not the controller, of which an object has at most one."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}


async def _create(cluster: Cluster, namespace: str, bundle: Bundle, dry_run: bool) -> Manifest | None:
    """Return the new ConfigMap; None if there is one already."""
    bundle.check_size()
    query = {**_FIELD_MANAGER, "dryRun": "All" if dry_run else None}
    try:
        return await cluster.request("POST", _path(namespace), query, manifest(bundle, namespace))
    except ClusterError as error:
        if error.reason == "AlreadyExists":
            return None
        if error.status == 403:
            right = "" if "quota" in str(error) else "ask for the rights to create and patch ConfigMaps, or "
            cure = f"{right}use code from a claim or an image"
            raise ClusterError(
                f"the code cannot be stored in a ConfigMap: {error}; {cure}", 403, error.reason
            ) from error
        raise


async def _add_owners(cluster: Cluster, namespace: str, bundle: Bundle, jobs: list[Manifest]) -> None:
    """Make jobs owners of the ConfigMap. The API server merges references by UID, so two submissions at once lose
    none."""
    change = {"metadata": {"ownerReferences": [owner_reference(job) for job in jobs]}}
    path = f"{_path(namespace)}/{bundle.config_map}"
    while True:
        try:
            await cluster.request("PATCH", path, _FIELD_MANAGER, change, content=STRATEGIC_MERGE_PATCH)
            return
        except ClusterError as error:
            if error.status != 404:
                raise
        try:  # the garbage collector deleted it, with the last other job
            await cluster.request("POST", _path(namespace), _FIELD_MANAGER, manifest(bundle, namespace, *jobs))
            return
        except ClusterError as error:
            if error.reason != "AlreadyExists":
                raise


async def _other_users(cluster: Cluster, job: Manifest) -> list[Manifest]:
    """Return further jobs with this ConfigMap: one of them may be no owner, because its client was interrupted, and
    would lose the ConfigMap together with the owners."""
    metadata, name = job["metadata"], job["spec"]["code"]["configMap"]
    try:
        listed = await cluster.get(f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/{PLURAL}")
    except ClusterError:  # no permission to list jobs
        return []
    items: list[Manifest] = listed.get("items") or []
    return [item for item in items if config_map_of(item) == name and item["metadata"]["uid"] != metadata["uid"]]


async def _sweep(cluster: Cluster, namespace: str) -> None:
    """Delete ConfigMaps with code that interrupted submissions left: without an owner, unused, and older than an hour.

    Without the permissions nothing happens."""
    before = datetime.now(UTC) - _SWEEP_AGE
    with contextlib.suppress(ClusterError):
        listed = await cluster.get(_path(namespace), {"labelSelector": LABEL}, accept=METADATA)
        left = [
            item["metadata"]
            for item in listed.get("items") or []
            if not item["metadata"].get("ownerReferences")
            and datetime.fromisoformat(item["metadata"]["creationTimestamp"]) < before
        ]
        if not left:
            return
        jobs = await cluster.get(f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}")
        used = {config_map_of(job) for job in jobs.get("items") or []}
        for metadata in left:
            if metadata["name"] not in used:
                await _delete(cluster, namespace, metadata)


async def _delete(cluster: Cluster, namespace: str, metadata: Manifest) -> None:
    """Delete a ConfigMap if it is unchanged: another client may have added its job meanwhile."""
    unchanged = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": unchanged}
    with contextlib.suppress(ClusterError):
        await cluster.request("DELETE", f"{_path(namespace)}/{metadata['name']}", None, options)


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"
