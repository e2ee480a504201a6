"""Keeps a job's Workload in line with the persisted status: creates it, reports readiness, gives quota back.

Quota is given back only when no pod of the job uses it any more, so Kueue never counts less than what runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from allranks.api.scheduling import Preemption
from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.core.diagnosis.elasticity import TERMINATION_TIMEOUT
from allranks.core.facts import naming, queue, topology
from allranks.core.facts import workload as workloads
from allranks.core.facts.model import Manifest, ObjectPatch, Observed, Plan, Pod
from allranks.core.facts.optional_kinds import WORKLOAD
from allranks.core.objects.queueing import manifest
from allranks.core.objects.queueing import reasons as queue_reasons
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import pods as transfers

RECLAIM_AFTER = timedelta(seconds=60)
"""The quota of a rank that is done is given back after this time. If all ranks restart after that, the job has to wait
in its queue again: ranks that end a moment before a failure are no reason for it."""


@dataclass(frozen=True, slots=True)
class _Changes:
    create: tuple[Manifest, ...] = ()
    patch: tuple[ObjectPatch, ...] = ()
    remove: tuple[Manifest, ...] = ()
    wake_at: datetime | None = None


def with_workload(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add changes of the job's Workload to the plan."""
    o = snapshot.observed
    if plan.decided or not o.optional.api_version(WORKLOAD):
        return plan
    changes = _changes(snapshot)
    times = [time for time in (plan.wake_at, changes.wake_at) if time]
    return replace(
        plan,
        create=(*changes.create, *plan.create),
        patch=changes.patch,
        remove=(*plan.remove, *changes.remove),
        wake_at=min(times, default=None),
    )


def active_pods(snapshot: Snapshot) -> tuple[list[Pod], datetime | None]:
    """Return (pods that use quota, when the first of them no longer counts although it still exists)."""
    now = snapshot.observed.now
    active, times = [], []
    for pod in sorted(snapshot.observed.pods, key=lambda pod: (pod.name, pod.uid)):
        if not pod.owned or pod.ended or pod.node_lost_at is not None:
            continue
        forgotten = pod.deleted_at + TERMINATION_TIMEOUT if pod.deleted_at else None
        if forgotten and forgotten <= now:
            continue  # its node does not answer, so its end is not reported
        active.append(pod)
        times += [forgotten] if forgotten else []
    return active, min(times, default=None)


def _changes(snapshot: Snapshot) -> _Changes:
    o, workload = snapshot.observed, snapshot.workload
    job, phase = o.job, o.current.phase
    if workload is not None and workload["metadata"].get("deletionTimestamp"):
        return _Changes()
    active, forgotten_at = active_pods(snapshot)
    idle, ours = not active, not queue.is_prebuilt(job)
    if phase in FINISHED:
        if workload is None or not workloads.is_owned(job, workload) or workloads.holds(workload, workloads.FINISHED):
            return _Changes()
        return _finish(o, workload) if idle else _Changes(wake_at=forgotten_at)
    if not queue.queue_of(job) or phase == "Suspended":
        if workload is None or not ours:
            return _Changes()
        removable = idle or phase not in WITHOUT_PODS
        return _Changes(remove=(workload,)) if removable else _Changes(wake_at=forgotten_at)
    if workload is None:
        # A job asks for GPUs when its data is there.
        if phase != "Queued" or not ours or active or queue_reasons.cannot_ask(o) or transfers.unready(o):
            return _Changes(wake_at=forgotten_at if phase == "Queued" else None)
        return _Changes(create=(manifest.workload(o),))
    if not workloads.is_owned(job, workload):
        return _adopt(o, workload)
    if phase == "Queued":
        changes = _while_queued(o, workload, idle)
        return changes if idle else replace(changes, wake_at=forgotten_at)
    return _while_admitted(snapshot, workload)


