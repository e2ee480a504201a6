"""The YAML of Ray's cluster launcher (`ray up cluster.yaml`): a Ray cluster without a program.

It has neither apiVersion nor kind.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allranks.authoring.convert import pod_parts
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.pod_parts import Part

KIND = "Ray cluster"
IDLE_MINUTES = 60
"""A cluster of `ray up` has no end of its own."""
_NO_MACHINES = "allranks makes no machines: choose nodes by pool, or by nodeSelector in the template of a role"
_NO_SSH = "nothing logs in to the nodes; allranks exec runs a command in a pod"
_CONTAINER = "the container has the options of a pod: template"
_DROPPED = {
    "provider": _NO_MACHINES,
    "auth": _NO_SSH,
    "upscaling_speed": "Ray's autoscaler is not used",
    "max_workers": "Ray's autoscaler is not used: the number of workers is replicas of their role",
    "initialization_commands": "nothing runs on the node, outside of the container",
    "cluster_synced_files": "ship the files with code",
    "file_mounts_sync_continuously": "ship the files with code",
    "rsync_exclude": "ship the files with code: .allranksignore and .gitignore leave files out",
    "rsync_filter": "ship the files with code: .allranksignore and .gitignore leave files out",
}
_IGNORED_OF_DOCKER = (
    "container_name",
    "pull_before_run",
    "disable_automatic_runtime_detection",
    "use_sudo",
    "use_podman",
)
_RUN_OPTIONS = ("run_options", "head_run_options", "worker_run_options", "disable_shm_size_detection")
_STARTS = re.compile(r"\bray (start|stop)\b")
_PIP = re.compile(r"(?:sudo )?(?:python3? -m )?pip3? install\b")
_HARMLESS = frozenset({"-U", "--upgrade", "-q", "--quiet", "--user", "--no-cache-dir"})
_RESERVED = ("head", "all", "placeholder")


def is_launcher(document: Mapping[str, Any]) -> bool:
    return "kind" not in document and "cluster_name" in document and "provider" in document


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, KIND)
    draft.framework("ray")
    name = re.sub(r"[^a-z0-9]+", "-", str(source.take("cluster_name")).lower()).strip("-")
    draft.document["metadata"]["name"] = name if name[:1].isalpha() else f"ray-{name}".strip("-")
    draft.drop_all(source, _DROPPED)
    docker = source.child("docker")
    parts = _parts(draft, source)
    for part in parts:
        special = docker.take("head_image" if part.role == "head" else "worker_image")
        if image := part.fields.get("image") or special or docker.take("image"):
            part.fields["image"] = image
    for option in _IGNORED_OF_DOCKER:
        docker.take(option)
    draft.drop_all(docker, dict.fromkeys(_RUN_OPTIONS, _CONTAINER))
    for mount, directory in (source.take("file_mounts") or {}).items():
        draft.drop(f"file_mounts[{mount}]", f"ship the directory with code: {directory}, or make it an input")
    _setup(draft, [source, *source.child("available_node_types").nested()])
    for field in ("head_start_ray_commands", "worker_start_ray_commands"):
        if other := [text for text in source.texts(field) or () if not _STARTS.search(text)]:
            draft.drop(field, f"allranks starts Ray: {other[0]} is not run")
    pod_parts.assemble(draft, parts)
    minutes = source.number("idle_timeout_minutes", IDLE_MINUTES)
    text = "The job ends when nothing has used the cluster for this long. `ray up` only removed idle workers."
    draft.set("ray.idleSeconds", minutes * 60, text)
    return draft.finish()


def _parts(draft: Draft, source: Fields) -> list[Part]:
    """Return the head and the groups of workers."""
    types = source.child("available_node_types")
    if not types:  # the form of early versions
        for field in ("head_node", "worker_nodes"):
            if source.take(field):
                draft.drop(field, _NO_MACHINES)
        draft.set("ray.headRunsTasks", True, _HEAD_WORKS)
        workers = source.number("min_workers", source.number("initial_workers", 0))
        return [_part("head", 1), *([_part("worker", workers)] if workers else [])]
    head = str(source.take("head_node_type") or "")
    if head not in types.names():
        raise NotConvertible("head_node_type", f"must be one of available_node_types: {', '.join(types.names())}")
    others = [name for name in types.names() if name != head]
    parts = [_of_type(draft, types.child(head), "head", 1)]
    if str((parts[0].fields.pop("ray_resources") or {}).get("CPU")) != "0":
        draft.set("ray.headRunsTasks", True, _HEAD_WORKS)
    for name, role in zip(others, group_roles(others), strict=True):
        group = types.child(name)
        least, most = group.number("min_workers"), group.number("max_workers")
        if not (least or most):
            continue
        part = _of_type(draft, group, role, least or most)
        del part.fields["ray_resources"]
        parts.append(part)
        label = f"The node type {name}. A task chooses it by the label ray.io/node-group: {role}. "
        scale = f"From {least} to {most} workers by Ray's autoscaler, which is not used." if least < most else ""
        draft.comment(("spec", "roles", role), (label + scale).strip())
    return parts


_HEAD_WORKS = "As with `ray up`, the head also runs tasks. Without this only the workers do."


def _part(role: str, replicas: int) -> Part:
    return Part(role, replicas, {}, {})


def _of_type(draft: Draft, fields: Fields, role: str, replicas: int) -> Part:
    part = _part(role, replicas)
    if config := fields.take("node_config"):
        machine = config.get("InstanceType") or config.get("machineType") or "" if isinstance(config, dict) else ""
        draft.drop(fields.place("node_config"), f"{_NO_MACHINES} {f'(it was {machine})' if machine else ''}".strip())
    amounts = fields.take("resources") or {}
    requests = {"cpu": amounts["CPU"]} if amounts.get("CPU") else {}
    names = {"GPU": "nvidia.com/gpu", "memory": "memory"}
    limits = {names[name]: amount for name, amount in amounts.items() if name in names and amount}
    resources = {kind: value for kind, value in (("requests", requests), ("limits", limits)) if value}
    if resources:
        part.fields["resources"] = resources
    for name in amounts.keys() - {"CPU", "GPU", "memory", "object_store_memory"}:
        draft.drop(f"{fields.place('resources')}.{name}", f"tasks choose {role} by the label ray.io/node-group instead")
    docker = fields.child("docker")
    if image := docker.take("image") or docker.take("head_image" if role == "head" else "worker_image"):
        part.fields["image"] = image
    draft.drop_all(docker, dict.fromkeys(_RUN_OPTIONS, _CONTAINER))
    for name in ("min_workers", "max_workers"):
        fields.take(name)
    part.fields["ray_resources"] = amounts
    return part


def group_roles(names: Sequence[str]) -> list[str]:
    """Return the role of each group of workers: worker for a single one, else what a role may be named."""
    if len(names) == 1:
        return ["worker"]
    roles: list[str] = []
    for name in names:
        role = re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("ray.").removeprefix("worker."))[:20]
        role = role if role[:1].isalpha() and role not in _RESERVED else f"group{role}"
        roles.append(role if role not in roles else f"{role}{len(roles)}")
    return roles


def _setup(draft: Draft, sources: Iterable[Fields]) -> None:
    """Move the packages that setup commands install. Drop the other commands."""
    packages: list[str] = []
    for fields in sources:
        for field in ("setup_commands", "head_setup_commands", "worker_setup_commands"):
            for number, command in enumerate(fields.texts(field) or ()):
                place = f"{fields.place(field)}[{number}]"
                requirements = _requirements(command)
                if requirements is None:
                    draft.drop(place, f"put what it does into the image ({command})")
                elif of_ray := [text for text in requirements if re.match(r"ray\b", text)]:
                    draft.drop(place, f"the image has Ray: {', '.join(of_ray)} is not installed")
                packages += [text for text in requirements or () if not re.match(r"ray\b", text)]
    if packages:
        draft.set("packages", list(dict.fromkeys(packages)), "In all pods; pip installs them before the start.")


def _requirements(command: str) -> list[str] | None:
    """Return what `pip install` installs; None for another command, and for options that change what it installs."""
    match = _PIP.match(command.strip())
    try:
        words = shlex.split(command.strip()[match.end() :]) if match else None
    except ValueError:
        return None
    words = words and [word for word in words if word not in _HARMLESS]
    plain = words and all(re.fullmatch(r"[A-Za-z0-9][-\w.\[\],<>=!~]*", word) for word in words)
    return words if plain else None
