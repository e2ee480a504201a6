"""Orders for the supervisors in the pods: end what is left of older attempts, start the current one, or end the pod.

Orders follow from the persisted status and from what the supervisors report, so an operator that is killed gives the
same ones again. No process starts before all pods of the attempt are down: a supervisor that says so never starts a
process of an older attempt again, so this stays true without being recorded. The same holds for the first process in
new pods, if they start together: it waits until the container of each pod runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from allranks.api.status import FINISHED, WITHOUT_PODS, ReplicaRestarts, Status
from allranks.core.facts import naming, pod_template, pool_template, topology
from allranks.core.facts.attempt_pods import pod_trouble
from allranks.core.facts.model import ANY_PLATFORM, START_TOGETHER, Plan, Pod
from allranks.core.facts.processes import Order, PodProcess
from allranks.core.facts.uploads import uploading_since
from allranks.core.snapshot import Snapshot
from allranks.core.sync.plans import grace_of_failures, left_time

ANSWER = timedelta(seconds=20)
"""Time for the supervisors to answer, beyond the grace period of their processes."""
SLOW = timedelta(seconds=5)
"""A pod that has not answered for this long is named in the condition."""
RESTARTS_IN_PODS = "RestartInPlace"
"""Reason of the condition of a job that waits until the processes of its last attempt have ended."""


def with_orders(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add the orders, unless a rule decides: what follows from its decision is ordered when that is persisted."""
    if plan.decided or snapshot.observed.processes is None:
        return plan
    return replace(plan, orders=tuple(sorted(_orders(snapshot), key=lambda order: order.pod_uid)))


def _orders(snapshot: Snapshot) -> Iterator[Order]:
    o, status = snapshot.observed, snapshot.persisted
    by_pod = o.processes.by_pod if o.processes else {}
    over = status.phase in FINISHED | WITHOUT_PODS or uploading_since(status) is not None
    ignored = frozenset(status.ignored)
    slots = [pod for place, pod in snapshot.pods.items() if not over and naming.replica_key(*place) not in ignored]
    places = {pod.uid for pod in slots}
    for pod in o.pods:
        process = by_pod.get(pod.uid)
        if pod.owned and process and process.state != "Running" and pod.uid not in places and not pod.deleted_at:
            yield Order(pod.uid, "Exit")
    alone = {pod.uid: entry for pod in slots if (entry := _restarts_in_pod(status, pod))}
    yield from (order for pod in slots if pod.uid in alone and (order := _order_alone(snapshot, pod, alone[pod.uid])))
    group = [pod for pod in slots if pod.uid not in alone]
    if status.pods_of_attempt is None:
        waiting = [pod for pod in group if pod.waiting_reason == START_TOGETHER]
        if waiting and status.attempt_time and _is_whole(snapshot):
            yield from (Order(pod.uid, "Start", status.attempt) for pod in waiting)
        return
    grace, begins = _grace(snapshot), _barrier_passed(snapshot)
    for pod in group:
        if pod.process is None:
            continue
        if pod.process.attempt < status.attempt:
            seconds = grace.get(pod.role, pod_template.DEFAULT_GRACE_PERIOD_SECONDS)
            yield Order(pod.uid, "Stop", status.attempt, grace_seconds=seconds)
        elif pod.process.state == "Down" and begins:
            yield Order(
                pod.uid, "Start", status.attempt, env=_environment(snapshot), code=_other_code(status, pod.process)
            )


def _restarts_in_pod(status: Status, pod: Pod) -> ReplicaRestarts | None:
    """Return the restarts of the pod's replica if the last one is in this pod."""
    entry = status.replica_restarts.get(naming.replica_key(pod.role, pod.index)) if status.replica_restarts else None
    return entry if entry and entry.in_pod else None


def _order_alone(snapshot: Snapshot, pod: Pod, entry: ReplicaRestarts) -> Order | None:
    """Return the order for a replica that restarts alone in its pod: it waits for no other pod."""
    status, process = snapshot.persisted, pod.process
    if process is None:
        return None
    restart = entry.in_pod or 0
    if process.number < (status.attempt, restart):
        grace = _grace(snapshot).get(pod.role, pod_template.DEFAULT_GRACE_PERIOD_SECONDS)
        return Order(pod.uid, "Stop", status.attempt, grace, restart=restart)
    if process.state != "Down" or (entry.restart_time and snapshot.observed.now < entry.restart_time):
        return None
    code, env = _other_code(status, process), _environment(snapshot)
    return Order(pod.uid, "Start", status.attempt, env=env, code=code, restart=restart)


def _other_code(status: Status, process: PodProcess) -> str:
    """Return the hash of the attempt's code; empty if the pod has it, or cannot take any."""
    if status.code is None or process.code is None or process.code == status.code.sha256:
        return ""
    return status.code.sha256 or ""


def _is_whole(snapshot: Snapshot) -> bool:
    """Return whether the pods of all replicas are there that start together, because they restart together."""
    job = snapshot.observed.job
    absent = [(replica.role, replica.index) for replica in snapshot.missing]
    absent += [place for place, pod in snapshot.pods.items() if not _is_there(pod)]
    return not any(topology.scope(job, *place) == "Group" for place in absent)


def _is_there(pod: Pod) -> bool:
    return pod.ended or (pod.deleted_at is None and (pod.process is not None or pod.phase == "Running"))


