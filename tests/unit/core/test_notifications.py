"""The outbox in the status: each occasion is entered once, in the write that it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.job import Owner
from allranks.api.notify import Notification
from allranks.api.pool import PoolSpec
from allranks.api.status import Condition, PastAttempt, ProgressStatus, Status, Straggler
from allranks.core.accounting import notifications
from allranks.core.facts.model import Observed, Plan
from allranks.core.reconcile import reconcile
from allranks.core.snapshot import Snapshot
from support.builders import CLUSTER, NOW, at, failed, job, pod, table

NOTIFYING = replace(CLUSTER, notifies={"Failed": ("oncall",)})
ALL = [{"receiver": "team", "occasions": ["Succeeded", "Failed", "Hung", "Preempted", "Straggling", "LowUtilization"]}]
SLOW = ProgressStatus(stragglers=[Straggler(replica="worker-1", node="n", slowdown=3)])
LOW = Condition(type="LowUtilization", status="True", reason="LowUtilization", message="m", last_transition_time=NOW)


def outbox(before: Status, after: Status, platform: Any = NOTIFYING, **spec: Any) -> list[str]:
    observed = Observed(job(**{"notify": ALL} | spec), before, (), NOW, platform)
    return (notifications.with_outbox(Snapshot(observed), Plan(next=after)).next or after).notifications


@table(
    ("the job succeeds", {}, {"phase": "Succeeded", "attempt": 2}, ["Succeeded/2 team"]),
    ("it fails, which all jobs report to oncall", {}, {"phase": "Failed"}, ["Failed/0 team", "Failed/0 oncall"]),
    ("it was finished before", {"phase": "Failed"}, {"phase": "Failed"}, []),
    (
        "an attempt is preempted",
        {},
        {"history": [PastAttempt(attempt=3, end_time=NOW, reason="Preempted")]},
        ["Preempted/3 team"],
    ),
    (
        "an attempt goes back to its queue",
        {},
        {"history": [PastAttempt(attempt=3, end_time=NOW, reason="Evicted", requeued=True)]},
        ["Preempted/3 team"],
    ),
    ("an attempt fails otherwise", {}, {"history": [PastAttempt(attempt=3, end_time=NOW, reason="Error")]}, []),
    ("a rank is slow", {}, {"progress": SLOW}, ["Straggling/0 team"]),
    ("it trains too little", {}, {"conditions": [LOW]}, ["LowUtilization/0 team"]),
)
def test_an_occasion_is_entered_for_each_receiver(case: tuple[dict[str, Any], dict[str, Any], list[str]]) -> None:
    before, after, wanted = case
    assert outbox(Status(**before), Status(**after)) == wanted


def test_an_occasion_of_an_attempt_is_entered_once() -> None:
    said = ["Straggling/0 team sent"]
    assert outbox(Status(notifications=said), Status(progress=SLOW, notifications=said)) == said


def test_without_receivers_of_the_operator_there_is_no_outbox() -> None:
    assert outbox(Status(), Status(phase="Failed"), CLUSTER) == []


def test_a_receiver_gets_what_it_asks_for_and_a_pool_adds_its_own() -> None:
    of_pool = PoolSpec(notify=[Notification(receiver="infra", occasions=["Failed"])])
    platform = replace(NOTIFYING, pools={"p": of_pool})
    webhook = [{"webhook": {"url": "https://hooks.example.com/x"}, "occasions": ["Failed"]}]
    assert outbox(Status(), Status(phase="Failed"), platform, pool="p", notify=webhook) == [
        "Failed/0 webhook-0",
        "Failed/0 infra",
        "Failed/0 oncall",
    ]
    assert outbox(Status(), Status(phase="Succeeded"), platform, pool="p", notify=webhook) == []


def test_the_outbox_is_bounded_and_drops_what_is_over_first() -> None:
    entries = [f"Straggling/{number} team{' sent' if number % 2 else ''}" for number in range(12)]
    found = outbox(Status(notifications=entries), Status(phase="Failed", notifications=entries))
    assert len(found) == notifications.MOST_ENTRIES
    assert found[-2:] == ["Failed/0 team", "Failed/0 oncall"]
    assert "Straggling/0 team" in found
    assert "Straggling/1 team sent" not in found


def test_a_result_is_written_also_to_a_job_that_is_finished() -> None:
    status = Status(
        phase="Failed", start_time=NOW, completion_time=NOW, notifications=["Failed/0 team", "Failed/0 oncall"]
    )
    observed = Observed(
        job(), status, (), at(9), NOTIFYING, notified={"Failed/0 team": " sent", "Failed/0 oncall": " failed"}
    )
    plan = reconcile(observed)
    assert plan.next is not None
    assert plan.next.notifications == ["Failed/0 team sent", "Failed/0 oncall failed"]
    assert [event.reason for event in plan.events] == ["NotificationFailed"]
    assert notifications.pending(plan.next.notifications) == []


def test_the_entry_is_in_the_write_of_the_decision() -> None:
    of = job(restart={"maxRestarts": 0})
    begun = reconcile(Observed(of, Status(), (), NOW, NOTIFYING)).next
    assert begun is not None
    plan = reconcile(Observed(of, begun, (failed(), pod(index=1)), at(70), NOTIFYING))
    assert plan.write_ahead
    assert plan.next is not None
    assert (plan.next.phase, plan.next.notifications) == ("Failed", ["Failed/0 oncall"])


def test_the_end_of_a_trial_goes_to_those_that_its_template_names() -> None:
    of_pool = PoolSpec(notify=[Notification(receiver="infra")])
    platform = replace(NOTIFYING, pools={"p": of_pool}, notifies={"Failed": ("oncall",), "Hung": ("oncall",)})
    trial = job(pool="p", notify=ALL)
    owned = {"owner_references": [Owner(kind="TrainingSweep", controller=True)]}
    trial = trial.model_copy(update={"metadata": trial.metadata.model_copy(update=owned)})
    assert notifications.subscribers(trial, platform, "Failed") == ["team"]
    assert notifications.subscribers(trial, platform, "Hung") == ["team", "infra", "oncall"]
    assert notifications.subscribers(job(pool="p", notify=ALL), platform, "Failed") == ["team", "infra", "oncall"]
