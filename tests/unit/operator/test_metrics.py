"""Metrics: each change of a persisted status is counted once; no label contains the name of a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from prometheus_client.exposition import generate_latest

from allranks.api.cost import CostStatus, GpuTime, RoleCost
from allranks.api.pool import PoolSpec
from allranks.api.status import Failure, ProgressStatus, RestartCounts, Status, Straggler, Times
from allranks.core.facts.policy import Policy
from allranks.operator.metrics import (
    OTHER,
    BoundedLabel,
    Families,
    GpuCounts,
    HardwareSample,
    JobSample,
    Metrics,
    Sampled,
)
from support.builders import CLUSTER, NOW, at, job, observed


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_restart_is_counted_by_its_reason() -> None:
    metrics = Metrics()
    before = Status(restarts=RestartCounts(counted=1, by_reason={"Error": 1}))
    after = Status(restarts=RestartCounts(counted=2, by_reason={"Error": 1, "OOMKilled": 1}))
    metrics.wrote(job(), before, after)
    labels = {"framework": "pytorch", "counted": "true"}
    assert value(metrics, "allranks_restarts_total", reason="OOMKilled", **labels) == 1
    assert value(metrics, "allranks_restarts_total", reason="Error", **labels) is None
    lost = Status(
        restarts=RestartCounts(counted=2, disruptions=1, by_reason={"Error": 1, "OOMKilled": 1, "Evicted": 1})
    )
    metrics.wrote(job(), after, lost)
    assert value(metrics, "allranks_restarts_total", framework="pytorch", reason="Evicted", counted="false") == 1


def test_a_corrected_root_cause_is_not_another_restart() -> None:
    metrics = Metrics()
    before = Status(restarts=RestartCounts(counted=1, by_reason={"Error": 1}))
    for corrected in (
        RestartCounts(counted=0, disruptions=1, by_reason={"NodeLost": 1}),
        RestartCounts(counted=1, by_reason={"NodeLost": 1}),
    ):
        metrics.wrote(job(), before, Status(restarts=corrected))
    for counted in ("true", "false"):
        labels = {"framework": "pytorch", "reason": "NodeLost", "counted": counted}
        assert value(metrics, "allranks_restarts_total", **labels) is None


def test_the_start_time_is_observed_per_attempt_and_is_lost_time_after_a_restart() -> None:
    metrics = Metrics()
    begun = Status(attempt_time=NOW)
    running = Status(attempt_time=NOW, running_time=NOW + timedelta(seconds=8))
    metrics.wrote(job(), begun, running)
    assert value(metrics, "allranks_job_start_seconds_sum", framework="pytorch") == 8
    assert value(metrics, "allranks_lost_seconds_total", framework="pytorch") == 0
    metrics.wrote(job(), running, running)
    assert value(metrics, "allranks_job_start_seconds_count", framework="pytorch") == 1


def test_sampled_metrics_have_the_values_of_the_moment() -> None:
    metrics = Metrics()
    jobs = [JobSample("team", *job) for job in (("pytorch", "Running"), ("pytorch", "Running"), ("horovod", "Failed"))]
    metrics.registry.register(
        Sampled(
            lambda: jobs,
            lambda: 3,
            lambda: [("pods", 1.5)],
            reports_lost=lambda: 2,
            shares=lambda: {"results": {"team": 0.5}},
            hardware=lambda: HardwareSample(3, 4, {f"node-{number}": number for number in range(200)}),
        )
    )
    page = generate_latest(metrics.registry).decode()
    assert 'allranks_jobs{framework="pytorch",job_namespace="team",phase="Running"} 2.0' in page
    assert 'allranks_jobs{framework="horovod",job_namespace="team",phase="Failed"} 1.0' in page
    assert "allranks_queue_depth 3.0" in page
    assert 'allranks_shared_resource_ratio{job_namespace="team",resource="results"} 0.5' in page
    assert "allranks_jobs_reports_lost 2.0" in page
    assert "allranks_unhealthy_nodes 3.0" in page
    assert "allranks_jobs_hardware_unhealthy 4.0" in page
    assert 'allranks_node_avoiding_jobs{node="node-199"} 199.0' in page
    assert page.count("allranks_node_avoiding_jobs{") == 100
    assert 'allranks_watch_age_seconds{resource="pods"} 1.5' in page
    jobs.clear()
    assert "allranks_jobs{" not in generate_latest(metrics.registry).decode()


def test_time_is_counted_by_kind_and_time_that_becomes_lost_only_once() -> None:
    metrics = Metrics()

    def seconds(kind: str) -> float | None:
        labels = {"job_namespace": "team", "framework": "pytorch"}
        return value(metrics, "allranks_job_seconds_total", kind=kind, **labels)

    history = [
        Times(queued=5, starting=10, category="Starting", since=NOW),
        Times(queued=5, starting=10, productive=100, category="Productive", since=NOW),
        Times(queued=5, starting=10, productive=70, lost=30, category="Lost", since=NOW),  # since the last checkpoint
        Times(queued=5, starting=10, productive=90, lost=35, category="Productive", since=NOW),
    ]
    before = Status()
    for times in history:
        metrics.wrote(job(), before, before := Status(times=times))
    assert [seconds(kind) for kind in ("queued", "starting", "productive", "lost")] == [5, 10, 100, 35]
    metrics.wrote(job(), before, Status(times=replace(history[-1], productive=120.0)))
    assert seconds("productive") == 120


def test_a_straggler_is_counted_when_it_is_detected() -> None:
    metrics = Metrics()
    slow = ProgressStatus(stragglers=[Straggler(rank=1, replica="worker-1", slowdown=2.0)])
    assert value(metrics, "allranks_stragglers_total", framework="pytorch") == 0
    metrics.wrote(job(), Status(), Status(progress=slow))
    metrics.wrote(job(), Status(progress=slow), Status(progress=slow))
    assert value(metrics, "allranks_stragglers_total", framework="pytorch") == 1


def test_the_end_of_a_job_is_counted_once_and_its_series_exists_before() -> None:
    metrics = Metrics()
    labels = {"job_namespace": "team", "framework": "pytorch"}

    def finished(phase: str) -> float | None:
        return value(metrics, "allranks_jobs_finished_total", phase=phase, **labels)

    metrics.wrote(job(), Status(), Status(start_time=NOW))
    assert (finished("Failed"), finished("Succeeded")) == (0, 0)
    assert value(metrics, "allranks_hangs_total", **labels) == 0
    failed = Status(start_time=NOW, phase="Failed")
    metrics.wrote(job(), Status(start_time=NOW), failed)
    metrics.wrote(job(), failed, Status(start_time=NOW, phase="Failed", ready="0/2"))
    assert (finished("Failed"), finished("Succeeded")) == (1, 0)


def test_a_hang_is_counted_when_it_is_recorded_and_no_other_failure() -> None:
    metrics = Metrics()
    hang, crash = Failure(reason="Hang", time=NOW), Failure(reason="Error", time=NOW)
    metrics.wrote(job(), Status(), Status(last_failure=hang))
    metrics.wrote(job(), Status(last_failure=hang), Status(last_failure=hang, ready="1/2"))
    metrics.wrote(job(), Status(last_failure=hang), Status(last_failure=crash))
    assert value(metrics, "allranks_hangs_total", job_namespace="team", framework="pytorch") == 1


def families(*samples: JobSample, namespaces: BoundedLabel | None = None) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in Families(namespaces).build(samples)
    }


def test_jobs_that_wait_are_counted_by_namespace_and_reason_with_the_longest_wait() -> None:
    found = families(
        JobSample("a", "pytorch", "Pending", "Unschedulable", 60.0),
        JobSample("a", "pytorch", "Restarting", "Unschedulable", 90.0),
        JobSample("a", "pytorch", "Pending", "PoolNotFound", 10.0),
        JobSample("b", "pytorch", "Running", "AllPodsRunning"),
        JobSample("b", "pytorch", "Suspended", "Suspended"),
    )
    assert found["allranks_pending_jobs"] == {("a", "Unschedulable"): 2, ("a", "PoolNotFound"): 1}
    assert found["allranks_pending_seconds"] == {("a", "Unschedulable"): 90, ("a", "PoolNotFound"): 10}


def test_gpus_are_summed_by_namespace_and_pool() -> None:
    found = families(
        JobSample("a", "pytorch", "Running", gpus={"h200": (16, 16)}),
        JobSample("a", "pytorch", "Pending", gpus={"h200": (8, 0)}),
        JobSample("b", "pytorch", "Running"),
    )
    assert found["allranks_gpus"] == {("a", "h200", "requested"): 24, ("a", "h200", "running"): 16}


def test_the_values_of_a_label_are_bounded() -> None:
    label = BoundedLabel(2)
    samples = [JobSample(name, "pytorch", "Running") for name in ("a", "b", "c", "d", "a")]
    assert families(*samples, namespaces=label)["allranks_jobs"] == {
        ("a", "pytorch", "Running"): 2,
        ("b", "pytorch", "Running"): 1,
        (OTHER, "pytorch", "Running"): 2,
    }


KEY = ("team", "job")


def sample(counts: GpuCounts, **status: Any) -> JobSample:
    [found] = counts.samples([KEY], lambda _: {"status": status}, at(100))
    return found


def test_the_gpus_of_a_job_are_those_of_its_pods_and_of_its_pool() -> None:
    counts, pool = GpuCounts(), PoolSpec.model_validate({"gpu": {"count": 8}}, by_alias=True, by_name=False)
    platform = replace(CLUSTER, pools={"h200": pool})
    counts.note(KEY, observed(job(pool="h200"), Status(start_time=NOW), platform=platform))
    roles = {"worker": {"desired": 3, "ready": 1}}
    found = sample(counts, phase="Pending", roles=roles, attemptTime="2026-03-04T10:00:40Z")
    assert (found.gpus, found.attempt_seconds) == ({"h200": (24, 8)}, 60)
    assert sample(counts, phase="Suspended", roles=roles).gpus == {}


def test_gpus_follow_the_default_pool_a_new_pool_and_the_end_of_the_job() -> None:
    counts, roles = GpuCounts(), {"worker": {"desired": 2, "ready": 2}}
    begun = Status(start_time=NOW)
    for size in (4, 8):
        pool = PoolSpec.model_validate({"gpu": {"count": size}}, by_alias=True, by_name=False)
        platform = replace(CLUSTER, pools={"gpu": pool}, policy=Policy(default_pool="gpu"))
        counts.note(KEY, observed(job(), begun, platform=platform))
        found = sample(counts, phase="Running", roles=roles)
        assert found.gpus == {"gpu": (2 * size, 2 * size)}
    counts.note(KEY, observed(job(), Status(start_time=NOW, phase="Failed"), platform=platform))
    assert sample(counts, phase="Running", roles=roles).gpus == {}


def test_a_status_without_a_schema_breaks_no_scrape() -> None:
    for status in (None, 5, {"phase": 5, "conditions": 7, "roles": [], "attemptTime": "soon"}, {"conditions": [3]}):
        [found] = GpuCounts().samples([KEY], lambda _, status=status: {"status": status}, at(0))
        assert found.gpus == {}


def test_gpu_time_and_its_price_are_counted_once_by_pool() -> None:
    metrics, of = Metrics(), job(pool="h100")
    first = Status(cost=CostStatus(currency="EUR", gpu_seconds=GpuTime(productive=3600), spent=GpuTime(productive=2.4)))
    metrics.wrote(of, Status(), first)
    lost = GpuTime(productive=1800, lost=1800)
    moved = CostStatus(currency="EUR", gpu_seconds=lost, spent=GpuTime(productive=1.2, lost=1.2))
    metrics.wrote(of, first, Status(cost=moved))
    labels = {"job_namespace": "team", "pool": "h100"}
    assert value(metrics, "allranks_gpu_seconds_total", kind="lost", **labels) == 1800
    assert value(metrics, "allranks_gpu_seconds_total", kind="productive", **labels) == 3600
    assert value(metrics, "allranks_gpu_cost_total", kind="lost", currency="EUR", **labels) == 1.2
    more = CostStatus(currency="EUR", gpu_seconds=GpuTime(productive=5400, lost=1800), spent=moved.spent)
    metrics.wrote(of, Status(cost=moved), Status(cost=more))
    # What moved to lost is subtracted from the next increment.
    assert value(metrics, "allranks_gpu_seconds_total", kind="productive", **labels) == 5400


def test_roles_with_pools_of_their_own_are_counted_by_pool() -> None:
    metrics = Metrics()
    of = job(roles={"master": {"replicas": 1, "pool": "h100"}, "worker": {"replicas": 2, "pool": "spot"}})
    part = RoleCost(pool="h100", gpu_seconds=GpuTime(productive=60), spent=GpuTime(productive=2))
    other = RoleCost(pool="spot", gpu_seconds=GpuTime(productive=30), spent=GpuTime(productive=1))
    whole = CostStatus(
        currency="EUR",
        gpu_seconds=GpuTime(productive=90),
        spent=GpuTime(productive=3),
        roles={"master": part, "worker": other},
    )
    metrics.wrote(of, Status(), Status(cost=whole))
    kinds = {"job_namespace": "team", "kind": "productive"}
    assert value(metrics, "allranks_gpu_seconds_total", pool="h100", **kinds) == 60
    assert value(metrics, "allranks_gpu_seconds_total", pool="spot", **kinds) == 30
    assert value(metrics, "allranks_gpu_cost_total", pool="spot", currency="EUR", **kinds) == 1
    counts = GpuCounts()
    pools = {name: PoolSpec.model_validate({"gpu": {"count": 8}}) for name in ("h100", "spot")}
    counts.note(KEY, observed(of, Status(start_time=NOW), platform=replace(CLUSTER, pools=pools)))
    roles = {"master": {"desired": 1, "ready": 1}, "worker": {"desired": 2, "ready": 0}}
    assert sample(counts, phase="Pending", roles=roles).gpus == {"h100": (8, 8), "spot": (16, 0)}
