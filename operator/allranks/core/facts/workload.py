"""Reads a Workload, Kueue's object that asks for quota: its conditions, and what Kueue assigned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from allranks.api.job import Job
from allranks.core.facts import queue
from allranks.core.facts.model import Manifest, Observed
from allranks.core.facts.naming import controller_of
from allranks.core.facts.optional_kinds import WORKLOAD

QUOTA_RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
PODS_READY, REQUEUED = "PodsReady", "Requeued"
_REQUEUED_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which Kueue considers the Workload again at once. After others it has its own reason to wait."""


def of_job(observed: Observed) -> Manifest | None:
    """Return the job's Workload; one that MultiKueue created need not have an owner yet.

    The job's author writes the label that names it, so the Workload of another job is not the job's, whatever the label
    says: its quota is used already.
    """
    job = observed.job
    name = queue.workload_name(job)
    if queue.is_prebuilt(job):
        prebuilt = observed.optional.find(WORKLOAD, name, job.namespace)
        return prebuilt if prebuilt and controller_of(prebuilt).get("uid") in (None, job.metadata.uid) else None
    owned = observed.optional.owned(WORKLOAD)
    return next((workload for workload in owned if workload["metadata"]["name"] == name), None)


def is_owned(job: Job, workload: Manifest) -> bool:
    """Return whether the job controls the Workload. Until it does, another job may take it."""
    return controller_of(workload).get("uid") == job.metadata.uid


def condition(workload: Mapping[str, Any], kind: str) -> Manifest | None:
    conditions: Iterable[Manifest] = _status(workload).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), None)


def holds(workload: Mapping[str, Any], kind: str) -> bool:
    match = condition(workload, kind)
    return match is not None and match.get("status") == "True"


def has_quota(workload: Mapping[str, Any]) -> bool:
    """Return whether Kueue counts the Workload's quota as used."""
    return holds(workload, QUOTA_RESERVED) or bool(_status(workload).get("admission"))


def is_admitted(workload: Mapping[str, Any]) -> bool:
    """Return whether the job may have pods. While Kueue evicts a Workload, it is still admitted."""
    return (
        holds(workload, ADMITTED)
        and not holds(workload, EVICTED)
        and bool(_status(workload).get("admission"))
        and not workload["metadata"].get("deletionTimestamp")
    )


def is_active(workload: Mapping[str, Any]) -> bool:
    return (workload.get("spec") or {}).get("active") is not False


def assignments(workload: Mapping[str, Any]) -> dict[str, Manifest]:
    """Return pod set -> its assignment by Kueue."""
    admission = _status(workload).get("admission") or {}
    return {
        assignment["name"]: assignment
        for assignment in admission.get("podSetAssignments") or ()
        if assignment.get("name")
    }


def pod_sets(workload: Mapping[str, Any]) -> dict[str, Manifest]:
    return {pod_set["name"]: pod_set for pod_set in (workload.get("spec") or {}).get("podSets") or ()}


def counts(workload: Mapping[str, Any]) -> dict[str, int]:
    """Return pod set -> number of pods that it asks for."""
    return {name: int(pod_set.get("count", 1)) for name, pod_set in pod_sets(workload).items()}


def admission_checks(workload: Mapping[str, Any]) -> list[Manifest]:
    return list(_status(workload).get("admissionChecks") or ())


def reclaimed(workload: Mapping[str, Any]) -> dict[str, int]:
    """Return pod set -> number of pods whose quota was given back."""
    return {pod_set["name"]: int(pod_set.get("count", 0)) for pod_set in _status(workload).get("reclaimablePods") or ()}


def released(workload: Mapping[str, Any], now: datetime) -> Manifest:
    """Return the change of the status that gives the quota of an evicted Workload back, as Kueue's own integrations do
    it."""
    evicted = condition(workload, EVICTED) or {}
    reason, message = evicted.get("reason") or "Evicted", evicted.get("message") or ""
    requeued = "True" if reason in _REQUEUED_AT_ONCE else "False"
    conditions = with_conditions(
        workload,
        now,
        (REQUEUED, requeued, reason, message),
        (QUOTA_RESERVED, "False", "Pending", message),
        (ADMITTED, "False", "NoReservation", "The workload has no reservation"),
        *([(PODS_READY, "False", "WaitForStart", NOT_READY)] if condition(workload, PODS_READY) else []),
    )
    return {"conditions": conditions, "admission": None}


NOT_READY = "Not all pods are ready or succeeded"
"""Kueue's own message of this condition, as the following ones."""
RECOVERING = "At least one pod has failed, waiting for recovery"
READY = "All pods reached readiness and the workload is running"


def pods_ready(workload: Mapping[str, Any], ready: bool) -> tuple[str, str, str, str] | None:
    """Return the condition PodsReady if it has to change.

    Kueue evicts jobs that do not become ready in time, if it is configured so.
    """
    before = condition(workload, PODS_READY)
    was, reason = (before["status"], before.get("reason", "")) if before else ("", "")
    if ready:
        again = reason in ("WaitForRecovery", "Recovered")
        change = (PODS_READY, "True", "Recovered" if again else "Started", READY)
    elif was == "True" or reason == "WaitForRecovery":
        change = (PODS_READY, "False", "WaitForRecovery", RECOVERING)
    else:
        change = (PODS_READY, "False", "WaitForStart", NOT_READY)
    return change if (was, reason) != change[1:3] else None


def with_conditions(workload: Mapping[str, Any], now: datetime, *changes: tuple[str, str, str, str]) -> list[Manifest]:
    """Return all conditions, with these (type, status, reason, message) set. A merge patch replaces the whole list."""
    conditions = {condition["type"]: condition for condition in _status(workload).get("conditions") or ()}
    for kind, status, reason, message in changes:
        before = conditions.get(kind)
        kept = before.get("lastTransitionTime") if before and before.get("status") == status else None
        conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:32_768],
            "lastTransitionTime": kept or f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "observedGeneration": workload["metadata"].get("generation", 1),
        }
    return list(conditions.values())


def _status(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    return workload.get("status") or {}
