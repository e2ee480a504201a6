"""PyTorchJob (kubeflow.org/v1)."""

from __future__ import annotations

from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.authoring.convert import command_line, pod_parts, run_policy
from allranks.authoring.convert.draft import Draft
from allranks.authoring.convert.pod_parts import Part
from allranks.authoring.convert.source import Fields
from allranks.core.facts.gpu_count import gpus

_ROLES = {"Master": "master", "Worker": "worker"}
_PORT = "pytorchjob-port"
_RENDEZVOUS = ("rdzvPort", "rdzvHost", "rdzvId", "rdzvBackend")


def convert(source: Fields) -> Draft:
    draft = Draft.of(source, "PyTorchJob")
    draft.framework("pytorch")
    spec = source.child("spec")
    run_policy.read(draft, spec)
    parts, policies = run_policy.roles(
        draft, spec.child("pytorchReplicaSpecs"), _ROLES, ["pytorch"], _PORT, "OnFailure"
    )
    if ports := [part.ports[_PORT] for part in parts if _PORT in part.ports]:
        draft.set("pytorch.port", ports[0])
    policy = spec.child("elasticPolicy")
    starts = without_rendezvous(draft, parts)
    processes = spec.take("nprocPerNode", policy.take("nProcPerNode"))
    processes_per_node(draft, parts, starts, processes)
    pod_parts.assemble(draft, parts)
    limit = spec.child("runPolicy").take("backoffLimit")
    most = policy.take("maxRestarts")
    run_policy.restart(draft, policies, limit if limit is not None else most)
    if policy:
        _elastic(draft, policy, parts)
    return draft.finish()


def without_rendezvous(draft: Draft, parts: list[Part]) -> list[command_line.Torchrun]:
    """Removes the options of torchrun that connect nodes from the commands."""
    starts = []
    for part in parts:
        line = command_line.torchrun(part.command_line)
        starts.append(line)
        if not line.removed:
            continue
        lists = [list(part.fields.get(name) or ()) for name in ("command", "args")]
        kept = len(command_line.torchrun(lists[0]).command)
        part.fields["command"] = line.command[:kept] if lists[1] else line.command
        if lists[1]:
            part.fields["args"] = line.command[kept:]
        removed = ", ".join(line.removed)
        text = f"Removed: {removed}. allranks connects the ranks by the variables of torchrun."
        draft.comment(("spec", "command"), text)
    return starts


def processes_per_node(draft: Draft, parts: list[Part], starts: list[command_line.Torchrun], given: Any) -> None:
    """`given`: nprocPerNode of the job. An option of torchrun replaces it."""
    option = next((line.processes for line in starts if line.processes), None)
    wanted = str(option or given or "auto")
    used = any(line.used for line in starts)
    most = max((gpus(part.resources) for part in parts), default=0)
    if wanted.isdigit():
        draft.set("pytorch.processesPerNode", int(wanted))
    elif wanted == "cpu" or (wanted == "auto" and used and not most):
        text = f"{wanted} meant one process for each CPU of the node; Auto is one for each GPU, or one without GPUs."
        draft.set("pytorch.processesPerNode", "Auto", text)
    elif not used and most > 1 and all(part.command_line for part in parts):
        text = (
            "Without torchrun a pod is one process, whatever its number of GPUs: WORLD_SIZE is the number of pods. "
            "One process for each GPU needs torchrun in the command, and Auto here."
        )
        draft.set("pytorch.processesPerNode", 1, text)
    elif not used and most > 1:
        text = (
            "One process for each GPU, if the image's entrypoint runs torchrun. If it does not, set 1: else RANK and "
            "WORLD_SIZE are not set."
        )
        draft.set("pytorch.processesPerNode", "Auto", text)


def _elastic(draft: Draft, policy: Fields, parts: list[Part]) -> None:
    workers = next((part.replicas for part in parts if part.role == "worker"), 0)
    least, most = policy.number("minReplicas"), policy.number("maxReplicas")
    least, most = least or most or workers, most or least or workers
    backend = policy.take("rdzvBackend", "c10d")
    for name in _RENDEZVOUS[:-1]:
        policy.take(name)
    if backend != "c10d":
        draft.drop(policy.place("rdzvBackend"), f"{backend} is not used any more, and its server can be deleted")
    reasons = {
        "rdzvConf": "the ranks meet at a fixed address, without a rendezvous that could be configured",
        "standalone": "each pod would train alone",
    }
    draft.drop_all(policy, reasons)
    if least != most or least != workers:
        text = (
            "At another number of workers all ranks restart from their checkpoint; rdzv* are not needed. Pods that "
            "cannot be scheduled within waitSeconds are left out, and join when there is capacity."
        )
        draft.set("elastic", {"minReplicas": least, "maxReplicas": most}, text)
        if not least <= workers <= most:
            bounded = min(max(workers, least), most)
            draft.set("roles.worker.replicas", bounded, f"{workers} is not between minReplicas and maxReplicas.")
        if any(part.role == "master" for part in parts):
            draft.comment(("spec", "elastic"), "These bounds are of the workers, without the master.")
    if metrics := policy.take("metrics"):
        if "name" not in draft.document["metadata"]:
            draft.drop(policy.place("metrics"), "an autoscaler needs a job with a name, not with generateName")
            return
        draft.further.append(_autoscaler(draft, least, most, metrics))


def _autoscaler(draft: Draft, least: int, most: int, metrics: Any) -> dict[str, Any]:
    metadata = draft.document["metadata"]
    namespace = {"namespace": metadata["namespace"]} if "namespace" in metadata else {}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": draft.name, **namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": draft.name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": metrics,
        },
    }
