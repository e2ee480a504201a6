"""Bugs that the properties found, each as its smallest history."""

from __future__ import annotations

from typing import Any

from support.simulator import Lag

from .jobs import Spec
from .steps import Action
from .test_crashes import crash_everywhere
from .test_histories import roughly, step_by_step


def _spec(framework: str, roles: dict[str, int], **more: Any) -> Spec:
    spec: Spec = {
        "framework": framework,
        "image": "example.org/train:1",
        "command": ["python", "train.py"],
        "roles": {role: {"replicas": count} for role, count in roles.items()},
        "restart": {"maxRestarts": 3, "backoffSeconds": 10},
        "suspend": False,
        "cleanPodPolicy": "Running",
        "startupDeadlineSeconds": 600,
    }
    return spec | more


RUN_ALL: Action = ("run_all", 0, 0)


def test_a_replica_that_restarts_alone_waits_until_its_former_pod_terminates() -> None:
    spec = _spec("horovod", {"worker": 1}, restart={"maxRestarts": 3, "backoffSeconds": 10, "scope": "Pod"})
    for seed in range(8):
        roughly(spec, [("mark", 0, 0)], Lag(), seed, 0.0, None)


def test_the_failure_of_a_parameter_server_does_not_break_the_row_of_its_group() -> None:
    spec = _spec("tensorflow", {"chief": 1, "ps": 1})
    step_by_step(spec, [RUN_ALL, ("oom", 0, 0), RUN_ALL, ("exit", 1, 0), ("oom", 0, 0)], Lag(), 0)


def test_pods_that_end_because_the_job_is_over_are_not_counted_as_failed() -> None:
    crash_everywhere(_spec("horovod", {"worker": 1}, activeDeadlineSeconds=300), [RUN_ALL], 0)


def test_a_pod_that_ends_after_the_job_is_counted_before_its_cleanup_or_never() -> None:
    spec = _spec("pytorch", {"master": 1, "worker": 1}, cleanPodPolicy="All")
    for seed in range(4):
        crash_everywhere(spec, [RUN_ALL, ("done_all", 0, 0)], seed)


def test_a_pod_that_disappears_before_it_is_observed_counts_as_deleted() -> None:
    late = Lag(seconds=30.0, repeated=0.3)
    roughly(_spec("horovod", {"worker": 1}), [("jump", 0, 2), RUN_ALL, ("lose_node", 0, 0)], late, 1, 0.0, None)


def test_a_pod_that_never_ran_fails_no_earlier_than_it_is_observed() -> None:
    history: list[Action] = [("advance", 0, 1), ("run", 0, 0), ("exit", 0, 0), ("init_fail", 0, 0)]
    spec = _spec("horovod", {"worker": 2})
    roughly(spec, [*history, ("restart_operator", 0, 0)], Lag(seconds=2.0), 0, 0.0, None)


def test_a_pod_created_during_a_foreground_deletion_is_deleted_too() -> None:
    spec = _spec("tensorflow", {"chief": 1, "worker": 1, "ps": 2}, restart={"maxRestarts": 3, "backoffSeconds": 0})
    history: list[Action] = [RUN_ALL, ("exit", 3, 9), RUN_ALL, ("lose_node", 5, 6), ("exit", 1, 0)]
    lag = Lag(lost=0.6, repeated=0.5, relist_seconds=30.0)
    roughly(spec, history, lag, 0, 0.0, "Foreground")


def test_an_ignored_replica_does_not_replace_a_required_one() -> None:
    rules = [{"reasons": ["Deleted", "Evicted"], "action": "Ignore"}]
    spec = _spec("horovod", {"worker": 3}, restart={"maxRestarts": 3, "backoffSeconds": 10, "rules": rules})
    step_by_step(spec, [("run", 0, 0), ("run", 0, 0), ("disrupt", 0, 9)], Lag(), 0)


def test_a_failure_in_the_same_second_may_become_the_root_cause_of_the_past_attempt() -> None:
    restart = {"maxRestarts": 3, "backoffSeconds": 10, "scope": "Group"}
    spec = _spec("tensorflow", {"chief": 1, "ps": 1}, restart=restart)
    roughly(spec, [("advance", 0, 1), ("fail", 0, 1), ("oom", 0, 0)], Lag(seconds=2.0), 2, 0.0, None)


