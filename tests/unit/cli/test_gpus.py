"""`describe` and `top` show the GPUs of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from allranks.api.status import RoleStatus, Status
from allranks.cli.live import dashboard
from allranks.kube import job_codec
from allranks.views.description import describe_job
from allranks.views.job_view import JobView

JOB: dict[str, Any] = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "DistributedTraining",
    "metadata": {"name": "j", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "framework": "pytorch",
        "image": "i",
        "roles": {"worker": {"replicas": 4, "resources": {"limits": {"nvidia.com/mig-1g.10gb": 2}}}},
    },
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def lines(job: dict[str, Any], pods: list[dict[str, Any]]) -> list[str]:
    return [line for line in describe_job(job, pods, "", [], NOW) if isinstance(line, str) and line.startswith("GPUs")]


def test_describe_and_top_count_the_GPUs_of_the_manifest():
    assert lines(JOB, []) == ["GPUs:        8 (2 in each worker)"]
    view = JobView.decode(JOB, NOW)
    assert dashboard.data(view)["gpus"] == 8
    assert "8 GPUs" in "".join(text for text, _ in next(iter(dashboard.job(view, 0, 0, False))))


def test_the_current_size_of_an_elastic_job_counts():
    shrunk = Status(roles={"worker": RoleStatus(desired=3)})
    assert lines(JOB | {"status": job_codec.encode(shrunk)}, []) == ["GPUs:        6 (2 in each worker)"]


def test_describe_counts_the_GPUs_that_a_pool_gives_to_the_pods():
    spec = {"framework": "pytorch", "image": "i", "pool": "h100", "roles": {"worker": {"replicas": 2}}}
    container = {"name": "trainer", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    labels = {"allranks.dev/role": "worker", "allranks.dev/index": "0", "allranks.dev/attempt": "1"}
    owner = {"apiVersion": "v", "kind": "k", "name": "j", "uid": "u", "controller": True}
    metadata = {"name": "p", "namespace": "n", "uid": "p", "labels": labels, "ownerReferences": [owner]}
    pod = {"metadata": metadata | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"containers": [container]}}
    assert lines(JOB | {"spec": spec}, [pod]) == ["GPUs:        16 (8 in each worker)"]


def test_a_job_without_GPUs_has_no_such_line():
    spec = {"framework": "pytorch", "image": "i", "roles": {"worker": {"replicas": 2}}}
    assert lines(JOB | {"spec": spec}, []) == []
