"""From objects as the API server gives them to what the core sees, and back."""

from __future__ import annotations

import msgspec

from allranks.api.job import Job, Metadata, Spec
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.model import Manifest, Pod
from allranks.drivers.kubernetes import pods
from allranks.drivers.memory.store import controller_of


def job(manifest: Manifest) -> Job:
    """Raises pydantic's ValidationError for an object that was stored before its schema changed."""
    metadata = Metadata.model_validate(manifest["metadata"], by_alias=True, by_name=False)
    return Job(metadata=metadata, spec=Spec.model_validate(manifest["spec"], by_alias=True, by_name=False))


def pool(manifest: Manifest) -> PoolSpec:
    """Raises pydantic's ValidationError, as `job`."""
    return PoolSpec.model_validate(manifest["spec"], by_alias=True, by_name=False)


def status(manifest: Manifest) -> Status:
    return Status.model_validate(manifest.get("status") or {}, by_alias=True, by_name=False)


def encode_status(status: Status) -> Manifest:
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")


def pod(manifest: Manifest, owner: str) -> Pod:
    """`owner` is the UID of the job that asks. The same fields, read by the same code, as on a cluster."""
    return pods.pod(msgspec.convert(manifest, pods.Raw), owned=controller_of(manifest) == owner)
