"""What the properties have found, each kept as the smallest history that showed it."""

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


def test_a_replica_that_restarts_alone_waits_until_its_former_pod_was_told_to_go() -> None:
    spec = _spec("horovod", {"worker": 1}, restart={"maxRestarts": 3, "backoffSeconds": 10, "scope": "pod"})
    for seed in range(8):
        roughly(spec, [("mark", 0, 0)], Lag(), seed, 0.0, None)


def test_the_failure_of_a_parameter_server_does_not_break_the_row_of_its_group() -> None:
    spec = _spec("tensorflow", {"chief": 1, "ps": 1})
    step_by_step(spec, [RUN_ALL, ("oom", 0, 0), RUN_ALL, ("exit", 1, 0), ("oom", 0, 0)], Lag(), 0)


def test_pods_that_end_because_the_job_is_over_are_not_counted_as_failed() -> None:
    crash_everywhere(_spec("horovod", {"worker": 1}, activeDeadlineSeconds=300), [RUN_ALL], 0)


def test_what_ends_after_the_verdict_is_counted_before_it_is_cleaned_up_or_not_at_all() -> None:
    spec = _spec("pytorch", {"master": 1, "worker": 1}, cleanPodPolicy="All")
    for seed in range(4):
        crash_everywhere(spec, [RUN_ALL, ("done_all", 0, 0)], seed)


def test_a_pod_that_is_gone_before_the_operator_looks_was_deleted_whoever_took_it() -> None:
    late = Lag(seconds=30.0, repeated=0.3)
    roughly(_spec("horovod", {"worker": 1}), [("jump", 0, 2), RUN_ALL, ("lose_node", 0, 0)], late, 1, 0.0, None)


def test_a_pod_that_never_ran_fails_no_earlier_than_it_is_seen() -> None:
    history: list[Action] = [("advance", 0, 1), ("run", 0, 0), ("exit", 0, 0), ("init_fail", 0, 0)]
    spec = _spec("horovod", {"worker": 2})
    roughly(spec, [*history, ("restart_operator", 0, 0)], Lag(seconds=2.0), 0, 0.0, None)


def test_a_pod_that_is_made_while_its_job_goes_in_the_foreground_goes_too() -> None:
    spec = _spec("tensorflow", {"chief": 1, "worker": 1, "ps": 2}, restart={"maxRestarts": 3, "backoffSeconds": 0})
    history: list[Action] = [RUN_ALL, ("exit", 3, 9), RUN_ALL, ("lose_node", 5, 6), ("exit", 1, 0)]
    lag = Lag(lost=0.6, repeated=0.5, relist_seconds=30.0)
    roughly(spec, history, lag, 0, 0.0, "Foreground")


def test_a_replica_whose_loss_is_ignored_does_not_stand_in_for_one_that_must_run() -> None:
    rules = [{"reasons": ["Deleted", "Evicted"], "action": "ignore"}]
    spec = _spec("horovod", {"worker": 3}, restart={"maxRestarts": 3, "backoffSeconds": 10, "rules": rules})
    step_by_step(spec, [("run", 0, 0), ("run", 0, 0), ("disrupt", 0, 9)], Lag(), 0)


def test_a_pod_that_failed_in_the_same_second_may_turn_out_to_be_the_cause_once_the_next_attempt_runs() -> None:
    restart = {"maxRestarts": 3, "backoffSeconds": 10, "scope": "group"}
    spec = _spec("tensorflow", {"chief": 1, "ps": 1}, restart=restart)
    roughly(spec, [("advance", 0, 1), ("fail", 0, 1), ("oom", 0, 0)], Lag(seconds=2.0), 2, 0.0, None)


def test_pods_that_restart_alone_and_failed_while_nobody_looked_count_in_one_write() -> None:
    alone = {"maxRestarts": 3, "backoffSeconds": 10, "scope": "pod"}
    unseen: list[Action] = [RUN_ALL, ("stop_operator", 0, 0)]
    for ends in (["exit", "exit"], ["exit", "oom", "exit"], ["evict", "evict"], ["exit", "evict", "exit"]):
        spec = _spec("horovod", {"worker": len(ends)}, restart=alone)
        roughly(spec, [*unseen, *((end, 0, 0) for end in ends)], Lag(), 0, 0.0, None)


def test_workers_that_restart_alone_count_with_the_chief_that_takes_all_along() -> None:
    spec = _spec("tensorflow", {"chief": 1, "worker": 2, "ps": 1})
    unseen: list[Action] = [RUN_ALL, ("stop_operator", 0, 0)]
    for order in ((2, 1, 0), (0, 1, 0), (1, 0, 0), (2, 0, 0, 0)):
        roughly(spec, [*unseen, *(("exit", pod, 0) for pod in order)], Lag(), 0, 0.0, None)
