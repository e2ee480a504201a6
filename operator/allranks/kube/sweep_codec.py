"""Decodes sweeps and what they need of the jobs of their trials, and encodes their status."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from pydantic import ValidationError

from allranks.api import sweep as api
from allranks.api.status import Status
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import SweepStatus
from allranks.api.sweep_validation import parse_sweep
from allranks.core.model import Manifest
from allranks.core.sweeps.model import TrialJob
from allranks.errors import InvalidManifest
from allranks.kube import compact_jobs, job_codec
from allranks.kube.job_codec import DecodeError
from allranks.kube.json_decoder import decoder


def sweep(manifest: Manifest) -> Sweep:
    """Raises DecodeError, with the paths of the fields."""
    try:
        return parse_sweep({name: value for name, value in manifest.items() if name != "status"})
    except InvalidManifest as error:
        raise DecodeError("; ".join(str(error).splitlines())) from error


def status(manifest: Manifest) -> SweepStatus:
    """Unknown fields are left out, so that an operator can be replaced by an older one. Raises DecodeError."""
    found = manifest.get("status") or {}
    try:
        try:
            return SweepStatus.model_validate(found, by_alias=True, by_name=False)
        except ValidationError as error:
            details = error.errors(include_url=False)
            if any(detail["type"] != "extra_forbidden" for detail in details):
                raise
            rest = copy.deepcopy(found)
            for detail in details:
                job_codec.drop(rest, detail["loc"])
            return SweepStatus.model_validate(rest, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
        raise DecodeError("; ".join(f"status.{'.'.join(map(str, w['loc']))}: {w['msg']}" for w in wrong)) from error


def encode(of: SweepStatus) -> Manifest:
    return of.model_dump(by_alias=True, exclude_none=True, mode="json")


class _Spec(msgspec.Struct):
    suspend: Any = False


_suspend = decoder(_Spec)


def trial_job(job: Manifest, sweep_uid: str) -> TrialJob:
    """What a sweep needs of a job, whose spec is not decoded."""
    metadata = job["metadata"]
    try:
        suspended = _suspend(compact_jobs.spec_of(job).json).suspend is True
    except msgspec.DecodeError:
        suspended = False
    try:
        observed = job_codec.status(job)
    except DecodeError:
        observed = Status()  # the operator marks such a job
    owners = metadata.get("ownerReferences") or ()
    owned = any(owner.get("controller") and owner.get("uid") == sweep_uid for owner in owners)
    return TrialJob(metadata["name"], observed, owned, suspended, "deletionTimestamp" in metadata)


def sweep_of(job: Manifest) -> str:
    """The name of the sweep that controls the job; empty if there is none."""
    for owner in job["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == api.KIND:
            return str(owner.get("name", ""))
    return ""
