"""Admission and eviction by Kueue: a job begins when it is admitted, and gives its pods up when it loses its quota."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.scheduling import QueueStatus
from allranks.core import checkpoints, transitions
from allranks.core.facts import queue, topology
from allranks.core.facts import workload as workloads
from allranks.core.facts.model import Event
from allranks.core.facts.optional_kinds import WORKLOAD
from allranks.core.objects.queueing import admission, manifest, sync
from allranks.core.outcomes import Outcome, write
from allranks.core.snapshot import Snapshot
from allranks.fields import validated


def admit(snapshot: Snapshot) -> Outcome:
    """Begin an attempt when Kueue admitted the Workload, or when the job is in no queue any more."""
    o, workload = snapshot.observed, snapshot.workload
    job, status, now = o.job, o.current, o.now
    if not queue.queue_of(job):
        left = transitions.admit(job, status, None, now)
        return write(left, Event("LeftQueue", "the job is in no queue any more"))
    if workload is None or not workloads.is_admitted(workload) or workloads.holds(workload, workloads.FINISHED):
        return None
    if workloads.counts(workload) != topology.wanted_sizes(job) or any(workloads.reclaimed(workload).values()):
        return None  # a Workload of another size, or one that gave quota back: it is replaced
    if not workloads.is_owned(job, workload) or manifest.lacking(o, workload):
        return None
    if not o.optional.api_version(WORKLOAD) or admission.missing_flavors(o, workload):
        return None
    admission_status = workload["status"]["admission"]
    before = status.queue or QueueStatus(name=queue.queue_of(job))
    pod_sets, placements = admission.read(o, workload)
    admitted = validated(
        QueueStatus(
            name=(workload.get("spec") or {}).get("queueName") or before.name,
            workload=workload["metadata"]["name"],
            workload_uid=workload["metadata"]["uid"],
            cluster_queue=admission_status.get("clusterQueue"),
            admitted_time=now,
            pod_sets=pod_sets,
            placements=placements,
            evictions=before.evictions,
            last_eviction=before.last_eviction,
        )
    )
    partial = {role: pod_set for role, pod_set in admitted.pod_sets.items() if pod_set.count < pod_set.requested}
    parts = [f"{role}: {pod_set.count} of {pod_set.requested}" for role, pod_set in partial.items()]
    message = f"admitted by ClusterQueue {admitted.cluster_queue}" + (f" ({', '.join(parts)})" if parts else "")
    sized = queue.with_admitted_size(o.with_current(replace(status, queue=admitted))).job
    return write(transitions.admit(sized, status, admitted, now), Event("Admitted", message))


def withdraw(snapshot: Snapshot) -> Outcome:
    """Give the pods up when the job's quota is gone, or no longer fits the job."""
    o, workload = snapshot.observed, snapshot.workload
    job, status = o.job, o.current
    held = status.queue if status.queue and status.queue.pod_sets else None
    if not queue.queue_of(job):
        return write(replace(status, queue=None), Event("LeftQueue", "the job is in no queue")) if held else None
    if held is None:
        message = f"the job now belongs to queue {queue.queue_of(job)}"
        return _save_and_requeue(snapshot, "QueueAdded", message, asked_for="QueueAdded")
    if not o.optional.api_version(WORKLOAD):
        return None  # Kueue cannot be read: the quota that the job has stays
    if workload is None or workload["metadata"]["uid"] != held.workload_uid:
        return _requeue(snapshot, "WorkloadDeleted", f"Workload {held.workload} was deleted")
    if workloads.holds(workload, workloads.EVICTED):
        evicted = workloads.condition(workload, workloads.EVICTED) or {}
        reason, message = evicted.get("reason") or "Evicted", evicted.get("message") or "evicted by Kueue"
        if workloads.has_quota(workload):  # until the pods are gone
            return _save_and_requeue(snapshot, reason, message, asked_for="Evicted")
        return _requeue(snapshot, reason, message)
    if not workloads.is_admitted(workload):
        return _requeue(snapshot, "NotAdmitted", f"Workload {held.workload} is not admitted any more")
    asked_for = {role: pod_set.requested for role, pod_set in held.pod_sets.items()}
    admitted = {role: pod_set.count for role, pod_set in held.pod_sets.items() if pod_set.count}
    if topology.wanted_sizes(job) not in (asked_for, admitted):
        message = "the size changed: the job needs another quota"
        return _save_and_requeue(snapshot, "Resized", message, asked_for="Resized")
    if sync.reclaimed_too_much(status, workload):
        return _requeue(snapshot, "QuotaReclaimed", "ranks run again whose quota was given back when they were done")
    return None


def _save_and_requeue(snapshot: Snapshot, reason: str, message: str, asked_for: str) -> Outcome:
    """Requeue the job when its ranks have stored a checkpoint, or at once if they have nothing to save."""
    if wait := checkpoints.ask_first(snapshot, asked_for, "the job returns to its queue"):
        return wait
    return _requeue(snapshot, reason, message + checkpoints.result(snapshot))


def _requeue(snapshot: Snapshot, reason: str, message: str) -> Outcome:
    o = snapshot.observed
    return write(transitions.requeue(o.job, o.current, reason, message, o.now), Event(reason, message, warning=True))
