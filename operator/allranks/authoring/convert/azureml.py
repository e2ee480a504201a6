"""Command jobs of Azure Machine Learning (`az ml job create -f job.yml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.node_scripts import name_of, set_ranks

KIND = "Azure ML job"
_DROPPED = {
    "experiment_name": "name the experiment in the tracker of the program",
    "services": "allranks port-forward reaches a port of a pod",
    "identity": "set serviceAccountName in template",
    "tags": "use labels",
    "outputs": "write outputs, or mount a volume in template",
    "queue_settings": "set a queue, or scheduling.priorityClassName",
}
_LABELS = ("display_name", "description", "$schema", "type")


def is_job(document: Mapping[str, Any]) -> bool:
    schema = str(document.get("$schema", ""))
    return "kind" not in document and (
        "commandJob" in schema or (document.get("type") == "command" and "command" in document)
    )


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, KIND)
    title = str(source.take("name") or source.take("display_name") or source.take("experiment_name") or "job")
    draft.document["metadata"]["name"] = name_of(title)
    for name in _LABELS:
        source.take(name)
    command = str(source.take("command") or "").strip()
    if not command:
        raise NotConvertible("command", "is needed: it is the command of the job")
    draft.set("compatibility", ["AzureML"])
    image = _image(draft, source)
    resources = source.child("resources")
    nodes = resources.number("instance_count", 1)
    resources.take("shm_size"), resources.take("docker_args")
    machine = source.take("compute"), resources.take("instance_type")
    text = ", ".join(str(value) for value in machine if value)
    if text:
        draft.drop(f"compute: {text}", "set resources and a pool: the GPUs of a node follow from its machine")
    processes = _processes(source.child("distribution"))
    limits = source.child("limits")
    if "timeout" in limits:
        draft.set("activeDeadlineSeconds", limits.number("timeout"))
    if code := source.take("code"):
        draft.drop("code", f"ship the directory: write code: {code}, or put it into the image")
    script = _with_inputs(draft, source, command)
    env = source.take("environment_variables") or {}
    set_ranks(draft, ["bash", "-c", script], nodes, env, {"image": image}, processes)
    draft.drop_all(source, _DROPPED)
    return draft.finish()


def _image(draft: Draft, source: Fields) -> str:
    environment = source.take("environment")
    image = str(environment.get("image") or "") if isinstance(environment, Mapping) else ""
    if isinstance(environment, Mapping) and environment.get("conda_file"):
        draft.drop("environment.conda_file", "install these packages in the image, or list them in packages")
    if not image:
        draft.remark(("spec", "command"), f"Set image: it was the environment {environment}.")
    return image


def _processes(distribution: Fields) -> int | None:
    kind = str(distribution.take("type") or distribution.take("distribution_type") or "").lower()
    number = distribution.number("process_count_per_instance", 1)
    if kind in ("", "pytorch"):
        return number
    framework = {"tensorflow": "tensorflow", "mpi": "mpi or horovod", "ray": "ray"}.get(kind, "")
    cure = f"write a job with framework {framework}" if framework else "write a job with another framework"
    raise NotConvertible("distribution.type", f"{kind} is not converted: {cure}")


def _with_inputs(draft: Draft, source: Fields, command: str) -> str:
    """Return the command with the values of inputs. Data has a path that only Azure ML knows."""
    inputs = source.take("inputs") or {}
    for name, value in inputs.items():
        reference = rf"\$\{{\{{\s*inputs\.{re.escape(str(name))}\s*\}}\}}"
        if not isinstance(value, (dict, list)):
            command = re.sub(reference, str(value).replace("\\", r"\\"), command)
        elif re.search(reference, command):
            variable = f"ALLRANKS_INPUT_{re.sub(r'[^A-Za-z0-9]', '_', str(name)).upper()}"
            command = re.sub(reference, f"${variable}", command)
            path = value.get("path") if isinstance(value, dict) else ""
            draft.drop(
                f"inputs.{name}",
                f"make {path or 'the data'} an input of the job with this name: ${variable} is its path",
            )
    if left := re.findall(r"\$\{\{.*?\}\}", command):
        draft.remark(("spec", "command"), f"Replace {', '.join(dict.fromkeys(left))}, which Azure ML filled in.")
    return command
