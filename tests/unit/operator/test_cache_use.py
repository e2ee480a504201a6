"""Which entries of the cache the jobs of a namespace use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from allranks.api.data import InputStatus
from allranks.api.status import ReplicaRestarts, Status
from allranks.cache_key import cache_key
from allranks.core.facts.data_store import CacheUse
from allranks.core.facts.model import Manifest
from allranks.kube import compact_jobs
from allranks.operator import other_jobs
from allranks.operator.cache import JobCache
from allranks.operator.other_jobs import cache_use, fetches
from support.builders import at, manifest


def job(phase: str = "Running", namespace: str = "team", revision: str | None = "r1", **more: Any) -> Manifest:
    found = manifest(inputs=[{"name": "data", "from": "s3://b/p", "path": "/data", **more}])
    found["metadata"]["namespace"] = namespace
    each = {"name": "data", "state": "Ready"} | ({"revision": revision} if revision else {})
    return compact_jobs.compact({**found, "status": {"phase": phase, "inputs": [each]}})


@pytest.mark.parametrize(
    ("found", "pin"),
    [
        (job(), "r1"),
        (job("Suspended"), "r1"),
        (job(sha256="ab" * 32), "sha256:" + "ab" * 32),
        (job(unpack=True), "unpacked:r1"),
        (job(unpack=True, sha256="ab" * 32), "unpacked:sha256:" + "ab" * 32),
        (job("Succeeded"), None),
        (job("Failed"), None),
        (job(namespace="other"), None),
        (job(revision=None), None),
        (compact_jobs.compact({**manifest(), "status": None}), None),
        (None, None),
    ],
)
def test_the_data_of_unfinished_jobs_is_used(found: Manifest | None, pin: str | None) -> None:
    assert cache_use([found], "team") == CacheUse((cache_key("s3://b/p", pin),) if pin else ())


def test_nothing_may_be_evicted_if_jobs_use_too_much_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_jobs, "MOST_KEYS", 1)
    assert cache_use([job()], "team") is not None
    assert cache_use([job(), job(revision="r2")], "team") is None


LARGE = {"template": {"spec": {"x": "y" * compact_jobs.LARGE_BYTES}}}


def large(document: Manifest) -> Manifest:
    found = compact_jobs.without_large_spec(compact_jobs.compact(document))
    assert compact_jobs.spec_of(found).left_out
    return found


def test_the_data_of_a_job_with_a_large_spec_is_used() -> None:
    document = manifest(inputs=[{"name": "data", "from": "s3://b/p", "path": "/data"}], **LARGE)
    document["status"] = {"phase": "Running", "inputs": [{"name": "data", "state": "Ready", "revision": "r1"}]}
    assert cache_use([large(document)], "team") == CacheUse((cache_key("s3://b/p", "r1"),))


def test_nothing_may_be_evicted_if_the_inputs_of_a_job_are_too_large_to_keep() -> None:
    inputs = [{"name": f"data{number}", "from": "s3://b/" + "p" * 2000, "path": f"/{number}"} for number in range(16)]
    document = manifest(inputs=inputs)
    document["status"] = {"phase": "Running", "inputs": [{"name": "data1", "state": "Ready", "revision": "r1"}]}
    assert cache_use([large(document)], "team") is None


def test_a_job_resumes_from_the_checkpoint_of_a_job_with_a_large_spec() -> None:
    jobs = JobCache()
    source = manifest(name="first", checkpoint={"path": "/ckpt", "volume": {"emptyDir": {}}}, **LARGE)
    for document in (source, manifest(name="second", resumeFrom="first")):
        document["metadata"] |= {"uid": document["metadata"]["name"], "resourceVersion": "1"}
        jobs.upsert(document)
    found = other_jobs.ResumeSources(Mock(), jobs).get(jobs.get(("team", "second")) or {})
    assert found
    assert found.checkpoint
    assert str(found.checkpoint.path) == "/ckpt"


def test_the_time_of_the_oldest_job_that_uses_the_cache_is_given() -> None:
    """A pod on a node evicts nothing that was used since then."""
    jobs = [job(revision=each) for each in ("r1", "r2", None)]
    for number, found in enumerate(jobs):
        found["metadata"]["creationTimestamp"] = f"2026-03-0{5 - number}T10:00:00Z"
    use = cache_use(jobs, "team")
    assert use
    assert use.oldest == datetime(2026, 3, 4, 10, tzinfo=UTC)


RESTARTED = ReplicaRestarts(count=1, counted=True, restart_time=at(0))
READY = InputStatus(name="data", state="Ready", revision="r1", location="Claim")
ON_NODES = InputStatus(name="data", state="Ready", revision="r1", location="Node")


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (Status(), False),
        (Status(phase="Pending", inputs=[InputStatus(name="data")]), True),
        (Status(phase="Queued", inputs=[InputStatus(name="data")]), True),
        (Status(phase="Failed", inputs=[InputStatus(name="data")]), False),
        (Status(phase="Pending", inputs=[READY]), False),
        (Status(phase="Pending", inputs=[ON_NODES]), True),
        (Status(phase="Queued", inputs=[ON_NODES]), False),
        (Status(phase="Running", launched=True, inputs=[ON_NODES]), False),
        (Status(phase="Running", launched=True, inputs=[ON_NODES], replica_restarts={"worker-0": RESTARTED}), True),
        (Status(phase="Succeeded", inputs=[ON_NODES]), False),
    ],
)
def test_the_jobs_of_a_namespace_are_read_only_when_a_pod_that_fetches_may_be_created(
    status: Status, wanted: bool
) -> None:
    assert fetches(status) == wanted
