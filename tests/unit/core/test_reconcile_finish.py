"""Reconcile: success, cleanup and TTL of finished jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import Hold
from allranks.core.facts.model import Plan
from allranks.core.facts.topology import CLEANUP_GRACE
from support.builders import (
    Life,
    at,
    failed,
    job,
    started,
    succeeded,
    table,
)

from .reconcile_helpers import ALL, GROUP, PS_JOB, condition


def test_success_is_written_first_then_peers_may_end_then_running_pods_are_deleted():
    life = started(job(**GROUP))
    life.put(succeeded("master", after=60))
    plan = life.step(61)
    assert (plan.write_ahead, life.status.phase, life.status.completion_time) == (True, "Succeeded", at(61))
    assert condition(life, "Complete") == ("True", "Completed", "training completed")
    assert life.settle(61).wake_at == at(61) + CLEANUP_GRACE
    assert sorted(life.pods) == ALL, "rank 0 often completes a moment before the others"
    life.put(succeeded("worker", 0, after=62))
    life.settle(71)
    assert sorted(life.pods) == ["job-master-0-0", "job-worker-0-0"], "only running pods are deleted"
    assert life.settle(1000) == Plan()


def test_parameter_servers_and_their_workers_are_deleted_at_once_because_they_never_end():
    life = started(job(**PS_JOB))
    life.put(succeeded("chief"))
    life.settle(61)
    assert sorted(life.pods) == ["job-chief-0-0"]


# Sentence, cleanPodPolicy, remaining pods.
POLICIES = [
    ("Running deletes running pods", "Running", ["job-master-0-0", "job-worker-0-0"]),
    ("All deletes all", "All", []),
    ("None deletes nothing", "None", ALL),
]


@table(*POLICIES)
def test_cleanPodPolicy(case):
    policy, left = case
    life = started(job(**GROUP, cleanPodPolicy=policy))
    life.put(succeeded("master"), succeeded("worker", 0))
    life.settle(61)
    life.settle(100)
    assert sorted(life.pods) == left


@table(*POLICIES)
def test_cleanPodPolicy_of_a_failed_job_applies_at_once(case):
    policy, left = case
    life = started(job(**GROUP, cleanPodPolicy=policy, restart={"maxRestarts": 0}))
    life.put(failed("master"), failed("worker", 0))
    life.settle(61)
    assert sorted(life.pods) == left


def test_a_finished_job_is_deleted_after_its_ttl():
    life = started(job(**GROUP, ttlSecondsAfterFinished=100))
    life.put(succeeded("master"), succeeded("worker", 0), succeeded("worker", 1))
    life.step(61)
    assert life.settle(62).wake_at == at(161)
    assert life.step(160.9).delete_job is False
    assert life.step(161) == Plan(delete_job=True)


def test_a_ttl_of_zero_deletes_at_once():
    life = started(job(**GROUP, ttlSecondsAfterFinished=0))
    life.put(succeeded("master"))
    life.step(61)
    assert life.step(61) == Plan(delete_job=True)


def ended(phase: str) -> Life:
    life = started(job(**GROUP, restart={"maxRestarts": 0}, cleanPodPolicy="None"))
    life.put(succeeded("master") if phase == "Succeeded" else failed("master"))
    life.settle(61)
    assert life.status.phase == phase
    return life


def _fails(life: Life) -> None:
    life.put(failed("worker", 1, after=62))


def _disappears(life: Life) -> None:
    life.pods.clear()


def _suspends(life: Life) -> None:
    life.job = job(**GROUP, suspend=True, cleanPodPolicy="None")


def _resizes(life: Life) -> None:
    life.job = job(roles={"master": 1, "worker": 5}, cleanPodPolicy="None")


def _expires(life: Life) -> None:
    life.job = job(**GROUP, activeDeadlineSeconds=1, cleanPodPolicy="None")


def _succeeds(life: Life) -> None:
    life.put(*(succeeded(p.role, p.index, after=63) for p in life.pods.values()))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("change", [_fails, _disappears, _suspends, _resizes, _expires, _succeeds])
def test_a_finished_job_never_restarts_and_its_verdict_never_changes(phase, change):
    life = ended(phase)
    before = life.status
    change(life)
    assert not life.settle(500).create
    assert not [event for event in life.events if event == "PodsCreated"][1:]
    for field in ("phase", "conditions", "attempt", "restarts", "last_failure", "completion_time"):
        assert getattr(life.status, field) == getattr(before, field), field


LOST = "torch.distributed.DistNetworkError: Connection was likely closed."
RAISED = 'Traceback (most recent call last):\n  File "t.py", line 3\nValueError: sample 4711 is broken'


def test_the_cause_of_a_failed_job_is_corrected_when_the_rank_that_raised_ends_later():
    life = started(job(**GROUP, restart={"maxRestarts": 0}, cleanPodPolicy="None"))
    life.put(failed("master", message=LOST))
    life.settle(61)
    assert life.status.last_failure is not None
    assert (life.status.phase, life.status.last_failure.because) == ("Failed", "LostPeer")
    life.put(failed("worker", 1, after=69, code=143, message=RAISED, deleted_at=at(61)))
    life.settle(70)
    cause, past = life.status.last_failure, life.status.history[-1].failure
    assert (cause.role, cause.index, cause.exit_code, cause.signal) == ("worker", 1, None, None)
    assert past is not None
    assert (past.index, past.message) == (1, "ValueError: sample 4711 is broken")
    failed_condition = condition(life, "Failed")
    assert failed_condition[1] == "MaxRestartsExceeded"
    assert failed_condition[2].startswith("worker-1 failed (Error): restart.maxRestarts is 0; last line: ValueError")
    assert "CauseFound" in life.events
    assert life.settle(80).empty


def test_the_cause_of_a_failed_job_is_corrected_when_another_rank_says_which_one_it_waited_for():
    life = started(job(**GROUP, restart={"maxRestarts": 0}, cleanPodPolicy="None"))
    life.put(failed("worker", 0, message=LOST))
    life.settle(61)
    life.put(
        failed("master", after=62, message="RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 8 ms")
    )
    life.put(failed("worker", 1, after=69, code=143, deleted_at=at(61)))
    life.settle(70)
    cause = life.status.last_failure
    assert cause is not None
    assert (cause.role, cause.index, cause.rank, cause.because) == ("worker", 1, 2, "Absent")
    assert condition(life, "Failed")[2].startswith("worker-1 had not come to a collective when another rank gave up")
    assert life.settle(80).empty


def held(**spec: Any) -> Life:
    restart = {"maxRestarts": 0, "holdSeconds": 100}
    life = started(job(**GROUP, restart=restart, resources={"limits": {"nvidia.com/gpu": 2}}, **spec))
    life.put(failed("master"))
    life.settle(61)
    assert life.status.hold == Hold(until=at(161), pods=3, gpus=4)
    return life


def test_a_failed_job_keeps_its_pods_until_the_hold_is_over():
    life = held()
    assert sorted(life.pods) == ALL
    assert life.settle(160).wake_at == at(161)
    assert sorted(life.pods) == ALL
    life.settle(161)
    assert (sorted(life.pods), life.status.hold) == (["job-master-0-0"], None)


def test_the_gpus_of_the_hold_are_those_of_pods_that_have_not_ended():
    life = held()
    life.put(failed("worker", 0, after=70))
    life.settle(80)
    assert life.status.hold == Hold(until=at(161), pods=3, gpus=2)


def test_a_longer_hold_applies_to_a_job_that_is_held_and_zero_ends_it():
    life = held()
    longer = {"maxRestarts": 0, "holdSeconds": 500}
    life.job = job(**GROUP, restart=longer)
    assert life.settle(200).wake_at == at(561)
    assert sorted(life.pods) == ALL
    life.job = job(**GROUP, restart={**longer, "holdSeconds": 0})
    life.settle(201)
    assert (sorted(life.pods), life.status.hold) == (["job-master-0-0"], None)


def test_a_local_run_holds_nothing():
    life = started(job(**GROUP, restart={"maxRestarts": 0, "holdSeconds": 100}))
    life.platform = replace(life.platform, local=True)
    life.put(failed("master"))
    life.settle(61)
    assert (sorted(life.pods), life.status.hold) == (["job-master-0-0"], None)
