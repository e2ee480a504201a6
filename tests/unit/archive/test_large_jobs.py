"""Memory that large unfinished jobs take in the archiver and in the web UI: growth of a process, with wide margins."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

_PROGRAM = """
import gc, json, sys
from allranks.archive import archiver
from allranks.archive.access import Metrics
from allranks.archive.job_attempts import JobAttempts
from allranks.archive.saved_objects import SavedObjects
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import ClusterJobs
from allranks.kube.cluster import Cluster

def resident():
    gc.collect()
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) * 1024

def line(number):
    return event.replace("NUMBER", str(number)).encode()

process, count, job = json.loads(sys.stdin.read())
metadata = {**job.get("metadata", {}), "name": "demo-NUMBER", "namespace": "ns"}
metadata |= {"uid": "uNUMBER", "resourceVersion": "7"}
event = json.dumps({"type": "ADDED", "object": {**job, "metadata": metadata}})
if process == "archiver":
    objects = SavedObjects(None, None, None, Metrics(), None, JobAttempts())
    watch = archiver._objects_watch(None, "/jobs", "DistributedTraining", None, objects)
else:
    jobs = ClusterJobs(Cluster(None, "ns"), None, Hub())
    watch = jobs.watch()
watch._process(line(0))
before = resident()
for number in range(1, count):
    watch._process(line(number))
held = len(objects._unfinished) if process == "archiver" else len(jobs.all())
assert held == count
print((resident() - before) / (count - 1))
"""
SPEC = {"framework": "pytorch", "image": "x", "command": ["a"], "roles": {"worker": {"replicas": 2}}}
ACCEPTED: dict[str, Any] = {
    "spec": {**SPEC, "suspend": True, "template": {"metadata": {"annotations": {}}, "spec": {"x": [{}] * 64_000}}},
    "status": {"phase": "Suspended"},
}
OF_OTHERS: dict[str, Any] = {
    "spec": {**SPEC, "managedBy": "example.com/other", "template": {"spec": {"x": [{}] * 325_000}}},
}
WITH_LABELS: dict[str, Any] = {"spec": SPEC, "metadata": {"labels": {f"label-{n:06}": "" for n in range(60_000)}}}


@pytest.mark.parametrize("process", ["archiver", "ui"])
@pytest.mark.parametrize(
    ("job", "stored", "most"),
    [(ACCEPTED, 256_000, 500_000), (OF_OTHERS, 1_300_000, 60_000), (WITH_LABELS, 1_080_000, 60_000)],
    ids=["the largest accepted template", "managed by another controller", "many labels"],
)
def test_a_hundred_large_jobs_take_little_memory(process: str, job: dict[str, Any], stored: int, most: int) -> None:
    assert len(json.dumps(job)) >= stored
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps([process, 100, job]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most