def test_individual_restarts_after_failures_during_an_outage_count_in_one_write() -> None:
    alone = {"maxRestarts": 3, "backoffSeconds": 10, "scope": "Pod"}
    outage: list[Action] = [RUN_ALL, ("stop_operator", 0, 0)]
    for ends in (["exit", "exit"], ["exit", "oom", "exit"], ["evict", "evict"], ["exit", "evict", "exit"]):
        spec = _spec("horovod", {"worker": len(ends)}, restart=alone)
        roughly(spec, [*outage, *((end, 0, 0) for end in ends)], Lag(), 0, 0.0, None)


def test_individual_restarts_of_workers_count_with_the_group_restart_of_the_chief() -> None:
    spec = _spec("tensorflow", {"chief": 1, "worker": 2, "ps": 1})
    outage: list[Action] = [RUN_ALL, ("stop_operator", 0, 0)]
    for order in ((2, 1, 0), (0, 1, 0), (1, 0, 0), (2, 0, 0, 0)):
        roughly(spec, [*outage, *(("exit", pod, 0) for pod in order)], Lag(), 0, 0.0, None)


def test_the_condition_of_an_elastic_job_says_how_many_pods_run_whenever_it_was_observed() -> None:
    spec = _spec("horovod", {"worker": 2}, elastic={"minReplicas": 1, "maxReplicas": 3, "waitSeconds": 10})
    crash_everywhere(spec, [("unschedulable", 1, 0), RUN_ALL], 0)


def test_an_eviction_within_the_grace_period_after_the_failure_of_another_rank_may_be_its_cause() -> None:
    history: list[Action] = [("restart_operator", 0, 0), RUN_ALL, ("exit", 0, 0), ("avalanche", 0, 8)]
    roughly(_spec("horovod", {"worker": 3}), history, Lag(seconds=2.0), 0, 0.0, None)


def test_an_evicted_rank_that_exited_with_0_in_that_second_may_be_the_cause_too() -> None:
    history: list[Action] = [("avalanche", 0, 0), RUN_ALL, ("exit", 0, 5), ("evict", 0, 3)]
    roughly(_spec("jax", {"worker": 2}), history, Lag(seconds=5.0, lost=0.3), 0, 0.0, None)


def test_an_eviction_that_the_watch_shows_late_may_first_count_as_the_exit_that_it_causes() -> None:
    history: list[Action] = [("max_restarts", 0, 5), RUN_ALL, ("evict", 0, 5)]
    for seed in range(40):
        roughly(_spec("jax", {"worker": 1}), history, Lag(seconds=30.0, repeated=0.3), seed, 0.0, None)
        roughly(_spec("jax", {"worker": 2}), history, Lag(seconds=30.0), seed, 0.0, None)


def test_an_elastic_job_shrinks_to_the_room_that_an_ignored_worker_leaves() -> None:
    rules = [{"reasons": ["Deleted", "Evicted"], "action": "Ignore"}]
    restart = {"maxRestarts": 3, "backoffSeconds": 10, "rules": rules}
    elastic = {"minReplicas": 1, "maxReplicas": 3, "waitSeconds": 10}
    spec = _spec("pytorch", {"worker": 2}, restart=restart, elastic=elastic)
    step_by_step(spec, [("unschedulable", 0, 0), ("delete", 1, 0), ("jump", 0, 2)], Lag(), 0)


def test_time_is_accounted_the_same_whether_or_not_the_end_of_an_ignored_pod_is_observed() -> None:
    rules = [{"reasons": ["Deleted", "Evicted"], "action": "Ignore"}]
    spec = _spec("horovod", {"worker": 3}, restart={"maxRestarts": 3, "backoffSeconds": 10, "rules": rules})
    for seed in range(4):
        crash_everywhere(spec, [*6 * [RUN_ALL], ("disrupt", 0, 9)], seed)


def test_a_group_may_restart_because_of_a_replica_whose_failure_was_already_counted_for_another() -> None:
    spec = _spec("tensorflow", {"chief": 1, "worker": 1, "ps": 2})
    history: list[Action] = [("avalanche", 3, 2), ("exit", 5, 5), ("exit", 5, 5), ("exit", 0, 2)]
    roughly(spec, history, Lag(), 0, 0.0, None)