def _while_queued(o: Observed, workload: Manifest, idle: bool) -> _Changes:
    ours = not queue.is_prebuilt(o.job)
    outdated = workloads.counts(workload) != topology.wanted_sizes(o.job) or bool(manifest.lacking(o, workload))
    moved = (workload.get("spec") or {}).get("queueName") != queue.queue_of(o.job)
    if workloads.has_quota(workload):
        if workloads.holds(workload, workloads.EVICTED):
            release = ObjectPatch(workload, {"status": workloads.released(workload, o.now)}, "status")
            return _Changes(patch=(release,)) if idle else _Changes()
        # Kueue does not allow changes of these fields while quota is reserved.
        again = ours and (
            outdated
            or moved
            or workloads.holds(workload, workloads.FINISHED)
            or any(workloads.reclaimed(workload).values())
        )
        return _Changes(remove=(workload,)) if again and idle else _Changes()
    if ours and workloads.holds(workload, workloads.FINISHED):
        return _Changes(remove=(workload,))
    if not ours or queue_reasons.cannot_ask(o):
        return _Changes()
    spec = {**({"queueName": queue.queue_of(o.job)} if moved else {}), **_priority_change(o, workload)}
    if outdated:
        spec["podSets"] = manifest.pod_sets(o)
    change = {**_spec(spec), **_boost_change(workload, 0)}
    return _Changes(patch=(ObjectPatch(workload, change),)) if change else _Changes()


def _while_admitted(snapshot: Snapshot, workload: Manifest) -> _Changes:
    o = snapshot.observed
    change: Manifest = {}
    ready = o.current.phase == "Running" and o.current.running_time is not None
    if pods_ready := workloads.pods_ready(workload, ready):
        change["conditions"] = workloads.with_conditions(workload, o.now, pods_ready)
    reclaimable, due_at = _reclaimable(snapshot, workload)
    if reclaimable is not None:
        change["reclaimablePods"] = reclaimable
    patches = [ObjectPatch(workload, {"status": change}, "status")] if change else []
    boost = priority_boost(o.job.spec.scheduling.preemption, o.current, o.now)
    if not patches and not queue.is_prebuilt(o.job):
        other = {**_spec(_priority_change(o, workload)), **_boost_change(workload, boost.value)}
        patches = [ObjectPatch(workload, other)] if other else []
    return _Changes(
        patch=tuple(patches), wake_at=min((time for time in (due_at, boost.changes_at) if time), default=None)
    )


def _spec(change: Manifest) -> Manifest:
    return {"spec": change} if change else {}


def _boost_change(workload: Manifest, value: int) -> Manifest:
    """Return the change of the annotation by which Kueue adds a value to the priority."""
    before = (workload["metadata"].get("annotations") or {}).get(BOOST_ANNOTATION)
    after = str(value) if value else None
    return {"metadata": {"annotations": {BOOST_ANNOTATION: after}}} if after != before else {}


def _priority_change(o: Observed, workload: Manifest) -> Manifest:
    """Return the change of the Workload's priority.

    Kueue's priority classes may be changed at any time, priority classes of pods only before the admission.
    """
    fields, spec = manifest.priority(o), workload.get("spec") or {}
    kind, _, value = manifest.priority_class(o)
    if value is None or (workloads.has_quota(workload) and kind != "WorkloadPriorityClass"):
        return {}
    return {key: field for key, field in fields.items() if spec.get(key) != field}


def _reclaimable(snapshot: Snapshot, workload: Manifest) -> tuple[list[Manifest] | None, datetime | None]:
    """Return (`reclaimablePods` if it has to change, when the next rank that is done counts)."""
    o = snapshot.observed
    admitted = o.current.queue.pod_sets if o.current.queue else {}
    before, due_at, counts = workloads.reclaimed(workload), list[datetime](), dict[str, int]()
    if o.current.phase != "Running":
        return None, None
    for role, pod_set in admitted.items():
        count = 0
        for index in naming.decode_indices(o.current.done.get(role, "")):
            pod = snapshot.pods.get((role, index))
            due = pod.exit.finished_at + RECLAIM_AFTER if pod and pod.exit else o.now
            count += due <= o.now
            due_at += [due] if due > o.now else []
        counts[role] = max(before.get(role, 0), min(count, pod_set.requested))
    after = {role: count for role, count in counts.items() if count}
    changed = [{"name": role, "count": count} for role, count in after.items()] if after != before else None
    return changed, min(due_at, default=None)


