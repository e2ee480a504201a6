"""The key of a submission: ranks sign with it what they send back, and the process that made it loads their pickles.

It is in a Secret of the job. The Secret is created before the job, which then becomes its owner: if the client is
killed in between, a Secret without an owner stays.
"""

from __future__ import annotations

import base64
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from allranks.client.submission import Creation
from allranks.code.ship import owner_reference
from allranks.core.facts import naming
from allranks.core.facts.strategic_merge import merge
from allranks.errors import ClusterError
from allranks.inpod.call_function import KEY_FILE
from allranks.kube.cluster import STRATEGIC_MERGE_PATCH, Cluster, Manifest
from allranks.kube.paths import core_path

VOLUME, _ENTRY = "result-key", "key"
_DIRECTORY = "/var/run/allranks-results"
_QUERY = {"fieldManager": "allranks"}


@dataclass(frozen=True)
class ResultKey:
    """A new key."""

    value: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    secret: str = field(default_factory=lambda: f"allranks-result-{secrets.token_hex(8)}")

    def manifest(self) -> Manifest:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.secret, "labels": {"app.kubernetes.io/managed-by": "allranks"}},
            "immutable": True,
            "data": {_ENTRY: base64.b64encode(self.value).decode()},
        }


def attach(document: Manifest, key: ResultKey | None) -> None:
    """Name the file of the key to the ranks of a job, and mount it if there is one."""
    trainer: Manifest = {"name": naming.TRAINER, "env": [{"name": KEY_FILE, "value": f"{_DIRECTORY}/{_ENTRY}"}]}
    pod_spec: Manifest = {"containers": [trainer]}
    if key:
        # Optional: the manifest may be copied to a namespace or a cluster without the Secret.
        source = {"secretName": key.secret, "defaultMode": 0o444, "optional": True}
        pod_spec["volumes"] = [{"name": VOLUME, "secret": source}]
        trainer["volumeMounts"] = [{"name": VOLUME, "mountPath": _DIRECTORY, "readOnly": True}]
    spec = document["spec"]
    spec["template"] = merge(spec.get("template") or {}, {"spec": pod_spec})


def has_key(job: Manifest) -> bool:
    """Return whether the ranks of a job sign what they send back."""
    template = (job.get("spec") or {}).get("template") or {}
    return any(volume.get("name") == VOLUME for volume in (template.get("spec") or {}).get("volumes") or ())


async def create_with_key(
    cluster: Cluster, document: Manifest, creation: Creation[Manifest], create: Callable[[], Awaitable[Manifest]]
) -> tuple[Manifest, ResultKey | None]:
    """Store a key, attach it to the job in `document`, and return (result of `create`, the key). Raises ClusterError.

    There is no key, and a note says so, if the caller may not create Secrets.
    """
    key = ResultKey()
    path = core_path(cluster.namespace, "secrets")
    creation.check()
    try:
        await cluster.request("POST", path, _QUERY, key.manifest())
    except ClusterError as error:
        if error.status != 403:
            raise
        cure = "job.result() loads a pickle only with allow_pickle=True"
        _note(f"no key for the results can be stored, so {cure}: {error}")
        attach(document, None)
        return await create(), None
    attach(document, key)
    item = f"{path}/{key.secret}"
    try:
        return await create(), key
    finally:
        if creation.result is not None:
            await _quietly(
                cluster, "PATCH", item, {"metadata": {"ownerReferences": [owner_reference(creation.result)]}}
            )
        elif not creation.sent:
            await _quietly(cluster, "DELETE", item)


async def _quietly(cluster: Cluster, verb: str, path: str, change: Any = None) -> None:
    try:
        if change is None:
            await cluster.request(verb, path)
        else:
            await cluster.request(verb, path, _QUERY, change, content=STRATEGIC_MERGE_PATCH)
    except ClusterError as error:
        _note(f"the Secret {path.rpartition('/')[2]} with the key of the results stays behind: {error}")


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
