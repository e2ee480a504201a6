"""Jobs as the operator keeps them: the spec stays JSON text until a decision needs it.

As Python objects a spec takes up to sixty times its size: seven jobs of the API server's largest size would fill the
operator's memory. Of the metadata, only what the operator uses is kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from allranks.api import sweep
from allranks.api.job import API_VERSION, KIND
from allranks.api.validation import MAX_TEMPLATE_BYTES, too_large
from allranks.core.facts import development, forgiveness, queue, rank_reports, restarts
from allranks.core.facts.model import Manifest
from allranks.kube.decoding import ListMeta, ObjectMeta, decoder
from allranks.kube.job_codec import DecodeError


class RawSpec(msgspec.Struct, frozen=True, gc=False):
    """The spec of a job, not decoded. `framework`, `pool`, `resume_from` and `role_pools` are empty if they are absent
    or no text."""

    json: bytes
    framework: str = ""
    pool: str = ""
    resume_from: str = ""
    role_pools: tuple[str, ...] = ()
    """The pools that roles name."""
    too_large: bool = False
    """The templates are larger than allowed. Then `json` is null: such a job never runs."""
    left_out: bool = False
    """The spec is large. Then `json` has only the fields of `_Extract`, or is null if these are large, too."""


LARGE_BYTES = 16 * 1024
"""A larger spec is not kept: a job is read again when its spec is needed. A tenant may store thousands of them."""


class _Owner(msgspec.Struct, rename="camel", omit_defaults=True):
    kind: str
    name: str
    uid: str
    controller: bool = False


_LONGEST_REQUEST = 63
"""Characters of a request for stacks or a restart. A longer one is not ours."""


class _Labels(msgspec.Struct, omit_defaults=True):
    """The labels that are kept: a job may have a hundred thousand others."""

    queue_name: str | None = msgspec.field(default=None, name=queue.QUEUE_LABEL)
    priority_class: str | None = msgspec.field(default=None, name=queue.PRIORITY_LABEL)
    prebuilt: str | None = msgspec.field(default=None, name=queue.PREBUILT_LABEL)


class _Annotations(msgspec.Struct, omit_defaults=True):
    """The annotations that are kept."""

    gated_by: str | None = msgspec.field(default=None, name=queue.GATED_BY)
    stacks: str | None = msgspec.field(default=None, name=rank_reports.STACKS_ANNOTATION)
    restart: str | None = msgspec.field(default=None, name=restarts.RESTART_ANNOTATION)
    forgiven: str | None = msgspec.field(default=None, name=forgiveness.FORGIVEN_ANNOTATION)
    developed: str | None = msgspec.field(default=None, name=development.ANNOTATION)


class _JobMeta(ObjectMeta, rename="camel", omit_defaults=True):
    labels: _Labels = msgspec.field(default_factory=_Labels)
    annotations: _Annotations = msgspec.field(default_factory=_Annotations)
    owner_references: list[_Owner] = []


class _Job(msgspec.Struct):
    metadata: _JobMeta
    spec: msgspec.Raw = msgspec.Raw()
    status: dict[str, Any] | None = None


class _Page(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] = []


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw()


_job, _page, _event, _any = decoder(_Job), decoder(_Page), decoder(_Event), decoder(Any)


def job(answer: bytes) -> Manifest:
    """Return the job in a response, also with a large spec."""
    return _manifest(_job(answer))


def page(body: bytes) -> Manifest:
    """Return a page of a list of jobs, for kopf: its metadata and its items."""
    answer = _page(body)
    metadata = {"resourceVersion": answer.metadata.resource_version, "continue": answer.metadata.further}
    items = [without_large_spec(_manifest(_job(item))) for item in answer.items]
    return {"apiVersion": API_VERSION, "kind": f"{KIND}List", "metadata": metadata, "items": items}


def line(data: bytes) -> bytes:
    """Return an event of a watch for kopf, which decodes it: the spec is JSON text in a string.

    Anything else is returned unchanged.
    """
    try:
        event = _event(data)
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            return data
        job = _job(event.object)
    except msgspec.DecodeError:
        return data
    spec = bytes(job.spec).decode() if bytes(job.spec) else None
    compact = {**_manifest(job, with_spec=False), "spec": spec}
    return msgspec.json.encode({"type": event.type, "object": compact})


def compact(manifest: Manifest) -> Manifest:
    """Return the same job, with its spec not decoded. The spec may be decoded, text, or a RawSpec already."""
    spec = manifest.get("spec")
    if isinstance(spec, RawSpec):
        return manifest
    text = spec.encode() if isinstance(spec, str) else msgspec.json.encode(spec)
    metadata = _metadata(msgspec.convert(manifest["metadata"], _JobMeta))
    return {"apiVersion": API_VERSION, "kind": KIND, **manifest, "metadata": metadata, "spec": _raw_spec(text)}


class _Extract(msgspec.Struct, rename="camel"):
    """The fields of a large spec that other jobs and sweeps need."""

    inputs: msgspec.Raw = msgspec.Raw()
    resume_from: msgspec.Raw = msgspec.Raw()
    suspend: msgspec.Raw = msgspec.Raw()
    checkpoint: msgspec.Raw = msgspec.Raw()


_extract = decoder(_Extract)


def without_large_spec(manifest: Manifest) -> Manifest:
    """Return the same job, without its spec if this is large."""
    if not is_large(manifest):
        return manifest
    spec = spec_of(manifest)
    try:
        fields = msgspec.structs.asdict(_extract(spec.json))
        names = {field.name: field.encode_name for field in msgspec.structs.fields(_Extract)}
        kept = msgspec.json.encode({names[name]: value for name, value in fields.items() if bytes(value)})
    except msgspec.DecodeError:
        kept = b"null"  # stored without a schema
    kept = kept if len(kept) <= LARGE_BYTES else b"null"
    return {**manifest, "spec": msgspec.structs.replace(spec, json=kept, left_out=True)}


def is_large(manifest: Manifest) -> bool:
    """Return whether the job has a large spec, which is not left out."""
    return len(spec_of(manifest).json) > LARGE_BYTES


def spec_of(manifest: Manifest) -> RawSpec:
    spec = manifest.get("spec")
    return spec if isinstance(spec, RawSpec) else RawSpec(b"null")


def expanded(manifest: Manifest) -> Manifest:
    """Return the job with its spec decoded. Raises DecodeError if the templates are too large or nested too deeply."""
    spec = spec_of(manifest)
    if spec.left_out:
        raise RuntimeError(f"the spec of {manifest['metadata']['name']} is not kept: read the job first")
    if spec.too_large:
        raise DecodeError(": ".join(too_large("spec")))
    try:
        return {**manifest, "spec": _any(spec.json)}
    except msgspec.DecodeError as error:
        raise DecodeError(f"spec: is no valid JSON: {error}") from error


def _manifest(job: _Job, with_spec: bool = True) -> Manifest:
    out: Manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": _metadata(job.metadata)}
    if with_spec:
        out["spec"] = _raw_spec(bytes(job.spec) or b"null")
    return out if job.status is None else {**out, "status": job.status}


class _Fields(msgspec.Struct, rename="camel"):
    framework: Any = None
    pool: Any = None
    resume_from: Any = None
    roles: msgspec.Raw = msgspec.Raw()


class _Role(msgspec.Struct):
    pool: str | None = None


_fields, _roles = decoder(_Fields), decoder(dict[str, _Role])


def _raw_spec(text: bytes) -> RawSpec:
    try:
        fields = _fields(text)
    except msgspec.DecodeError:
        return RawSpec(text)  # no object: stored without a schema
    framework, pool, resume_from = (
        name if isinstance(name, str) else "" for name in (fields.framework, fields.pool, fields.resume_from)
    )
    spec = RawSpec(text, framework, pool, resume_from, _role_pools(fields.roles))
    return msgspec.structs.replace(spec, json=b"null", too_large=True) if has_large_templates(text) else spec


def _role_pools(roles: msgspec.Raw) -> tuple[str, ...]:
    try:
        named = {role.pool for role in _roles(roles).values()} if b'"pool"' in bytes(roles) else set()
    except msgspec.DecodeError:
        return ()  # stored without a schema
    return tuple(sorted(filter(None, named)))


def names_in(spec: bytes) -> Manifest:
    """Return `framework` and `pool` of the JSON of a spec."""
    raw = _raw_spec(spec)
    return {"framework": raw.framework, **({"pool": raw.pool} if raw.pool else {})}


def has_large_templates(spec: bytes) -> bool:
    """Return whether the templates in the JSON of a spec are larger than allowed: the operator never runs such a
    job."""
    return len(spec) > MAX_TEMPLATE_BYTES and _template_bytes(spec) > MAX_TEMPLATE_BYTES


class _Variable(msgspec.Struct, rename="camel"):
    value_from: msgspec.Raw = msgspec.Raw()


class _Container(msgspec.Struct):
    template: msgspec.Raw = msgspec.Raw()
    env: list[_Variable] | None = None


class _Checkpoint(msgspec.Struct):
    volume: msgspec.Raw = msgspec.Raw()


class _Spec(_Container):
    roles: dict[str, _Container] = {}
    checkpoint: _Checkpoint | None = None


_spec = decoder(_Spec)


def _template_bytes(raw: bytes) -> int:
    """Return the size of all parts of a spec without a schema, for which nothing else sets a limit."""
    try:
        spec = _spec(raw)
    except msgspec.DecodeError:
        return len(raw)  # stored under another schema
    parts = [spec.checkpoint.volume] if spec.checkpoint else []
    for container in (spec, *spec.roles.values()):
        parts += [container.template, *(variable.value_from for variable in container.env or ())]
    return sum(len(bytes(part)) for part in parts)


def _metadata(metadata: _JobMeta) -> Manifest:
    """Return what decisions may depend on. Of the owners, this is the sweep of a trial."""
    if len(metadata.annotations.stacks or "") > _LONGEST_REQUEST:
        metadata.annotations.stacks = None
    if len(metadata.annotations.restart or "") > _LONGEST_REQUEST:
        metadata.annotations.restart = None
    if len(metadata.annotations.developed or "") > _LONGEST_REQUEST:
        metadata.annotations.developed = None
    if len(metadata.annotations.forgiven or "") > forgiveness.LONGEST:
        metadata.annotations.forgiven = None
    metadata.owner_references = [
        owner for owner in metadata.owner_references if owner.controller and owner.kind == sweep.KIND
    ]
    out: Manifest = msgspec.to_builtins(metadata)
    return {name: value for name, value in out.items() if value != {}}
