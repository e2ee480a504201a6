"""The core of the operator: decides what to do about a job, from everything that was observed. Start reading here.

A decision (a new attempt, the end of the job, suspension) is a plan that only writes status; objects are a function of
the persisted status, except for the first pods of a small job. An operator that is killed at any point continues from
the status and the pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from allranks.api.job import MANAGED_BY
from allranks.api.status import FINISHED, WITHOUT_PODS
from allranks.core import checkpoints as checkpoint
from allranks.core.accounting import cost, notifications, progress, time_accounting
from allranks.core.diagnosis import report_loss
from allranks.core.facts import limits
from allranks.core.facts import queue as queues
from allranks.core.facts.model import Observed, Plan
from allranks.core.facts.status_update import changed
from allranks.core.objects.gangs import choice as gang_choice
from allranks.core.objects.queueing.sync import plan_of_manager, with_workload
from allranks.core.outcomes import Act, Outcome, WaitUntil
from allranks.core.rules import (
    cleanup,
    failure,
    gang,
    hang,
    inputs,
    lifecycle,
    outputs,
    queue,
    resize,
    startup,
    utilization,
)
from allranks.core.snapshot import Snapshot
from allranks.core.sync import finished, uploading
from allranks.core.sync.active import sync_objects
from allranks.core.sync.stopped import delete_pods, wait_in_queue
from allranks.core.transfers import output_condition
from allranks.core.transfers import outputs as uploads
from allranks.core.transfers import pods as transfers

Rule = Callable[[Snapshot], Outcome]


ACTIVE_RULES: tuple[Rule, ...] = (
    lifecycle.begin,
    failure.reattribute,
    lifecycle.succeed,
    lifecycle.suspend,
    inputs.receive,
    outputs.receive_checks,
    queue.withdraw,
    gang.choose_backend,
    lifecycle.exceed_active_deadline,
    inputs.fail_in_pods,
    resize.reject_resize,
    startup.startup_failure,
    failure.handle_failures,
    hang.handle_hang,
    utilization.judge,
    resize.resize_to_spec,
    resize.shrink_to_capacity,
    resize.grow_to_capacity,
    gang.give_up_pods,
)
SUSPENDED_RULES: tuple[Rule, ...] = (failure.reattribute, lifecycle.resume)
QUEUED_RULES: tuple[Rule, ...] = (
    failure.reattribute,
    lifecycle.suspend,
    inputs.receive,
    outputs.receive_checks,
    queue.admit,
)
UPLOAD_RULES: tuple[Rule, ...] = (outputs.finish,)
FINISHED_RULES: tuple[Rule, ...] = (outputs.upload_after_failure, cleanup.expire, cleanup.record_outcomes)


def reconcile(observed: Observed) -> Plan:
    """Returns the next plan. Pure: the same observation gives the same plan, whatever the order of the pods."""
    return notifications.with_outbox(observed, _reconcile(observed))


def _reconcile(observed: Observed) -> Plan:
    observed = replace(observed, job=limits.with_defaults(observed.job, observed.platform.policy))
    observed = queues.without_queue(observed) if observed.platform.local else queues.with_admitted_size(observed)
    observed = transfers.with_transfers(observed)
    job, status = observed.job, observed.status
    if job.metadata.deletion_timestamp or (job.spec.managed_by or MANAGED_BY) != MANAGED_BY:
        deleted = job.metadata.deletion_timestamp is not None
        return plan_of_manager(observed) if job.spec.managed_by == queues.MULTIKUEUE and not deleted else Plan()
    if status.phase in FINISHED:
        snapshot = Snapshot(observed, status)
        decision, outcomes = _apply(FINISHED_RULES, snapshot)
        plan = decision or _with_others(snapshot, _with_wake_up(finished.clean_up(snapshot), outcomes))
        return output_condition.with_condition(observed, status, plan)

    if begun := lifecycle.begin_small(observed):
        snapshot = Snapshot(replace(observed, status=begun), status)
        outcomes = [rule(snapshot) for rule in ACTIVE_RULES]  # decisions follow when the status is persisted
        return _with_time_accounting(snapshot, _with_wake_up(sync_objects(snapshot), outcomes))

    snapshot = _with_reports(observed)
    if status.phase in WITHOUT_PODS:
        queued = status.phase == "Queued"
        decision, outcomes = _apply(QUEUED_RULES if queued else SUSPENDED_RULES, snapshot)
        sync = wait_in_queue if queued else delete_pods
    elif uploads.uploading(status):
        decision, outcomes = _apply(UPLOAD_RULES, snapshot)
        sync = uploading.wait_for_uploads
    else:
        decision, outcomes = _apply(ACTIVE_RULES, snapshot)
        sync = sync_objects
    decision = decision or checkpoint.withdraw(snapshot, outcomes)
    if decision:
        decision = _with_gang(snapshot, decision)
    plan = decision or _with_others(snapshot, _with_wake_up(sync(snapshot), outcomes))
    if events := uploads.checkpoint_events(snapshot.observed, status):
        plan = replace(plan, events=(*plan.events, *events))
    if utilization.suspends(status) and decision is None and not job.spec.suspend:
        plan = replace(plan, suspend_job=status.phase not in WITHOUT_PODS)
    plan = output_condition.with_condition(snapshot.observed, status, plan)
    return replace(_with_time_accounting(snapshot, plan), checkpoint_request=checkpoint.number(status))


def _with_others(snapshot: Snapshot, plan: Plan) -> Plan:
    """The plan with what is to be done beside the pods of ranks."""
    return transfers.with_transfer_pods(snapshot.observed, snapshot.persisted, with_workload(snapshot, plan))


def _apply(rules: Iterable[Rule], snapshot: Snapshot) -> tuple[Plan | None, list[Outcome]]:
    """The plan of the first rule that acts, and the outcomes of the rules before it."""
    outcomes: list[Outcome] = []
    for rule in rules:
        outcome = rule(snapshot)
        if isinstance(outcome, Act):
            return outcome.plan, outcomes
        outcomes.append(outcome)
    return None, outcomes


def _with_wake_up(plan: Plan, outcomes: Iterable[Outcome]) -> Plan:
    """Sets the wake-up to the earliest time at which a rule, or the plan itself, becomes due."""
    times = [outcome.time for outcome in outcomes if isinstance(outcome, WaitUntil)]
    return replace(plan, wake_at=min(times + ([plan.wake_at] if plan.wake_at else []), default=None))


def _with_gang(snapshot: Snapshot, decision: Plan) -> Plan:
    """A decision that begins an attempt says what places its pods together."""
    o, status = snapshot.observed, decision.status
    if status is None or status.attempt_time in (None, o.status.attempt_time) or status.phase in FINISHED:
        return decision
    chosen = gang_choice.choose(o.job, status, o.platform, o.optional)
    return replace(decision, status=changed(status, gang=chosen)) if chosen else decision


def _with_reports(observed: Observed) -> Snapshot:
    """A snapshot whose status contains the progress that ranks reported, and whether reports are lost."""
    job, status = observed.job, observed.status
    reports = progress.with_ranks(job, status, progress.drop_stale(observed.reports, observed.pods))
    after = report_loss.observe(progress.observe(job, status, reports), reports, observed.now)
    after = uploads.follow_checkpoints(replace(observed, status=after))
    return Snapshot(replace(observed, status=after, reports=reports), status)


def _with_time_accounting(snapshot: Snapshot, plan: Plan) -> Plan:
    """Adds progress and times to the status that the plan writes; the status stays None if nothing changed."""
    o, before = snapshot.observed, snapshot.persisted
    after, pods, listened = plan.status or o.status, snapshot.pods.values(), o.reports is not None
    status = time_accounting.account(o.job, before, o.status, after, pods, o.refused, listened, o.now)
    status = cost.charge(o, before, status)
    return replace(plan, status=status if status != before else None)