def reclaimed_too_much(status: Status, workload: Manifest) -> bool:
    """Return whether quota was given back for ranks that have to run again: the attempt restarted after they were
    done."""
    done = {role: len(list(naming.decode_indices(text))) for role, text in status.done.items()}
    return any(count > done.get(role, 0) for role, count in workloads.reclaimed(workload).items())


def _finish(o: Observed, workload: Manifest) -> _Changes:
    condition = o.current.condition("Complete" if o.current.phase == "Succeeded" else "Failed")
    message = condition.message if condition and condition.message else f"the job is {o.current.phase}"
    conditions = workloads.with_conditions(workload, o.now, (workloads.FINISHED, "True", o.current.phase, message))
    return _Changes(patch=(ObjectPatch(workload, {"status": {"conditions": conditions}}, "status"),))


def _adopt(o: Observed, workload: Manifest) -> _Changes:
    """Take over the Workload that MultiKueue created for this job."""
    owners = naming.object_metadata(o.job, workload["metadata"]["name"], {})["ownerReferences"]
    others = workload["metadata"].get("ownerReferences") or []
    return _Changes(patch=(ObjectPatch(workload, {"metadata": {"ownerReferences": [*others, *owners]}}),))


def plan_of_manager(snapshot: Snapshot) -> Plan:
    """Return the plan of a job that MultiKueue runs in another cluster: a Workload here, and no pods.

    Kueue writes its status.
    """
    o = snapshot.observed
    if o.job.metadata.deletion_timestamp or o.job.spec.managed_by != queue.MULTIKUEUE:
        return Plan()
    if o.current.phase in FINISHED or not queue.queue_of(o.job) or not o.optional.api_version(WORKLOAD):
        return Plan()
    workload = workloads.of_job(o)
    if workload is None:
        return Plan() if queue_reasons.cannot_ask(o) else Plan(create=(manifest.workload(o),))
    if workload["metadata"].get("deletionTimestamp") or workloads.has_quota(workload):
        return Plan()
    changes = _while_queued(o, workload, idle=True)
    return Plan(patch=changes.patch, remove=changes.remove)


BOOST_ANNOTATION = "kueue.x-k8s.io/priority-boost"
UNSAVED = timedelta(seconds=60)
"""Less work than this since the last checkpoint is not worth a boost."""


@dataclass(frozen=True, slots=True)
class Boost:
    value: int
    changes_at: datetime | None = None
    """Time of the next computation if no rank reports a checkpoint until then."""


def priority_boost(preemption: Preemption | None, status: Status, now: datetime) -> Boost:
    """Return the boost of a running job.

    It is `boostUntilCheckpoint` for `minRunSeconds` after all its pods run, and after that while a preemption would
    lose more than a minute of work. A job whose ranks store a checkpoint on request loses none.
    """
    if preemption is None or status.running_time is None or status.phase != "Running":
        return Boost(0)
    until_checkpoint = preemption.boost_until_checkpoint
    protected_until = status.running_time + timedelta(seconds=preemption.min_run_seconds)
    unsaved_since = _unsaved_since(status)
    if unsaved_since is not None and now >= unsaved_since + UNSAVED:
        return Boost(until_checkpoint)
    if now < protected_until:
        return Boost(until_checkpoint, protected_until)
    return Boost(0, unsaved_since + UNSAVED if unsaved_since else None)


def _unsaved_since(status: Status) -> datetime | None:
    """Return the start of the work that is in no checkpoint; None if there is none, or if the ranks report no steps."""
    progress = status.progress
    if progress is None or progress.first_step_time is None or progress.saves_on_request:
        return None
    if progress.checkpoint_time is not None and progress.checkpoint_step == progress.step:
        return None
    return max(progress.first_step_time, progress.checkpoint_time or progress.first_step_time)
