"""Jobs and sweeps as the archiver and the web UI keep them: JSON text, without what is too large to keep.

As Python objects, the largest job that the API server stores takes 30 MB. The operator does not look at every job
(`spec.managedBy`), so its limits do not apply here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from allranks.api.job import API_VERSION, KIND
from allranks.api.sweep_validation import MAX_SPEC_BYTES
from allranks.api.validation import MAX_LABELS, MAX_TEMPLATE_BYTES
from allranks.core.facts.model import Manifest
from allranks.kube import compact_jobs
from allranks.kube.decoding import ObjectMeta, decoder

LEFT_OUT = "allranks.dev/left-out"
"""Annotation of an object of which a part is missing: which part, and why."""
MAX_JOB_BYTES = 2 * MAX_TEMPLATE_BYTES
"""Size of a job's spec: its templates, and what has a schema."""
MAX_METADATA_BYTES = 64 * 1024
"""Size of the labels, and likewise of the annotations."""
_MAX_LABELS = 2 * MAX_LABELS
"""Labels: of a template, and further ones that the operator and admission webhooks add to a pod."""
MAX_ANNOTATIONS = 256
SMALL_METADATA_BYTES = 16 * 1024
"""Size of metadata that an object keeps for whose spec there is no room."""
MAX_OWNERS = 16


class _Metadata(ObjectMeta, omit_defaults=True, rename="camel"):
    generate_name: str = ""
    deletion_grace_period_seconds: int | None = None
    labels: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    annotations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    owner_references: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finalizers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Object(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    kind: str = ""
    api_version: str = API_VERSION


class _Status(msgspec.Struct):
    status: Any = None


_object, _status, _map, _any = decoder(_Object), decoder(_Status), decoder(Manifest), decoder(Any)
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class ObjectText:
    """An object whose spec and status are JSON text. Its metadata is decoded."""

    kind: str
    metadata: Manifest
    json: bytes

    @property
    def status(self) -> Manifest:
        """Return the decoded status; empty if there is none."""
        status = _status(self.json).status
        return status if isinstance(status, dict) else {}

    def manifest(self) -> Manifest:
        """Return the decoded object, which the caller may change."""
        return _map(self.json)


def object_text(data: bytes | msgspec.Raw, kind: str = KIND) -> ObjectText:
    """Return an object of the API server without managedFields and without what is too large to keep.

    It does not hold the memory of `data`. Items of a list have no kind, so `kind` says it. Raises msgspec.DecodeError.
    """
    raw = _object(data)
    raw.kind = raw.kind or kind
    left_out = []
    if problem := _too_large(bytes(raw.spec), raw.kind):
        raw.spec = msgspec.Raw(b"null")
        left_out.append(f"spec ({problem})")
    left_out += _bound_metadata(raw.metadata)
    metadata = _map(_encode(raw.metadata))
    if left_out:
        note = f"too large to keep: {', '.join(left_out)}"
        metadata["annotations"] = {**(metadata.get("annotations") or {}), LEFT_OUT: note}
        raw.metadata.annotations = msgspec.Raw(_encode(metadata["annotations"]))
    return ObjectText(raw.kind, metadata, _encode(raw))


def name_only(text: ObjectText, reason: str) -> ObjectText:
    """Return an object without its content, for which there is no room."""
    metadata = {**_names(text), "annotations": {LEFT_OUT: f"all but its name: {reason}"}}
    content = {"apiVersion": "v1" if text.kind == "Pod" else API_VERSION, "kind": text.kind, "metadata": metadata}
    return ObjectText(text.kind, metadata, _encode(content))


def without_spec(text: ObjectText, reason: str) -> ObjectText:
    """Return a job or sweep with its status and small metadata, for whose rest there is no room.

    Of the spec of a job, `framework` and `pool` are left.
    """
    raw = _object(text.json)
    small = _metadata_bytes(text, raw) <= SMALL_METADATA_BYTES
    parts = "spec" if small else "spec, labels, annotations, ownerReferences, finalizers"
    metadata = {**(text.metadata if small else _names(text))}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), LEFT_OUT: f"{parts}: {reason}"}
    spec = compact_jobs.names_in(bytes(raw.spec)) if text.kind == KIND else None
    content: Manifest = {"apiVersion": API_VERSION, "kind": text.kind, "metadata": metadata, "spec": spec}
    if raw.status is not msgspec.UNSET:
        content["status"] = raw.status
    return ObjectText(text.kind, metadata, _encode(content))


def without_large_spec(text: ObjectText, reason: str) -> ObjectText:
    """Return the same object, `without_spec` if that or the metadata are large."""
    raw = _object(text.json)
    is_small = len(bytes(raw.spec)) <= compact_jobs.LARGE_BYTES and _metadata_bytes(text, raw) <= SMALL_METADATA_BYTES
    return text if is_small else without_spec(text, reason)


def _metadata_bytes(text: ObjectText, raw: _Object) -> int:
    return len(text.json) - len(bytes(raw.spec)) - (0 if raw.status is msgspec.UNSET else len(bytes(raw.status)))


def _names(text: ObjectText) -> Manifest:
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {key: text.metadata[key] for key in kept if key in text.metadata}


def of_manifest(manifest: Manifest) -> ObjectText:
    """Return a decoded object as text."""
    return object_text(_encode(manifest))


def _too_large(spec: bytes, kind: str) -> str:
    """Return why a spec is too large; empty if it is not."""
    if kind != KIND:
        return _more_than(MAX_SPEC_BYTES) if len(spec) > MAX_SPEC_BYTES else ""
    if len(spec) > MAX_JOB_BYTES:
        return _more_than(MAX_JOB_BYTES)
    return f"its templates: {_more_than(MAX_TEMPLATE_BYTES)}" if compact_jobs.has_large_templates(spec) else ""


def _more_than(size: int) -> str:
    return f"more than {size // 1024} KiB"


def _bound_metadata(metadata: _Metadata) -> list[str]:
    """Remove the parts that are too large, and return their paths with the reason."""
    left_out = []
    for name, path, most in (
        ("labels", "labels", _MAX_LABELS),
        ("annotations", "annotations", MAX_ANNOTATIONS),
        ("owner_references", "ownerReferences", MAX_OWNERS),
        ("finalizers", "finalizers", MAX_OWNERS),
    ):
        part = getattr(metadata, name)
        if part is msgspec.UNSET:
            continue
        if len(bytes(part)) > MAX_METADATA_BYTES:
            problem = _more_than(MAX_METADATA_BYTES)
        elif _size(part) > most:
            problem = f"more than {most}"
        else:
            continue
        setattr(metadata, name, msgspec.UNSET)
        left_out.append(f"metadata.{path} ({problem})")
    return left_out


def _size(part: msgspec.Raw) -> int:
    """Return the number of entries."""
    entries = _any(part)
    return len(entries) if isinstance(entries, (dict, list)) else 0
