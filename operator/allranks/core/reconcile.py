"""The heart: what to do about a job, from all that is known of it. Read this page first.

A decision (a new attempt, a verdict, suspension) is a plan that only writes status; objects are a function of what
status persisted, but for the first pods of a small job (`_begin_small`). Killed at any point, the next reconcile
continues from what status and the pods say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.job import MANAGED_BY
from allranks.api.status import FINISHED, Failure, Status
from allranks.core import (
    elasticity,
    hang_detection,
    naming,
    progress,
    reattribution,
    restart_policy,
    root_cause,
    time_accounting,
    topology,
)
from allranks.core import transitions as statuses
from allranks.core.manifests import pods, pool_template
from allranks.core.model import Event, Manifest, Observed, Plan, Pod, PodRef
from allranks.core.snapshot import Snapshot
from allranks.frameworks.base import Replica

CLEANUP_GRACE = timedelta(seconds=10)
"""After success, so long may peers still end by themselves: rank 0 is often done a moment before the others."""
SMALL = 256
"""A job of so many pods at most begins with its pods: an API server makes them within about a second, and then the
job's status tells of them."""


def reconcile(observed: Observed) -> Plan:
    """What to do next. Pure: the same observation gives the same plan, whatever the order of the pods."""
    job, status = observed.job, observed.status
    if job.metadata.deletion_timestamp or (job.spec.managed_by or MANAGED_BY) != MANAGED_BY:
        return Plan()
    if status.phase in FINISHED:
        return _finished(Snapshot(observed, status))
    if small := _begin_small(observed):
        return small
    reports = progress.numbered(job, status, progress.present(observed.reports, observed.pods))
    told = replace(observed, status=progress.observe(job, status, reports), reports=reports)
    attempt = Snapshot(told, status)
    return _accounted(observed, attempt, _decision(attempt) or _pursue(attempt))


def _begin_small(observed: Observed) -> Plan | None:
    """The first pods before the first status: that write would cost as much as three pods. A crash in between forgets
    nothing, for the same pods have the same names. Unless the spec was changed meanwhile, as its generation tells: then
    nobody knows for which size a pod was made, and the first attempt that is written is number 1 (`statuses.begin`)."""
    job, status = observed.job, observed.status
    if status.start_time or job.metadata.generation != 1 or job.spec.suspend or pods.problems(job):
        return None
    begun = statuses.begin(job, status, observed.now)
    if sum(topology.sizes(job, begun).values()) > SMALL:
        return None
    attempt = Snapshot(replace(observed, status=begun), status)
    return _accounted(observed, attempt, _pursue(attempt))


def _accounted(observed: Observed, attempt: Snapshot, plan: Plan) -> Plan:
    """The plan, with what ranks have reported and where the time went in its status: as little as any write needs."""
    before, seen = observed.status, attempt.observed.status
    listened = observed.reports is not None
    status = time_accounting.account(
        observed.job, before, seen, plan.status or seen, attempt.pods.values(), observed.refused, listened, observed.now
    )
    return replace(plan, status=status if status != before else None)


def _decision(attempt: Snapshot) -> Plan | None:
    """The transition that is due, if any: at most one, written ahead."""
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    if status.start_time is None:
        begun = statuses.begin(job, status, now)
        if wrong := pods.problems(job):
            message = "; ".join(f"{path}: {text}" for path, text in wrong)
            failed = statuses.fail(job, begun, "InvalidSpec", message, now)
            return _write(failed, Event("InvalidSpec", message, warning=True))
        return _write(begun)

    if corrected := _hindsight(attempt):
        return corrected
    if status.phase == "Suspended":
        return None if job.spec.suspend else _write(statuses.resume(job, status, now), Event("Resumed", "resumed"))
    if restart_policy.succeeded(job, status, attempt.pods):
        return _write(statuses.succeed(job, _seen(attempt), now), Event("Succeeded", "training completed"))
    if job.spec.suspend:
        return _write(statuses.suspend(job, status, now), Event("Suspended", "suspended: the pods are deleted"))

    deadline = restart_policy.active_deadline(job, status)
    if deadline and now >= deadline:
        message = f"not done within activeDeadlineSeconds ({job.spec.active_deadline_seconds})"
        failed = statuses.fail(job, _seen(attempt), "DeadlineExceeded", message, now)
        return _write(failed, Event("DeadlineExceeded", message, warning=True))
    return _bad_start(attempt) or _failures(attempt) or _hang(attempt) or _resize(attempt) or _fit(attempt)


