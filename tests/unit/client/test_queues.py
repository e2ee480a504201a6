"""What `allranks queue` derives from Kueue's objects."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from allranks.cli.commands.queue import _lines
from allranks.client.queues import Queue, Waiting, describe
from allranks.views.format.json_form import as_json

QUEUE = {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "gpus"}}
CLUSTER_QUEUE: dict[str, Any] = {
    "spec": {
        "stopPolicy": "Hold",
        "resourceGroups": [
            {
                "flavors": [
                    {"name": "a100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]},
                    {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]},
                ]
            }
        ],
    },
    "status": {"flavorsUsage": [{"name": "a100", "resources": [{"name": "nvidia.com/gpu", "total": "8"}]}]},
}


UID = "d82b12ae-56e8-494f-b89f-878684bc9ced"


def workload(name: str, created: str, **conditions: str) -> dict[str, Any]:
    owner = {"kind": "DistributedTraining", "name": name, "controller": True}
    made = [{"type": kind, "status": status, "reason": "r", "message": "m"} for kind, status in conditions.items()]
    return {
        "metadata": {
            "name": f"dt-{name}",
            "uid": UID if name == "short" else f"uid-{name}",
            "creationTimestamp": created,
            "ownerReferences": [owner],
        },
        "spec": {"queueName": "team-a", "priority": 5},
        "status": {"conditions": made},
    }


def job(job_name: str, eta: float | None = None, **queue: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"progress": {"etaSeconds": eta}} if eta else {}
    return {"metadata": {"name": job_name}, "status": status | ({"queue": queue} if queue else {})}


WORKLOADS = [
    workload("long", "2026-01-01T00:00:00Z", QuotaReserved="True"),
    workload("short", "2026-01-01T00:00:01Z", QuotaReserved="True"),
    workload("done", "2026-01-01T00:00:02Z", QuotaReserved="True", Finished="True"),
    workload("younger", "2026-01-01T00:00:04Z", QuotaReserved="False"),
    workload("older", "2026-01-01T00:00:03Z", QuotaReserved="False"),
]
EVICTED = {
    "reason": "Preempted",
    "message": f"Preempted to accommodate a workload (UID: {UID}, JobUID: UNKNOWN) due to prioritization",
    "time": "2026-01-01T01:00:00Z",
}
JOBS = {
    each["metadata"]["name"]: each
    for each in (job("long", 3600), job("short", 60), job("older", name="team-a", lastEviction=EVICTED))
}


def test_jobs_wait_in_kueues_order_and_start_when_running_ones_end() -> None:
    found = describe(QUEUE, CLUSTER_QUEUE, WORKLOADS, JOBS, {"dt-younger": 0, "dt-older": 1})
    assert [(each.job, each.position, each.starts_in_seconds) for each in found.waiting] == [
        ("younger", 0, 60),
        ("older", 1, 3600),
    ]
    assert [each.job for each in found.running] == ["long", "short"]


def test_without_positions_they_are_in_the_order_of_their_creation() -> None:
    found = describe(QUEUE, None, WORKLOADS, {}, {})
    assert [(each.job, each.position, each.starts_in_seconds) for each in found.waiting] == [
        ("older", None, None),
        ("younger", None, None),
    ]
    assert found.quota == {}


def test_the_quota_is_the_sum_over_flavors_and_a_stopped_queue_is_named() -> None:
    found = describe(QUEUE, CLUSTER_QUEUE, WORKLOADS, JOBS, {})
    assert found.quota == {"nvidia.com/gpu": ("8", "24")}
    assert found.stopped == "Hold"
    lines = _lines(found)
    assert lines[:2] == ["Queue team-a, ClusterQueue gpus (stopped: Hold)", "  nvidia.com/gpu 8 of 24 in use"]
    assert re.fullmatch(r"  older was preempted \w+ ago by short", lines[-1])


def test_a_preemptor_of_another_namespace_is_described_by_kueues_message() -> None:
    found = describe(QUEUE, CLUSTER_QUEUE, [], JOBS, {})
    assert [each.by for each in found.preempted] == [""]
    assert re.fullmatch(rf"  older was preempted \w+ ago: {re.escape(EVICTED['message'])}", _lines(found)[-1])


def test_json_has_the_same_in_camel_case() -> None:
    waiting = Waiting("demo", 0, datetime(2026, 1, 1, tzinfo=UTC), "Pending", "m", 60.0)
    found = as_json(Queue("team-a", "gpus", "", {"example.com/a_gpu": ("1", "8")}, waiting=(waiting,)))
    assert (found["clusterQueue"], found["quota"]) == ("gpus", {"example.com/a_gpu": ["1", "8"]})
    [one] = found["waiting"]
    assert (one["startsInSeconds"], one["since"]) == (60.0, "2026-01-01T00:00:00Z")
