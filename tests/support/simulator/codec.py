"""Decodes pods and pools from the API server's JSON to the types of the core. kube.job_codec decodes jobs."""

from __future__ import annotations

import msgspec

from allranks.api.pool import PoolSpec
from allranks.core.facts.model import Manifest, Pod
from allranks.kube import pod_codec, raw_pod

from .store import controller_of


def pool(manifest: Manifest) -> PoolSpec:
    """Raises pydantic's ValidationError for an object that was stored before its schema changed."""
    return PoolSpec.model_validate(manifest["spec"], by_alias=True, by_name=False)


def pod(manifest: Manifest, owner: str) -> Pod:
    """`owner`: UID of the job. Decoded by the same code as on a cluster."""
    return pod_codec.pod(msgspec.convert(manifest, raw_pod.Raw), owned=controller_of(manifest) == owner)
