"""From pods and pools as the API server gives them to what the core sees; of jobs, the cluster's driver does it."""

from __future__ import annotations

import msgspec

from allranks.api.pool import PoolSpec
from allranks.core.model import Manifest, Pod
from allranks.kube import pod_codec

from .store import controller_of


def pool(manifest: Manifest) -> PoolSpec:
    """Raises pydantic's ValidationError for an object that was stored before its schema changed."""
    return PoolSpec.model_validate(manifest["spec"], by_alias=True, by_name=False)


def pod(manifest: Manifest, owner: str) -> Pod:
    """`owner` is the UID of the job that asks. The same fields, read by the same code, as on a cluster."""
    return pod_codec.pod(msgspec.convert(manifest, pod_codec.Raw), owned=controller_of(manifest) == owner)
