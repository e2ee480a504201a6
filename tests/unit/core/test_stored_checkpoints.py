"""`status.checkpoints`, and the attempt after one that could not read the newest checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.status import ProgressStatus, Rollback, Status, StoredCheckpoint
from allranks.core.diagnosis import restart_policy
from allranks.core.facts import stored_checkpoints
from allranks.core.facts.model import Observed
from allranks.core.facts.rank_reports import Reports
from allranks.core.objects import pods
from allranks.frameworks.base import HELPER_DIR
from support.builders import CLUSTER, NOW, Life, at, environment, failed, job, rank, table

CHECKPOINT = {"claim": "checkpoints", "subPath": "mine"}
TORN = "_pickle.UnpicklingError: pickle data was truncated"


def listed(*steps: int, **fields: Any) -> tuple[StoredCheckpoint, ...]:
    return tuple(
        StoredCheckpoint(step=step, time=at(step), path=f"/checkpoints/step-{step}", **fields) for step in steps
    )


class Reporting(Life):
    """A job whose ranks report."""

    reports: Reports | None = None

    def look(self, now: float) -> Observed:
        return replace(super().look(now), reports=self.reports)


def steps(status: Status) -> list[int]:
    return [checkpoint.step for checkpoint in status.checkpoints]


def reported(step: int, seconds: float, **status: Any) -> Status:
    return Status(progress=ProgressStatus(checkpoint_step=step, checkpoint_time=at(seconds)), **status)


def test_a_reported_checkpoint_is_listed_until_a_rank_lists_the_directory():
    status = stored_checkpoints.observe(reported(4, 10), Reports(NOW))
    assert [(each.step, each.path, each.complete) for each in status.checkpoints] == [(4, "", None)]
    status = stored_checkpoints.observe(status, Reports(NOW, checkpoints=listed(4, 8)))
    assert [each.path for each in status.checkpoints] == ["/checkpoints/step-4", "/checkpoints/step-8"]
    assert stored_checkpoints.observe(status, Reports(NOW, checkpoints=listed(4, 8))) is status
    assert stored_checkpoints.observe(status, None) is status


def test_checkpoints_that_the_program_has_deleted_leave_the_list():
    status = Status(checkpoints=list(listed(4, 8)))
    assert steps(stored_checkpoints.observe(status, Reports(NOW, checkpoints=listed(8, 12)))) == [8, 12]
    older = reported(4, 4, checkpoints=list(listed(4, 8)))
    assert steps(stored_checkpoints.observe(older, Reports(NOW, checkpoints=listed(8, 12)))) == [8, 12]


def test_the_list_has_the_newest_five():
    status = reported(99, 99, checkpoints=list(listed(1, 2, 3, 4, 5)))
    assert steps(stored_checkpoints.observe(status, None)) == [2, 3, 4, 5, 99]


@table(
    ("the newest that is older", CHECKPOINT, listed(4, 8, 12), 8),
    ("no older one", CHECKPOINT, listed(12), None),
    ("one that is torn", CHECKPOINT, (*listed(4), *listed(8, complete=False)), 4),
    ("one whose hash differs", CHECKPOINT, (*listed(4), *listed(8, verified=False)), 4),
    ("only reported", CHECKPOINT, tuple(replace(each, path="") for each in listed(4, 8)), None),
    ("a volume that ends with its pod", {"volume": {"emptyDir": {}}}, listed(4, 8, 12), None),
)
def test_the_checkpoint_before_one_that_cannot_be_read(case):
    checkpoint, checkpoints, expected = case
    before = stored_checkpoints.before(job(checkpoint=checkpoint), Status(checkpoints=list(checkpoints)), 12)
    assert (before.step if before else None) == expected


def began(*steps: int, **fields: Any) -> Reporting:
    """A job that has come to step 9, and whose second attempt runs and has listed these checkpoints."""
    life = Reporting(job(checkpoint=CHECKPOINT, roles={"worker": 2}, restart={"backoffSeconds": 0}))
    life.settle(0)
    life.reports = Reports(NOW, (rank(0, 9, checkpoint_step=4, checkpoint_at=at(5)), rank(1, 9)))
    life.run(1)
    fail(life, 10, "", code=137)
    listen(life, *steps, **fields)
    return life


def listen(life: Reporting, *steps: int, **fields: Any) -> None:
    life.reports = Reports(NOW, checkpoints=listed(*steps, **fields))
    life.run(life.status.attempt * 20)


def fail(life: Reporting, seconds: float, message: str, code: int = 1) -> None:
    life.put(failed("worker", 1, attempt=life.status.attempt, after=seconds, code=code, message=message))
    life.reports = None if life.reports is None else replace(life.reports, ranks=())
    life.settle(seconds + 1)
    life.settle(seconds + 60)


def test_after_a_checkpoint_that_cannot_be_read_the_job_continues_from_the_one_before():
    life = began(4, 8)
    fail(life, 30, TORN)
    failure = life.status.last_failure
    assert failure is not None
    assert (failure.because, failure.checkpoint_step) == ("CheckpointUnreadable", 8)
    text = "the checkpoint of step 8, /checkpoints/step-8, cannot be read; the one before it is of step 4"
    assert failure.message == f"{text}\n{TORN}"
    assert life.status.rollback == Rollback(step=4, unreadable_step=8, attempt=1)
    decision = restart_policy.decide_restart(life.job, replace(life.status, history=life.status.history[:-1]), failure)
    text = "the checkpoint of step 8 is set aside, and the job continues from step 4"
    assert (decision.action, decision.explanation) == ("Restart", text)


def test_the_pods_of_that_attempt_set_the_checkpoint_aside_and_get_the_step():
    life = began(4, 8)
    fail(life, 30, TORN)
    made = pods.objects(life.job, life.status, CLUSTER)
    for pod in made.pods:
        assert environment(made, pod)["ALLRANKS_RESUME_STEP"] == "4"
        [helper, init] = pod["spec"]["initContainers"]
        assert helper["name"] == "allranks-helper"
        name = f"job-{life.job.metadata.uid[:8]}-attempt-1"
        assert init["command"][1:] == [f"{HELPER_DIR}/set_aside.py", "/checkpoints", "8", name, "--mover", "1"]
        assert {"name": "checkpoint", "mountPath": "/checkpoints", "subPath": "mine"} in init["volumeMounts"]
    local = pods.objects(life.job, life.status, replace(CLUSTER, local=True)).pods[0]
    assert "initContainers" not in local["spec"], "a local run moves it itself"


def test_the_attempt_after_that_reads_what_is_newest_again():
    life = began(4, 8)
    fail(life, 30, TORN)
    listen(life, 4)
    fail(life, 130, "", code=137)
    assert life.status.attempt == 3
    assert life.status.rollback is None
    made = pods.objects(life.job, life.status, CLUSTER)
    assert "ALLRANKS_RESUME_STEP" not in environment(made, made.pods[0])


def test_an_attempt_that_never_ran_leaves_the_rollback_to_the_next_one():
    life = began(4, 8)
    fail(life, 30, TORN)
    fail(life, 130, "", code=137)
    assert life.status.attempt == 3
    assert life.status.rollback == Rollback(step=4, unreadable_step=8, attempt=1)


def test_if_the_one_before_cannot_be_read_either_the_job_fails():
    life = began(2, 4, 8)
    fail(life, 30, TORN)
    listen(life, 2, 4)
    fail(life, 130, TORN)
    condition = life.status.condition("Failed")
    assert condition is not None
    assert "the checkpoint of step 8 could not be read either, and was set aside" in condition.message
    assert life.status.last_failure is not None
    assert life.status.last_failure.checkpoint_step == 4


def test_without_an_older_checkpoint_nothing_is_set_aside_and_the_second_time_fails():
    life = began(8)
    fail(life, 30, TORN)
    assert life.status.rollback is None
    listen(life, 8)
    fail(life, 130, TORN)
    condition = life.status.condition("Failed")
    assert condition is not None
    assert "its newest checkpoint cannot be read, twice" in condition.message
    assert "there is no older one" in life.status.last_failure.message  # type: ignore[union-attr]


def test_a_list_of_an_earlier_attempt_names_no_checkpoint():
    """The one that is torn was written after it."""
    life = began(4)
    life.reports = Reports(NOW)
    fail(life, 30, TORN)
    assert life.status.rollback is None
    failure = life.status.last_failure
    assert failure is not None
    assert (failure.because, failure.checkpoint_step) == ("CheckpointUnreadable", None)


def test_a_checkpoint_with_the_hashes_of_its_manifest_is_not_what_could_not_be_read():
    life = began(4, 8, verified=True)
    fail(life, 30, TORN)
    assert life.status.last_failure is not None
    assert life.status.last_failure.because is None
    assert life.status.rollback is None


def test_the_pods_get_the_number_of_checkpoints_to_keep():
    made = pods.objects(job(checkpoint={**CHECKPOINT, "keep": 3}), Status(), CLUSTER)
    assert environment(made, made.pods[0])["ALLRANKS_CHECKPOINT_KEEP"] == "3"


@table(
    ("in this pod", "job-worker-1-0", None),
    ("in another pod", "job-worker-0-0", "CheckpointUnreadable"),
)
def test_a_damaged_file_that_is_elsewhere_is_no_checkpoint(case):
    pod, because = case
    life = began(4, 8)
    assert life.reports is not None
    attempt = life.status.attempt
    life.reports = replace(life.reports, damage_elsewhere=frozenset({f"{pod.removesuffix('-0')}-{attempt}"}))
    fail(life, 30, TORN)
    assert life.status.last_failure is not None
    assert life.status.last_failure.because == because
    assert (life.status.rollback is None) == (because is None)
