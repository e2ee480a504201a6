"""One note for each field of the manifest that has no effect on one machine, printed before the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from allranks.api.job import MANAGED_BY, Job
from allranks.core.facts.gpu_count import is_gpu
from allranks.core.facts.model import Manifest
from allranks.extras import install_command
from allranks.local.prepare import PodPlan
from allranks.local.volumes import Volumes

# Lists of words read better without quotes.
# ruff: noqa: SIM905
_PLACEMENT = (
    "nodeSelector nodeName affinity tolerations topologySpreadConstraints priorityClassName schedulerName "
    "runtimeClassName schedulingGates resourceClaims"
).split()
_POD_FIELDS = (
    "securityContext serviceAccountName imagePullSecrets hostNetwork hostPID hostIPC hostAliases hostUsers dnsPolicy "
    "dnsConfig shareProcessNamespace activeDeadlineSeconds"
).split()
_CONTAINER_FIELDS = "securityContext livenessProbe readinessProbe startupProbe lifecycle volumeDevices".split()


def unsupported_field_notes(job: Job, plans: Sequence[PodPlan], volumes: Volumes, gpus: int, workdir: str) -> list[str]:
    """Return one line for each setting in the manifest that this machine does not apply."""
    return [
        *_about_images(plans),
        *_about_gpus(job, plans, gpus),
        *_about_resources(plans),
        *_about_fields(job),
        *_about_volumes(plans, volumes),
        *_about_directories(plans, workdir),
    ]


def _about_images(plans: Iterable[PodPlan]) -> Iterator[str]:
    containers = (c for plan in plans for c in plan.manifest["spec"]["containers"])
    images = _unique(container["image"] for container in containers if container.get("image"))
    if images:
        yield f"{_list('image', images)} not used here: programs come from this machine"


def _about_gpus(job: Job, plans: Sequence[PodPlan], gpus: int) -> Iterator[str]:
    if all(plan.gpus is None for plan in plans):
        return
    asked = sum(plan.gpus or 0 for plan in plans)
    has = f"this machine has {gpus or 'none'}"
    if asked > gpus:
        hidden = " (CUDA_VISIBLE_DEVICES is empty)" if gpus else ""
        yield f"the job asks for {_count(asked, 'GPU')}, {has}: all ranks run on the CPU{hidden}"
    elif gpus and asked:
        yield f"the job asks for {_count(asked, 'GPU')}, {has}: each pod sees its own (CUDA_VISIBLE_DEVICES)"
    elif gpus:
        available = f"this machine has {_count(gpus, 'GPU')}"
        alike = "" if job.spec.pools else ", as on a cluster"
        yield f"{available}, the job asks for none (resources.limits, nvidia.com/gpu): all ranks run on the CPU{alike}"


def _about_resources(plans: Iterable[PodPlan]) -> Iterator[str]:
    names = _unique(
        name
        for plan in plans
        for container in plan.manifest["spec"]["containers"]
        for amounts in (container.get("resources") or {}).values()
        if isinstance(amounts, Mapping)
        for name in amounts
        if not is_gpu(name)
    )
    if names:
        yield f"resources are not limited here: {', '.join(names)}"


def _about_fields(job: Job) -> Iterator[str]:
    templates = [t for t in (job.spec.template, *(role.template for _, role in job.spec.roles.items())) if t]
    specs: list[Any] = [template.get("spec") or {} for template in templates]
    containers: list[Any] = [
        c for spec in specs for kind in ("containers", "initContainers") for c in spec.get(kind) or ()
    ]

    scheduling = job.spec.scheduling.model_dump(by_alias=True, exclude_defaults=True)
    placement = [*_present(specs, _PLACEMENT), *(f"scheduling.{name}" for name in scheduling)]
    for name in dict.fromkeys(job.spec.pools.values()):
        # Not applied: variables such as NCCL_SOCKET_IFNAME name the network interfaces of other machines.
        yield f"pool {name} is not used here: it describes nodes of a cluster, their GPUs and their variables"
    if (job.spec.hang or job.spec.progress) and not (find_spec("aiohttp") and find_spec("msgspec")):
        yield f"hang and progress do nothing here without further Python packages: {install_command('cli')}"
    if placement:
        yield f"pods are not placed here, so these do nothing: {', '.join(placement)}"
    others = _unique([*_present(specs, _POD_FIELDS), *_present(containers, _CONTAINER_FIELDS)])
    if others:
        yield f"{', '.join(others)}: not applied to processes"
    sources = _unique(
        str((source.get(kind) or {}).get("name"))
        for container in containers
        for source in container.get("envFrom") or ()
        for kind in ("configMapRef", "secretRef")
        if source.get(kind)
    )
    if sources:
        yield f"envFrom {', '.join(sources)} is not on this machine: export its variables before allranks run"
    if job.spec.restart.hold_seconds:
        yield "restart.holdSeconds is ignored here: the logs of a failed run stay in its directory"
    if job.spec.notify:
        yield "notify is ignored here: the receivers are those of a cluster"
    if job.spec.utilization and job.spec.utilization.action == "Suspend":
        yield "utilization.action Suspend is ignored here: a run with low utilization continues"
    if job.spec.managed_by not in (None, MANAGED_BY):
        yield f"managedBy {job.spec.managed_by} is ignored here"


def _about_volumes(plans: Iterable[PodPlan], volumes: Volumes) -> Iterator[str]:
    lines: dict[str, str] = {}
    for plan in plans:
        directories = {volume["name"]: (volume, where) for volume, where in plan.directories}
        for name, (path, _) in plan.mounted.items():
            volume, where = directories[name]
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if name.startswith("allranks-"):
                continue
            if name in volumes.mapped or claim in volumes.mapped:
                suffix = "" if where.is_dir() else " (will be created)"
                lines[name] = f"{path} is {where}{suffix}"
            elif claim:
                new = "" if where.is_dir() else f", new for this run: --volume {claim}=DIR keeps it"
                lines[name] = f"{path} (claim {claim}) is {where}{new}"
            else:
                lines[name] = f"{path} ({name}) is a separate directory for each pod, removed with the pod"
    yield from lines.values()


def _about_directories(plans: Iterable[PodPlan], workdir: str) -> Iterator[str]:
    missing = _unique(directory for plan in plans for directory in plan.lost_directories)
    if missing:
        yield f"{_list('workingDir', missing)} not on this machine: programs start in {workdir} (--workdir)"


def _present(parts: Iterable[Manifest], names: Sequence[str]) -> list[str]:
    return _unique(name for part in parts for name in names if part.get(name))


def _unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))


def _list(word: str, names: Sequence[str]) -> str:
    return f"{word} {names[0]} is" if len(names) == 1 else f"{word}s {', '.join(names)} are"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
