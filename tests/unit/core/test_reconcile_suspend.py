"""Reconcile: suspend, resize and the active deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allranks.api.status import RestartCounts
from allranks.core.facts.model import Plan
from support.builders import (
    Life,
    at,
    failed,
    job,
    started,
    succeeded,
)

from .reconcile_helpers import ALL, GROUP, condition


def test_suspend_is_written_first_then_the_pods_are_deleted_and_the_job_stays():
    life = started(job(**GROUP))
    life.job = job(**GROUP, suspend=True)
    plan = life.step(60)
    assert (plan.write_ahead, life.status.phase) == (True, "Suspended")
    assert [gone.name for gone in life.step(60).delete] == ALL
    life.settle(60)
    assert condition(life, "Suspended") == ("True", "Suspended", "spec.suspend is true")
    assert (life.status.ready, life.status.roles["worker"].active) == ("0/3", 0)
    assert life.step(9_999) == Plan()


def test_resume_begins_a_new_attempt_that_counts_against_nothing():
    life = started(job(**GROUP))
    life.job = job(**GROUP, suspend=True)
    life.settle(60)
    life.job = job(**GROUP)
    life.settle(600)
    assert (life.status.phase, life.status.attempt, life.status.restarts) == ("Pending", 1, RestartCounts())
    assert sorted(life.pods) == ["job-master-0-1", "job-worker-0-1", "job-worker-1-1"]
    life.run(610)
    assert (life.status.phase, condition(life, "Suspended")[0]) == ("Running", "False")


def test_a_job_created_suspended_creates_nothing_until_it_is_resumed():
    life = Life(job(**GROUP, suspend=True))
    assert life.settle(0).create == ()
    assert (life.status.phase, life.pods) == ("Suspended", {})
    life.job = job(**GROUP)
    life.settle(60)
    assert (life.status.attempt, sorted(life.pods)) == (0, ALL)


def test_a_job_suspended_while_it_waits_for_its_backoff_stays_without_pods():
    life = started(job(**GROUP))
    life.status = replace(life.status, restarts=RestartCounts(counted=1))
    life.put(failed("worker", 0, after=200))
    life.settle(200)
    life.job = job(**GROUP, suspend=True)
    assert life.settle(205).wake_at is None
    assert (life.status.phase, life.pods) == ("Suspended", {})


def test_a_job_that_completed_when_it_is_suspended_has_succeeded():
    life = started(job(**GROUP))
    life.job = job(**GROUP, suspend=True)
    life.put(succeeded("master"))
    life.settle(61)
    assert life.status.phase == "Succeeded"


def test_a_group_that_is_resized_restarts_at_its_new_size_and_counts_nothing():
    life = started(job(**GROUP))
    life.job = job(roles={"master": 1, "worker": 1}, generation=2)
    assert life.step(60).write_ahead
    life.settle(60)
    assert (life.status.attempt, life.status.restarts) == (1, RestartCounts())
    assert sorted(life.pods) == ["job-master-0-1", "job-worker-0-1"]
    life.run(61)
    assert (life.status.ready, life.status.observed_generation) == ("2/2", 2)


def test_a_restart_applies_the_new_size():
    life = started(job(**GROUP))
    life.put(failed("worker", 1))
    life.job = job(roles={"master": 1, "worker": 3})
    life.settle(61)
    life.run(62)
    assert (life.status.attempt, life.status.ready) == (1, "4/4")


@pytest.mark.parametrize(
    "change",
    [
        {"image": "me/train:2"},
        {"env": [{"name": "X", "value": "1"}]},
        {"ttlSecondsAfterFinished": 5},
        {"restart": {"maxRestarts": 9}},
        {"startupDeadlineSeconds": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_running_pods_stay_whatever_changed(change):
    life = started(job(**GROUP))
    life.job = job(**GROUP | change)
    assert life.settle(5000) == Plan()


def test_the_active_deadline_fires_without_another_event():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    assert life.settle(50).wake_at == at(100)
    life.settle(99.9)
    assert life.status.phase == "Running"
    life.settle(100)
    assert condition(life, "Failed") == ("True", "DeadlineExceeded", "not done within activeDeadlineSeconds (100)")
    assert life.pods == {}


def test_the_active_deadline_counts_time_unsuspended():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    life.job = job(**GROUP, activeDeadlineSeconds=100, suspend=True)
    life.settle(40)
    assert life.settle(5000).wake_at is None
    life.job = job(**GROUP, activeDeadlineSeconds=100)
    assert life.settle(6000).wake_at == at(6060)


def test_the_active_deadline_spans_restarts():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    life.put(failed("worker", 1, after=60))
    assert life.settle(61).wake_at == at(100)


def test_a_removed_deadline_does_not_apply():
    life = started(job(**GROUP, activeDeadlineSeconds=100))
    life.job = job(**GROUP)
    assert life.settle(5000) == Plan()
    assert life.status.phase == "Running"
