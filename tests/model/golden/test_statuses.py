"""Jobs of earlier versions, as `statuses/record.py` recorded them: this version continues with them.

Each entry is a settled moment of a scenario: a job with its status and pods, for which the operator of that version had
nothing to do.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from allranks.api.status import FINISHED
from allranks.core.facts.model import Exit, Observed, Plan
from allranks.core.reconcile import reconcile
from allranks.kube import job_codec
from allranks.kube.merge_patch import diff
from support.builders import CLUSTER
from support.simulator import codec

VERSIONS = sorted(Path(__file__).with_name("statuses").glob("*.json.gz"))
ENTRIES = {
    file.name.split(".")[0]: [*map(json.loads, gzip.decompress(file.read_bytes()).splitlines())] for file in VERSIONS
}
OBJECTS = ("", "lastFailure", "progress", "times", "restarts", "conditions", "history")
"""Paths of objects in status that are no maps."""

every_version = pytest.mark.parametrize("version", ENTRIES)


def observed(entry: dict[str, Any], **changes: Any) -> Observed:
    job, uid = entry["job"], entry["job"]["metadata"]["uid"]
    pods = tuple(codec.pod(pod, uid) for pod in entry["pods"])
    now = datetime.fromisoformat(entry["now"])
    found = Observed(job_codec.job(job), job_codec.status(job), pods, now, CLUSTER)
    return replace(found, **changes)


def decided(before: Observed, plan: Plan) -> list[str]:
    """What the plan changes for the user, besides details of the status."""
    after = plan.next or before.persisted
    pods = [manifest["metadata"]["name"] for manifest in plan.create if manifest["kind"] == "Pod"]
    pods += [ref.name for ref in plan.delete]
    changed = [
        name
        for name in ("phase", "attempt", "restarts", "replica_restarts", "last_failure")
        if getattr(after, name) != getattr(before.persisted, name)
    ]
    return pods + changed + (["the job is deleted"] if plan.delete_job else [])


@every_version
def test_the_corpus_has_jobs_in_every_phase_and_of_every_framework(version):
    phases = Counter(entry["job"]["status"]["phase"] for entry in ENTRIES[version])
    assert set(phases) == {"Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"}
    assert {entry["job"]["spec"]["framework"] for entry in ENTRIES[version]} == {
        "pytorch",
        "tensorflow",
        "horovod",
        "ray",
    }


@every_version
def test_nothing_is_decided_about_a_settled_job_of_an_earlier_version(version):
    for entry in ENTRIES[version]:
        before = observed(entry)
        assert decided(before, reconcile(before)) == [], entry["job"]


@every_version
def test_a_status_of_an_earlier_version_is_written_back_with_the_same_content(version):
    """An older operator can read it again."""
    for entry in ENTRIES[version]:
        stored = entry["job"]["status"]
        written = job_codec.encode(job_codec.status(entry["job"]))
        changed = diff(stored, written)
        assert [key for key, value in changed.items() if key in stored] == []


@every_version
def test_a_failure_counts_from_the_number_that_the_earlier_version_stored(version):
    counted = 0
    for entry in ENTRIES[version]:
        before = observed(entry)
        status = before.persisted
        running = [pod for pod in before.pods if pod.phase == "Running" and pod.attempt == status.attempt]
        if status.phase != "Running" or len(running) < len(before.pods):
            continue
        ended = Exit(code=1, reason="Error", finished_at=before.now)
        failed = tuple(replace(pod, phase="Failed", exit=ended) for pod in before.pods)
        plan = reconcile(replace(before, pods=failed))
        after = plan.next
        if plan.write_ahead and after and after.attempt > status.attempt:
            counted += after.restarts.counted == status.restarts.counted + 1
            assert status.restarts.counted <= after.restarts.counted <= status.restarts.counted + 1
            assert after.attempt == status.attempt + 1
            assert after.history[:-1][-9:] == status.history[-9:]
    assert counted > 10


@every_version
def test_finished_jobs_stay_finished_when_their_pods_go(version):
    for entry in ENTRIES[version]:
        before = observed(entry, pods=())
        if before.persisted.phase in FINISHED:
            assert decided(before, reconcile(before)) in ([], ["the job is deleted"])


@every_version
def test_unknown_fields_of_a_newer_version_are_ignored(version):
    for entry in ENTRIES[version]:
        newer = copy.deepcopy(entry["job"])
        for path in OBJECTS:
            found = newer["status"].get(path) if path else newer["status"]
            for item in found if isinstance(found, list) else [found] if found else []:
                item |= {"fieldOfTheFuture": {"unit": "s", "values": [1, {"a": 2}]}, "anotherField": "x"}
        assert job_codec.status(newer) == job_codec.status(entry["job"])


def test_other_errors_in_a_status_are_still_reported():
    job = copy.deepcopy(ENTRIES["cf5a79a"][0]["job"])
    job["status"] |= {"phase": "Dreaming", "fieldOfTheFuture": 1}
    with pytest.raises(job_codec.DecodeError, match=r"status\.phase"):
        job_codec.status(job)
