"""Inputs and outputs in the pods of ranks: a volume and variables for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allranks.api.data import (
    RESUME_INPUT,
    Input,
    InputStatus,
    Output,
    OutputStatus,
    StartingPoint,
    claim_of,
    upper,
)
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import resume_source
from allranks.core.facts.model import Manifest, Platform
from allranks.core.transfers import input_cache, manifests


def input_volume(name: str) -> str:
    return f"allranks-input-{name}"


def output_volume(name: str) -> str:
    return f"allranks-output-{name}"


def volumes(job: Job, status: Status, platform: Platform) -> Iterator[tuple[str, str, Manifest, dict[str, Any]]]:
    """Yield (name, mount path, source, further fields of the mount) of the training container's volumes.

    Several mounts may have the same volume.
    """
    claim = _claim(platform)
    for item in job.spec.inputs or ():
        if item.path is None:
            continue
        if fetched := mount_of(item, status, job, platform):
            name, volume, mount = fetched
            yield name, item.path, volume, {"readOnly": True, **mount}
            continue
        source, mount = _source(item)
        yield input_volume(item.name), item.path, source, {"readOnly": True, **mount}
    for output in job.spec.outputs or ():
        if output.when == "Checkpoint":
            continue  # it is the volume of the checkpoints
        if claim and not platform.local:
            folder = f"outputs/{job.metadata.uid}/{output.name}"
            yield manifests.VOLUME, output.path, claim, {"subPath": folder}
        else:
            yield output_volume(output.name), output.path, {"emptyDir": {}}, {}


def mount_of(item: Input, status: Status, job: Job, platform: Platform) -> tuple[str, Manifest, dict[str, Any]] | None:
    """Return (name, source, further fields of the mount) of the volume with an input that was fetched; None if it is
    mounted itself, or in a local run."""
    state = next((state for state in status.inputs if state.name == item.name), None)
    place = input_cache.place_of(item, state, job, platform)
    if place is None:
        return None
    folder = f"{manifests.key_of(item, state.revision if state else None)}/files"
    if place.location == "Claim":
        return manifests.VOLUME, _claim(platform), {"subPath": f"inputs/{folder}"}
    return input_cache.VOLUME, place.volume_source(job.namespace, platform.namespace_uid), {"subPath": folder}


def _claim(platform: Platform) -> Manifest:
    name = platform.data.claim if platform.data else ""
    return {"persistentVolumeClaim": {"claimName": name}} if name else {}


def _source(item: Input) -> tuple[Manifest, dict[str, Any]]:
    if item.scheme == "claim":
        claim, below = claim_of(item.source)
        return {"persistentVolumeClaim": {"claimName": claim}}, {"subPath": below} if below else {}
    if item.scheme == "image":
        return {"image": {"reference": item.source.partition("://")[2]}}, {}
    return {"emptyDir": {}}, {}


def environment(job: Job, status: Status) -> dict[str, str]:
    """Return ALLRANKS_INPUT_NAME and ALLRANKS_OUTPUT_NAME: the paths, and the addresses of inputs that are streamed."""
    revisions = {item.name: item.revision for item in status.inputs}
    return {
        **{
            f"ALLRANKS_INPUT_{upper(item.name)}": item.path or address(item, revisions.get(item.name))
            for item in job.spec.inputs or ()
        },
        **{f"ALLRANKS_OUTPUT_{upper(item.name)}": item.path for item in job.spec.outputs or ()},
    }


def address(item: Input, revision: str | None) -> str:
    """Return the address from which a program reads an input, for fsspec. An address of the hub has the commit."""
    if item.scheme != "hf" or not revision:
        return item.source
    kind, _, rest = item.source.removeprefix("hf://").partition("/")
    if kind not in ("datasets", "models"):
        kind, rest = "models", item.source.removeprefix("hf://")
    owner, name, *below = rest.strip("/").split("/")
    return "/".join(["hf:/", *(["datasets"] if kind == "datasets" else []), owner, f"{name}@{revision}", *below])


def secrets(job: Job) -> list[Manifest]:
    """Return `envFrom` of the training containers: the credentials of inputs that they stream."""
    names = dict.fromkeys(item.secret for item in job.spec.inputs or () if item.streamed and item.secret)
    return [{"secretRef": {"name": name}} for name in names]


def problems(job: Job, trainer: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (field path, message) of directories and names that inputs and outputs share with something else."""
    taken = {str(mount.get("mountPath", "")).rstrip("/"): "another volume" for mount in trainer.get("volumeMounts", [])}
    if job.spec.checkpoint:
        taken[job.spec.checkpoint.path.rstrip("/")] = "spec.checkpoint"
    if job.spec.code:
        taken[job.spec.code.path.rstrip("/")] = "spec.code"
    names: set[str] = {RESUME_INPUT} if job.spec.starting_point else set()
    for field, item in _all(job):
        if item.name in names:
            yield f"{field}.name", f"an input has the name {item.name} as well: choose another one"
        if isinstance(item, Output) and item.when == "Checkpoint":
            if not resume_source.shared(job.spec.checkpoint):
                yield f"{field}.when", "the checkpoints are in a volume that ends with its pod: choose a claim for them"
            continue
        if field.startswith("spec.inputs"):
            names.add(item.name)
        if item.path is None:
            continue
        path = item.path.rstrip("/")
        for other, owner in taken.items():
            if path == other:
                yield f"{field}.path", f"{path} is also the directory of {owner}: choose another one"
            elif path.startswith(f"{other}/") and owner.startswith(("spec.inputs", "spec.outputs")):
                yield f"{field}.path", f"{path} is inside the directory of {owner}: choose another one"
        taken[path] = field


