"""PyTorchJob, TFJob and JAXJob (kubeflow.org/v1), and the parts that they share with MPIJob."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.authoring.convert import command_line, pod_parts
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible, Row
from allranks.authoring.convert.pod_parts import Part
from allranks.core.facts.gpu_count import gpus
from allranks.core.facts.queue import QUEUE_LABEL
from allranks.frameworks.command_line import script_of

# --- PyTorchJob -------------------------------------------------------------------------------------------------------


_PYTORCHJOB_ROLES = {"Master": "master", "Worker": "worker"}
_PYTORCHJOB_PORT = "pytorchjob-port"
_RENDEZVOUS = ("rdzvPort", "rdzvHost", "rdzvId", "rdzvBackend")


def convert_pytorchjob(source: Fields) -> Draft:
    draft = Draft.begin(source, "PyTorchJob")
    draft.framework("pytorch")
    spec = source.child("spec")
    read_run_policy(draft, spec)
    parts, policies = read_roles(
        spec, spec.child("pytorchReplicaSpecs"), _PYTORCHJOB_ROLES, ["pytorch"], _PYTORCHJOB_PORT, "OnFailure"
    )
    if ports := [part.ports[_PYTORCHJOB_PORT] for part in parts if _PYTORCHJOB_PORT in part.ports]:
        draft.set("pytorch.port", ports[0])
    policy = spec.child("elasticPolicy")
    processes = spec.take("nprocPerNode", policy.take("nProcPerNode"))
    if processes is None:
        processes = count_of_variable(parts)
    starts = without_rendezvous(draft, parts, processes)
    processes_per_node(draft, parts, starts, processes)
    keep_node_variables(draft, parts, processes)
    pod_parts.assemble(draft, parts)
    limit = backoff_limit(spec)
    most = policy.take("maxRestarts")
    set_restart(draft, policies, limit if limit is not None else most)
    if limit is not None and most not in (None, limit):
        reason = f"there is one limit for all restarts of a job, and runPolicy.backoffLimit is {limit}"
        draft.drop(policy.place("maxRestarts"), reason)
    if policy:
        _elastic(draft, policy, parts)
    return draft.finish()


def without_rendezvous(draft: Draft, parts: list[Part], operator: Any = None) -> list[command_line.Torchrun]:
    """Remove the options of torchrun that connect nodes from the commands.

    `operator`: the number of processes that the other operator puts into PET_NPROC_PER_NODE.
    """
    starts = []
    for part in parts:
        variables = _literals(part) | {name: str(operator or command_line.AUTO) for name in _COUNTS}
        line = command_line.torchrun(part.command_line, variables)
        starts.append(line)
        if not line.removed:
            continue
        part.set_command_line(line.command, line.removed_words)
        removed = ", ".join(line.removed)
        text = f"Removed: {removed}. allranks connects the ranks by the variables of torchrun."
        draft.comment(("spec", "command"), text)
    return starts


_COUNTS = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE")


def _literals(part: Part) -> dict[str, str | None]:
    """Return the variables of a container; None for those whose value is not in the manifest."""
    variables = [variable for variable in part.fields.get("env") or () if isinstance(variable, dict)]
    return {
        str(variable.get("name")): None if "valueFrom" in variable else str(variable.get("value", ""))
        for variable in variables
    }


def count_of_variable(parts: list[Part]) -> str | None:
    """Return the number of processes that the manifest itself puts into PET_NPROC_PER_NODE."""
    return next((value for part in parts for name, value in _literals(part).items() if name in _COUNTS), None)


def processes_per_node(draft: Draft, parts: list[Part], starts: list[command_line.Torchrun], value: Any) -> None:
    """Set pytorch.processesPerNode. `value`: nprocPerNode of the job. An option of torchrun replaces it."""
    if unknown := next((line.unknown for line in starts if line.unknown), None):
        draft.remark(("spec", "command"), f"Set pytorch.processesPerNode to {unknown}.")
        return
    option = next((line.processes for line in starts if line.processes), None)
    processes = str(option or value or command_line.AUTO)
    used = any(line.used for line in starts)
    other = command_line.launcher_of((part.command_line for part in parts), "accelerate", "deepspeed")
    most = max((gpus(part.resources) for part in parts), default=0)
    if processes.isdigit():
        draft.set("pytorch.processesPerNode", int(processes))
    elif processes == "cpu" or (processes == command_line.AUTO and used and not most):
        text = f"{processes} meant one process for each CPU of the node; Auto is one for each GPU, or one without GPUs."
        draft.set("pytorch.processesPerNode", "Auto", text)
    elif other and not used and most > 1:
        text = f"{other.name} starts the processes of a pod. RANK and WORLD_SIZE are of pods, as before."
        draft.set("pytorch.processesPerNode", 1, text)
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


_OF_NODES = {"RANK": "NODE_RANK", "WORLD_SIZE": "NNODES"}
"""Variable of the other operator -> what it is called here where a pod has several processes."""


def keep_node_variables(draft: Draft, parts: list[Part], processes: Any) -> None:
    """Give commands that start torchrun the RANK and WORLD_SIZE of the pods, as the other operator does.

    Here only torchrun sets these where a pod has several ranks. `processes`: nprocPerNode of the job, by which the
    other operator multiplies WORLD_SIZE.
    """
    several = draft.get("pytorch.processesPerNode")
    if several == 1 or (several in (None, "Auto") and not any(gpus(part.resources) > 1 for part in parts)):
        return
    names = dict(_OF_NODES)
    if str(processes).isdigit() and int(str(processes)) > 1:
        names["WORLD_SIZE"] = "$((NNODES * NPROC_PER_NODE))"
    for part in parts:
        _rename_references(draft, part)
        script = script_of(line := part.command_line)
        if script is None:
            continue
        used = [name for name in names if re.search(rf"\$\{{?{name}\b", line[script])]
        used = [name for name in used if not re.search(rf"(?<![\w$]){name}=", line[script])]
        if used:
            values = " ".join(f"{name}={names[name] if '$' in names[name] else '$' + names[name]}" for name in used)
            part.set_command_line(command_line.with_prefix(line, f"export {values}"))
            text = f"{' and '.join(used)} of pods, as before: a pod has several ranks, and only torchrun sets theirs."
            draft.comment(("spec", "command"), text)


def _rename_references(draft: Draft, part: Part) -> None:
    """Replace `$(RANK)` and `$(WORLD_SIZE)`, which the kubelet would not know, in arguments and variables."""
    for name, other in _OF_NODES.items():
        for kind in ("command", "args", "env"):
            value = part.fields.get(kind)
            if value and f"$({name})" in str(value):
                part.fields[kind] = _replaced(value, f"$({name})", f"$({other})")
                draft.comment(("spec", kind), f"$({name}) is now $({other}), which a pod with several ranks has.")


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


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


# --- TFJob ------------------------------------------------------------------------------------------------------------


_TFJOB_ROLES = {"Chief": "chief", "Master": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
_TFJOB_PORT = "tfjob-port"


def convert_tfjob(source: Fields) -> Draft:
    draft = Draft.begin(source, "TFJob")
    draft.framework("tensorflow")
    spec = source.child("spec")
    read_run_policy(draft, spec)
    specs = spec.child("tfReplicaSpecs")
    parts, policies = read_roles(spec, specs, _TFJOB_ROLES, ["tensorflow"], _TFJOB_PORT, "Never")
    roles = [part.role for part in parts]
    if roles.count("chief") > 1:
        raise NotConvertible(specs.path, "has both a Chief and a Master: remove one of them")
    if ports := {part.ports[_TFJOB_PORT] for part in parts if _TFJOB_PORT in part.ports}:
        text = "" if len(ports) == 1 else f"One port for all roles; they had {', '.join(map(str, sorted(ports)))}."
        draft.set("tensorflow.port", min(ports), text)
    pod_parts.assemble(draft, parts)
    if any(name.lower() == "master" for name in specs.names()):
        text = "The role Master is chief here, also as the type of the task in TF_CONFIG."
        draft.comment(("spec", "roles", "chief"), text)
    if "evaluator" in roles:
        text = "The evaluator is in TF_CONFIG's cluster only of itself, so that the others do not wait for it."
        draft.comment(("spec", "roles", "evaluator"), text)
    _success(draft, spec, roles)
    draft.drop_all(spec, {"enableDynamicWorker": "every worker has the addresses of all workers in TF_CONFIG"})
    set_restart(draft, policies, backoff_limit(spec))
    if "ps" in roles:
        draft.comment(("spec", "roles", "ps"), "A parameter server that fails restarts alone, and is counted.")
    return draft.finish()


def _success(draft: Draft, spec: Fields, roles: list[str]) -> None:
    """Set `success` if all workers decide. Else the chief decides in both operators, or worker 0 without a chief."""
    if spec.take("successPolicy") == "AllWorkers" and "chief" not in roles:
        draft.set("success", "worker")


# --- JAXJob -----------------------------------------------------------------------------------------------------------


_JAXJOB_PORT = "jaxjob-port"


def convert_jaxjob(source: Fields) -> Draft:
    draft = Draft.begin(source, "JAXJob")
    spec = source.child("spec")
    text = (
        "jax.distributed.initialize() needs no arguments here. JAXJob's COORDINATOR_ADDRESS, COORDINATOR_PORT, "
        "NUM_PROCESSES and PROCESS_ID are set as well."
    )
    draft.framework("jax", text)
    read_run_policy(draft, spec)
    specs = spec.child("jaxReplicaSpecs")
    parts, policies = read_roles(spec, specs, {"Worker": "worker"}, ["jax"], _JAXJOB_PORT, "Never")
    if ports := [part.ports[_JAXJOB_PORT] for part in parts if _JAXJOB_PORT in part.ports]:
        draft.set("jax.port", ports[0])
    pod_parts.assemble(draft, parts)
    set_restart(draft, policies, backoff_limit(spec))
    return draft.finish()


def spmd(draft: Draft, parts: list[Part]) -> None:
    """Set what a job of SPMD programs has, one process in each pod. `parts` are in the order of their ranks."""
    roles = [part.role for part in parts]
    if roles != ["worker"]:
        draft.set("spmd.ranks", roles)
    draft.set("spmd.processesPerPod", 1)
    pod_parts.assemble(draft, parts)


# --- runPolicy, and restartPolicy of each role ------------------------------------------------------------------------


_ROWS: tuple[Row, ...] = (
    ("cleanPodPolicy", "cleanPodPolicy", ""),
    ("ttlSecondsAfterFinished", "ttlSecondsAfterFinished", ""),
    ("activeDeadlineSeconds", "activeDeadlineSeconds", "Time in which the job is suspended does not count here."),
    ("suspend", "suspend", ""),
)
_NO_GANG = "the operator makes the PodGroup; scheduling.gang can name the gang scheduler"
_SCHEDULING = {
    "queue": "set the annotation scheduling.volcano.sh/queue-name of the template",
    "minAvailable": "all pods start together, or elastic.minReplicas of them",
    "minResources": _NO_GANG,
    "scheduleTimeoutSeconds": "set scheduling.gangTimeoutSeconds",
}
OWN_MANAGERS = ("kubeflow.org/training-operator", "kubeflow.org/mpi-operator")


def read_run_policy(draft: Draft, spec: Fields) -> None:
    """Set the fields of `spec.runPolicy`, except backoffLimit. Early versions have these fields in `spec`."""
    policy = spec.child("runPolicy")
    draft.move(policy, _ROWS)
    draft.move(spec, [row for row in _ROWS if draft.get(row[1]) is None])
    manager = policy.take("managedBy")
    if manager and manager not in OWN_MANAGERS:
        draft.set("managedBy", manager, f"{manager} has to support DistributedTraining, or nothing starts the job.")
    scheduling = policy.child("schedulingPolicy")
    draft.drop_all(spec, {"schedulingPolicy": _NO_GANG})
    draft.move(scheduling, [("priorityClass", "scheduling.priorityClassName", "")])
    draft.drop_all(scheduling, _SCHEDULING)
    labels = draft.document["metadata"].get("labels") or {}
    comment_on_queue(draft, labels)


def backoff_limit(spec: Fields, default: Any = None) -> Any:
    """Return backoffLimit of `spec.runPolicy`, or of `spec` in early versions."""
    policy, above = spec.child("runPolicy").take("backoffLimit"), spec.take("backoffLimit")
    chosen = policy if policy is not None else above
    return default if chosen is None else chosen


def comment_on_queue(draft: Draft, labels: dict[str, str]) -> None:
    if QUEUE_LABEL in labels:
        text = "Kueue admits a DistributedTraining only if it is configured for this kind; see its documentation."
        draft.comment(("metadata", "labels", QUEUE_LABEL), text)


def read_roles(
    spec: Fields,
    specs: Fields,
    names: dict[str, str],
    containers: Sequence[str],
    port: str,
    default_policy: str = "",
) -> tuple[list[Part], dict[str, str]]:
    """Return the parts of the roles, and role -> restartPolicy.

    `specs`: the field of `spec` with the roles. `names`: name of the source -> role; case is ignored, as the operators
    do. `containers`, `port`: as in
    `pod_parts.read`.
    """
    parts: list[Part] = []
    policies: dict[str, str] = {}
    lower = {name.lower(): role for name, role in names.items()}
    for name in specs.names():
        role = lower.get(name.lower())
        if role is None:
            continue
        role_spec = specs.child(name)
        _misplaced(spec, specs, role_spec)
        replicas = role_spec.number("replicas", 1)
        policies[role] = str(role_spec.take("restartPolicy", default_policy))
        path = role_spec.place("template")
        parts.append(pod_parts.read(role, replicas, role_spec.take("template"), path, containers, [port]))
    if not parts:
        raise NotConvertible(specs.path, f"has none of the roles {', '.join(names)}")
    order = list(names.values())
    parts.sort(key=lambda part: order.index(part.role))
    return parts, policies


def _misplaced(spec: Fields, specs: Fields, role_spec: Fields) -> None:
    """Raise NotConvertible if the fields of a role stand above it, where no operator reads them."""
    for above in (specs, spec):
        names = [name for name in ("template", "restartPolicy") if name in above and name not in role_spec]
        if names:
            places = " and ".join(map(role_spec.place, names))
            raise NotConvertible(above.place(names[0]), f"belongs into each role, one level deeper: {places}")


PERMANENT = {"exitCodes": list(range(1, 128)), "action": "Fail"}
"""The rule for restartPolicy ExitCode: these codes are errors of the program, others are retried."""


def set_restart(draft: Draft, policies: dict[str, str], limit: int | None) -> None:
    """Set restart. `limit`: backoffLimit, or another number of restarts of the source."""
    kinds = set(policies.values())
    listed = ", ".join(sorted(kinds - {"Never"}))
    final = " and ".join(sorted(role for role, policy in policies.items() if policy == "Never"))
    lost = "The loss of a node or a preemption restarts the job all the same, and is not counted."
    together = "here a failure of a rank restarts all ranks, from their checkpoint"
    if kinds == {"Never"}:
        draft.set("restart.maxRestarts", 0, f"restartPolicy Never: a failure of the program ends the job. {lost}")
        return
    if "ExitCode" in kinds:
        text = "restartPolicy ExitCode: exit codes of 1 to 127 are permanent errors."
        others = kinds - {"ExitCode"}
        draft.set("restart.rules", [PERMANENT], f"{text} Here it applies to all roles." if others else text)
    unlimited = "" if limit is not None else " without a limit, 3 is the default here"
    before = f"restartPolicy {listed} restarted single pods or containers{unlimited};"
    before += f" with Never a failure of {final} ended the job;" if final else ""
    draft.set("restart.maxRestarts", 3 if limit is None else limit, f"{before} {together}.")
