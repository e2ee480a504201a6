"""Finished jobs: keeps the pods of a failed job for a look (`restart.holdSeconds`), and applies `cleanPodPolicy`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.status import Hold
from allranks.core.facts import pod_template, pool_template, topology
from allranks.core.facts.model import Event, Plan, Pod
from allranks.core.facts.status_update import changed
from allranks.core.facts.topology import CLEANUP_GRACE
from allranks.core.objects.gangs import objects as gang_objects
from allranks.core.snapshot import Snapshot
from allranks.core.sync.plans import plan_objects


def clean_up(snapshot: Snapshot) -> Plan:
    """Deletes pods as `cleanPodPolicy` says, those of a failed job when they are not held any more."""
    o = snapshot.observed
    # A PodGroup has no use once no pod can be placed any more. That of a pod that still runs stays.
    placed = all(pod.ended for pod in snapshot.pods.values())
    groups = gang_objects.superseded(o.job, o.current, o.optional, over=placed)
    if until := held_until(snapshot):
        return replace(_hold(snapshot, until), remove=groups)
    plan = replace(_apply_policy(snapshot), remove=groups)
    if snapshot.current.hold is None:
        return plan
    policy = snapshot.observed.job.spec.clean_pod_policy
    ended = Event("HoldEnded", f"cleanPodPolicy applies to the pods: {policy}")
    return replace(plan, next=changed(snapshot.summarised_at_end, hold=None), events=(ended, *plan.events))


def held_until(snapshot: Snapshot) -> datetime | None:
    """When the pods of a failed job are no longer kept for a look; None if they are not kept."""
    o = snapshot.observed
    seconds = o.job.spec.restart.hold_seconds
    if o.current.phase != "Failed" or not seconds or o.job.spec.suspend or o.platform.local:
        return None
    until = (o.current.completion_time or o.now) + timedelta(seconds=seconds)
    return until if o.now < until else None


def _hold(snapshot: Snapshot, until: datetime) -> Plan:
    """Keeps all pods of the last attempt that have a node: one without would start as soon as there is room."""
    kept = {place: pod for place, pod in snapshot.pods.items() if pod.node is not None or pod.ended}
    delete = [pod for place, pod in sorted(snapshot.pods.items()) if place not in kept]
    there = [pod for pod in kept.values() if pod.deleted_at is None]
    hold = Hold(until=until, pods=len(there), gpus=_gpus(snapshot, there)) if there else None
    before, events = snapshot.current.hold, list[Event]()
    if hold and (before is None or before.until != until):
        message = f"{hold.pods} pods with {hold.gpus} GPUs are kept until {until:%Y-%m-%dT%H:%M:%SZ}"
        events.append(Event("Held", f"{message} (restart.holdSeconds); deletion or suspend: true ends it"))
    status = changed(snapshot.summarised_at_end, hold=hold)
    return plan_objects(snapshot, status, delete=[*delete, *snapshot.outdated], events=events, wake_at=until)


def _gpus(snapshot: Snapshot, pods: Iterable[Pod]) -> int:
    """GPUs of the pods that have not ended."""
    o, counts = snapshot.observed, Counter(pod.role for pod in pods if not pod.ended)
    if not counts:
        return 0
    if pool_template.unavailable(o.job, o.platform):  # it was changed or deleted meanwhile
        return o.current.hold.gpus if o.current.hold else 0
    templates = pod_template.role_templates(o.job, o.platform)
    return sum(pod_template.gpus(o.job, templates[role], o.platform) * count for role, count in counts.items())


def _apply_policy(snapshot: Snapshot) -> Plan:
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    services = topology.framework_of(job).long_running_roles(topology.sizes(job, status))
    grace_end = (status.completion_time or now) + CLEANUP_GRACE
    delete: list[Pod] = []
    wake_at = None
    for _, pod in sorted(snapshot.pods.items()):
        over = pod.phase in ("Succeeded", "Failed")
        # Policy None keeps no pod without a node: it would start to run as soon as there is room.
        kept = {"None": over or pod.node is not None, "Running": over, "All": False}
        if kept[job.spec.clean_pod_policy]:
            continue
        if status.phase == "Succeeded" and pod.phase == "Running" and pod.role not in services and now < grace_end:
            wake_at = grace_end
        else:
            delete.append(pod)
    return plan_objects(snapshot, snapshot.summarised_at_end, delete=[*delete, *snapshot.outdated], wake_at=wake_at)
