"""From a job's JSON to what the core reads, and back; and what to say of one that cannot be read.

Such a job was written before a change of the schema, or by a newer version; it is marked, and no other job feels it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ValidationError

from allranks.api import validation
from allranks.api.job import Job, Metadata, Spec
from allranks.api.status import FINISHED, Status
from allranks.core.model import Manifest
from allranks.errors import InvalidManifest

_MESSAGE = 4096


class DecodeError(Exception):
    """`str()` is a sentence with the paths of the fields."""


def job(manifest: Manifest) -> Job:
    """Raises DecodeError."""
    try:
        metadata = Metadata.model_validate(manifest["metadata"], by_alias=True, by_name=False)
        return Job(metadata=metadata, spec=Spec.model_validate(manifest.get("spec"), by_alias=True, by_name=False))
    except ValidationError as error:
        raise DecodeError(_sentence(manifest, error)) from error


def status(manifest: Manifest) -> Status:
    """Raises DecodeError."""
    try:
        return Status.model_validate(manifest.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError as error:
        raise DecodeError(_paths("status", error)) from error


def encode(status: Status) -> Manifest:
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")


def mark(manifest: Manifest, why: str, now: datetime) -> Manifest | None:
    """The merge patch of status that tells it. What never began fails; what runs is left running, and told of."""
    seen = manifest.get("status")
    seen = seen if isinstance(seen, dict) else {}
    if str(seen.get("phase")) in FINISHED:
        return None
    begun = bool(seen.get("startTime"))
    kind, state = ("Running", _state_of(seen, "Running")) if begun else ("Failed", "True")
    at = now.isoformat().replace("+00:00", "Z")
    before = next((c for c in _conditions(seen) if c.get("type") == kind), {})
    condition = {
        "type": kind,
        "status": state,
        "reason": "InvalidSpec",
        "message": why[:_MESSAGE],
        "lastTransitionTime": before.get("lastTransitionTime", at) if before.get("status") == state else at,
        "observedGeneration": manifest["metadata"].get("generation", 0),
    }
    if before == condition:
        return None
    change: dict[str, Any] = {"conditions": [*(c for c in _conditions(seen) if c.get("type") != kind), condition]}
    if not begun:
        change |= {"phase": "Failed", "startTime": at, "completionTime": at}
    return change


def _conditions(seen: Manifest) -> list[Manifest]:
    conditions = seen.get("conditions")
    return [c for c in conditions if isinstance(c, dict)] if isinstance(conditions, list) else []


def _state_of(seen: Manifest, kind: str) -> str:
    return next((c.get("status", "Unknown") for c in _conditions(seen) if c.get("type") == kind), "Unknown")


def _sentence(manifest: Manifest, error: ValidationError) -> str:
    metadata = {"name": manifest["metadata"]["name"]}
    try:
        validation.parse({**manifest, "metadata": metadata})
    except InvalidManifest as invalid:
        return "; ".join(str(invalid).splitlines())
    except Exception:  # a shape that nobody thought of must still be told
        return _paths("", error)
    return _paths("", error)


def _paths(root: str, error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in (root, *detail['loc']) if part != '')}: {detail['msg']}"
        for detail in error.errors(include_url=False)[:8]
    )
