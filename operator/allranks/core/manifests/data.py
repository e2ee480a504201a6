"""Inputs and outputs in the pods: a volume and variables for each.

Inputs from a claim or an image are volumes everywhere. Only a local run fetches other inputs, and uploads outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allranks.api.data import Input, InputStatus, OutputStatus
from allranks.api.job import Job
from allranks.core.model import Manifest

_CHANNEL = "SM_CHANNEL_"
"""Prefix of SageMaker's variables with the paths of inputs."""


def input_volume(name: str) -> str:
    return f"allranks-input-{name}"


def output_volume(name: str) -> str:
    return f"allranks-output-{name}"


def volumes(job: Job) -> Iterator[tuple[str, str, Manifest, dict[str, Any]]]:
    """(name, mount path, source, further fields of the mount) of the training container's volumes."""
    for each in job.spec.inputs or ():
        source, mount = _source(each)
        yield input_volume(each.name), each.path, source, {"readOnly": True, **mount}
    for output in job.spec.outputs or ():
        yield output_volume(output.name), output.path, {"emptyDir": {}}, {}


def _source(each: Input) -> tuple[Manifest, dict[str, Any]]:
    address = each.source.partition("://")[2]
    if each.scheme == "claim":
        claim, _, below = address.partition("/")
        below = below.strip("/")
        return {"persistentVolumeClaim": {"claimName": claim}}, {"subPath": below} if below else {}
    if each.scheme == "image":
        return {"image": {"reference": address}}, {}
    return {"emptyDir": {}}, {}


def environment(job: Job) -> dict[str, str]:
    """ALLRANKS_INPUT_NAME and ALLRANKS_OUTPUT_NAME: the paths."""
    return {
        **{f"ALLRANKS_INPUT_{_upper(each.name)}": each.path for each in job.spec.inputs or ()},
        **{f"ALLRANKS_OUTPUT_{_upper(each.name)}": each.path for each in job.spec.outputs or ()},
    }


def defaults(job: Job) -> dict[str, str]:
    """Variables of SageMaker, which the user may set instead."""
    out = {f"{_CHANNEL}{_upper(each.name)}": each.path for each in job.spec.inputs or ()}
    for output in job.spec.outputs or ():
        if output.name == "model":
            out["SM_MODEL_DIR"] = output.path
    return out


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


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
        path = each.path.rstrip("/")
        for other, owner in taken.items():
            if path == other:
                yield f"{field}.path", f"{path} is also the directory of {owner}: choose another one"
            elif path.startswith(f"{other}/") and owner.startswith(("spec.inputs", "spec.outputs")):
                yield f"{field}.path", f"{path} is inside the directory of {owner}: choose another one"
        taken[path] = field
        if field.startswith("spec.inputs"):
            names.add(each.name)


def _all(job: Job) -> Iterator[tuple[str, Any]]:
    for number, each in enumerate(job.spec.inputs or ()):
        yield f"spec.inputs[{number}]", each
    for number, output in enumerate(job.spec.outputs or ()):
        yield f"spec.outputs[{number}]", output


def problems_on_clusters(job: Job) -> list[tuple[str, str]]:
    """(field path, message) of what a cluster does not do yet."""
    out = [
        (
            f"spec.inputs[{number}].from",
            f"{each.scheme}:// is fetched by allranks run only so far: on a cluster, put the data into a claim or an "
            "image, and write claim://CLAIM/DIRECTORY or image://REFERENCE",
        )
        for number, each in enumerate(job.spec.inputs or ())
        if not each.mounted
    ]
    if job.spec.outputs:
        what = "are uploaded by allranks run only so far: on a cluster, let the program write to a claim or upload"
        out.append(("spec.outputs", f"{what} its files itself"))
    return out


def initial_inputs(job: Job) -> list[InputStatus]:
    """The inputs that are volumes are ready."""
    return [InputStatus(name=each.name, state="Ready" if each.mounted else "Pending") for each in job.spec.inputs or ()]


def initial_outputs(job: Job) -> list[OutputStatus]:
    return [OutputStatus(name=each.name) for each in job.spec.outputs or ()]
