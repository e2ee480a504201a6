"""The objects that the pods of an attempt need beside them: a headless Service, for some frameworks a ConfigMap or a
Secret.

Each attempt has its own ConfigMap, because kubelets cache ConfigMaps: a new pod could start with the addresses of the
previous attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import naming
from allranks.core.facts.model import Manifest
from allranks.frameworks.base import Shared

_SUPERSEDED = 5
"""Number of older ConfigMaps that are deleted when a new one is created. Usually one exists, and more only if an
operator was killed between creation and deletion."""

_MORE_THAN_ANY_JOB = 1_000_000

SSH_AUTH = "kubernetes.io/ssh-auth"
"""Type of the Secret with an ssh key. Any other Secret holds random text under the key `secret`."""


def companions(job: Job, status: Status, shared: Shared, publish_before_ready: bool) -> list[Manifest]:
    """Return the manifests of the companions, in the order in which they are created."""
    out = [_service(job, publish_before_ready)]
    if data := {**shared.files, **shared.variables}:
        out.append(_config_map(job, status, data))
    if shared.ssh_key:
        out.append(_secret(job, ssh_secret_name(job), SSH_AUTH))
    if shared.secret:
        out.append(_secret(job, rendezvous_secret_name(job), "Opaque"))
    return out


def superseded_config_maps(job: Job, status: Status) -> tuple[str, ...]:
    """Return names of ConfigMaps to delete when the ConfigMap of the current attempt is created.

    The ConfigMap of the previous attempt stays: its pods may still terminate.
    """
    first = max(0, status.pod_attempt - 1 - _SUPERSEDED)
    return tuple(_config_map_name(job, attempt) for attempt in range(first, status.pod_attempt - 1))


def variable(job: Job, status: Status, name: str) -> Manifest:
    """Return a variable of a container with a value from the ConfigMap."""
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": config_map_name(job, status), "key": name}}}


def config_map_name(job: Job, status: Status) -> str:
    return _config_map_name(job, status.pod_attempt)


def _config_map_name(job: Job, attempt: int) -> str:
    return f"{job.name}-files-{attempt}"


def ssh_secret_name(job: Job) -> str:
    # The UID makes it unique: the operator may not read Secrets, so it cannot detect one that an earlier job left.
    return f"{job.name}-ssh-{job.metadata.uid[:8]}"


def rendezvous_secret_name(job: Job) -> str:
    return f"{job.name}-rendezvous-{job.metadata.uid[:8]}"


def network_policy(job: Job, open_ports: Collection[tuple[str, int]]) -> Manifest:
    """Return a policy that lets the job's pods reach each other on all ports, and others only the open ones.

    `open_ports`: (protocol, port).
    """
    pods = {"matchLabels": {naming.JOB_LABEL: job.name}}
    ingress: list[Manifest] = [{"from": [{"podSelector": pods}]}]
    if open_ports:
        ingress.append({"ports": [{"port": port, "protocol": protocol} for protocol, port in sorted(open_ports)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": naming.object_metadata(job, job.name, {}),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def disruption_budget(job: Job) -> Manifest:
    """Return a budget that blocks the eviction API, as used by `kubectl drain`, until the job is deleted.

    Pods that have ended, and placeholders, can be evicted. The number of pods is larger than any job, because for
    `maxUnavailable` and percentages Kubernetes reads the size of the job from its scale subresource, which has the
    workers only.
    """
    labels = {naming.JOB_LABEL: job.name}
    others = [{"key": naming.ROLE_LABEL, "operator": "NotIn", "values": [naming.PLACEHOLDER]}]
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": naming.object_metadata(job, job.name, {}),
        "spec": {
            "minAvailable": _MORE_THAN_ANY_JOB,
            "selector": {"matchLabels": labels, "matchExpressions": others},
            # A pod that is not ready trains nothing.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _service(job: Job, publish_before_ready: bool) -> Manifest:
    # Left out instead of False: the Service of a job that an earlier operator started has it and cannot be changed.
    publish = {"publishNotReadyAddresses": True} if publish_before_ready else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": naming.object_metadata(job, job.name, {}),
        "spec": {"clusterIP": "None", **publish, "selector": {naming.JOB_LABEL: job.name}},
    }


def _config_map(job: Job, status: Status, data: Mapping[str, str]) -> Manifest:
    labels = {naming.ATTEMPT_LABEL: str(status.pod_attempt)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": naming.object_metadata(job, config_map_name(job, status), labels),
        "immutable": True,  # kubelets need not watch it
        "data": dict(data),
    }


def _secret(job: Job, name: str, kind: str) -> Manifest:
    # Without data: the executor adds random data when it creates the Secret, because this function is pure.
    return {"apiVersion": "v1", "kind": "Secret", "metadata": naming.object_metadata(job, name, {}), "type": kind}