def _all(job: Job) -> Iterator[tuple[str, Any]]:
    for number, item in enumerate(job.spec.inputs or ()):
        yield f"spec.inputs[{number}]", item
    for number, output in enumerate(job.spec.outputs or ()):
        yield f"spec.outputs[{number}]", output


def problems_on_clusters(job: Job, platform: Platform) -> list[tuple[str, str]]:
    """Return (field path, message) of inputs and outputs for which a cluster has no image or no claim."""
    out = []
    if platform.data is None:
        cure = (
            "this cluster has no image for it: an administrator can name one with the operator's setting `data_image`"
        )
        for item in job.spec.sources:
            where = job.spec.field_of(item.name)
            if item.streamed:
                problem = "a pod looks up the revision of the data before the ranks start"
                out.append((f"{where}.mode", f"{problem}, and {cure}"))
            elif not item.mounted:
                problem = f"a pod fetches {item.scheme}:// before the ranks start"
                field = where if isinstance(item, StartingPoint) else f"{where}.from"
                others = "another job" if isinstance(item, StartingPoint) else "claim:// and image://"
                out.append((field, f"{problem}, and {cure}; {others} need none"))
    if platform.data is None or not platform.data.claim:
        cure = "an administrator can name one with the operator's setting `data_claim`"
        out += [
            (f"spec.outputs[{number}].path", f"outputs are kept in a claim, and this cluster has none for them: {cure}")
            for number, _ in enumerate(job.spec.outputs or ())
        ]
    return out


def initial_inputs(job: Job) -> list[InputStatus]:
    """Return the first state of the inputs: those that are volumes are ready."""
    return [InputStatus(name=item.name, state="Ready" if item.mounted else "Pending") for item in job.spec.sources]


def inputs_of_attempt(job: Job, inputs: list[InputStatus]) -> list[InputStatus]:
    """Return `status.inputs` of a new attempt. If each pod has a checkpoint volume of its own, which is empty, the
    newest checkpoint at the address in resumeFrom is looked up again."""
    if job.spec.starting_point is None or resume_source.shared(job.spec.checkpoint):
        return inputs
    return [InputStatus(name=item.name) if item.name == RESUME_INPUT else item for item in inputs]


def initial_outputs(job: Job) -> list[OutputStatus]:
    return [OutputStatus(name=output.name) for output in job.spec.outputs or ()]
