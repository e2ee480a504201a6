"""Inputs and outputs in the pods: a volume and variables for each.

Inputs from a claim or an image are volumes everywhere. Others, and outputs, are directories of the claim in which a
cluster keeps them (`transfers.py`), or of the run directory of a local run. Without a claim, inputs are directories of
the node or of the pod (`manifests.fetch_containers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allranks.api.data import Input, InputStatus, Output, OutputStatus, upper
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import resume_source
from allranks.core.facts.model import Manifest, Platform
from allranks.core.transfers import input_cache
from allranks.core.transfers import manifests as transfers

_CHANNEL = "SM_CHANNEL_"
"""Prefix of SageMaker's variables with the paths of inputs."""


def input_volume(name: str) -> str:
    return f"allranks-input-{name}"


def output_volume(name: str) -> str:
    return f"allranks-output-{name}"


def volumes(job: Job, status: Status, platform: Platform) -> Iterator[tuple[str, str, Manifest, dict[str, Any]]]:
    """(name, mount path, source, further fields of the mount) of the training container's volumes. Several mounts may
    have the same volume."""
    states = {each.name: each for each in status.inputs}
    claim = _claim(platform)
    for each in job.spec.inputs or ():
        if each.path is None:
            continue
        state = states.get(each.name)
        if place := input_cache.place_of(each, state, job, platform):
            folder = f"{transfers.key_of(each, state.revision if state else None)}/files"
            if place.location == "Claim":
                yield transfers.VOLUME, each.path, claim, {"readOnly": True, "subPath": f"inputs/{folder}"}
            else:
                volume = place.volume_source(job.namespace)
                yield input_cache.VOLUME, each.path, volume, {"readOnly": True, "subPath": folder}
            continue
        source, mount = _source(each)
        yield input_volume(each.name), each.path, source, {"readOnly": True, **mount}
    for output in job.spec.outputs or ():
        if output.when == "Checkpoint":
            continue  # it is the volume of the checkpoints
        if claim and not platform.local:
            folder = f"outputs/{job.metadata.uid}/{output.name}"
            yield transfers.VOLUME, output.path, claim, {"subPath": folder}
        else:
            yield output_volume(output.name), output.path, {"emptyDir": {}}, {}


def _claim(platform: Platform) -> Manifest:
    name = platform.data.claim if platform.data else ""
    return {"persistentVolumeClaim": {"claimName": name}} if name else {}


def _source(each: Input) -> tuple[Manifest, dict[str, Any]]:
    address = each.source.partition("://")[2]
    if each.scheme == "claim":
        claim, _, below = address.partition("/")
        below = below.strip("/")
        return {"persistentVolumeClaim": {"claimName": claim}}, {"subPath": below} if below else {}
    if each.scheme == "image":
        return {"image": {"reference": address}}, {}
    return {"emptyDir": {}}, {}


def environment(job: Job, status: Status) -> dict[str, str]:
    """ALLRANKS_INPUT_NAME and ALLRANKS_OUTPUT_NAME: the paths, and the addresses of inputs that are streamed."""
    revisions = {each.name: each.revision for each in status.inputs}
    return {
        **{
            f"ALLRANKS_INPUT_{upper(each.name)}": each.path or address(each, revisions.get(each.name))
            for each in job.spec.inputs or ()
        },
        **{f"ALLRANKS_OUTPUT_{upper(each.name)}": each.path for each in job.spec.outputs or ()},
    }


def address(each: Input, revision: str | None) -> str:
    """The address from which a program reads an input, for fsspec. That of the hub has the commit."""
    if each.scheme != "hf" or not revision:
        return each.source
    kind, _, rest = each.source.removeprefix("hf://").partition("/")
    if kind not in ("datasets", "models"):
        kind, rest = "models", each.source.removeprefix("hf://")
    owner, name, *below = rest.strip("/").split("/")
    return "/".join(["hf:/", *(["datasets"] if kind == "datasets" else []), owner, f"{name}@{revision}", *below])


