"""The core of the operator: decides what to do about a job, from everything that was observed. Start reading here.

A decision (a new attempt, the end of the job, suspension) is a plan that only writes status; objects are a function of
the persisted status, except for the first pods of a small job. An operator that is killed at any point continues from
the status and the pods.

A feature has a place in one of the tables: it adds to what was observed (PREPARE), it decides (RULES), it brings
objects in line when no rule decides (SYNC), or it adds to any plan (FINISH).

Four statuses are named everywhere: `persisted` (from the API server), `current` (with what was observed since, such as
progress), `summarised` (with the counts of pods), and `next` (the one that a plan writes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce

from allranks.core import checkpoints
from allranks.core.accounting import checkpoint_schedule, cost, notifications, progress, time_accounting
from allranks.core.beginning import begin_small
from allranks.core.diagnosis import checkpoint_overdue, hardware, processes, report_loss
from allranks.core.facts import limits
from allranks.core.facts import queue as queues
from allranks.core.facts.model import Observed, Plan
from allranks.core.facts.stage import Stage, stage_of
from allranks.core.objects.gangs import choice
from allranks.core.objects.queueing.sync import plan_of_manager, with_workload
from allranks.core.outcomes import Act, Outcome, WaitForCheckpoint, WaitUntil
from allranks.core.rules import failure, gang, lifecycle, placement, queue, resize, restarts_in_pods, utilization
from allranks.core.rules import transfers as transfer_rules
from allranks.core.snapshot import Snapshot
from allranks.core.sync import orders
from allranks.core.sync.active import sync_objects
from allranks.core.sync.stopped import clean_up, delete_pods, wait_for_uploads, wait_in_queue
from allranks.core.transfers import pods as transfers
from allranks.core.transfers import uploads

Prepare = Callable[[Observed], Observed]
Rule = Callable[[Snapshot], Outcome]
Sync = Callable[[Snapshot], Plan]
Finish = Callable[[Snapshot, Plan], Plan]

PREPARE: tuple[Prepare, ...] = (
    limits.with_default_fields,
    queues.as_admitted,
    transfers.with_transfers,
    begin_small,
    processes.with_processes,
    progress.with_reports,
    checkpoint_schedule.with_schedule,
    report_loss.with_report_loss,
    checkpoint_overdue.with_overdue,
    hardware.with_hardware,
    uploads.with_checkpoints,
)

ACTIVE_RULES: tuple[Rule, ...] = (
    lifecycle.begin,
    failure.reattribute,
    lifecycle.succeed,
    lifecycle.suspend,
    transfer_rules.receive,
    transfer_rules.receive_checks,
    queue.withdraw,
    gang.choose_backend,
    lifecycle.exceed_active_deadline,
    transfer_rules.fail_in_pods,
    resize.reject_resize,
    failure.startup_failure,
    lifecycle.await_code,
    restarts_in_pods.fall_back,
    restarts_in_pods.fall_back_alone,
    failure.handle_failures,
    failure.handle_hang,
    failure.fail_without_finite_loss,
    utilization.judge,
    lifecycle.run_changed_code,
    lifecycle.restart,
    resize.resize_to_spec,
    resize.shrink_to_capacity,
    resize.grow_to_capacity,
    gang.give_up_pods,
    placement.forgive_nodes,
    placement.accept_excluded_nodes,
)
RULES: dict[Stage, tuple[Rule, ...]] = {
    Stage.ELSEWHERE: (),
    Stage.BEGINNING: ACTIVE_RULES,
    Stage.ACTIVE: ACTIVE_RULES,
    Stage.SUSPENDED: (failure.reattribute, lifecycle.resume),
    Stage.QUEUED: (
        failure.reattribute,
        lifecycle.suspend,
        transfer_rules.receive,
        transfer_rules.receive_checks,
        queue.admit,
    ),
    Stage.UPLOADING: (transfer_rules.end_uploads,),
    Stage.FINISHED: (
        failure.reattribute_end,
        transfer_rules.upload_after_failure,
        lifecycle.expire,
        lifecycle.record_outcomes,
    ),
}

SYNC: Mapping[Stage, Sync] = {
    Stage.ELSEWHERE: plan_of_manager,
    Stage.BEGINNING: sync_objects,
    Stage.ACTIVE: sync_objects,
    Stage.SUSPENDED: delete_pods,
    Stage.QUEUED: wait_in_queue,
    Stage.UPLOADING: wait_for_uploads,
    Stage.FINISHED: clean_up,
}

_FINISH: tuple[Finish, ...] = (
    checkpoints.withdraw,
    choice.with_backend,
    with_workload,
    transfers.with_transfer_pods,
    uploads.with_checkpoint_events,
    utilization.with_suspension,
    uploads.with_condition,
    time_accounting.with_times,
    cost.with_cost,
    checkpoints.with_request,
    checkpoint_schedule.with_due,
    orders.with_orders,
    notifications.with_outbox,
)
FINISH: Mapping[Stage, tuple[Finish, ...]] = {
    **dict.fromkeys(Stage, _FINISH),
    Stage.ELSEWHERE: (notifications.with_outbox,),
    Stage.FINISHED: (
        with_workload,
        transfers.with_transfer_pods,
        uploads.with_condition,
        orders.with_orders,
        notifications.with_outbox,
    ),
}


def reconcile(observed: Observed) -> Plan:
    """Return the next plan. Pure: the same observation gives the same plan, whatever the order of the pods."""
    snapshot = Snapshot(reduce(lambda o, prepare: prepare(o), PREPARE, observed))
    stage = stage_of(snapshot.observed)
    decision, outcomes = _decide(stage, snapshot)
    plan = decision or _with_waits(SYNC[stage](snapshot), outcomes)
    return reduce(lambda p, finish: finish(snapshot, p), FINISH[stage], plan)


def _decide(stage: Stage, snapshot: Snapshot) -> tuple[Plan | None, list[Outcome]]:
    """Return the plan of the first rule that acts, and the outcomes of the rules before it.

    Nothing is decided about a job that is beginning: decisions follow when its status is persisted.
    """
    outcomes: list[Outcome] = []
    for rule in RULES[stage]:
        outcome = rule(snapshot)
        if isinstance(outcome, Act) and stage is not Stage.BEGINNING:
            return outcome.plan, outcomes
        outcomes.append(outcome)
    return None, outcomes


def _with_waits(plan: Plan, outcomes: Iterable[Outcome]) -> Plan:
    """Set the wake-up to the earliest time at which a rule, or the plan itself, becomes due."""
    times = [outcome.time for outcome in outcomes if isinstance(outcome, WaitUntil)]
    return replace(
        plan,
        wake_at=min(times + ([plan.wake_at] if plan.wake_at else []), default=None),
        awaits_checkpoint=any(isinstance(outcome, WaitForCheckpoint) for outcome in outcomes),
    )
