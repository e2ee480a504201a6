"""Failed and deleted pods: restart, failure of the job, or nothing; and the correction of past root causes."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.status import Failure, Status
from allranks.core import naming, reattribution, restart_policy, root_cause, transitions
from allranks.core.model import Event, Plan
from allranks.core.root_cause import describe_failure
from allranks.core.rules import Act, Outcome, write
from allranks.core.snapshot import Snapshot


def reattribute(snapshot: Snapshot) -> Outcome:
    """Corrects the root cause of a past attempt when later evidence shows an earlier failure."""
    job, status, now = snapshot.observed.job, snapshot.observed.status, snapshot.observed.now
    cause = reattribution.cause(job, status, snapshot.outdated, now, snapshot.observed.platform)
    counted = reattribution.counts(job, cause) if cause else None
    if cause is None or counted is None:
        return None
    corrected = transitions.reattribute(status, cause, counted)
    if corrected == status:
        return None
    message = f"corrected: attempt {cause.attempt} failed because {describe_failure(cause)}"
    return write(corrected, Event("CauseFound", message))


def handle_failures(snapshot: Snapshot) -> Outcome:
    """Evaluates failures of individually restarted replicas one by one, each on the status that the previous one
    produced, and persists them in a single write.

    The write ends before counted and uncounted restarts would mix: they are counted separately.
    """
    first, decided = snapshot.persisted.restarts, None
    while plan := _first_failure(snapshot):
        assert plan.status is not None
        before, after = snapshot.observed.status, plan.status
        if decided and after.restarts.counted > first.counted and after.restarts.disruptions > first.disruptions:
            break
        decided = replace(plan, events=(*decided.events, *plan.events)) if decided else plan
        if not _restarted_individually(before, after):
            break
        snapshot = replace(snapshot, observed=replace(snapshot.observed, status=after))
    return Act(decided) if decided else None


def _restarted_individually(before: Status, after: Status) -> bool:
    """Whether the decision replaced only the failed pod, in the same attempt."""
    if after.last_failure is None or after.attempt != before.attempt:
        return False
    key = naming.replica_key(after.last_failure.role, after.last_failure.index)
    then, now = before.replica_restarts.get(key), after.replica_restarts.get(key)
    return now is not None and now.count > (then.count if then else 0)


def _first_failure(snapshot: Snapshot) -> Plan | None:
    """The root cause selects the rule. If any failed replica has group scope, the whole attempt restarts."""
    job, status, now = snapshot.observed.job, snapshot.observed.status, snapshot.observed.now
    if not snapshot.failed and not snapshot.deleted_replicas:
        return None
    platform = snapshot.observed.platform
    failure = root_cause.first_failure(job, status, snapshot.failed, snapshot.deleted_replicas, now, platform)
    described = describe_failure(failure)

    upstream = restart_policy.upstream_failure(job, status, failure)
    if upstream and upstream.failure:
        why = f"caused by an earlier failure: {describe_failure(upstream.failure)}"
        return _plan(
            transitions.restart_after_upstream_failure(job, status, upstream, upstream.failure, now),
            Event("RankFailed", f"{described}: {why}", warning=True),
            Event("Restarting", why),
        )
    if restart_policy.is_correlated_failure(job, status, failure):
        why = f"same failure as another replica within {restart_policy.CORRELATION_SECONDS} s; already counted"
        restarted = transitions.restart_replica(job, status, failure, None, now)
        return _plan(restarted, Event("RankFailed", f"{described}: {why}", warning=True))

    decision = restart_policy.decide_restart(job, status, failure)
    event = Event("RankFailed", f"{described}: {decision.why}", warning=True)
    if decision.action == "fail":
        message = _with_last_line(f"{described}: {decision.why}", failure)
        return _plan(transitions.fail(job, snapshot.summary, decision.reason, message, now, failure), event)
    if decision.action == "ignore":
        return _plan(transitions.ignore(status, failure), event)
    counted = decision.action == "restart"
    places = {(pod.role, pod.index) for pod in snapshot.failed} | {(r.role, r.index) for r in snapshot.deleted_replicas}
    if any(restart_policy.scope(job, role, index) == "group" for role, index in places):
        restarted = transitions.restart(job, status, failure, counted, decision.why, now)
        return _plan(restarted, event, Event("Restarting", decision.why))
    return _plan(transitions.restart_replica(job, status, failure, counted, now), event)


def _plan(status: Status, *events: Event) -> Plan:
    return write(status, *events).plan


def _with_last_line(text: str, failure: Failure) -> str:
    lines = [line for line in failure.message.splitlines() if line.strip()]
    return f"{text}; last line: {lines[-1].strip()}" if lines else text
