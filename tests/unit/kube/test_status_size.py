"""The status of the largest job fits into etcd, and its compact form loses nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from allranks.api.status import ReplicaRestarts, Status
from allranks.core.facts import restarts
from allranks.fields import encode
from allranks.kube import job_codec
from support.builders import at, failed, job, preempted, started
from support.largest_status import ESCAPED, REPLICAS, all_restarted, failure_of, largest_status, stored_size

MEGABYTE = 2**20


def test_the_largest_status_is_smaller_than_a_megabyte():
    status = largest_status()
    assert len(status.replica_restarts) == len(status.ignored) == REPLICAS
    assert stored_size(status) < MEGABYTE
    assert job_codec.status({"status": job_codec.encode(status)}) == status


def test_all_replicas_of_the_largest_job_that_fail_at_once_fit_into_one_status():
    """The last lines of all their logs would add up to 6 MB."""
    number = 1_000
    life = started(job(roles={"worker": number}, restart={"scope": "Pod", "maxRestarts": 9_999}))
    life.put(*(failed("worker", index, message=ESCAPED * 4096, code=1 + index % 99) for index in range(number)))
    while life.step(70).write_ahead:
        assert stored_size(life.status) < 300_000
    life.settle(70)
    stored = {"status": job_codec.encode(life.status)}
    assert len(stored["status"]["replicaRestarts"]) == restarts.MAX_DETAILED
    assert job_codec.status(stored) == life.status
    life.settle(400)
    assert sorted(life.pods) == sorted(f"job-worker-{index}-0-1" for index in range(number))
    assert stored_size(life.status) < 250_000


def test_few_restarted_replicas_have_entries_of_their_own():
    life = started(job(roles={"worker": 40}, restart={"scope": "Pod"}))
    life.put(*(preempted("worker", index) for index in range(restarts.MAX_DETAILED)))
    life.settle(70)
    stored = job_codec.encode(life.status)
    assert len(stored["replicaRestarts"]) == restarts.MAX_DETAILED
    assert "restartedIndexes" not in stored
    assert {entry["failure"]["reason"] for entry in stored["replicaRestarts"].values()} == {"Preempted"}


def test_the_compact_form_of_many_restarted_replicas_is_readable():
    life = started(job(roles={"worker": 200}, restart={"scope": "Pod"}))
    for restart in (0, 1):
        failing = range(200) if restart == 0 else (7,)
        life.put(*(preempted("worker", index, restart=restart, after=60 + 99 * restart) for index in failing))
        life.settle(70 + 100 * restart)
        life.run(71 + 100 * restart)
    stored = job_codec.encode(life.status)
    assert stored["replicaRestarts"]["worker-7"]["count"] == 2
    compact = stored["restartedIndexes"]["worker"]
    assert (compact["unlaunched"], compact["restartTimes"]) == ("", {})
    assert compact["counts"] == {"1": "0,6,8-181"}


@pytest.mark.parametrize("seed", range(5))
def test_the_stored_form_loses_nothing(seed: int):
    dice = random.Random(seed)
    status = all_restarted(dice)
    some = dice.sample(sorted(status.replica_restarts), dice.randint(0, 200))
    status = replace(status, replica_restarts={key: status.replica_restarts[key] for key in some})
    assert job_codec.status({"status": job_codec.encode(status)}) == status


def test_a_status_of_the_earlier_version_with_the_failure_of_each_replica_is_read_and_becomes_smaller():
    entries = {
        f"worker-{index}": encode(
            ReplicaRestarts(count=1, launched=True, counted=True, restart_time=at(1), failure=failure_of(index, 5))
        )
        for index in range(500)
    }
    life = started(job(roles={"worker": 501}, restart={"scope": "Pod"}))
    life.status = job_codec.status({"status": job_codec.encode(life.status) | {"replicaRestarts": entries}})
    life.pods = {f"{name}-1": replace(each, name=f"{name}-1", restart=1) for name, each in life.pods.items()}
    life.pods["job-worker-500-0"] = replace(life.pods.pop("job-worker-500-0-1"), name="job-worker-500-0", restart=0)
    assert len(life.status.replica_restarts) == 500
    assert life.settle(60).create == ()
    before = stored_size(life.status)
    life.put(failed("worker", 500, after=70))
    life.settle(71)
    assert stored_size(life.status) < before / 10
    assert sum(entry.failure is not None for entry in life.status.replica_restarts.values()) == restarts.MAX_DETAILED
    assert {entry.count for entry in life.status.replica_restarts.values()} == {1}


def test_a_compact_form_that_cannot_be_decoded_names_its_field():
    with pytest.raises(job_codec.DecodeError, match=r"status\.restartedIndexes"):
        job_codec.status({"status": {"restartedIndexes": {"worker": {"counts": {"one": "3"}}}}})
    assert job_codec.status_of({"status": {"restartedIndexes": {"worker": {"counts": {"one": "3"}}}}}) == Status()


def test_a_compact_form_has_no_negative_numbers():
    with pytest.raises(job_codec.DecodeError, match="count"):
        job_codec.status({"status": {"restartedIndexes": {"worker": {"counts": {"-1": "3"}}}}})


def test_a_compact_form_has_bounded_indexes():
    """A few bytes cannot stand for millions of replicas."""
    with pytest.raises(job_codec.DecodeError, match="counts"):
        job_codec.status({"status": {"restartedIndexes": {"worker": {"counts": {"1": "0-99999999"}}}}})


def test_the_numbers_of_restarts_without_progress_are_kept_for_all_replicas():
    """Otherwise the replicas of a large job would restart without a backoff."""
    kept = all_restarted(random.Random(2)).replica_restarts
    assert sum(entry.failure is not None for entry in kept.values()) == restarts.MAX_DETAILED
    assert all(entry.without_progress for entry in kept.values())
