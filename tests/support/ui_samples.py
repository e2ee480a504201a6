"""Jobs, pods, Events and runs for the tests of `allranks ui`. Times are in the last hour."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from support.builders import job as parsed_job
from support.builders import manifest
from support.job_api import JobApi

Manifest = dict[str, Any]
LAST_LINES = """Traceback (most recent call last):
  File "/app/train.py", line 48, in <module>
    main()
  File "/app/train.py", line 31, in main
    loss = model(batch).loss
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."""


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u202e{{7*7}}javascript:alert(3)"
"""Text that would do something, if it became markup, a template or a control sequence."""


def stamp(seconds_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_job(name: str, phase: str, workers: int = 3, namespace: str = "team", **status: Any) -> Manifest:
    """A job as the API server returns it. It began an hour ago."""
    made = manifest("pytorch", {"worker": workers}, name)
    made["metadata"] |= {
        "namespace": namespace,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": stamp(3600),
        "labels": {"team": "nlp"},
    }
    role = {"desired": workers, "active": workers, "ready": workers}
    made["status"] = {
        "phase": phase,
        "startTime": stamp(3590),
        "attemptTime": stamp(3590),
        "runningTime": stamp(3500),
        "attempt": 0,
        "ready": f"{workers}/{workers}",
        "roles": {"worker": role},
        "conditions": [condition("Running", "AllPodsRunning", f"{workers} of {workers} pods run")],
        **status,
    }
    return made


def done(name: str, namespace: str = "team", when: str = "2026-03-04T10:00:00Z", **status: object) -> Manifest:
    """A job with GPUs that has finished."""
    return a_job(
        name, "Succeeded", namespace=namespace, completionTime=when, times=_finished_times(), cost=_cost(), **status
    )


def _cost(productive: float = 7200.0, lost: float = 1800.0, currency: str = "EUR") -> Manifest:
    return {
        "gpus": 8,
        "price": "2",
        "currency": currency,
        "gpuSeconds": {"waiting": 3600.0, "starting": 0.0, "productive": productive, "lost": lost},
        "spent": {"waiting": 2.0, "starting": 0.0, "productive": 4.0, "lost": 1.0},
    }


def _finished_times(productive: float = 80.0, lost: float = 20.0) -> Manifest:
    return times() | {
        "queued": 900.0,
        "starting": 0.0,
        "productive": productive,
        "lost": lost,
        "byReason": {"OOMKilled": 15.0, "NodeLost": 5.0},
        "category": "Finished",
    }


def with_checkpoints(job: Manifest) -> Manifest:
    """The job after an attempt that could not read its newest checkpoint."""
    paths = ((800, True, 1800), (1000, True, 700), (1200, None, 20))
    job["spec"]["checkpoint"] = {"claim": "checkpoints", "everySeconds": "Auto"}
    job["status"] |= {
        "checkpoints": [
            {
                "step": step,
                "time": stamp(ago),
                "path": f"/checkpoints/penguins-of-the-southern-ocean/run-3/step-{step}",
                "complete": complete,
                "bytes": 1_500_000_000 if complete else None,
            }
            for step, complete, ago in paths
        ],
        "rollback": {"step": 800, "unreadableStep": 900, "attempt": 0},
        "checkpointSchedule": {
            "intervalSeconds": 749,
            "saveSeconds": 10.0,
            "faultSeconds": 28800,
            "step": 1400,
            "agreed": True,
            "ranks": 3,
        },
    }
    return job


def with_data(job: Manifest) -> Manifest:
    """The job with inputs and outputs in different states."""
    inputs = [
        {"name": "birds", "from": "s3://birds/penguins", "path": "/data"},
        {"name": "base", "from": "hf://models/penguins/encoder-large", "path": "/base", "revision": "main"},
        {"name": "maps", "from": "claim://maps/2026", "path": "/maps"},
    ]
    outputs = [
        {"name": "model", "to": "s3://models/penguins", "path": "/out"},
        {"name": "checkpoints", "to": "s3://models/steps", "path": "/steps", "when": "Checkpoint"},
    ]
    states = {
        "inputs": [
            {"name": "birds", "state": "Ready", "revision": "5e1c" * 16, "bytes": 3_221_225_472, "cached": True},
            {"name": "base", "state": "Ready", "revision": "9af3" * 10, "sha256": "ab" * 32, "bytes": 1_470_000_000},
            {"name": "maps", "state": "Ready"},
        ],
        "outputs": [
            {"name": "model", "state": "Pending"},
            {
                "name": "checkpoints",
                "state": "Uploading",
                "step": 1000,
                "checkpointTime": stamp(240),
                "uploadedStep": 500,
                "files": 4,
                "bytes": 734_003_200,
            },
        ],
    }
    spec = {**job["spec"], "inputs": inputs, "outputs": outputs}
    return {**job, "spec": spec, "status": {**job["status"], **states}}


def condition(kind: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": stamp(3500)}


def failure(index: int = 1, attempt: int = 0, message: str = LAST_LINES) -> Manifest:
    return {
        "attempt": attempt,
        "role": "worker",
        "index": index,
        "rank": index,
        "pod": f"penguins-worker-{index}-{attempt}",
        "node": "node-7",
        "exitCode": 1,
        "reason": "Error",
        "message": message,
        "time": stamp(1800),
        "ranSeconds": 1690.0,
    }


def progress(step: int, total: int = 5000, ranks: int = 3, attempt: int = 0) -> Manifest:
    """Progress with a curve of the loss."""
    points = [
        {
            "time": stamp(3400 - 3300 * place / 40),
            "attempt": attempt if place > 20 else 0,
            "step": step * place // 40,
            "value": 2.3 * math.exp(-place / 14) + 0.05 * math.sin(place),
            "samplesPerSecond": 800.0 + 30 * math.sin(place / 2),
        }
        for place in range(1, 41)
    ]
    return {
        "step": step,
        "totalSteps": total,
        "epoch": 3,
        "metrics": {"loss": 0.31, "accuracy": 0.89},
        "samplesPerSecond": 812.0,
        "etaSeconds": 2 * (total - step),
        "lastReport": stamp(3),
        "firstStepTime": stamp(3400),
        "firstStep": 0,
        "checkpointStep": step - step % 500,
        "checkpointTime": stamp(240),
        "reporting": ranks,
        "curveMetric": "loss",
        "curve": points,
        "summary": f"{step}/{total} {100 * step // total}%",
        "eta": "2h10m",
        "ranks": [
            {
                "rank": rank,
                "replica": f"worker-{rank}",
                "step": step - rank % 2,
                "lag": rank % 2,
                "stepSeconds": 0.48,
                "busySeconds": 0.44 if rank == 2 else 0.21,
            }
            for rank in range(min(ranks, 16))
        ],
        "stragglers": [{"rank": 2, "replica": "worker-2", "node": "node-9", "slowdown": 1.8}] if ranks > 2 else [],
    }


def times() -> Manifest:
    return {
        "queued": 60.0,
        "starting": 90.0,
        "productive": 2900.0,
        "lost": 310.0,
        "category": "Productive",
        "since": stamp(5),
        "productiveSince": stamp(1700),
        "measured": True,
        "byReason": {"OOMKilled": 310.0},
    }


def pods_of(job: Manifest, attempt: int = 0) -> list[Manifest]:
    """Running pods of an attempt, as the operator creates them."""
    workers = job["spec"]["roles"]["worker"]["replicas"]
    parsed = parsed_job("pytorch", {"worker": workers}, job["metadata"]["name"])
    uid, namespace = job["metadata"]["uid"], job["metadata"]["namespace"]
    meta = parsed.metadata.model_copy(update={"uid": uid, "namespace": namespace})
    parsed = parsed.model_copy(update={"metadata": meta})
    made = []
    for place, pod in enumerate(pods.objects(parsed, Status(attempt=attempt), Platform(helper_image="helper:1")).pods):
        metadata = {
            **pod["metadata"],
            "uid": f"{pod['metadata']['name']}-uid",
            "creationTimestamp": stamp(3500),
            "resourceVersion": "5",
        }
        container = {
            "name": "trainer",
            "state": {"running": {"startedAt": stamp(3490)}},
            "ready": True,
            "restartCount": 0,
            "image": "me/train:1",
            "imageID": "",
        }
        status = {"phase": "Running", "startTime": stamp(3495), "containerStatuses": [container]}
        made.append(
            {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": f"node-{7 + place}"}, "status": status}
        )
    return made


def event(about: str, kind: str, reason: str, message: str, type: str = "Normal", uid: str = "") -> Manifest:
    return {
        "kind": "Event",
        "metadata": {"name": f"{about}.{reason}", "creationTimestamp": stamp(60), "resourceVersion": "7"},
        "involvedObject": {"kind": kind, "name": about, "uid": uid},
        "reason": reason,
        "type": type,
        "message": message,
        "firstTimestamp": stamp(60),
        "lastTimestamp": stamp(30),
        "count": 1,
    }


def a_run(root: Path, job: str, time: str, phase: str, logs: dict[str, bytes] | None = None, **status: Any) -> Path:
    """A run directory as `allranks run` leaves it. `logs`: name of the file without .log -> content."""
    folder = root / job / time
    (folder / "logs").mkdir(parents=True)
    made = a_job(job, phase, 2, **status)
    made["metadata"].pop("uid")
    write_run(folder, made)
    for name, content in (logs or {}).items():
        (folder / "logs" / f"{name}.log").write_bytes(content)
    return folder


def write_run(folder: Path, job: Manifest) -> None:
    unfinished = folder / ".job.tmp"
    unfinished.write_text(json.dumps(job))
    unfinished.replace(folder / "job.json")


QUEUE = {"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"clusterQueue": "all"}}


def serve_queues(api: JobApi, waits: str = "broken") -> None:
    """A LocalQueue of Kueue, in which one job runs and one waits."""
    owner = {"kind": "DistributedTraining", "name": "penguins", "controller": True}
    workload = {
        "metadata": {
            "name": "w1",
            "uid": "11111111-0000-4000-8000-000000000001",
            "creationTimestamp": stamp(1500),
            "ownerReferences": [owner],
        },
        "spec": {"queueName": "gpus", "priority": 5},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "True"}]},
    }
    waiting = {
        "metadata": {**workload["metadata"], "name": "w2", "uid": "w2", "ownerReferences": [{**owner, "name": waits}]},
        "spec": workload["spec"],
        "status": {
            "conditions": [{"type": "QuotaReserved", "status": "False", "message": "insufficient quota for gpu"}]
        },
    }
    groups = {"groups": [{"name": "kueue.x-k8s.io", "versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]}]}
    quota = {"resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]}
    usage = {"resources": [{"name": "nvidia.com/gpu", "total": "6"}]}
    cluster_queue = {"spec": {"resourceGroups": [{"flavors": [quota]}]}, "status": {"flavorsUsage": [usage]}}
    message = "Preempted to accommodate a workload (UID: 11111111-0000-4000-8000-000000000001, JobUID: x)"
    eviction = {"reason": "Preempted", "message": message, "time": stamp(1600)}
    api.jobs[waits]["status"]["queue"] = {"name": "gpus", "evictions": 1, "lastEviction": eviction}
    api.queues["/apis"] = groups
    for version in ("v1beta1", "v1beta2"):
        base = f"/apis/kueue.x-k8s.io/{version}"
        api.queues[f"{base}/namespaces/team/localqueues"] = {"items": [QUEUE]}
        api.queues[f"{base}/namespaces/team/workloads"] = {"items": [workload, waiting]}
        api.queues[f"{base}/clusterqueues/all"] = cluster_queue
