"""Where a field belongs that users of Kubernetes and of other operators look for at another level of the spec."""

from __future__ import annotations

# Lists of words read better without quotes.
# ruff: noqa: SIM905
POD_FIELDS = frozenset(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks "
    "ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
    "hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority "
    "priorityClassName readinessGates resourceClaims restartPolicy runtimeClassName schedulerName schedulingGates "
    "schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace "
    "subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes".split()
)
CONTAINER_FIELDS = frozenset(
    "envFrom imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy restartPolicyRules "
    "startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices "
    "volumeMounts".split()
)
_METADATA = frozenset({"labels", "annotations"})
_AMOUNTS = frozenset({"cpu", "memory", "ephemeral-storage"})
_REPLICAS = frozenset("replicas nodes nnodes numNodes num_nodes workers numWorkers num_workers worldSize".split())
_GPUS = frozenset("gpu gpus numGpus num_gpus gpusPerNode".split())
_PROCESSES = frozenset("nprocPerNode nproc_per_node numProcPerNode processesPerNode procsPerNode".split())
_RESTARTS = {"maxRestarts": "maxRestarts", "backoffLimit": "maxRestarts", "backoffSeconds": "backoffSeconds"}
_OTHER_OPERATORS = {
    "pytorchReplicaSpecs": "PyTorchJob",
    "tfReplicaSpecs": "TFJob",
    "mpiReplicaSpecs": "MPIJob",
    "runPolicy": "PyTorchJob",
    "runtimeRef": "TrainJob",
    "trainer": "TrainJob",
}


def in_spec(name: str, place: str, roles: frozenset[str], fields: frozenset[str]) -> str | None:
    """`belongs under ...` for a name that is no field at `place`: `""` (the manifest), `spec`, `spec.roles`,
    `spec.roles.ROLE` or a block of the spec; None if there is no other usual place.

    `roles` and `fields`: the names that `spec.roles` and `spec` have.
    """
    if place in ("", "metadata"):
        where = in_spec(name, "spec", roles, frozenset())
        return where or (f"belongs under spec.{name}" if name in fields else None)
    if place.endswith(".resources"):
        return f"put it under limits, as in limits: {{{name}: ...}}" if _is_resource(name) else None
    if place != "spec" and not place.startswith("spec.roles"):
        return f"belongs under spec.{name}" if name in fields - {"roles"} else None
    if place == "spec.roles":
        return _among_roles(name, fields)
    if name in roles:
        return f"a role belongs under spec.roles: spec.roles.{name}"
    return _pod_part(name, place) or _job_part(name, place, fields)


def _among_roles(name: str, fields: frozenset[str]) -> str | None:
    if name in fields - {"roles"}:
        return f"belongs under spec.{name}, or under one of the roles"
    return "belongs under spec.roles.worker.replicas" if name in _REPLICAS - {"workers"} else None


def _pod_part(name: str, place: str) -> str | None:
    """Parts of a pod and of its training container."""
    if name in _METADATA:
        return f"belongs under {place}.template.metadata.{name}"
    if name == "priorityClassName":
        return "belongs under spec.scheduling.priorityClassName"
    if name in ("restartPolicy", "backoffLimit"):
        return "what restarts is under spec.restart, and how often under spec.restart.maxRestarts"
    if name == "activeDeadlineSeconds":
        return "belongs under spec.activeDeadlineSeconds"
    if name == "containers":
        return (
            f"image, command, args, env and resources belong directly under {place}, everything else of a pod under "
            f"{place}.template.spec"
        )
    if name in POD_FIELDS:
        return f"belongs under {place}.template.spec.{name}"
    if name in CONTAINER_FIELDS:
        container = f"{place}.template.spec.containers: [{{name: trainer, {name}: ...}}]"
        return f"belongs to the training container: {container}"
    if name in _GPUS:
        return f"GPUs of each pod belong under {place}.resources.limits[nvidia.com/gpu]"
    if name in _AMOUNTS or "/" in name:
        return f"belongs under {place}.resources.limits"
    if name in ("limits", "requests"):
        return f"belongs under {place}.resources.{name}"
    return None


def _job_part(name: str, place: str, fields: frozenset[str]) -> str | None:
    if name in _REPLICAS or (name == "replica" and place == "spec"):
        return f"the number of pods belongs under {place if place != 'spec' else 'spec.roles.worker'}.replicas"
    if name in _PROCESSES:
        return "belongs under spec.pytorch.processesPerNode"
    if name in _RESTARTS:
        return f"belongs under spec.restart.{_RESTARTS[name]}"
    if name in ("minReplicas", "maxReplicas"):
        return f"belongs under spec.elastic.{name}"
    if name in ("queue", "topologyKey", "topology", "gang", "gangTimeoutSeconds", "preemption"):
        return f"belongs under spec.scheduling.{name}"
    if name == "logPattern":
        return "belongs under spec.progress.logPattern"
    if name in ("name", "generateName", "namespace") and place == "spec":
        return f"belongs under metadata.{name}"
    if name == "nodePool":
        return "belongs under spec.pool"
    if name in _OTHER_OPERATORS:
        return f"is a field of {_OTHER_OPERATORS[name]}: allranks convert converts it (docs/guides/migrate.md)"
    if place != "spec" and name in fields - {"roles"}:
        return f"belongs under spec.{name}"
    return None


def _is_resource(name: str) -> bool:
    return name in _AMOUNTS | _GPUS or "/" in name
