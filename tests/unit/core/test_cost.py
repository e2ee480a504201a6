"""GPU time and its price, with numbers computed by hand, and the policy for jobs with low utilization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.cost import CostStatus, GpuTime, Price, Utilization, UtilizationStatus
from allranks.api.job import Job
from allranks.api.pool import Gpu, PoolSpec
from allranks.api.status import Condition, PastAttempt, RoleStatus, Status, Times
from allranks.core.accounting import cost
from allranks.core.facts.model import Observed
from allranks.core.facts.rank_reports import Reports
from allranks.core.facts.status_summary import with_phase
from allranks.core.outcomes import Act, WaitUntil
from allranks.core.reconcile import reconcile
from allranks.core.rules import utilization
from allranks.core.snapshot import Snapshot
from support.builders import CLUSTER, NOW, at, job, pending, pod, rank, table

POOL = PoolSpec(gpu=Gpu(count=8), price=Price(gpu_hour="2.40", currency="EUR"))
PRICED = replace(CLUSTER, pools={"h100": POOL})


def gpu_job(**spec: Any) -> Job:
    return job(pool="h100", **spec)


def times(category: Any, seconds: float, **totals: float) -> Times:
    return Times(category=category, since=at(seconds), measured=True, **totals)


def charged(before: Status, after: Status, *pods: Any, platform: Any = PRICED, of: Job | None = None) -> CostStatus:
    observed = Observed(of or gpu_job(), before, pods, after.times.since if after.times else NOW, platform)
    found = cost.charge(observed, before, after).cost
    assert found is not None
    return found


def test_gpu_time_is_the_time_of_the_job_for_each_gpu_of_its_pods_at_the_price_of_the_pool() -> None:
    before = Status(times=times("Productive", 0), cost=CostStatus(gpus=16, price="2.40", currency="EUR"))
    found = charged(before, Status(times=times("Productive", 900, productive=900)), pod(), pod(index=1))
    assert found.gpu_seconds == GpuTime(productive=14_400)
    assert found.spent == GpuTime(productive=9.6)
    assert (found.gpus, found.price, found.currency) == (16, "2.40", "EUR")
    assert found.summary == "4.0 GPUh, 9.60 EUR"


def test_a_new_price_holds_from_then_on() -> None:
    now = replace(CLUSTER, pools={"h100": POOL.model_copy(update={"price": Price(gpu_hour="24", currency="EUR")})})
    before = Status(times=times("Productive", 0), cost=CostStatus(gpus=16, price="2.40", currency="EUR"))
    after = Status(times=times("Productive", 900, productive=900))
    first = charged(before, after, pod(), pod(index=1), platform=now)
    assert first.spent == GpuTime(productive=9.6)
    later = Status(times=times("Productive", 1800, productive=1800))
    again = charged(replace(after, cost=first), later, pod(), pod(index=1), platform=now)
    assert again.spent == GpuTime(productive=9.6 + 96)


def test_another_currency_begins_new_sums_of_money_but_not_of_gpu_time() -> None:
    dollars = replace(CLUSTER, pools={"h100": POOL.model_copy(update={"price": Price(gpu_hour="3")})})
    before = Status(
        times=times("Productive", 0),
        cost=CostStatus(gpus=16, price="2.40", currency="EUR", spent=GpuTime(productive=5)),
    )
    found = charged(before, Status(times=times("Productive", 900, productive=900)), pod(), platform=dollars)
    assert (found.spent, found.price, found.currency) == (None, "3", "USD")
    assert found.gpu_seconds == GpuTime(productive=14_400)


def test_work_that_a_restart_discards_moves_from_productive_to_lost() -> None:
    before = Status(
        times=times("Productive", 900, productive=900),
        cost=CostStatus(
            gpus=16, price="2.40", currency="EUR", gpu_seconds=GpuTime(productive=14_400), spent=GpuTime(productive=9.6)
        ),
    )
    found = charged(before, Status(times=times("Lost", 900, productive=600, lost=300)), pod(), pod(index=1))
    assert found.gpu_seconds == GpuTime(productive=9_600, lost=4_800)
    assert found.spent == GpuTime(productive=6.4, lost=3.2)


def test_gpus_that_wait_for_pods_without_a_node_are_waiting() -> None:
    roles = {"worker": RoleStatus(desired=2)}
    begun = Status(times=times("Queued", 0), roles=roles)
    placed = charged(begun, replace(begun, times=times("Starting", 0)), pod(), pending(index=1))
    assert (placed.gpus, placed.partial) == (8, True)
    before = Status(times=times("Starting", 0), roles=roles, cost=placed)
    found = charged(before, Status(times=times("Starting", 60, starting=60), roles=roles), pod(), pod(index=1))
    assert found.gpu_seconds == GpuTime(waiting=480)
    assert (found.gpus, found.partial) == (16, None)


def test_gpus_of_pods_that_terminate_in_the_queue_are_waiting() -> None:
    before = Status(times=times("Queued", 0), phase="Suspended", cost=CostStatus(gpus=16))
    found = charged(before, Status(times=times("Queued", 30, queued=30), phase="Suspended"))
    assert found.gpu_seconds == GpuTime(waiting=480)
    assert found.gpus == 0


def test_time_before_the_operator_saw_the_placed_pods_counts() -> None:
    before = Status(times=times("Queued", 0))
    found = charged(before, Status(times=times("Starting", 60, starting=60)), pod(), pod(index=1))
    assert found.gpu_seconds == GpuTime(starting=960)


def test_a_finished_job_holds_no_gpus_and_without_a_price_there_is_no_money() -> None:
    unpriced = replace(CLUSTER, pools={"h100": PoolSpec(gpu=Gpu(count=8))})
    before = Status(times=times("Productive", 0), cost=CostStatus(gpus=16))
    over = Status(phase="Succeeded", times=times("Finished", 3600, productive=3600))
    found = charged(before, over, pod(), pod(index=1), platform=unpriced)
    assert (found.gpus, found.spent, found.price, found.summary) == (0, None, None, "16.0 GPUh")


SPOT = PoolSpec(gpu=Gpu(count=1), price=Price(gpu_hour="0.60", currency="EUR"))
ROLES = {"trainer": {"replicas": 1, "pool": "h100"}, "rollout": {"replicas": 2, "pool": "spot"}}
TWO_POOLS = job("spmd", roles=ROLES, spmd={"ranks": ["trainer"]})
PODS = (pod("trainer"), pod("rollout"), pod("rollout", 1))


def of_two_pools(spot: PoolSpec = SPOT) -> CostStatus:
    """An hour of training of one pod with eight GPUs, and of two pods with one."""
    where = {"platform": replace(CLUSTER, pools={"h100": POOL, "spot": spot}), "of": TWO_POOLS}
    begun = charged(Status(times=times("Starting", 0)), Status(times=times("Productive", 0)), *PODS, **where)
    after = Status(times=times("Productive", 3600, productive=3600))
    return charged(Status(times=times("Productive", 0), cost=begun), after, *PODS, **where)


def test_roles_with_pools_of_their_own_cost_their_prices() -> None:
    found = of_two_pools()
    assert found.roles is not None
    trainer, rollout = found.roles["trainer"], found.roles["rollout"]
    assert (trainer.pool, trainer.gpus, trainer.price, trainer.spent) == ("h100", 8, "2.40", GpuTime(productive=19.2))
    assert (rollout.pool, rollout.gpus, rollout.price, rollout.spent) == ("spot", 2, "0.60", GpuTime(productive=1.2))
    assert (found.gpus, found.price, found.currency) == (10, None, "EUR")
    assert (found.gpu_seconds, found.spent) == (GpuTime(productive=36_000), GpuTime(productive=20.4))
    assert found.summary == "10.0 GPUh, 20.40 EUR"
    later = cost.up_to(Status(times=times("Productive", 3600, productive=3600), cost=found), at(7200))
    assert later is not None
    assert later.spent == GpuTime(productive=40.8)


@table(
    ("without a price of one pool", PoolSpec(gpu=Gpu(count=1)), 19.2),
    ("in two currencies", PoolSpec(gpu=Gpu(count=1), price=Price(gpu_hour="1", currency="USD")), None),
)
def test_a_sum_that_would_be_wrong_is_left_out(case: tuple[PoolSpec, float | None]) -> None:
    spot, of_trainer = case
    found = of_two_pools(spot)
    assert found.roles is not None
    assert (found.spent, found.gpu_seconds) == (None, GpuTime(productive=36_000))
    spent = found.roles["trainer"].spent
    assert (spent and spent.productive) == of_trainer


def test_a_role_that_is_placed_later_costs_from_then_on() -> None:
    where = {"platform": replace(CLUSTER, pools={"h100": POOL, "spot": SPOT}), "of": TWO_POOLS}
    first = charged(Status(times=times("Queued", 0)), Status(times=times("Starting", 0)), PODS[0], **where)
    begun = Status(times=times("Starting", 0), cost=first)
    second = charged(begun, Status(times=times("Starting", 60, starting=60)), *PODS, **where)
    assert second.roles is not None
    assert {role: cost.total(part.gpu_seconds) for role, part in second.roles.items()} == {"trainer": 480, "rollout": 0}
    assert second.gpus == 10


def test_a_pool_that_was_deleted_meanwhile_leaves_the_gpus_as_they_were() -> None:
    found = of_two_pools()
    before = Status(times=times("Productive", 3600, productive=3600), cost=found)
    after = Status(times=times("Productive", 7200, productive=7200))
    again = charged(before, after, *PODS, platform=replace(CLUSTER, pools={"h100": POOL}), of=TWO_POOLS)
    assert again.gpu_seconds == GpuTime(productive=72_000)


def test_a_job_without_gpus_has_no_cost() -> None:
    before, after = Status(times=times("Productive", 0)), Status(times=times("Productive", 9, productive=9))
    observed = Observed(job(), before, (pod(), pod(index=1)), at(9), CLUSTER)
    assert cost.charge(observed, before, after) is after


def test_readers_add_the_time_since_the_last_write() -> None:
    status = Status(
        times=times("Productive", 0), cost=CostStatus(gpus=16, price="2.40", currency="EUR", gpu_seconds=GpuTime())
    )
    now = cost.up_to(status, at(900))
    assert now is not None
    assert (now.gpu_seconds.productive, now.summary) == (14_400, "4.0 GPUh, 9.60 EUR")


def test_a_lost_amount_is_divided_by_cause() -> None:
    lost = replace(times("Productive", 0, lost=40), by_reason={"OOMKilled": 30.0, "NodeLost": 10.0})
    assert cost.lost_by(Status(times=lost), 8.0, NOW) == {"OOMKilled": 6.0, "NodeLost": 2.0}


def test_reconcile_writes_the_cost_with_the_times() -> None:
    pods = (pod(), pod(index=1))
    running = reconcile(Observed(gpu_job(), _begun(gpu_job()), pods, at(5), PRICED)).next
    assert running is not None
    assert running.cost is not None
    assert running.cost.gpus == 16


def _begun(of: Job) -> Status:
    begun = reconcile(Observed(of, Status(), (), NOW, PRICED)).next
    assert begun is not None
    return begun


# --- utilization ------------------------------------------------------------------------------------------------------

POLICY = Utilization(min_productive_percent=50, window_seconds=600)
SUSPENDING = POLICY.model_copy(update={"action": "Suspend"})


def judged(status: Status, seconds: float, of: Job | None = None, platform: Any = CLUSTER, reports: Any = None) -> Any:
    pods = (pod(), pod(index=1))
    observed = Observed(of or job(utilization=_dumped(POLICY)), status, pods, at(seconds), platform, reports=reports)
    return utilization.judge(Snapshot(observed))


def _dumped(policy: Utilization) -> dict[str, Any]:
    return policy.model_dump(by_alias=True)


def running(category: Any = "Starting", **totals: float) -> Status:
    return Status(phase="Running", start_time=NOW, attempt_time=NOW, times=times(category, 0, **totals))


def test_the_policy_waits_for_the_end_of_the_window() -> None:
    assert judged(running(starting=200), 0) == WaitUntil(at(400))


def test_without_a_policy_nothing_is_judged() -> None:
    assert judged(running(starting=9e6), 0, job()) is None


def test_a_job_that_waits_in_a_queue_is_not_judged() -> None:
    assert judged(running("Queued", starting=700), 0) is None


def test_low_utilization_sets_the_condition_and_the_next_window_begins() -> None:
    outcome = judged(running(starting=500, productive=100), 0)
    assert isinstance(outcome, Act)
    status = outcome.plan.next
    assert status is not None
    condition = status.condition("LowUtilization")
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "LowUtilization")
    assert condition.message.startswith("16% of the last 10 minutes was productive, at least 50% is required")
    assert [event.reason for event in outcome.plan.events] == ["LowUtilization"]
    assert status.utilization == UtilizationStatus(used_seconds=600, productive_seconds=100)
    assert judged(status, 0) == WaitUntil(at(600))


def test_a_second_window_says_nothing_new_and_a_good_one_ends_the_condition() -> None:
    low = judged(running(starting=600), 0).plan.next
    again = judged(replace(low, times=times("Starting", 0, starting=1200)), 0)
    assert again.plan.events == ()
    good = judged(replace(again.plan.next, times=times("Productive", 0, starting=1200, productive=600)), 0).plan.next
    condition = good.condition("LowUtilization")
    assert (condition.status, condition.reason) == ("False", "Productive")


def test_steps_that_no_longer_come_are_not_productive() -> None:
    reports = Reports(since=NOW, ranks=(rank(0, 10, stepped=100, step_seconds=1.0),))
    status = running("Productive", starting=0.0, productive=100.0)
    outcome = judged(replace(status, times=times("Productive", 100, productive=100)), 600, None, CLUSTER, reports)
    assert outcome.plan.next.condition("LowUtilization").status == "True"
    fresh = Reports(since=NOW, ranks=(rank(0, 10, stepped=590, step_seconds=1.0),))
    good = judged(replace(status, times=times("Productive", 100, productive=100)), 600, None, CLUSTER, fresh)
    assert good.plan.next.condition("LowUtilization") is None


@table(("of the job", SUSPENDING, None), ("of the pool, which replaces that of the job", POLICY, SUSPENDING))
def test_the_action_suspend_suspends_the_job_once(case: tuple[Utilization, Utilization | None]) -> None:
    own, of_pool = case
    pools = {"h100": POOL.model_copy(update={"utilization": of_pool})} if of_pool else {}
    platform = replace(CLUSTER, pools=pools)
    of = job(utilization=_dumped(own), **({"pool": "h100"} if of_pool else {}))
    first = _begun(of) if of_pool else reconcile(Observed(of, Status(), (), NOW, platform)).next
    assert first is not None
    idle = replace(first, times=times("Starting", 0, starting=600))
    pods = (pod(), pod(index=1))
    decision = reconcile(Observed(of, idle, pods, NOW, platform))
    assert decision.write_ahead
    assert not decision.suspend_job
    assert decision.next is not None
    assert decision.next.utilization is not None
    assert decision.next.utilization.suspend_attempt == 0
    assert reconcile(Observed(of, decision.next, pods, NOW, platform)).suspend_job
    suspended = of.model_copy(update={"spec": of.spec.model_copy(update={"suspend": True})})
    stopped = reconcile(Observed(suspended, decision.next, pods, NOW, platform)).next
    assert stopped is not None
    assert stopped.phase == "Suspended"
    assert stopped.condition("LowUtilization") is not None
    resumed = reconcile(Observed(of, stopped, (), at(9), platform))
    assert resumed.next is not None
    assert (resumed.next.attempt, resumed.suspend_job) == (1, False)
    assert not reconcile(Observed(of, resumed.next, (), at(9), platform)).suspend_job


def test_allranks_run_does_not_suspend() -> None:
    of = job(utilization=_dumped(SUSPENDING))
    outcome = judged(running(starting=600), 0, of, replace(CLUSTER, local=True))
    assert outcome.plan.next.utilization.suspend_attempt is None
    assert outcome.plan.next.condition("LowUtilization").reason == "LowUtilization"


def test_the_condition_ends_with_the_job() -> None:
    low = judged(running(starting=600), 0).plan.next
    assert isinstance(low.condition("LowUtilization"), Condition)
    ended = replace(low, history=[PastAttempt(end_time=NOW, reason="Completed")])
    assert with_phase(ended, "Succeeded", NOW, "Completed", "").condition("LowUtilization") is None


def test_gpus_of_pods_that_have_not_ended_wait_while_outputs_are_uploaded() -> None:
    before = Status(times=times("Uploading", 0, productive=100), cost=CostStatus(gpus=8))
    found = charged(before, Status(times=times("Uploading", 10, productive=100, uploading=10)), pod())
    assert found.gpu_seconds == GpuTime(waiting=80)
