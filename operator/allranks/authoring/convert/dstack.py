"""Tasks of dstack (`type: task`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.node_scripts import gpu_count, memory, name_of, resource_of, set_ranks

KIND = "dstack task"
_VARIABLES = {
    "DSTACK_NODE_RANK": "$(NODE_RANK)",
    "DSTACK_NODES_NUM": "$(NNODES)",
    "DSTACK_MASTER_NODE_IP": "$(MASTER_ADDR)",
}
_NO_MACHINES = "allranks makes no machines: choose nodes by pool, or by nodeSelector in template"
_SHIP = "ship the directory with code, or put it into the image"
_DROPPED = {
    "files": _SHIP,
    "repos": _SHIP,
    "volumes": "mount the volumes in template",
    "ports": "allranks port-forward reaches a port of a pod",
    "retry": "set restart.maxRestarts",
    "registry_auth": "write a Secret, and imagePullSecrets in template",
    "python": "the image has its version of Python",
}
_MACHINES = ("spot_policy", "backends", "regions", "instance_types", "fleets", "max_price", "creation_policy")


def is_task(document: Mapping[str, Any]) -> bool:
    return "kind" not in document and document.get("type") == "task" and isinstance(document.get("commands"), list)


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, KIND)
    source.take("type")
    draft.document["metadata"]["name"] = name_of(str(source.take("name") or "task"))
    commands = source.texts("commands") or []
    if not commands:
        raise NotConvertible("commands", "is needed: it has the command of the job")
    fields = _resources(draft, source.child("resources"))
    fields |= {"image": source.take("image"), "workingDir": source.take("working_dir")}
    script = "\n".join(commands)
    env = _env(draft, source.take("env"))
    count = next(iter((fields["resources"].get("limits") or {}).values()), None)
    variables = {**_VARIABLES, **({"DSTACK_GPUS_PER_NODE": str(count)} if count else {})}
    env |= {name: value for name, value in variables.items() if name in script}
    for name in ("DSTACK_NODES_IPS", "DSTACK_MPI_HOSTFILE", "DSTACK_GPUS_NUM"):
        if name in script and name not in variables:
            draft.remark(("spec", "command"), f"{name} is not set here.")
    draft.drop_all(source, _DROPPED)
    draft.drop_all(source, dict.fromkeys(_MACHINES, _NO_MACHINES))
    set_ranks(draft, ["bash", "-c", script], source.number("nodes", 1), env, fields)
    if not fields["image"]:
        draft.remark(("spec", "command"), "Set image: dstack chose one.")
    return draft.finish()


def _env(draft: Draft, value: Any) -> dict[str, Any]:
    pairs = value.items() if isinstance(value, Mapping) else (str(text).partition("=")[::2] for text in value or ())
    out: dict[str, Any] = {}
    for name, text in pairs:
        if text not in (None, ""):
            out[str(name)] = text
        else:
            draft.drop(f"env.{name}", "dstack asked for its value: write it, or a Secret with valueFrom.secretKeyRef")
    return out


def _resources(draft: Draft, resources: Fields) -> dict[str, Any]:
    gpu = resources.take("gpu")
    count: int | None = None
    if isinstance(gpu, Mapping):
        count = gpu_count(gpu.get("count", 1))
    elif gpu is not None:
        count = gpu_count(gpu)
    limits: dict[str, Any] = {}
    if gpu is not None:
        limits[resource_of(gpu.get("name") if isinstance(gpu, Mapping) else gpu)] = count or 1
        if not str(gpu).isdigit():
            draft.drop(f"resources.gpu: {gpu}", f"the choice of the GPU: {_NO_MACHINES}")
    requests: dict[str, Any] = {}
    if cpus := str(resources.take("cpu") or "").rstrip(".+"):
        requests["cpu"] = cpus.split("..")[0].split(":")[-1]
    if size := memory(str(resources.take("memory") or "").split("..")[0]):
        requests["memory"] = size
    resources.take("shm_size")  # allranks mounts /dev/shm without a limit of its own
    draft.drop_all(resources, {"disk": _NO_MACHINES})
    return {"resources": {key: value for key, value in (("requests", requests), ("limits", limits)) if value}}