def _bad_start(attempt: Snapshot) -> Plan | None:
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    bad = [pod for pod in attempt.bad_starts if (restart_policy.startup_deadline(job, status, pod) or now) <= now]
    if not bad:
        return None
    message = f"{bad[0].name}: {bad[0].waiting_message or bad[0].waiting_reason}"
    failure = root_cause.of_bad_start(job, status, bad[0], now, attempt.observed.platform)
    failed = statuses.fail(job, _seen(attempt), failure.reason, message, now, failure)
    return _write(failed, Event(bad[0].waiting_reason, message, warning=True))


def _failures(attempt: Snapshot) -> Plan | None:
    """Failures that each restart one pod are decided one by one and written together: of fifty in a large job each
    write would name all those before it. What counts and what does not are two writes, as they are counted apart."""
    first, decided = attempt.persisted.restarts, None
    while found := _failure(attempt):
        assert found.status is not None
        before, after = attempt.observed.status, found.status
        if decided and after.restarts.counted > first.counted and after.restarts.disruptions > first.disruptions:
            break
        decided = replace(found, events=(*decided.events, *found.events)) if decided else found
        if not _restarted_alone(before, after):
            break
        attempt = replace(attempt, observed=replace(attempt.observed, status=after))
    return decided


def _restarted_alone(before: Status, after: Status) -> bool:
    """Whether it was just the pod of the last failure that was given up, and its attempt goes on."""
    if after.last_failure is None or after.attempt != before.attempt:
        return False
    key = naming.replica_key(after.last_failure.role, after.last_failure.index)
    then, now = before.replica_restarts.get(key), after.replica_restarts.get(key)
    return now is not None and now.count > (then.count if then else 0)


def _failure(attempt: Snapshot) -> Plan | None:
    """The first failure of the attempt decides; what it takes along, if any of a group failed, is the whole group."""
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    if not attempt.failed and not attempt.vanished:
        return None
    platform = attempt.observed.platform
    failure = root_cause.first_failure(job, status, attempt.failed, attempt.vanished, now, platform)
    blamed = statuses.describe_failure(failure)
    lost = restart_policy.origin(job, status, failure)
    if lost and lost.failure:
        why = f"a consequence: {statuses.describe_failure(lost.failure)} just before"
        return _write(
            statuses.follow(job, status, lost, lost.failure, now),
            Event("RankFailed", f"{blamed}: {why}", warning=True),
            Event("Restarting", why),
        )
    if restart_policy.echoes(job, status, failure):
        told = Event("RankFailed", f"{blamed}: as others did a moment ago, which counts", warning=True)
        return _write(statuses.restart_replica(job, status, failure, None, now), told)
    ruling = restart_policy.rule_on(job, status, failure)
    told = Event("RankFailed", f"{blamed}: {ruling.why}", warning=True)
    if ruling.action == "fail":
        message = _with_last_line(f"{blamed}: {ruling.why}", failure)
        return _write(statuses.fail(job, _seen(attempt), ruling.reason, message, now, failure), told)
    if ruling.action == "ignore":
        return _write(statuses.ignore(status, failure), told)
    counted = ruling.action == "restart"
    places = {(p.role, p.index) for p in attempt.failed} | {(r.role, r.index) for r in attempt.vanished}
    if any(restart_policy.scope(job, role, index) == "group" for role, index in places):
        restarted = statuses.restart(job, status, failure, counted, ruling.why, now)
        return _write(restarted, told, Event("Restarting", ruling.why))
    return _write(statuses.restart_replica(job, status, failure, counted, now), told)


