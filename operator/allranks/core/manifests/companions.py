"""The objects that an attempt's pods need beside them: a headless Service, and for Horovod Secrets and a ConfigMap."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from allranks.api.job import API_VERSION, KIND, Job
from allranks.api.status import Status
from allranks.core import naming
from allranks.core.model import Manifest
from allranks.frameworks.base import Wiring

SSH_AUTH = "kubernetes.io/ssh-auth"
"""Type of the Secret with an ssh key. Any other Secret holds random text under the key `secret`."""


def companions(job: Job, status: Status, wirings: Sequence[Wiring]) -> list[Manifest]:
    """The manifests of these objects, in the order in which they are created."""
    out = [_service(job)]
    if files := {name: content for wiring in wirings for name, content in wiring.files.items()}:
        out.append(_config_map(job, status, files))
    if any(wiring.ssh_key for wiring in wirings):
        out.append(_secret(job, ssh_secret_name(job), SSH_AUTH))
    if any(wiring.secret for wiring in wirings):
        out.append(_secret(job, rendezvous_secret_name(job), "Opaque"))
    return out


def metadata(job: Job, name: str, labels: Mapping[str, str]) -> Manifest:
    """Metadata of an object that the job owns."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.metadata.uid, "controller": True}
    # A foreground deletion of the job waits for its pods.
    owner["blockOwnerDeletion"] = True
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {**labels, naming.JOB_LABEL: job.name, naming.MANAGER_LABEL: "allranks"},
        "ownerReferences": [owner],
    }


def config_map_name(job: Job, status: Status) -> str:
    return f"{job.name}-files-{status.attempt}"


def ssh_secret_name(job: Job) -> str:
    # The UID makes it unique: the operator may not read Secrets, so it cannot detect one that an earlier job left.
    return f"{job.name}-ssh-{job.metadata.uid[:8]}"


def rendezvous_secret_name(job: Job) -> str:
    return f"{job.name}-rendezvous-{job.metadata.uid[:8]}"


def network_policy(job: Job, open_ports: Collection[tuple[str, int]]) -> Manifest:
    """Lets the job's pods reach each other on all ports, and everybody else only the open ones: (protocol, port)."""
    own = {"matchLabels": {naming.JOB_LABEL: job.name}}
    ingress: list[Manifest] = [{"from": [{"podSelector": own}]}]
    if open_ports:
        ingress.append({"ports": [{"port": port, "protocol": protocol} for protocol, port in sorted(open_ports)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name, {}),
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _service(job: Job) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name, {}),
        "spec": {
            "clusterIP": "None",
            # Ranks resolve each other's names during the rendezvous, which is before their pods are ready.
            "publishNotReadyAddresses": True,
            "selector": {naming.JOB_LABEL: job.name},
        },
    }


def _config_map(job: Job, status: Status, files: Mapping[str, str]) -> Manifest:
    labels = {naming.ATTEMPT_LABEL: str(status.attempt)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, config_map_name(job, status), labels),
        "data": dict(files),
    }


def _secret(job: Job, name: str, kind: str) -> Manifest:
    # Without data: the executor adds random data when it creates the Secret, because this function is pure.
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(job, name, {}), "type": kind}
