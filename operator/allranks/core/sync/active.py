"""A job whose attempt runs, or is to run: creates missing pods, deletes outdated ones, and counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import Progress
from allranks.api.status import Status
from allranks.core.accounting.progress import newly_copied, newly_not_finite, newly_stalled
from allranks.core.diagnosis import checkpoint_overdue, elasticity, hang_detection, hardware, report_loss
from allranks.core.diagnosis.stragglers import newly_slow
from allranks.core.facts import naming, pod_template, pool_template, rank_reports, status_summary, topology
from allranks.core.facts.model import (
    NOT_READY_TO_START,
    NOT_SCHEDULED,
    START_ERRORS,
    Event,
    Manifest,
    Plan,
    Pod,
    RejectedCreate,
)
from allranks.core.objects import commands, companions, placeholders
from allranks.core.objects import pods as pod_manifests
from allranks.core.objects.gangs import choice as gang_choice
from allranks.core.objects.gangs import members, read_back
from allranks.core.snapshot import Snapshot
from allranks.core.sync import orders
from allranks.core.sync.plans import DELETION_REFUSED, gpus_of, plan_objects, shorter_grace
from allranks.core.transfers import pods as transfers
from allranks.frameworks.base import Replica

PODS_PER_PLAN = 1000
"""Pods that a plan creates at most; the next plan creates more. It bounds the memory of a plan."""


def sync_objects(snapshot: Snapshot) -> Plan:
    """Create missing pods that are due, delete outdated ones, and update the status from the pods."""
    o, status = snapshot.observed, snapshot.current
    due, delayed_until = _due(snapshot)
    waits, answer_at = orders.barrier(snapshot)
    blocked = _blocked(snapshot) if due else waits
    unreported_at = hang_detection.unreported_at(o.job, status, o.reports)
    stopped, stopped_at = hang_detection.stopped_note(o.job, o.reports, o.now) if unreported_at else ("", None)
    note = (hang_detection.COLLECTIVES_STOPPED, stopped) if stopped else _unreported(snapshot, unreported_at)
    ending, ending_until = _ending(snapshot)
    summary = status_summary.summarise(o.job, status, snapshot.pods, o.refused, o.now, blocked, note, ending)
    create, restore = _manifests(snapshot, [] if blocked else due)
    summary = _read_back(snapshot, summary)
    probes, probe_at = _placeholders(snapshot)
    slow = newly_slow(snapshot.persisted.progress, status.progress)
    events = [Event("Straggler", sentence, warning=True) for sentence in slow]
    ignored = (o.job.spec.progress or Progress()).on_not_finite == "Ignore"
    bad = [] if ignored else newly_not_finite(snapshot.persisted.progress, status.progress)
    events += [Event("NotFinite", sentence, warning=True) for sentence in bad]
    if copies := newly_copied(snapshot.persisted.progress, status.progress):
        events.append(Event("IndependentCopies", copies, warning=True))
    if stalled := newly_stalled(snapshot.persisted.progress, status.progress):
        events.append(Event("Stalled", stalled, warning=True))
    events += _start_errors(status, summary, snapshot.start_errors)
    events += _refusals(status, summary, o.refused)
    if dropped := read_back.event(status, summary):
        events.append(dropped)
    kinds = (report_loss.CONDITION, hardware.CONDITION, checkpoint_overdue.CONDITION)
    warnings = (status_summary.warning(snapshot.persisted, status, kind) for kind in kinds)
    events += [event for event in warnings if event]
    if note and _begins_to_say(note, status, summary):
        events.append(Event(*note, warning=True))
    if summary.launched and not status.launched:
        events.append(Event("PodsCreated", f"{len(snapshot.pods)} pods of attempt {status.attempt}"))
        if not status.history and not o.platform.local:  # `allranks run` prints these before the start
            remarks = commands.remarks(o.job, o.platform)
            events += [Event("Advice", f"{path}: {text}", warning=kind == "warning") for path, text, kind in remarks]
    lost_at = report_loss.due_at(status, o.reports, o.now)
    times = [delayed_until, probe_at, lost_at, _next_slow_start(snapshot), stopped_at, ending_until, answer_at]
    times.append(checkpoint_overdue.wakes_at(o))
    times += [] if note else [unreported_at]
    wake_at = min((time for time in times if time), default=None)
    plan = plan_objects(snapshot, summary, [*create, *probes], snapshot.outdated, events, wake_at)
    groups = members.superseded_groups(o.job, status, o.optional, over=False)
    plan = replace(plan, restore=tuple(restore), remove=groups)
    stall = snapshot.stall_window
    if any(manifest["kind"] == "ConfigMap" for manifest in create):
        plan = replace(plan, superseded=companions.superseded_config_maps(o.job, status))
    if stall and o.now >= stall.stuck_at:
        return replace(plan, stack_dump_id=stall.stack_dump_id)
    request = o.job.metadata.annotations.get(rank_reports.STACKS_ANNOTATION, "")
    return replace(plan, stack_dump_id=rank_reports.stack_dump_id(request, status.attempt)) if request else plan


def _refused_deletion(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return (reason, message) while a pod of an earlier attempt still runs because its deletion was rejected.

    New pods wait for it: two attempts at once would write the same checkpoints.
    """
    attempt = snapshot.current.pod_attempt
    for pod, rejection in snapshot.undeletable:
        if pod.attempt != attempt:
            problem = f"pod {pod.name} of attempt {pod.attempt} still runs, because its deletion was rejected"
            return DELETION_REFUSED, f"{problem}: {rejection.message}; the pods of attempt {attempt} wait for it"
    return None


