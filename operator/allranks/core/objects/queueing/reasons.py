"""The reason and the message of the condition of a job that waits in a queue."""

from __future__ import annotations

from allranks.core.facts import queue
from allranks.core.facts import workload as workloads
from allranks.core.facts.model import Manifest, Observed, Pod
from allranks.core.facts.optional_kinds import LOCAL_QUEUE, RESOURCE_FLAVOR, WORKLOAD
from allranks.core.objects.queueing import admission, manifest

QUEUED = "Queued"


def reason(observed: Observed, workload: Manifest | None, active: list[Pod]) -> tuple[str, str]:
    """Return the (reason, message) of the condition of a job in a queue. `active` are pods that still use quota."""
    job = observed.job
    name = queue.queue_of(job)
    problem = cannot_ask(observed) or _unfinished(active)
    if problem is None and workload is None:
        problem = _rejected(observed) or _taken(observed) or (QUEUED, "the job enters the queue")
    elif problem is None and workload is not None:
        problem = _of_workload(observed, workload)
    assert problem is not None
    return problem[0], f"queue {name}: {problem[1]}"


def cannot_ask(observed: Observed) -> tuple[str, str] | None:
    """Return (reason, message) if the job cannot have a Workload; None if it can."""
    job, optional = observed.job, observed.optional
    for kind in (WORKLOAD, LOCAL_QUEUE, RESOURCE_FLAVOR):
        if not optional.api_version(kind):
            problem = optional.problems.get(kind.id, "this operator does not serve queues (setting `queues`)")
            cure = "the job waits until it does; to run it without a queue, remove the queue"
            return "QueuesNotServed", f"{problem}: {cure}"
    name = queue.queue_of(job)
    if gates := job.metadata.annotations.get(queue.GATED_BY):
        return "AdmissionGated", f"the annotation {queue.GATED_BY} names {gates}: the job waits until it is removed"
    if optional.find(LOCAL_QUEUE, name, job.namespace) is None:
        cure = "create it, or name another (allranks queue lists those that exist)"
        return "QueueNotFound", f"namespace {job.namespace} has no LocalQueue of this name: {cure}"
    kind_of_class, class_name, value = manifest.priority_class(observed)
    if kind_of_class and value is None:
        return "PriorityClassNotFound", f"{kind_of_class} {class_name} does not exist: create it, or name another"
    return None


def _unfinished(active: list[Pod]) -> tuple[str, str] | None:
    if not active:
        return None
    others = f" and {len(active) - 1} more" if len(active) > 1 else ""
    return "PodsTerminating", f"the quota is given back when {active[0].name}{others} has ended"


def _taken(observed: Observed) -> tuple[str, str] | None:
    """Return the problem of a job whose label names the Workload of another job or controller."""
    job = observed.job
    name = queue.workload_name(job)
    if not queue.is_prebuilt(job) or observed.optional.find(WORKLOAD, name, job.namespace) is None:
        return None
    cure = f"remove the label {queue.PREBUILT_LABEL}, and the job gets a Workload of its own"
    return "WorkloadTaken", f"Workload {name} belongs to something else: {cure}"


def _rejected(observed: Observed) -> tuple[str, str] | None:
    rejected = next((rejection for rejection in observed.refused if rejection.kind == WORKLOAD.kind), None)
    return (rejected.reason, f"Workload {rejected.name}: {rejected.message}") if rejected else None


def _of_workload(observed: Observed, workload: Manifest) -> tuple[str, str]:
    if rejected := _rejected(observed):
        return rejected
    if not workloads.is_active(workload):
        return "Deactivated", "its Workload was deactivated (spec.active is false); set it to true to continue"
    evicted = workloads.condition(workload, workloads.EVICTED)
    if workloads.has_quota(workload):
        if less := _lacking(observed, workload):
            return less
        if evicted and workloads.holds(workload, workloads.EVICTED):
            return evicted.get("reason") or "Evicted", evicted.get("message") or "the quota is given back"
        if missing := admission.missing_flavors(observed, workload):
            return "FlavorNotFound", f"ResourceFlavor {missing[0]} does not exist"
        return "AdmissionChecks", _checks(workload)
    if queue.is_prebuilt(observed.job) and (less := _lacking(observed, workload)):
        return less
    reserved = workloads.condition(workload, workloads.QUOTA_RESERVED)
    if reserved is None:
        return QUEUED, "Kueue has not considered the job yet"
    said = reserved.get("reason") or ""
    return (said if said not in ("", "Pending") else QUEUED), reserved.get("message") or "waits for quota"


def _lacking(observed: Observed, workload: Manifest) -> tuple[str, str] | None:
    if not (less := manifest.lacking(observed, workload)):
        return None
    name = workload["metadata"]["name"]
    return "OutOfSync", f"Workload {name} asks for less than the pods of the job request ({less})"


def _checks(workload: Manifest) -> str:
    pending = [check for check in workloads.admission_checks(workload) if check.get("state") != "Ready"]
    if not pending:
        return "quota is reserved; the admission follows"
    names = ", ".join(check.get("name", "") for check in pending)
    message = next((check["message"] for check in pending if check.get("message")), "")
    return f"quota is reserved; waits for admission checks: {names}" + (f" ({message})" if message else "")
