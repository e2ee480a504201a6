"""Jobs without pods: suspended, or in a queue."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.status import RoleStatus, Status
from allranks.core.facts import status_summary, topology
from allranks.core.facts.model import Plan
from allranks.core.facts.status_update import changed
from allranks.core.objects.gangs import objects as gang_objects
from allranks.core.objects.queueing import reasons
from allranks.core.objects.queueing.sync import active_pods
from allranks.core.snapshot import Snapshot
from allranks.core.sync.plans import DELETION_REFUSED, plan_objects
from allranks.core.transfers import pods as transfers


def delete_pods(snapshot: Snapshot) -> Plan:
    """Deletes all pods of a suspended job, and reports pods that the API server does not allow to be deleted."""
    summary, now = snapshot.summarised_at_end, snapshot.observed.now
    condition = summary.condition("Suspended")
    if snapshot.undeletable:
        pod, rejection = snapshot.undeletable[0]
        message = f"pod {pod.name} still runs, because its deletion was rejected: {rejection.message}"
        summary = status_summary.with_phase(summary, "Suspended", now, DELETION_REFUSED, message)
    elif condition and condition.reason == DELETION_REFUSED:
        summary = status_summary.with_phase(summary, "Suspended", now, "Suspended", "spec.suspend is true")
    plan = plan_objects(snapshot, summary, delete=[*snapshot.pods.values(), *snapshot.outdated])
    return replace(
        plan, remove=gang_objects.superseded(snapshot.observed.job, summary, snapshot.observed.optional, over=True)
    )


def wait_in_queue(snapshot: Snapshot) -> Plan:
    """Deletes all pods of a job that waits in a queue, and says what it waits for."""
    o = snapshot.observed
    active, _ = active_pods(snapshot)
    missing = transfers.blocked(o) if snapshot.workload is None and not active else None
    reason, message = missing or reasons.reason(o, snapshot.workload, active)
    if snapshot.undeletable:
        pod, rejection = snapshot.undeletable[0]
        reason, message = DELETION_REFUSED, f"pod {pod.name} still runs: its deletion was rejected: {rejection.message}"
    summary = status_summary.with_phase(_with_wanted_sizes(snapshot), "Queued", o.now, reason, message)
    plan = plan_objects(snapshot, summary, delete=[*snapshot.pods.values(), *snapshot.outdated])
    return replace(plan, remove=gang_objects.superseded(o.job, summary, o.optional, over=True))


def _with_wanted_sizes(snapshot: Snapshot) -> Status:
    """The status of a job without pods, with the sizes that it will have."""
    summary, wanted = snapshot.summarised_at_end, topology.wanted_sizes(snapshot.observed.job)
    if {role: of.desired for role, of in summary.roles.items()} == wanted:
        return summary
    active = {role: of.active for role, of in summary.roles.items()}
    roles = {role: RoleStatus(desired=size, active=active.get(role, 0)) for role, size in wanted.items()}
    return changed(summary, roles=roles, ready=f"0/{sum(wanted.values())}")