def _blocked(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return (reason, message) of what keeps the missing pods from being created."""
    o = snapshot.observed
    refused = transfers.blocked(o) or _refused_deletion(snapshot) or pool_template.unavailable(o.job, o.platform)
    return refused or gang_choice.unavailable(o.job, o.current, o.platform, o.optional)


def _ending(snapshot: Snapshot) -> tuple[str, datetime | None]:
    """Return (sentence, time) about the pods of older attempts that hold their nodes while new pods find none.

    They end by the time; until then, others may believe that another job uses the GPUs.
    """
    o, attempt = snapshot.observed, snapshot.current.pod_attempt
    if not any(pod.waiting_reason in NOT_SCHEDULED for pod in snapshot.pods.values()):
        return "", None
    older = [pod for pod in snapshot.outdated if pod.attempt < attempt and pod.node and not pod.ended]
    shorter, longest = shorter_grace(snapshot, older), pod_template.longest_grace_period(o.job) if older else 0
    ends = {
        pod.uid: pod.deleted_at + timedelta(seconds=shorter.get((pod.attempt, pod.role), longest))
        for pod in older
        if pod.deleted_at
    }
    ending = [pod for pod in older if pod.uid in ends and ends[pod.uid] > o.now]
    if not ending:
        return "", None
    attempts = sorted({pod.attempt for pod in ending})
    pods = f"{len(ending)} pod{'s' * (len(ending) != 1)} of attempt{'s' * (len(attempts) != 1)}"
    gpus, until = gpus_of(snapshot, ending), max(ends[pod.uid] for pod in ending)
    hold = f" and hold{'s' * (len(ending) == 1)} {gpus} GPU{'s' * (gpus != 1)}" if gpus else ""
    end = f"end{'s' * (len(ending) == 1)} until {until:%H:%M:%S} UTC"
    return f"{pods} {', '.join(map(str, attempts))} {end}{hold}", until


def _read_back(snapshot: Snapshot, summary: Status) -> Status:
    """Return the summary with the condition about the attempt's gang."""
    o = snapshot.observed
    group = None
    if o.current.gang and o.job.spec.scheduling.topology and not pool_template.unavailable(o.job, o.platform):
        templates = pod_template.role_templates(o.job, o.platform)
        group = members.pod_group(o.job, o.current, templates, o.platform)
    alone = (
        "" if o.current.gang or not snapshot.pods else gang_choice.without_gang(o.job, summary, o.platform, o.optional)
    )
    return read_back.observe(o.job, summary, snapshot.pods.values(), group, o.optional, o.now, alone)


def _due(snapshot: Snapshot) -> tuple[list[Replica], datetime | None]:
    """Return the missing replicas to create now, and the time at which the next one's backoff ends."""
    now = snapshot.observed.now
    due, delays = [], []
    for replica in snapshot.missing:
        not_before = _not_before(snapshot.current, replica)
        if not_before and not_before > now:
            delays.append(not_before)
        elif not snapshot.predecessor_running(replica):
            due.append(replica)
    return due, min(delays, default=None)


def _not_before(status: Status, replica: Replica) -> datetime | None:
    """Return the end of the backoff of this replica."""
    entry = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
    return entry.restart_time if entry else status.restart_time


def _start_errors(before: Status, after: Status, pods: Iterable[Pod]) -> list[Event]:
    """Return an Event when a job that ran before begins to wait for a pod that cannot start. A new job has a
    deadline."""
    then, now = before.condition("Running"), after.condition("Running")
    wait_reasons = _WAITS | {pod.start_error for pod in pods}
    waits = now is not None and now.reason in wait_reasons and (then is None or then.reason not in wait_reasons)
    return [Event(now.reason, now.message, warning=True)] if now and waits and after.ever_ran else []


def _refusals(before: Status, after: Status, refused: Iterable[RejectedCreate]) -> list[Event]:
    """Return an Event when the condition begins to say that the API server refused a pod or another object."""
    then, now = before.condition("Running"), after.condition("Running")
    if now is None or now.reason not in {rejection.reason for rejection in refused}:
        return []
    return [] if then and then.reason == now.reason else [Event(now.reason, now.message, warning=True)]


_WAITS = START_ERRORS | {NOT_READY_TO_START}


def _unreported(snapshot: Snapshot, unreported_at: datetime | None) -> tuple[str, str] | None:
    """Return (reason, sentence) of the condition of a job that runs without reports.

    An operator that starts later keeps it until ranks report.
    """
    if unreported_at is None:
        return None
    running = snapshot.current.condition("Running")
    kept = running is not None and running.reason in (hang_detection.NO_REPORTS, hang_detection.COLLECTIVES_STOPPED)
    due = kept or snapshot.observed.now >= unreported_at
    return (hang_detection.NO_REPORTS, hang_detection.UNREPORTED) if due else None


def _begins_to_say(note: tuple[str, str], before: Status, after: Status) -> bool:
    """Return whether the condition of a running job has this note now, and did not have it with this sentence
    before."""
    reason, sentence = note
    old, new = before.condition("Running"), after.condition("Running")
    if new is None or new.reason != reason:
        return False
    return old is None or old.reason != reason or not old.message.endswith(sentence)


def _next_slow_start(snapshot: Snapshot) -> datetime | None:
    """Return when the condition is to name the next pod that is slow to start."""
    times = (status_summary.slow_start_at(pod) for pod in snapshot.pods.values())
    return min((time for time in times if time and time > snapshot.observed.now), default=None)


def _manifests(snapshot: Snapshot, due: list[Replica]) -> tuple[list[Manifest], list[Manifest]]:
    """Return (objects to create, objects to restore).

    The pods that are due come after the objects that they need. These are created with the first pods of an attempt,
    and restored with later ones and from time to time.
    """
    job, status, platform = snapshot.observed.job, snapshot.current, snapshot.observed.platform
    if not due and not (status.launched and snapshot.observed.check_companions):
        return [], []
    now = due if platform.local else due[:PODS_PER_PLAN]
    objects = pod_manifests.objects(job, status, platform, {(replica.role, replica.index) for replica in now})
    if status.launched:
        return objects.pods, objects.companions
    return [*objects.companions, *objects.pods], []


def _placeholders(snapshot: Snapshot) -> tuple[list[Manifest], datetime | None]:
    """Return the missing placeholders to create now, and the time at which the next one may be created.

    Only a running attempt has placeholders: before that they would take the room of its own pods.
    """
    job, status, platform = snapshot.observed.job, snapshot.current, snapshot.observed.platform
    waiting = topology.waiting(job, status)
    if not waiting:
        return [], None
    wake_at = _next_probe(snapshot)
    missing = {replica.hostname for replica in waiting} - {pod.name for pod in snapshot.observed.pods}
    if not missing or not snapshot.probes_for_room or pool_template.unavailable(job, platform):
        return [], wake_at
    worker = pod_manifests.objects(job, status, platform, {(topology.ELASTIC_ROLE, 0)}).pods
    pods = placeholders.placeholders(job, status, worker)
    return [pod for pod in pods if pod["metadata"]["name"] in missing], wake_at


def _next_probe(snapshot: Snapshot) -> datetime | None:
    """Return when growth may be tried, or an ended placeholder is created again."""
    now = snapshot.observed.now
    ended = (pod for pod in snapshot.placeholders.values() if pod.ended)
    times = [elasticity.ended_at(pod, now) + elasticity.PLACEHOLDER_RETRY for pod in ended]
    if begin := elasticity.probe_not_before(snapshot.current):
        times.append(begin)
    return min((time for time in times if time > now), default=None)
