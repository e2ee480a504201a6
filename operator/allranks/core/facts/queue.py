"""The queue of a job: `spec.scheduling.queue`, or the label with which Kueue's tools address jobs."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.job import Job, Metadata, RoleSpec
from allranks.api.scheduling import Scheduling
from allranks.core.facts.model import Observed

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
PREBUILT_LABEL = "kueue.x-k8s.io/prebuilt-workload-name"
"""On a job that MultiKueue sent to this cluster: the name of its Workload, which MultiKueue created."""
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
"""Annotation: the job does not enter its queue while it is set."""
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""`spec.managedBy` of a job that runs in another cluster, which MultiKueue selects."""


def queue_of(job: Job) -> str:
    """Return the LocalQueue of the job; empty if it has none."""
    return job.spec.scheduling.queue or job.metadata.labels.get(QUEUE_LABEL, "")


def problems(job: Job) -> list[tuple[str, str]]:
    """Return (field path, message) if field and label name two queues."""
    field, label = job.spec.scheduling.queue, job.metadata.labels.get(QUEUE_LABEL)
    if not field or not label or field == label:
        return []
    message = f"is {field}, and the label {QUEUE_LABEL} is {label}: remove one of them, both mean the same"
    return [("spec.scheduling.queue", message)]


def workload_name(job: Job) -> str:
    """Return the name of the job's Workload.

    It contains the job's UID: the Workload of an earlier job of the same name may still exist.
    """
    return job.metadata.labels.get(PREBUILT_LABEL) or f"dt-{job.name}-{job.metadata.uid[:8]}"


def is_prebuilt(job: Job) -> bool:
    return bool(job.metadata.labels.get(PREBUILT_LABEL))


def as_admitted(observed: Observed) -> Observed:
    """Give the job the size that its queue admitted. A local run has no queue."""
    return without_queue(observed) if observed.platform.local else with_admitted_size(observed)


def without_queue(observed: Observed) -> Observed:
    """Return the observation of a local run, which has no queues."""
    job = observed.job
    if not queue_of(job):
        return observed
    labels = {key: value for key, value in job.metadata.labels.items() if key != QUEUE_LABEL}
    scheduling = Scheduling(**(dict(job.spec.scheduling) | {"queue": None}))
    spec = type(job.spec)(**(dict(job.spec) | {"scheduling": scheduling}))
    return replace(observed, job=Job(metadata=Metadata(**(dict(job.metadata) | {"labels": labels})), spec=spec))


def with_admitted_size(observed: Observed) -> Observed:
    """Return the observation with the number of workers that Kueue admitted, if the job asked for more.

    A size that changed since then stays: the job goes back to its queue (`rules.queue.withdraw`).
    """
    queue, job = observed.current.queue, observed.job
    if queue is None or not queue.pod_sets:
        return observed
    fewer = {
        role: pod_set.count
        for role, pod_set in queue.pod_sets.items()
        if role in job.spec.roles and pod_set.count < pod_set.requested == job.spec.roles[role].replicas
    }
    if not fewer:
        return observed
    roles = {
        role: RoleSpec(**(dict(spec) | {"replicas": fewer[role]})) if role in fewer else spec
        for role, spec in job.spec.roles.items()
    }
    spec = type(job.spec)(**(dict(job.spec) | {"roles": roles}))
    return replace(observed, job=Job(metadata=job.metadata, spec=spec))
