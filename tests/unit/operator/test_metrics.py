"""Metrics: each change of a persisted status is counted once; no label contains the name of a job."""

from __future__ import annotations

from datetime import timedelta

from prometheus_client.exposition import generate_latest

from allranks.api.status import ProgressStatus, RestartCounts, Status, Straggler, Times
from allranks.operator.metrics import Metrics, Sampled
from support.builders import NOW, job


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
    jobs = [("pytorch", "Running"), ("pytorch", "Running"), ("horovod", "Failed")]
    metrics.registry.register(Sampled(lambda: jobs, lambda: 3, lambda: [("pods", 1.5)], reports_lost=lambda: 2))
    page = generate_latest(metrics.registry).decode()
    assert 'allranks_jobs{framework="pytorch",phase="Running"} 2.0' in page
    assert 'allranks_jobs{framework="horovod",phase="Failed"} 1.0' in page
    assert "allranks_queue_depth 3.0" in page
    assert "allranks_jobs_reports_lost 2.0" in page
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
    metrics.wrote(job(), before, Status(times=history[-1].model_copy(update={"productive": 120.0})))
    assert seconds("productive") == 120


def test_a_straggler_is_counted_when_it_is_detected() -> None:
    metrics = Metrics()
    slow = ProgressStatus(stragglers=[Straggler(rank=1, replica="worker-1", slowdown=2.0)])
    assert value(metrics, "allranks_stragglers_total", framework="pytorch") == 0
    metrics.wrote(job(), Status(), Status(progress=slow))
    metrics.wrote(job(), Status(progress=slow), Status(progress=slow))
    assert value(metrics, "allranks_stragglers_total", framework="pytorch") == 1
