"""Tasks of SkyPilot (`sky launch task.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.node_scripts import gpu_count, memory, name_of, resource_of, set_ranks

KIND = "SkyPilot task"
_VARIABLES = {
    "SKYPILOT_NODE_RANK": "$(NODE_RANK)",
    "SKYPILOT_NUM_NODES": "$(NNODES)",
    "SKYPILOT_NODE_IPS": "$(MASTER_ADDR)",
    "SKYPILOT_TASK_ID": "$(ALLRANKS_JOB)",
}
_NO_MACHINES = "allranks makes no machines: choose nodes by pool, or by nodeSelector in template"
_DROPPED = {
    "file_mounts": "make the data an input, or mount a volume in template",
    "storage_mounts": "make the data an input, or mount a volume in template",
    "volumes": "mount the volumes in template",
    "service": "allranks runs jobs that end",
    "config": "it is for SkyPilot",
}


def is_task(document: Mapping[str, Any]) -> bool:
    beside = {"resources", "num_nodes", "setup", "envs", "workdir", "file_mounts"}
    return (
        not {"kind", "$schema", "type"} & document.keys()
        and isinstance(document.get("run"), str)
        and bool(beside & document.keys())
    )


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, KIND)
    draft.document["metadata"]["name"] = name_of(str(source.take("name") or "task"))
    run, setup = str(source.take("run")), str(source.take("setup") or "")
    if not run.strip():
        raise NotConvertible("run", "is needed: it is the command of the job")
    nodes = source.number("num_nodes", 1)
    resources = source.child("resources")
    fields = _resources(draft, resources)
    env = {**(source.take("envs") or {})}
    for name in source.take("secrets") or {}:
        draft.drop(f"secrets.{name}", "write a Secret, and a variable with valueFrom.secretKeyRef")
    count = next(iter((fields["resources"].get("limits") or {}).values()), None)
    variables = {**_VARIABLES, **({"SKYPILOT_NUM_GPUS_PER_NODE": str(count)} if count else {})}
    env |= {name: value for name, value in variables.items() if name in run + setup}
    if "SKYPILOT_NODE_IPS" in env:
        draft.remark(("spec", "env"), "SKYPILOT_NODE_IPS has the address of rank 0 alone.")
    if workdir := source.take("workdir"):
        draft.drop("workdir", f"ship the directory: write code: {workdir}, or put it into the image")
    draft.drop_all(source, _DROPPED)
    script = f"{setup.rstrip()}\n{run}" if setup else run
    set_ranks(draft, ["bash", "-c", script], nodes, env, fields)
    if setup:
        text = "setup ran once on each machine; here its lines run in each pod at each start. Put them into the image."
        draft.comment(("spec", "command"), text)
    if not fields["image"]:
        draft.remark(("spec", "command"), "Set image: SkyPilot ran the script on a machine.")
    return draft.finish()


def _resources(draft: Draft, resources: Fields) -> dict[str, Any]:
    accelerators = resources.take("accelerators")
    if isinstance(accelerators, Mapping):
        accelerators = ":".join(map(str, next(iter(accelerators.items()), ())))
    elif isinstance(accelerators, list):
        accelerators = accelerators[0] if accelerators else None
    limits: dict[str, Any] = {}
    if accelerators:
        limits[resource_of(accelerators)] = gpu_count(accelerators) or 1
        draft.drop(f"resources.accelerators: {accelerators}", f"the choice of the GPU: {_NO_MACHINES}")
    cpus, size = str(resources.take("cpus") or "").rstrip("+"), str(resources.take("memory") or "").rstrip("+")
    requests: dict[str, Any] = {"cpu": cpus} if cpus else {}
    if size:
        requests["memory"] = memory(f"{size}G" if size.replace(".", "").isdigit() else size)
    image = str(resources.take("image_id") or "")
    if image and not image.startswith("docker:"):
        draft.drop("resources.image_id", f"an image of a machine: {_NO_MACHINES}")
        image = ""
    for name in resources.names():
        if resources.take(name) not in (None, "", [], {}, False) and name not in _READ:
            draft.drop(f"resources.{name}", _NO_MACHINES)
    amounts = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    return {"image": image.removeprefix("docker:"), "resources": amounts}


_READ = frozenset({"accelerators", "cpus", "memory", "image_id"})
