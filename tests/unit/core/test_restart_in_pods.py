"""Whether ranks restart in their pods, and what their supervisors are ordered to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.job import Job
from allranks.api.status import PastAttempt, ReplicaRestarts, RoleStatus, Rollback, Status
from allranks.core import in_place
from allranks.core.accounting.progress import drop_stale
from allranks.core.diagnosis.processes import with_processes
from allranks.core.facts.attempt_pods import last_attempt_of, pods_of
from allranks.core.facts.model import Disruption, Exit, Observed, Pod
from allranks.core.facts.processes import PodProcess, Processes, ProcessExit
from allranks.core.facts.rank_reports import RankReport, Reports
from allranks.core.objects import pods as pod_manifests
from allranks.core.reconcile import reconcile
from allranks.core.snapshot import Snapshot
from support.builders import CLUSTER, at, failure, job, observed, pod, table

PLATFORM = replace(CLUSTER, report_url="http://allranks:8081/v1/report")
RUNNING = Status(
    phase="Running",
    start_time=at(0),
    attempt_time=at(0),
    running_time=at(5),
    first_running_time=at(5),
    launched=True,
    roles={"worker": RoleStatus(desired=2)},
)
EARLIER = [
    PastAttempt(attempt=0, start_time=at(0), end_time=at(60), reason="Error", counted=True, failure=failure(attempt=0))
]
IN_PODS = replace(
    RUNNING,
    phase="Restarting",
    attempt=1,
    pods_of_attempt=0,
    running_time=None,
    attempt_time=at(60),
    history=[replace(EARLIER[0], how="InPlace")],
)
"""Attempt 1 is to begin in the pods of attempt 0."""


def supervised(**spec: Any) -> Job:
    return job(progress={}, **spec)


def runs(attempt: int = 0, **fields: Any) -> PodProcess:
    return PodProcess(attempt, "Running", **({"connected": True, "started_at": at(5)} | fields))


def crashed(attempt: int = 0, after: float = 60, code: int = 1, **fields: Any) -> PodProcess:
    ended = ProcessExit(code, at(after), message=fields.pop("message", ""))
    return PodProcess(
        attempt, "Ended", connected=True, started_at=at(5), last_attempt=attempt, last_exit=ended, **fields
    )


def down(attempt: int = 1, **fields: Any) -> PodProcess:
    return PodProcess(attempt, "Down", **({"connected": True} | fields))


def look(
    states: Mapping[int, PodProcess],
    of: Job | None = None,
    status: Status = RUNNING,
    now: float = 61,
    pods: Mapping[int, Pod] | None = None,
    **fields: Any,
) -> Observed:
    """Two workers whose supervisors report this. `pods`: by index, instead of running ones."""
    present = {0: pod(index=0), 1: pod(index=1)} | dict(pods or {})
    by_pod = {present[index].uid: state for index, state in states.items()}
    base = observed(of or supervised(), status, present.values(), now, platform=PLATFORM)
    return replace(base, **({"processes": Processes(at(0), by_pod)} | fields))


def reason(observation: Observed, **of_failure: Any) -> str | None:
    """Why the next attempt has new pods after a failure of worker 1; None if it has not."""
    snapshot = Snapshot(with_processes(observation))
    ended = failure(**({"index": 1, "attempt": observation.persisted.attempt} | of_failure))
    return in_place.why_new_pods(snapshot, observation.persisted, ended)


FINE = {0: runs(), 1: crashed()}


def test_ranks_restart_in_their_pods_if_only_a_process_failed():
    assert reason(look(FINE)) is None


@table(
    ("restart.inPlace is Never", look(FINE, supervised(restart={"inPlace": "Never"})), ""),
    ("no report server", look({}, processes=None), ""),
    ("no helper runs the program", look({}, job()), in_place.NO_SUPERVISOR),
    (
        "a kubelet restarts the container",
        look(FINE, supervised(template={"spec": {"restartPolicy": "OnFailure"}})),
        in_place.NO_SUPERVISOR,
    ),
    ("another size", look(FINE, supervised(roles={"worker": 3})), "the size changes"),
    (
        "a pod that sets a checkpoint aside",
        look(FINE, status=replace(RUNNING, rollback=Rollback(step=1, unreadable_step=2, attempt=0))),
        "the pods set a checkpoint aside before they start",
    ),
    (
        "an ignored replica",
        look(FINE, status=replace(RUNNING, ignored=["worker-0"])),
        "some replicas have ended, or were replaced alone",
    ),
    (
        "a variable with the attempt",
        look(FINE, supervised(env=[{"name": "OUT", "value": "/out/$(ALLRANKS_ATTEMPT)"}])),
        "the pods of worker refer to the number of the attempt",
    ),
    ("a missing pod", look(FINE, pods={0: pod("evaluator")}), "worker-0 has no pod"),
    (
        "a disruption",
        look(FINE, pods={0: pod(disruption=Disruption("EvictionByEvictionAPI", at(60)))}),
        "the pod of worker-0 is removed (EvictionByEvictionAPI)",
    ),
    ("a deletion", look(FINE, pods={0: pod(deleted_at=at(60))}), "the pod of worker-0 is being deleted"),
    (
        "an ended container",
        look(FINE, pods={0: pod(phase="Failed", exit=Exit(1, at(60)))}),
        "the container of worker-0 has ended",
    ),
    (
        "a container that does not run",
        look({1: crashed()}, pods={0: pod(phase="Pending")}),
        "the container of worker-0 does not run",
    ),
    (
        "an unhealthy device",
        look(FINE, pods={0: pod(unhealthy_devices=("nvidia.com/gpu GPU-1",))}),
        "worker-0: the kubelet of node node-0 reports nvidia.com/gpu GPU-1 as unhealthy",
    ),
    (
        "a node with problems",
        look(FINE, node_problems={"node-0": "KernelDeadlock"}),
        "worker-0: node node-0 has KernelDeadlock",
    ),
    ("a supervisor that never reported", look({1: crashed()}), "the helper in worker-0 does not answer"),
    ("a lost connection", look({0: runs(connected=False), 1: crashed()}), "the helper in worker-0 does not answer"),
    ("a claim of a future attempt", look({0: runs(7), 1: crashed()}), "the helper in worker-0 does not answer"),
    (
        "a process of an older attempt",
        look({0: runs(0), 1: crashed(1)}, status=IN_PODS),
        "worker-0 has not ended attempt 0 yet",
    ),
)
def test_an_attempt_begins_with_new_pods_after(case: tuple[Observed, str]):
    observation, expected = case
    assert reason(observation) == expected


@table(
    ("a node", {"verdict": "Node"}, "the node or a device of a pod is at fault"),
    ("a device", {"because": "DeviceError"}, "the node or a device of a pod is at fault"),
    ("a network", {"because": "NetworkError"}, "the network of a pod may be at fault"),
    ("an eviction", {"reason": "Evicted"}, "the pod was lost (Evicted)"),
    ("a limit of memory", {"reason": "OOMKilled"}, "a container was killed for memory"),
)
def test_an_attempt_begins_with_new_pods_after_a_failure_of(case: tuple[dict[str, Any], str]):
    fields, expected = case
    assert reason(look(FINE), **fields) == expected


def in_a_row(*indices: int) -> Status:
    """Attempts in the same pods, each ended by a failure of the worker with this index, and the next one."""
    history = [
        replace(EARLIER[0], attempt=number, how="InPlace", failure=failure(attempt=number, index=index))
        for number, index in enumerate(indices)
    ]
    return replace(RUNNING, attempt=len(indices), pods_of_attempt=0, history=history)


def test_the_third_failure_in_a_row_of_a_rank_in_its_pod_ends_the_pods():
    processes = {0: runs(2), 1: crashed(2)}
    assert reason(look(processes, status=in_a_row(1, 1))) == "worker-1 failed 3 times in a row in the same pods"
    assert reason(look(processes, status=in_a_row(0, 1))) is None
    assert reason(look({0: runs(1), 1: crashed(1)}, status=in_a_row(1))) is None


def test_a_request_for_a_restart_keeps_the_pods():
    snapshot = Snapshot(with_processes(look({0: runs(), 1: runs()})))
    assert in_place.why_new_pods(snapshot, RUNNING) is None


def orders(observation: Observed) -> dict[str, tuple[str, int]]:
    return {order.pod_uid[-3:]: (order.action, order.attempt) for order in reconcile(observation).orders}


@table(
    ("all run", {0: runs(0), 1: crashed(0)}, {"0-0": ("Stop", 1), "1-0": ("Stop", 1)}),
    ("some are down", {0: runs(0), 1: down()}, {"0-0": ("Stop", 1)}),
    ("all are down", {0: down(), 1: down()}, {"0-0": ("Start", 1), "1-0": ("Start", 1)}),
    ("one has started", {0: down(), 1: runs(1)}, {"0-0": ("Start", 1)}),
    ("one is not there yet", {1: down()}, {}),
    ("one claims a future attempt", {0: runs(3), 1: down()}, {}),
)
def test_no_rank_starts_before_all_pods_are_down(case: tuple[Any, Any]):
    processes, expected = case
    assert orders(look(processes, status=IN_PODS)) == expected


def test_no_rank_starts_before_the_end_of_the_backoff():
    later = replace(IN_PODS, restart_time=at(80))
    assert orders(look({0: down(), 1: down()}, status=later)) == {}
    assert orders(look({0: down(), 1: down()}, status=later, now=80)) == {
        "0-0": ("Start", 1),
        "1-0": ("Start", 1),
    }


def test_a_start_has_the_variables_that_differ():
    of = supervised(checkpoint={"path": "/checkpoints", "claim": "team"})
    [first, _] = reconcile(look({0: down(), 1: down()}, of, IN_PODS)).orders
    assert first.env == {"ALLRANKS_ATTEMPT": "1", "ALLRANKS_RESUME_STEP": None}


@table(
    ("the default after a failure", {}, 30),
    ("restart.graceSeconds", {"restart": {"graceSeconds": 5}}, 5),
    ("pods that have less", {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}, 7),
)
def test_processes_have_the_grace_period_of_a_failure(case: tuple[dict[str, Any], int]):
    spec, seconds = case
    [first, _] = reconcile(look({0: runs(0), 1: crashed(0)}, supervised(**spec), IN_PODS)).orders
    assert first.grace_seconds == seconds


def test_what_a_decision_needs_is_ordered_when_it_is_persisted():
    plan = reconcile(look(FINE))
    assert plan.write_ahead
    assert plan.orders == ()


@pytest.mark.parametrize("phase", ["Failed", "Suspended"])
def test_programs_that_have_ended_end_their_pods_when_no_attempt_follows(phase: Any):
    over = replace(RUNNING, phase=phase, completion_time=at(61) if phase == "Failed" else None)
    of = supervised(cleanPodPolicy="None", suspend=phase == "Suspended")
    counted = reconcile(look(FINE, of, over)).next or over
    assert orders(look(FINE, of, counted))["1-0"] == ("Exit", 0)


def test_the_pod_of_an_ignored_rank_ends():
    ignored = replace(RUNNING, ignored=["worker-1"])
    assert orders(look(FINE, status=ignored)) == {"1-0": ("Exit", 0)}


def test_an_attempt_that_does_not_run_in_time_gets_new_pods():
    observation = look({1: down()}, status=IN_PODS, now=60 + 30 + 19)
    assert reconcile(observation).next is None or reconcile(observation).next.pods_of_attempt == 0
    plan = reconcile(replace(observation, now=at(60 + 30 + 20)))
    assert plan.next is not None
    assert (plan.next.attempt, plan.next.pods_of_attempt, plan.next.launched) == (1, None, False)
    assert plan.next.restarts == IN_PODS.restarts
    last = plan.next.history[-1]
    assert (last.how, last.why_new_pods) == ("NewPods", "worker-0 did not end the processes of attempt 0 in time")


def test_an_attempt_that_one_pod_does_not_start_in_time_gets_new_pods():
    observation = look({0: runs(1), 1: down()}, status=IN_PODS, now=60 + 30 + 19)
    plan = reconcile(observation)
    assert plan.next is None or plan.next.pods_of_attempt == 0
    assert [(order.action, order.attempt) for order in plan.orders] == [("Start", 1)]
    plan = reconcile(replace(observation, now=at(60 + 30 + 20)))
    assert plan.next is not None
    assert (plan.next.attempt, plan.next.pods_of_attempt) == (1, None)
    assert plan.next.restarts == IN_PODS.restarts
    last = plan.next.history[-1]
    assert (last.how, last.why_new_pods) == ("NewPods", "worker-1 did not start in time")


def test_a_new_operator_waits_until_supervisors_have_found_it():
    observation = replace(look({}, status=IN_PODS, now=200), processes=Processes(at(195)))
    assert not reconcile(observation).write_ahead
    assert reconcile(replace(observation, now=at(215))).write_ahead


def test_pods_of_a_running_attempt_run_until_a_supervisor_says_otherwise():
    running = replace(IN_PODS, running_time=at(70))
    observation = with_processes(look({}, status=running))
    assert [(p.phase, p.attempt) for p in observation.pods] == [("Running", 1), ("Running", 1)]
    waiting = with_processes(look({}, status=IN_PODS))
    assert [p.phase for p in waiting.pods] == ["Pending", "Pending"]


def test_a_program_that_failed_first_is_found_as_the_cause_although_its_pod_was_kept():
    late = ProcessExit(1, at(58), message="ValueError: no data")
    cause = failure(index=1, rank=1, pod="job-worker-1-0", time=at(60), because="LostPeer", message="connection closed")
    past = replace(EARLIER[0], how="InPlace", end_time=at(60), failure=cause)
    status = replace(IN_PODS, history=[past], last_failure=cause)
    status = replace(status, restarts=replace(status.restarts, counted=1, by_reason={"Error": 1}))
    plan = reconcile(look({0: replace(down(), last_attempt=0, last_exit=late), 1: down()}, status=status))
    assert plan.next is not None
    assert plan.next.last_failure is not None
    assert (plan.next.last_failure.index, plan.next.last_failure.attempt) == (0, 0)
    assert plan.next.restarts.counted == 1


def test_names_follow_the_pods_and_the_program_follows_the_attempt():
    manifests = pod_manifests.objects(supervised(), IN_PODS, PLATFORM).pods
    names = [manifest["metadata"]["name"] for manifest in manifests]
    assert names == ["job-worker-0-0", "job-worker-1-0"]
    assert {manifest["metadata"]["labels"]["allranks.dev/attempt"] for manifest in manifests} == {"0"}
    env = {item["name"]: item.get("value") for item in manifests[1]["spec"]["containers"][0]["env"]}
    assert env["ALLRANKS_ATTEMPT"] == "1"
    assert env["MASTER_ADDR"].startswith("job-worker-0-0.")


def test_the_history_says_which_attempts_pods_carried():
    hows = ["InPlace", "InPlace", "NewPods", "InPlace"]
    history = [replace(EARLIER[0], attempt=number, how=how) for number, how in enumerate(hows)]
    status = replace(RUNNING, attempt=4, pods_of_attempt=3, history=history)
    assert [pods_of(status, number) for number in range(5)] == [0, 0, 0, 3, 3]
    assert [last_attempt_of(status, number) for number in (0, 3)] == [2, 4]


# --- replicas that restart alone --------------------------------------------------------------------------------------


def alone(**spec: Any) -> Job:
    return supervised(restart={"scope": "Pod", "backoffSeconds": 0} | spec)


def after_restart(in_pod: int = 1, count: int = 1, launched: bool = False, **fields: Any) -> Status:
    """Worker 1 restarts alone, decided at 60 s."""
    entry = ReplicaRestarts(count=count, in_pod=in_pod, launched=launched, restart_time=at(60), **fields)
    return replace(RUNNING, replica_restarts={"worker-1": entry})


CRASHED = {0: runs(restart=0), 1: crashed(restart=0)}


def entry_after(observation: Observed) -> ReplicaRestarts:
    plan = reconcile(observation)
    assert plan.next is not None
    return plan.next.replica_restarts["worker-1"]


def test_a_replica_that_restarts_alone_restarts_in_its_pod():
    plan = reconcile(look(CRASHED, alone()))
    assert plan.next is not None
    entry = plan.next.replica_restarts["worker-1"]
    assert (entry.count, entry.in_pod, entry.pod_number, entry.launched) == (1, 1, 0, False)
    assert plan.next.attempt == 0
    assert plan.next.restarts.counted == 1
    assert plan.events[-1].message.endswith(": it restarts in its pod")
    assert plan.orders == ()


@table(
    ("restart.inPlace is Never", look(CRASHED, alone(inPlace="Never")), ""),
    ("a helper of an older version", look(FINE, alone()), "the helper in worker-1 cannot restart it alone"),
    (
        "an ended container",
        look({}, alone(), pods={1: pod(index=1, phase="Failed", exit=Exit(1, at(60)))}),
        "the container of worker-1 has ended",
    ),
    (
        "no helper runs the program",
        look({}, job(restart={"scope": "Pod"}), pods={1: pod(index=1, phase="Failed", exit=Exit(1, at(60)))}),
        "",
    ),
    (
        "the third failure in a row in its pod",
        look({1: crashed(restart=2)}, alone(), after_restart(2, 2, launched=True)),
        "worker-1 failed 3 times in a row in the same pod",
    ),
    (
        "a variable with the restart",
        look(
            CRASHED,
            supervised(
                restart={"scope": "Pod"},
                env=[
                    {
                        "name": "N",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['allranks.dev/restart']"}},
                    }
                ],
            ),
        ),
        "the pods of worker refer to the number of the restart",
    ),
    (
        "an unhealthy device",
        look(CRASHED, alone(), pods={1: pod(index=1, unhealthy_devices=("nvidia.com/gpu GPU-1",))}),
        "the node or a device of a pod is at fault",
    ),
)
def test_a_replica_that_restarts_alone_gets_a_new_pod_after(case: tuple[Observed, str]):
    observation, expected = case
    entry = entry_after(observation)
    assert entry.in_pod is None
    assert entry.pod_number == entry.count
    message = reconcile(observation).events[-1].message
    assert ("; a new pod: " in message) == bool(expected)
    assert expected in message


@table(
    ("it has ended", crashed(restart=0), {"1-0": ("Stop", 0, 1)}),
    ("it is down", down(0, restart=1), {"1-0": ("Start", 0, 1)}),
    ("it runs", runs(restart=1), {}),
    ("it claims a future restart", down(0, restart=2), {}),
    ("it is unknown", None, {}),
)
def test_a_replica_that_restarts_alone_waits_for_no_other_one(case: tuple[PodProcess | None, Any]):
    process, expected = case
    processes = {0: runs(restart=0)} | ({1: process} if process else {})
    given = reconcile(look(processes, alone(), after_restart())).orders
    assert {order.pod_uid[-3:]: (order.action, order.attempt, order.restart) for order in given} == expected


def test_a_replica_does_not_restart_in_its_pod_before_the_end_of_its_backoff():
    status = after_restart()
    entry = replace(status.replica_restarts["worker-1"], restart_time=at(80))
    waiting = replace(status, replica_restarts={"worker-1": entry})
    observation = look({0: runs(restart=0), 1: down(0, restart=1)}, alone(), waiting)
    plan = reconcile(observation)
    assert plan.orders == ()
    assert plan.wake_at == at(80)
    assert [order.action for order in reconcile(replace(observation, now=at(80))).orders] == ["Start"]


def test_a_replica_that_does_not_start_in_its_pod_in_time_gets_a_new_one():
    observation = look({0: runs(restart=0), 1: down(0, restart=1)}, alone(), after_restart(), now=79)
    plan = reconcile(observation)
    assert plan.next is None or plan.next.replica_restarts["worker-1"].in_pod == 1
    plan = reconcile(replace(observation, now=at(80)))
    assert plan.next is not None
    entry = plan.next.replica_restarts["worker-1"]
    assert (entry.count, entry.in_pod, entry.pod_number) == (1, None, 1)
    assert plan.next.restarts == RUNNING.restarts
    assert [event.message for event in plan.events] == ["a new pod for worker-1: worker-1 did not start in time"]


def test_a_program_that_has_started_again_in_its_pod_is_not_replaced_by_an_operator_that_comes_late():
    observation = look({0: runs(restart=0), 1: runs(restart=1)}, alone(), after_restart(), now=600)
    assert entry_after(observation).in_pod == 1
    assert entry_after(observation).launched


def test_a_new_operator_waits_for_the_supervisor_of_a_replica_that_restarts_alone():
    observation = look({}, alone(), after_restart(), now=200, processes=Processes(at(195)))
    assert not reconcile(observation).write_ahead
    assert [p.phase for p in with_processes(observation).pods] == ["Running", "Pending"]
    assert reconcile(replace(observation, now=at(215))).write_ahead
    ran = look({}, alone(), after_restart(launched=True), now=200, processes=Processes(at(195)))
    assert [p.phase for p in with_processes(ran).pods] == ["Running", "Running"]


def test_the_next_failure_in_the_pod_counts_again():
    entry = entry_after(look({0: runs(restart=0), 1: crashed(restart=1, code=3)}, alone(), after_restart()))
    assert (entry.count, entry.in_pod) == (2, 2)


def test_all_ranks_restart_in_pods_in_which_one_restarted_alone():
    snapshot = Snapshot(with_processes(look({0: runs(restart=0), 1: runs(restart=1)}, status=after_restart())))
    assert in_place.why_new_pods(snapshot, after_restart(launched=True)) is None
    replaced = after_restart(in_pod=0, launched=True)
    assert in_place.why_new_pods(snapshot, replaced) == "some replicas have ended, or were replaced alone"


def test_the_report_of_a_process_that_restarted_alone_is_dropped():
    report = RankReport("worker", 1, 0, 1, "job-worker-1-0", None, received_at=at(59), step=7)
    started = look({0: runs(restart=0), 1: runs(restart=1, started_at=at(60))}, alone(), after_restart())
    [kept] = [p for p in with_processes(started).pods if p.index == 1]
    reports = Reports(at(0), (report,))
    assert drop_stale(reports, [kept]).ranks == ()
    assert drop_stale(replace(reports, ranks=(replace(report, received_at=at(60)),)), [kept]).ranks != ()