def _hang(attempt: Snapshot) -> Plan | None:
    """No rank makes progress any more: all of them restart, unless a rule says otherwise."""
    o, watched = attempt.observed, attempt.watched
    if watched is None or o.reports is None or o.now < watched.due_at:
        return None
    failure = hang_detection.failure(o.job, o.status, o.reports, watched, o.now)
    ruling = hang_detection.rule_on(o.job, o.status, failure)
    told = Event(hang_detection.REASON, f"{failure.message}: {ruling.why}", warning=True)
    if ruling.action == "fail":
        return _write(statuses.fail(o.job, _seen(attempt), ruling.reason, failure.message, o.now, failure), told)
    if ruling.action == "ignore":
        known = hang_detection.told(o.status, watched)
        return None if known else _write(o.status.model_copy(update={"last_failure": failure}), told)
    counted = ruling.action == "restart"
    restarted = statuses.restart(o.job, o.status, failure, counted, ruling.why, o.now)
    return _write(restarted, told, Event("Restarting", ruling.why))


def _hindsight(attempt: Snapshot) -> Plan | None:
    """A past attempt failed for another reason than was known then."""
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    cause = reattribution.cause(job, status, attempt.outdated, now, attempt.observed.platform)
    counted = reattribution.counts(job, cause) if cause else None
    if cause is None or counted is None:
        return None
    corrected = statuses.correct(status, cause, counted)
    message = f"attempt {cause.attempt} failed because {statuses.describe_failure(cause)}, as is known now"
    return _write(corrected, Event("CauseFound", message)) if corrected != status else None


def _resize(attempt: Snapshot) -> Plan | None:
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    wanted, present = topology.wanted_sizes(job), topology.sizes(job, status)
    if elasticity.takes(job, status):
        changed = elasticity.want(job, status, now)
        before, after = sum(present.values()), sum(wanted.values())
        return _write(changed, Event("Resized", f"from {before} to {after} pods")) if changed != status else None
    if wanted == present:
        return None
    why = "the size changed"
    return _write(statuses.resize(job, status, "Resized", why, now), Event("Resized", f"{why}: a new attempt begins"))


def _fit(attempt: Snapshot) -> Plan | None:
    """An elastic job whose ranks restart together goes on with fewer where there is no room, and grows back."""
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    patience = elasticity.gives_up_at(job, status, attempt.outdated, now)
    if patience and now >= patience:
        refused = {refusal.name for refusal in attempt.observed.refused}
        room, reason = elasticity.shrinks_to(job, status, attempt.replicas, attempt.pods, refused), "Shrunk"
    else:
        room, reason = elasticity.grows_to(status, attempt.placeholders.values(), now), "Grown"
    if room is None:
        return None
    why = f"there is room for {room} of {topology.wanted_sizes(job)[topology.ELASTIC_ROLE]} workers"
    fitted = elasticity.fitted(job, status, room)
    return _write(statuses.resize(job, fitted, reason, why, now), Event(reason, f"{why}: a new attempt begins"))


def _pursue(attempt: Snapshot) -> Plan:
    """Nothing to decide: bring the objects in line with the persisted status, and tell what is seen."""
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    if status.phase == "Suspended":
        seen = statuses.summarise_ended(job, status, attempt.pods)
        return _plan(attempt, seen, delete=[*attempt.pods.values(), *attempt.outdated])
    due = [r for r in attempt.missing if (_not_before(status, r) or now) <= now and not attempt.lives(r)]
    lacks = pool_template.unavailable(job, attempt.observed.platform) if due else None
    seen = _seen(attempt, lacks)
    create = _manifests(attempt, due) if due and not lacks else []
    create += _placeholders(attempt)
    waits = [
        restart_policy.active_deadline(job, status),
        *(_not_before(status, replica) for replica in attempt.missing),
        *(restart_policy.startup_deadline(job, status, pod) for pod in attempt.bad_starts),
        elasticity.gives_up_at(job, status, attempt.outdated, now),
        elasticity.seeks_room_from(status) if topology.waiting(job, status) else None,
        elasticity.grows_at(attempt.placeholders.values(), now),
        *((attempt.watched.stuck_at, attempt.watched.due_at) if attempt.watched else ()),
    ]
    slow = progress.newly_slow(attempt.persisted.progress, attempt.observed.status.progress)
    events = [Event("Straggler", sentence, warning=True) for sentence in slow]
    if seen.launched and not status.launched:
        events.append(Event("PodsCreated", f"{len(attempt.pods)} pods of attempt {status.attempt}"))
    wake_at = min((w for w in waits if w and w > now), default=None)
    plan = _plan(attempt, seen, create, attempt.outdated, events, wake_at)
    stuck = attempt.watched is not None and now >= attempt.watched.stuck_at
    return replace(plan, stack_dump_id=attempt.watched.question) if attempt.watched and stuck else plan


