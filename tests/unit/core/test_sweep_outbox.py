"""The outbox of a sweep: one notification for each receiver, in the write with which the sweep ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allranks.api.notify import Notification
from allranks.api.sweep_status import SweepStatus
from allranks.api.sweep_validation import parse_sweep
from allranks.core.sweeps.model import SweepObserved
from allranks.core.sweeps.plan import plan
from allranks.kube import sweep_codec
from support.sweep_world import NOW, World
from unit.api.test_sweep import sweep

TEAM = [
    {"receiver": "team"},
    {"webhook": {"url": "https://hooks.example.com/x"}},
    {"receiver": "bad-news", "occasions": ["Failed"]},
]
ALL_JOBS = {"Succeeded": ("oncall", "team"), "Failed": ("oncall",), "Hung": ("oncall",)}
POOL = (Notification(receiver="infra"), Notification(receiver="hangs", occasions=["Hung"]))


def before_the_end(fate: str = "Succeeded", **spec: Any) -> tuple[Any, SweepStatus]:
    """A sweep, and its status with trials that have ended before the sweep is evaluated."""
    parsed = parse_sweep(sweep(trials=3, parallel=3, **{"notify": TEAM} | spec))
    status = World(parsed, lambda job, parameters: fate).run()
    open_again = {"phase": "Running", "completion_time": None, "conditions": [], "best": None, "best_summary": ""}
    return parsed, replace(status, **open_again)


def observed(of: Any, status: SweepStatus, **more: Any) -> SweepObserved:
    return SweepObserved(of, status, {}, NOW, **{"notifies": ALL_JOBS} | more)


def test_each_receiver_has_one_entry_in_the_write_with_which_the_sweep_ends():
    wanted = plan(observed(*before_the_end(), pool_notify=POOL))
    assert wanted.write_ahead
    assert wanted.status is not None
    assert wanted.status.phase == "Succeeded"
    receivers = ["team", "webhook-1", "infra", "oncall"]
    assert wanted.status.notifications == [f"Succeeded {receiver}" for receiver in receivers]
    assert sweep_codec.status({"status": sweep_codec.encode(wanted.status)}) == wanted.status


def test_a_sweep_that_fails_has_entries_for_those_who_asked_for_failures():
    wanted = plan(observed(*before_the_end("Failed"), pool_notify=POOL)).status
    assert wanted is not None
    assert wanted.phase == "Failed"
    receivers = ["team", "webhook-1", "bad-news", "infra", "oncall"]
    assert wanted.notifications == [f"Failed {receiver}" for receiver in receivers]


def test_a_trial_that_ends_is_no_occasion():
    of, status = before_the_end()
    running = replace(status.trials[0], phase="Running")
    wanted = plan(observed(of, replace(status, trials=[running, *status.trials[1:]])))
    assert wanted.status is not None
    assert (wanted.status.phase, wanted.status.notifications) == ("Running", [])


def test_a_finished_sweep_gets_the_results_of_deliveries_and_no_second_entry():
    of, status = before_the_end()
    ended = plan(observed(of, status)).status
    assert ended is not None
    assert plan(observed(of, ended)).empty
    wanted = plan(observed(of, ended, notified={"Succeeded team": " sent", "Succeeded oncall": " failed"}))
    assert wanted.status is not None
    assert wanted.status.notifications == ["Succeeded team sent", "Succeeded webhook-1", "Succeeded oncall failed"]
    assert [event.reason for event in wanted.events] == ["NotificationFailed"]
    assert plan(observed(of, wanted.status)).empty


def test_without_receivers_of_the_operator_there_is_no_outbox():
    wanted = plan(observed(*before_the_end(), notifies={})).status
    assert wanted is not None
    assert (wanted.phase, wanted.notifications) == ("Succeeded", [])
