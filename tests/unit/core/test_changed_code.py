"""A job whose code is replaced: its ranks restart with it, and wait for it while somebody develops the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.job import Job
from allranks.api.status import CodeStatus, ProgressStatus, Status
from allranks.core.facts import development
from allranks.core.facts.model import Exit, Observed, Plan
from allranks.core.facts.processes import PodProcess, Processes
from allranks.core.facts.restarts import RESTART_ANNOTATION
from allranks.core.objects import pods as pod_manifests
from allranks.core.reconcile import reconcile
from support.builders import at, failure, pod

from .test_restart_in_pods import PLATFORM, RUNNING, crashed, down, look, orders, runs, supervised

OLD, NEW = "a" * 64, "b" * 64
STORED = CodeStatus(config_map="code-a", sha256=OLD, time=at(0))


def shipped(sha256: str = NEW, until: float | None = None, **spec: Any) -> Job:
    """A job with code. `until`: somebody develops it."""
    code = {"configMap": f"code-{sha256[0]}", "sha256": sha256}
    job = supervised(code=code, **spec)
    annotations = {development.ANNOTATION: at(until).isoformat()} if until is not None else {}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})


def runs_old(**fields: Any) -> Status:
    return replace(RUNNING, code=STORED, **fields)


def failed(attempt: int = 0, after: float = 60) -> PodProcess:
    return replace(crashed(attempt, after), code=OLD)


BOTH_RUN = {0: runs(code=OLD), 1: runs(code=OLD)}
ONE_FAILED = {0: runs(code=OLD), 1: failed()}


def decided(observation: Observed) -> Plan:
    plan = reconcile(observation)
    assert plan.write_ahead
    assert plan.next is not None
    return plan


def next_status(observation: Observed) -> Status:
    status = decided(observation).next
    assert status is not None
    return status


def test_ranks_restart_in_their_pods_when_the_code_changes_and_it_counts_for_nothing():
    plan = decided(look(BOTH_RUN, shipped(), runs_old()))
    assert plan.next is not None
    assert (plan.next.attempt, plan.next.pods_of_attempt, plan.next.restarts) == (1, 0, RUNNING.restarts)
    assert plan.next.code == CodeStatus(config_map="code-b", sha256=NEW, time=at(61))
    past = plan.next.history[-1]
    assert (past.reason, past.how, past.counted) == ("CodeChanged", "InPlace", False)
    [event] = plan.events
    assert (event.reason, event.message.split(":")[0]) == ("CodeChanged", f"code {NEW[:12]}")


def test_the_same_code_restarts_nothing():
    assert not reconcile(look(BOTH_RUN, shipped(OLD), runs_old())).write_ahead


def test_pods_whose_helper_cannot_replace_the_code_are_replaced():
    past = next_status(look({0: runs(code=OLD), 1: runs()}, shipped(), runs_old())).history[-1]
    assert (past.how, past.why_new_pods) == ("NewPods", "the helper in worker-1 cannot replace the code")


def test_an_operator_of_an_attempt_without_a_record_of_code_restarts_nothing():
    assert not reconcile(look(BOTH_RUN, shipped(), RUNNING)).write_ahead


def test_pods_have_the_code_of_their_attempt_although_the_job_has_other_code():
    manifests = pod_manifests.objects(shipped(), runs_old(), PLATFORM).pods
    helper = manifests[0]["spec"]["initContainers"][0]
    assert OLD in helper["command"]
    assert NEW not in helper["command"]
    assert {"name": "code-a"} in [volume.get("configMap") for volume in manifests[0]["spec"]["volumes"]]


def awaiting(until: float, **fields: Any) -> Status:
    """Attempt 1 waits for other code, in the pods of attempt 0."""
    return next_status(look(ONE_FAILED, shipped(OLD, until), runs_old(**fields)))


def test_a_failure_while_somebody_develops_the_job_waits_for_other_code_in_the_pods():
    status = awaiting(200)
    assert (status.phase, status.attempt, status.pods_of_attempt) == ("Restarting", 1, 0)
    assert (status.restart_time, status.restarts) == (at(200), RUNNING.restarts)
    assert status.code is not None
    assert status.code.awaits_change is True
    past = status.history[-1]
    assert (past.reason, past.counted, past.how) == ("Error", False, "InPlace")


def test_a_job_that_is_developed_does_not_fail_when_its_budget_is_used():
    of = shipped(OLD, 200, restart={"maxRestarts": 0})
    assert next_status(look(ONE_FAILED, of, runs_old())).phase == "Restarting"
    assert next_status(look(ONE_FAILED, shipped(OLD, 60, restart={"maxRestarts": 0}), runs_old())).phase == "Failed"
    assert next_status(look(ONE_FAILED, shipped(OLD, restart={"maxRestarts": 0}), runs_old())).phase == "Failed"


def without_code(**annotations: str) -> Job:
    """A job that somebody develops on one machine: its files are not shipped."""
    job = supervised(checkpoint={"claim": "weights"})
    annotations = {development.ANNOTATION: at(200).isoformat(), **annotations}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})


def test_a_failure_of_a_job_without_code_waits_for_a_request_while_somebody_develops_it():
    status = next_status(look({0: runs(), 1: crashed()}, without_code(), RUNNING))
    assert (status.phase, status.attempt, status.restart_time) == ("Restarting", 1, at(200))
    waiting = {0: down(), 1: down()}
    assert orders(look(waiting, without_code(), status)) == {}
    assert next_condition(look(waiting, without_code(), status, now=90))[0] == "AwaitingCode"
    requested = next_status(look(waiting, without_code(**{RESTART_ANNOTATION: "1"}), status, now=91))
    assert (requested.attempt, requested.pods_of_attempt, requested.restart_time, requested.code) == (2, 0, None, None)


def test_a_request_asks_no_rank_for_a_checkpoint_while_somebody_develops_the_job():
    progress = ProgressStatus(step=3, saves_on_request=True, first_step_time=at(5), last_report=at(60))
    saves = replace(RUNNING, progress=progress)
    developed = without_code(**{RESTART_ANNOTATION: "0"})
    assert next_status(look({0: runs(), 1: runs()}, developed, saves)).attempt == 1
    del developed.metadata.annotations[development.ANNOTATION]
    assert next_status(look({0: runs(), 1: runs()}, developed, saves)).checkpoint_request is not None


def test_ranks_that_wait_for_code_are_ended_and_not_started():
    status = awaiting(200)
    of = shipped(OLD, 200)
    assert orders(look(ONE_FAILED, of, status)) == {"0-0": ("Stop", 1), "1-0": ("Stop", 1)}
    waiting = {0: down(code=OLD), 1: down(code=OLD)}
    assert orders(look(waiting, of, status)) == {}
    reason, message = next_condition(look(waiting, of, status, now=90))
    assert reason == "AwaitingCode"
    assert message == f"the ranks start with the next code, or at {at(200):%H:%M:%S} UTC (allranks dev is attached)"


def next_condition(observation: Observed) -> tuple[str, str]:
    status = reconcile(observation).next or observation.persisted
    [condition] = [c for c in status.conditions if c.type == "Restarting"]
    return condition.reason, condition.message


def test_the_next_code_begins_at_once_in_the_pods_that_wait():
    waiting = {0: down(code=OLD), 1: down(code=OLD)}
    status = next_status(look(waiting, shipped(NEW, 200), awaiting(200), now=90))
    assert (status.attempt, status.pods_of_attempt, status.restart_time) == (2, 0, None)
    assert status.code == CodeStatus(config_map="code-b", sha256=NEW, time=at(90))
    stopped = {0: down(2, code=OLD), 1: down(2, code=NEW)}
    starts = {o.pod_uid[-3:]: o.code for o in reconcile(look(stopped, shipped(NEW, 200), status, now=91)).orders}
    assert starts == {"0-0": NEW, "1-0": ""}


def test_a_renewal_extends_the_wait_and_its_end_starts_the_ranks():
    status, waiting = awaiting(200), {0: down(code=OLD), 1: down(code=OLD)}
    assert next_status(look(waiting, shipped(OLD, 260), status, now=100)).restart_time == at(260)
    assert not reconcile(look(waiting, shipped(OLD, 200), status, now=100)).write_ahead
    asleep = reconcile(look(waiting, shipped(OLD, 200), status, now=200))
    assert {(o.action, o.code) for o in asleep.orders} == {("Start", "")}
    again = look({0: runs(1, code=OLD), 1: failed(1, 205)}, shipped(OLD, 200), status, now=206)
    assert next_status(again).restarts.counted == 1


def test_code_that_was_saved_before_a_failure_starts_at_once():
    status = next_status(look(ONE_FAILED, shipped(NEW, 200), runs_old()))
    assert (status.restart_time, status.code) == (None, CodeStatus(config_map="code-b", sha256=NEW, time=at(61)))


def test_ranks_that_are_starting_start_before_they_are_replaced_while_somebody_develops_the_job():
    starting = runs_old(running_time=None, phase="Pending")
    processes = {0: runs(code=OLD)}
    young = {1: pod(index=1, phase="Pending")}
    assert not reconcile(look(processes, shipped(NEW, 200), starting, pods=young)).write_ahead
    assert next_status(look(processes, shipped(NEW), starting, pods=young)).attempt == 1


def test_a_disruption_restarts_a_job_that_is_developed_at_once():
    lost = {0: pod(phase="Failed", exit=Exit(137, at(60), "Evicted"))}
    status = next_status(look({1: runs(code=OLD)}, shipped(OLD, 200), runs_old(), pods=lost))
    assert status.restart_time is None or status.restart_time < at(200)
    assert status.code == STORED


def test_the_fourth_edit_with_an_error_keeps_the_pods():
    earlier = [
        replace(past, attempt=number, how="InPlace", failure=failure(attempt=number, index=1))
        for number, past in enumerate(awaiting(200).history * 3)
    ]
    status = runs_old(attempt=3, pods_of_attempt=0, history=earlier)
    ended = {0: runs(3, code=OLD), 1: failed(3)}
    assert next_status(look(ended, shipped(OLD, 200), status)).pods_of_attempt == 0
    assert next_status(look(ended, shipped(OLD), status)).pods_of_attempt is None


def test_an_operator_that_was_killed_after_the_code_changed_gives_the_same_orders():
    status = next_status(look(BOTH_RUN, shipped(), runs_old()))
    both_down = {0: down(code=OLD), 1: down(code=OLD)}
    observation = look(both_down, shipped(), status, now=70)
    restarted = replace(observation, processes=Processes(at(69), observation.processes.by_pod))  # type: ignore[union-attr]
    assert reconcile(restarted).orders == reconcile(observation).orders
    assert {o.code for o in reconcile(observation).orders} == {NEW}


def test_a_pod_that_cannot_have_the_code_ends_and_the_attempt_gets_new_pods_that_have_it():
    status = next_status(look(BOTH_RUN, shipped(), runs_old()))
    words = f"allranks: code {NEW[:12]}: the operator does not provide it"
    ended = {0: pod(phase="Failed", exit=Exit(143, at(70), message=f"attempt 0\n{words}\n"))}
    observation = look({1: down(code=OLD)}, shipped(), status, now=71, pods=ended)
    fallen = next_status(observation)
    assert (fallen.attempt, fallen.pods_of_attempt, fallen.restarts) == (1, None, RUNNING.restarts)
    why = fallen.history[-1].why_new_pods
    assert why == f"the container of worker-0 has ended: code {NEW[:12]}: the operator does not provide it"
    manifests = pod_manifests.objects(shipped(), fallen, PLATFORM).pods
    assert NEW in manifests[0]["spec"]["initContainers"][0]["command"]