def _environment(snapshot: Snapshot) -> dict[str, str | None]:
    """Return the variables that differ from the variables of the pods."""
    env: dict[str, str | None] = {"ALLRANKS_ATTEMPT": str(snapshot.persisted.attempt)}
    if snapshot.observed.job.spec.checkpoint and not snapshot.persisted.rollback:
        env["ALLRANKS_RESUME_STEP"] = None  # the attempt for which the pods were created may have been set back
    return env


def _barrier_passed(snapshot: Snapshot) -> bool:
    """Return whether the backoff is over, and no process of an older attempt is left in any pod of the attempt."""
    status = snapshot.persisted
    if status.restart_time and snapshot.observed.now < status.restart_time:
        return False
    return not snapshot.missing and not any(_may_run_an_older_process(snapshot, pod) for pod in snapshot.pods.values())


def _may_run_an_older_process(snapshot: Snapshot, pod: Pod) -> bool:
    if pod.process is None:
        return not pod.ended
    return pod.process.attempt < snapshot.persisted.attempt


def restarting_in_pods(snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, int], ReplicaRestarts]]:
    """Yield (replica, place, restarts) of the replicas that restart alone in their pods and have not begun again."""
    entries = snapshot.current.replica_restarts
    if not any(entry.in_pod and not entry.launched for entry in entries.values()):
        return
    for replica in snapshot.replicas:
        place, key = (replica.role, replica.index), naming.replica_key(replica.role, replica.index)
        entry, pod = entries.get(key), snapshot.pods.get(place)
        if entry is None or not entry.in_pod or entry.launched or snapshot.settled(*place):
            continue
        if pod is None or not (pod.succeeded or (pod.process and pod.phase != "Pending")):
            yield key, place, entry


def lost_alone(snapshot: Snapshot, place: tuple[str, int]) -> str:
    """Return why a replica cannot restart in its pod any more; empty if it can."""
    pod = snapshot.pods.get(place)
    if pod is None:
        return f"{naming.replica_key(*place)} has no pod"
    return pod_trouble(pod) if pod.ended or pod.deleted_at or pod.disruption else ""


def deadline_alone(snapshot: Snapshot, entry: ReplicaRestarts) -> datetime:
    """Return when a replica that does not run in its pod gets a new one."""
    o = snapshot.observed
    times = (entry.restart_time, o.processes.since if o.processes else None)
    return max((moment for moment in times if moment), default=o.now) + ANSWER


def lost_pod(snapshot: Snapshot) -> str:
    """Return why the attempt cannot begin in one of its pods any more; empty if it can."""
    if missing := snapshot.missing:
        return f"{naming.replica_key(missing[0].role, missing[0].index)} has no pod"
    troubles = (
        trouble
        for place, pod in sorted(snapshot.pods.items())
        if (pod.ended or pod.deleted_at or pod.disruption) and not pod.succeeded and not snapshot.settled(*place)
        if (trouble := pod_trouble(pod))
    )
    return next(troubles, "")


def unanswered(snapshot: Snapshot) -> str:
    """Return which pods have not ended the processes of older attempts, or not started the current one."""
    who, verb = _late(snapshot)
    return f"{who} did not {verb} in time"


def barrier(snapshot: Snapshot) -> tuple[tuple[str, str] | None, datetime | None]:
    """Return (reason, sentence) about the pods for which the attempt waits, and when it changes next."""
    status, now = snapshot.current, snapshot.observed.now
    if status.pods_of_attempt is None or status.running_time is not None:
        return None, None
    begin = max(filter(None, (status.restart_time, status.attempt_time)), default=now)
    if now < begin + SLOW:
        return None, begin if now < begin else begin + SLOW
    who, verb = _late(snapshot)
    until = f"{deadline(snapshot):%H:%M:%S} UTC"
    return (RESTARTS_IN_PODS, f"{who} did not {verb} yet; all pods are replaced at {until} otherwise"), None


def _late(snapshot: Snapshot) -> tuple[str, str]:
    """Return (pods, what they have not done)."""
    older = sorted(place for place, pod in snapshot.pods.items() if _may_run_an_older_process(snapshot, pod))
    late = older or sorted(place for place, pod in snapshot.pods.items() if pod.phase == "Pending")
    if not late:
        return "a pod", "start"
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    verb = f"end the processes of attempt {snapshot.current.attempt - 1}" if older else "start"
    return naming.replica_key(*late[0]) + more, verb


def deadline(snapshot: Snapshot) -> datetime:
    """Return when an attempt that does not run in the pods of an earlier one gets new pods."""
    o, status = snapshot.observed, snapshot.current
    begin = max(filter(None, (status.restart_time, status.attempt_time)), default=o.now)
    end = begin + timedelta(seconds=max(_grace(snapshot).values(), default=0)) + ANSWER
    return max(end, o.processes.since + ANSWER) if o.processes else end


def _grace(snapshot: Snapshot) -> dict[str, int]:
    """Return role -> seconds between SIGTERM and SIGKILL for the processes of the last attempt."""
    o, status = snapshot.observed, snapshot.current
    platform = ANY_PLATFORM if pool_template.unavailable(o.job, o.platform) else o.platform
    templates = pod_template.role_templates(o.job, platform)
    graces = {role: pod_template.grace_period(template) for role, template in templates.items()}
    last = status.history[-1] if status.history else None
    if last is None or left_time(last):
        return graces
    return {role: min(seconds, grace_of_failures(o.job)) for role, seconds in graces.items()}