def secrets(job: Job) -> list[Manifest]:
    """`envFrom` of the training containers: the credentials of inputs that they stream."""
    names = dict.fromkeys(each.secret for each in job.spec.inputs or () if each.streamed and each.secret)
    return [{"secretRef": {"name": name}} for name in names]


def defaults(job: Job) -> dict[str, str]:
    """Variables of SageMaker, which the user may set instead."""
    out = {f"{_CHANNEL}{upper(each.name)}": each.path for each in job.spec.inputs or () if each.path}
    for output in job.spec.outputs or ():
        if output.name == "model":
            out["SM_MODEL_DIR"] = output.path
    return out


def problems(job: Job, trainer: Manifest) -> Iterator[tuple[str, str]]:
    """(field path, message) of directories and names that inputs and outputs share with something else."""
    taken = {str(mount.get("mountPath", "")).rstrip("/"): "another volume" for mount in trainer.get("volumeMounts", [])}
    if job.spec.checkpoint:
        taken[job.spec.checkpoint.path.rstrip("/")] = "spec.checkpoint"
    if job.spec.code:
        taken[job.spec.code.path.rstrip("/")] = "spec.code"
    names: set[str] = set()
    for field, each in _all(job):
        if each.name in names:
            yield f"{field}.name", f"an input has the name {each.name} as well: choose another one"
        if isinstance(each, Output) and each.when == "Checkpoint":
            if not resume_source.shared(job.spec.checkpoint):
                yield f"{field}.when", "the checkpoints are in a volume that ends with its pod: choose a claim for them"
            continue
        if field.startswith("spec.inputs"):
            names.add(each.name)
        if each.path is None:
            continue
        path = each.path.rstrip("/")
        for other, owner in taken.items():
            if path == other:
                yield f"{field}.path", f"{path} is also the directory of {owner}: choose another one"
            elif path.startswith(f"{other}/") and owner.startswith(("spec.inputs", "spec.outputs")):
                yield f"{field}.path", f"{path} is inside the directory of {owner}: choose another one"
        taken[path] = field


def _all(job: Job) -> Iterator[tuple[str, Any]]:
    for number, each in enumerate(job.spec.inputs or ()):
        yield f"spec.inputs[{number}]", each
    for number, output in enumerate(job.spec.outputs or ()):
        yield f"spec.outputs[{number}]", output


def problems_on_clusters(job: Job, platform: Platform) -> list[tuple[str, str]]:
    """(field path, message) of what a cluster without an image or a claim for data cannot do."""
    out = []
    if platform.data is None:
        cure = (
            "this cluster has no image for it: an administrator can name one with the operator's setting `data_image`"
        )
        for number, each in enumerate(job.spec.inputs or ()):
            where = f"spec.inputs[{number}]"
            if each.streamed:
                what = "a pod looks up the revision of the data before the ranks start"
                out.append((f"{where}.mode", f"{what}, and {cure}"))
            elif not each.mounted:
                what = f"a pod fetches {each.scheme}:// before the ranks start"
                out.append((f"{where}.from", f"{what}, and {cure}; claim:// and image:// need none"))
    if platform.data is None or not platform.data.claim:
        cure = "an administrator can name one with the operator's setting `data_claim`"
        out += [
            (f"spec.outputs[{number}].path", f"outputs are kept in a claim, and this cluster has none for them: {cure}")
            for number, _ in enumerate(job.spec.outputs or ())
        ]
    return out


def initial_inputs(job: Job) -> list[InputStatus]:
    """The inputs that are volumes are ready."""
    return [InputStatus(name=each.name, state="Ready" if each.mounted else "Pending") for each in job.spec.inputs or ()]


def initial_outputs(job: Job) -> list[OutputStatus]:
    return [OutputStatus(name=each.name) for each in job.spec.outputs or ()]
