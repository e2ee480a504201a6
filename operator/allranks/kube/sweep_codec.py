"""Decodes sweeps and what they need of the jobs of their trials, and encodes their status."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

import msgspec
from pydantic import ValidationError

from allranks import fields
from allranks.api import sweep as api
from allranks.api.job import API_VERSION
from allranks.api.status import Status
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import SweepCondition, SweepStatus
from allranks.api.sweep_validation import MAX_SPEC_BYTES, parse_sweep, too_large
from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import controller_of
from allranks.core.sweeps.model import TrialJob
from allranks.errors import InvalidManifest
from allranks.kube import compact_jobs, job_codec
from allranks.kube.decoding import ObjectMeta, decoder
from allranks.kube.job_codec import DecodeError


class RawSweep(msgspec.Struct):
    """A sweep whose spec and status are JSON text."""

    metadata: ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def version(self) -> int:
        return int(self.metadata.resource_version or 0)

    def manifest(self) -> Manifest:
        """Return the sweep, decoded. `spec` is None if it was dropped, or is nested too deeply."""
        spec: Any = None
        with contextlib.suppress(msgspec.DecodeError):
            spec = _any(self.spec)
        return {
            "apiVersion": API_VERSION,
            "kind": api.KIND,
            "metadata": msgspec.to_builtins(self.metadata),
            "spec": spec,
            "status": _any(self.status) or {},
        }


_any, _raw = decoder(Any), decoder(RawSweep)


def raw_sweep(data: bytes | str | msgspec.Raw) -> RawSweep:
    """Return the sweep in a response of the API server. It does not hold the memory of the response.

    A spec that is larger than allowed is dropped: such a sweep never runs.
    """
    raw = _raw(data)
    too_large = len(bytes(raw.spec)) > MAX_SPEC_BYTES
    return RawSweep(raw.metadata, msgspec.Raw(b"null") if too_large else raw.spec.copy(), raw.status.copy())


def sweep(manifest: Manifest) -> Sweep:
    """Decode a sweep. Raises DecodeError, with the paths of the fields."""
    if manifest.get("spec") is None:  # the schema requires it
        raise DecodeError(": ".join(too_large()))
    try:
        return parse_sweep({name: value for name, value in manifest.items() if name != "status"}, stored=True)
    except InvalidManifest as error:
        raise DecodeError("; ".join(str(error).splitlines())) from error


def status(manifest: Manifest) -> SweepStatus:
    """Decode the status. Unknown fields are left out, so that an older operator can replace a newer one. Raises
    DecodeError."""

    def validate(raw: Any) -> SweepStatus:
        return fields.decode(SweepStatus, raw)

    try:
        return job_codec.without_unknown_fields(validate, manifest.get("status") or {})
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
        raise DecodeError("; ".join(f"status.{'.'.join(map(str, w['loc']))}: {w['msg']}" for w in wrong)) from error


def encode(status: SweepStatus) -> Manifest:
    return fields.encode(status)


def invalid_patch(manifest: Manifest, message: str, now: datetime) -> Manifest | None:
    """Return the change of the status of a sweep that cannot be evaluated; None if it has ended, or is marked already.

    A sweep without trials fails.
    """
    before: Any = manifest.get("status") or {}
    if before.get("phase") in ("Succeeded", "Failed"):
        return None
    generation = manifest["metadata"].get("generation", 0)
    kind, value = ("Running", "False") if before.get("trials") else ("Failed", "True")
    mark = {"type": kind, "status": value, "reason": "InvalidSpec", "message": message}
    if any(mark.items() <= condition.items() for condition in before.get("conditions") or ()):
        return None
    condition = SweepCondition(
        type=kind,  # type: ignore[arg-type]
        status=value,  # type: ignore[arg-type]
        reason="InvalidSpec",
        message=message,
        last_transition_time=now,
        observed_generation=generation,
    )
    if kind == "Running":
        return {"conditions": [fields.encode(condition)]}
    return encode(
        SweepStatus(
            phase="Failed", conditions=[condition], start_time=now, completion_time=now, observed_generation=generation
        )
    )


class _Spec(msgspec.Struct):
    suspend: Any = False


_suspend = decoder(_Spec)


def trial_job(job: Manifest, sweep_uid: str) -> TrialJob:
    """Return the fields that a sweep needs of a job, whose spec is not decoded."""
    metadata = job["metadata"]
    try:
        suspended = _suspend(compact_jobs.spec_of(job).json).suspend is True
    except msgspec.DecodeError:
        suspended = False
    try:
        observed = job_codec.status(job)
    except DecodeError:
        observed = Status()  # the operator marks such a job
    return TrialJob(metadata["name"], observed, is_owned(job, sweep_uid), suspended, "deletionTimestamp" in metadata)


def is_owned(job: Manifest, sweep_uid: str) -> bool:
    """Return whether the job belongs to the sweep with this UID."""
    return controller_of(job).get("uid") == sweep_uid


def sweep_of(job: Manifest) -> str:
    """Return the name of the sweep that controls the job; empty if there is none."""
    owner = controller_of(job)
    return str(owner.get("name", "")) if owner.get("kind") == api.KIND else ""