def _finished(attempt: Snapshot) -> Plan:
    """The verdict stands. What is left is to clean up, and after the TTL to delete the job."""
    job, status, now = attempt.observed.job, attempt.observed.status, attempt.observed.now
    ended = status.completion_time or now
    ttl = job.spec.ttl_seconds_after_finished
    expires = ended + timedelta(seconds=ttl) if ttl is not None else None
    if expires and now >= expires:
        return Plan(delete_job=True)
    seen = statuses.summarise_ended(job, status, attempt.pods)
    if _endings(seen) != _endings(status):
        return _write(seen)  # how pods ended is on record before they are cleaned up
    delete, linger = [], ended + CLEANUP_GRACE
    services = topology.framework_of(job).long_running_roles(topology.sizes(job, status))
    peers_linger = False
    for _, pod in sorted(attempt.pods.items()):
        over = pod.phase in ("Succeeded", "Failed")
        # One that found no node would begin when there is room, for nobody.
        kept = {"None": over or pod.node is not None, "Running": over, "All": False}
        if kept[job.spec.clean_pod_policy]:
            continue
        if status.phase == "Succeeded" and pod.phase == "Running" and pod.role not in services and now < linger:
            peers_linger = True
            continue
        delete.append(pod)
    wake = min((w for w in (expires, linger if peers_linger else None) if w), default=None)
    return _plan(attempt, seen, (), [*delete, *attempt.outdated], (), wake)


def _endings(status: Status) -> dict[str, tuple[int, int]]:
    return {role: (of.succeeded, of.failed) for role, of in status.roles.items()}


def _manifests(attempt: Snapshot, due: list[Replica]) -> list[Manifest]:
    """The companions with the first pods of an attempt, and the pods that are due."""
    job, status, platform = attempt.observed.job, attempt.observed.status, attempt.observed.platform
    objects = pods.objects(job, status, platform, {(replica.role, replica.index) for replica in due})
    return [*([] if status.launched else objects.companions), *objects.pods]


def _placeholders(attempt: Snapshot) -> list[Manifest]:
    """Those that are not there. Only beside ranks that run: they must not take the room of those."""
    job, status, platform = attempt.observed.job, attempt.observed.status, attempt.observed.platform
    there = {pod.name for pod in attempt.observed.pods}
    missing = {replica.hostname for replica in topology.waiting(job, status)} - there
    if not missing or not attempt.seeks_room or pool_template.unavailable(job, platform):
        return []
    worker = pods.objects(job, status, platform, {(topology.ELASTIC_ROLE, 0)}).pods
    wanted = elasticity.placeholders(job, status, worker)
    return [pod for pod in wanted if pod["metadata"]["name"] in missing]


def _not_before(status: Status, replica: Replica) -> datetime | None:
    """Until when backoff holds this replica's pod back."""
    entry = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
    return entry.restart_time if entry else status.restart_time


def _seen(attempt: Snapshot, lacks: tuple[str, str] | None = None) -> Status:
    o = attempt.observed
    return statuses.summarise(o.job, o.status, attempt.pods, o.refused, o.now, lacks)


def _write(status: Status, *events: Event) -> Plan:
    return Plan(status=status, write_ahead=True, events=events)


def _plan(
    attempt: Snapshot,
    status: Status,
    create: Iterable[Manifest] = (),
    delete: Iterable[Pod] = (),
    events: Iterable[Event] = (),
    wake_at: datetime | None = None,
) -> Plan:
    return Plan(
        status=status if status != attempt.observed.status else None,
        create=tuple(create),
        delete=tuple(PodRef(pod.name, pod.uid) for pod in delete if pod.deleted_at is None),
        events=tuple(events),
        wake_at=wake_at,
    )


def _with_last_line(text: str, failure: Failure) -> str:
    lines = [line for line in failure.message.splitlines() if line.strip()]
    return f"{text}; last line: {lines[-1].strip()}" if lines else text
