"""The objects that an attempt's pods need beside them: a headless Service, and for MPI a ConfigMap and a Secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks.api.job import API_VERSION, KIND, Job
from allranks.api.status import Status
from allranks.core import naming
from allranks.core.model import Manifest
from allranks.frameworks.base import Wiring


def companions(job: Job, status: Status, wirings: Sequence[Wiring]) -> list[Manifest]:
    """The manifests of these objects, in the order in which they are created."""
    out = [_service(job)]
    if files := {name: content for wiring in wirings for name, content in wiring.files.items()}:
        out.append(_config_map(job, status, files))
    if any(wiring.ssh_key for wiring in wirings):
        out.append(_ssh_secret(job))
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


def _ssh_secret(job: Job) -> Manifest:
    # Without data: the executor adds a new key pair when it creates the Secret, because this function is pure.
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, ssh_secret_name(job), {}),
        "type": "kubernetes.io/ssh-auth",
    }
