"""Metadata of the objects that a job owns."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.api.job import API_VERSION, KIND, Job
from allranks.core.facts import naming
from allranks.core.facts.model import Manifest


def metadata(job: Job, name: str, labels: Mapping[str, str]) -> Manifest:
    """Metadata of an object that the job owns."""
    return owned_metadata((job.namespace, job.name), job.metadata.uid, name, labels)


def owned_metadata(job: tuple[str, str], uid: str, name: str, labels: Mapping[str, str]) -> Manifest:
    """The same for a job that is given by (namespace, name) and UID."""
    namespace, owner_name = job
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": owner_name, "uid": uid, "controller": True}
    # A foreground deletion of the job waits for its pods.
    owner["blockOwnerDeletion"] = True
    return {
        "name": name,
        "namespace": namespace,
        "labels": {**labels, naming.JOB_LABEL: owner_name, naming.MANAGER_LABEL: "allranks"},
        "ownerReferences": [owner],
    }
