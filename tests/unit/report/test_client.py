"""The client with a fake report server: what it sends, when, and that it never disturbs the program."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from allranks.report import client as clients
from allranks.report import transport
from allranks.report.client import Client
from support.fake_report_server import ok
from support.live import eventually


def note(client: Client, *, step=None, total_steps=None, epoch=None, samples=None, checkpoint=False, busy=None, **more):
    client.note(step, total_steps, epoch, samples, checkpoint, busy, more)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(clients, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.05)


# --- when ------------------------------------------------------------------------------------------------------------


def test_the_first_step_is_sent_at_once(hub, client):
    one = client()
    hub.wait(lambda messages: messages)  # the server requests the next one in a minute
    note(one, epoch=0)
    note(one, step=1, total_steps=10, epoch=0, loss=0.5)
    found = hub.wait(lambda messages: len(messages) > 1 or messages[0]["step"])
    assert (found["step"], found["totalSteps"], found["epoch"], found["metrics"]) == (1, 10, 0, {"loss": 0.5})


def test_a_checkpoint_is_sent_at_once_but_no_more_than_one_in_a_second(hub, client):
    one = client()
    note(one, step=1)
    hub.wait(lambda messages: messages and messages[-1]["step"] == 1)
    for step in range(2, 100):
        note(one, step=step, checkpoint=True)
    found = hub.wait(lambda messages: messages[-1]["checkpoint"] and messages[-1]["checkpoint"]["step"] == 99)
    assert len(hub.messages) <= 4
    assert found["checkpoint"]["ago"] < 5


def test_the_server_sets_the_interval(hub, client):
    hub.answers = [ok(interval=0.1)]
    client()
    hub.wait(lambda messages: len(messages) > 5)  # also without new values


@pytest.mark.parametrize("interval", [None, "soon", -1, float("nan"), True, [5]])
def test_an_invalid_interval_changes_nothing(hub, client, interval, quick):
    hub.answers = [lambda message: (200, {}, {"interval": interval})]
    client()
    hub.wait(lambda messages: len(messages) > 1)


def test_all_messages_go_over_one_connection(hub, client):
    hub.answers = [ok(interval=0.05)]
    client()
    hub.wait(lambda messages: len(messages) > 3)
    assert len(set(map(id, hub.connections))) == 1


def test_a_closed_connection_is_opened_again(hub, client, monkeypatch):
    paused = []
    monkeypatch.setattr(transport.Transport, "pause", lambda self, why, _interval: paused.append(why) or 0.1)
    hub.answers = [lambda message: (200, {"X-Closes": "yes"}, {"interval": 0.1})]
    client()
    hub.wait(lambda messages: len(messages) > 3)
    assert len(set(map(id, hub.connections))) > 3
    assert paused == []


def test_the_last_report_is_sent_at_the_end(hub, client):
    one = client()
    note(one, step=7)
    hub.wait(lambda messages: messages)
    note(one, step=8)
    finish(hub, one)
    assert (hub.messages[-1]["step"], hub.messages[-1]["done"]) == (8, True)
    note(one, step=9, checkpoint=True)  # too late: ignored


def test_the_last_message_of_a_rank_has_the_exception_that_ended_it(hub, client, monkeypatch):
    one = client()
    monkeypatch.setattr(sys, "last_value", ValueError("sample 4711 is broken"), raising=False)
    note(one, step=8)
    finish(hub, one)
    position = {"call": "ended", "raising": "ValueError: sample 4711 is broken"}
    assert (hub.messages[-1]["done"], hub.messages[-1]["position"]) == (True, position)


def finish(hub, one, done=1):
    """Waits for the last message, longer than the second that a program waits at its end."""
    one.finish(300)
    hub.wait(lambda messages: sum(message["done"] for message in messages) >= done)


# --- what ------------------------------------------------------------------------------------------------------------


class Tensor:
    """The parts of a PyTorch or TensorFlow tensor that the library uses."""

    def __init__(self, value, device="cuda:0", wait=0.0):
        self.value, self.device, self.wait = value, device, wait

    def numpy(self):
        time.sleep(self.wait)
        return np.float32(self.value)

    def __index__(self):
        raise AssertionError("read from a GPU in the program's thread")

    __float__ = __index__


@pytest.mark.parametrize("step", [12, np.int64(12), 12.0, np.array(12), True + 11], ids=repr)
def test_a_step_may_be_any_integer_type(hub, client, step):
    one = client()
    note(one, step=step)
    assert hub.wait(lambda messages: messages and messages[-1]["step"] is not None)["step"] == 12


@pytest.mark.parametrize(
    "step",
    [-1, 1.5, "12x", float("nan"), 2**60, object(), Tensor(3)],
    ids=lambda value: type(value).__name__ + str(value)[:12].partition(" object")[0],
)
def test_an_invalid_step_is_dropped_with_one_warning(hub, client, warnings, step):
    one = client()
    for _ in range(3):
        note(one, step=step, epoch=4)
    finish(hub, one)
    assert (hub.messages[-1]["step"], hub.messages[-1]["epoch"]) == (None, 4)
    assert len(warnings) == 1
    assert warnings[0].startswith("allranks: report(): step is dropped: ")


def test_metrics_may_be_any_numeric_type(hub, client):
    one = client()
    note(one, a=1, b=0.5, c=np.float32(0.25), d=np.array(2), e=np.float64(3), f=True)
    note(one, b=0.75)
    finish(hub, one)
    assert hub.messages[-1]["metrics"] == {"a": 1.0, "b": 0.75, "c": 0.25, "d": 2.0, "e": 3.0, "f": 1.0}


def test_a_metric_is_dropped_while_it_is_not_finite(hub, client, warnings):
    one = client()
    hub.wait(lambda messages: messages)
    note(one, loss=0.5, x=1.0)
    note(one, loss=float("nan"), x=float("inf"))
    note(one, loss=float("nan"), x=2.0)
    finish(hub, one)
    assert hub.messages[-1]["metrics"] == {"x": 2.0}
    assert hub.messages[-1]["notFinite"] == {"loss": 0}
    assert warnings == [
        "allranks: report(): loss is nan: dropped until it is finite\n",
        "allranks: report(): x is inf: dropped until it is finite\n",
    ]


def test_the_step_since_which_a_metric_is_not_finite_is_sent_until_it_is_finite_again(hub, client, warnings):
    one = client()
    hub.wait(lambda messages: messages)
    note(one, step=19, loss=0.5)
    note(one, step=20, loss=float("nan"))
    note(one, step=21, loss=float("nan"), checkpoint=True)
    hub.wait(lambda messages: messages and messages[-1].get("notFinite") == {"loss": 20})
    note(one, step=22, loss=0.25)
    finish(hub, one)
    assert "notFinite" not in hub.messages[-1]
    assert hub.messages[-1]["metrics"] == {"loss": 0.25}


def test_a_message_has_the_step_and_the_metrics_of_one_report(hub, client):
    one = client()
    hub.wait(lambda messages: messages)
    for step in range(1, 20_000):
        note(one, step=step, loss=float(step))
        if step % 100 == 0:
            state, metrics, _ = one._moment()
            assert metrics["loss"] == state.step
    one._notes += 1  # as while a report is being recorded, for ever
    assert one._moment()[0].step == 19_999


def test_a_request_for_stacks_is_answered_with_the_position_until_the_next_step(hub, client, monkeypatch):
    monkeypatch.setattr(clients, "INTERVAL_SECONDS", 0.05)
    hub.answers = [ok(interval=0.05), ok(interval=0.05, stacks="0-1")]
    one = client()
    one.answer_stacks = lambda stack_dump_id: None
    note(one, step=1)
    found = hub.wait(lambda messages: messages and messages[-1].get("position"))
    assert ".py:" in found["position"]["where"]
    note(one, step=2)
    finish(hub, one)
    assert "position" not in hub.messages[-1]


def test_the_number_and_names_of_metrics_are_bounded(hub, client, warnings):
    one = client()
    note(one, **{"loss mean": 1.0, "": 1.0, "x" * 64: 1.0, "val/top-1_a.b": 1.0}, text="none", list=[1, 2])
    note(one, **{f"m{number}": float(number) for number in range(100)})
    finish(hub, one)
    assert len(hub.messages[-1]["metrics"]) == 32
    assert hub.messages[-1]["metrics"]["val/top-1_a.b"] == 1.0
    assert len(warnings) == 6


def test_a_metric_whose_name_is_close_to_a_value_is_warned_about_once(hub, client, warnings):
    one = client()
    for number in range(3):
        note(one, stepp=number, totalSteps=9, losss=0.5)
    assert warnings == [
        f"allranks: report(): {name} is a metric of its own: did you mean {meant}?\n"
        for name, meant in (("stepp", "step"), ("totalSteps", "total_steps"), ("losss", "loss"))
    ]


def test_names_of_metrics_are_not_mistaken_for_values(hub, client, warnings):
    one = client()
    names = "lr accuracy grad_norm val_loss d_loss loss1 losses step_time samples_per_second epoch/loss total"
    note(one, **dict.fromkeys(names.split(), 1.0))
    note(one, step=1, loss=0.5, steps=3, los=1)  # beside the value itself the name is meant
    assert warnings == []


def test_a_number_on_a_gpu_is_fetched_in_the_background(hub, client, monkeypatch):
    monkeypatch.setattr(clients, "FETCH_SECONDS", 10.0)
    one = client()
    began = time.perf_counter()
    note(one, loss=Tensor(0.5, wait=1.5))
    assert time.perf_counter() - began < 1
    one.finish(10)
    assert hub.messages[-1]["metrics"] == {"loss": 0.5}


def test_a_hung_gpu_does_not_delay_messages(hub, client):
    hub.answers = [ok(interval=0.05)]
    one = client()
    note(one, step=1, loss=Tensor(0.5, wait=3000.0), x=1.0)
    hub.wait(lambda messages: len(messages) > 4 and messages[-1]["step"] == 1)
    assert hub.messages[-1]["metrics"] == {"x": 1.0}


def test_busy_comes_from_the_program_or_from_a_meter(hub, client):
    one = client()
    note(one, step=1, busy=0.25)
    note(one, step=2, busy=0.75)
    finish(hub, one)
    assert hub.messages[-1]["busySeconds"] == 0.5
    other, meter = client(), clients.Meter()
    meter.totals = (3.0, 2)
    other.meter = meter
    note(other, step=1)
    finish(hub, other, 2)
    assert hub.messages[-1]["busySeconds"] == 1.5


# --- answers ---------------------------------------------------------------------------------------------------------


def test_the_token_is_read_again_when_it_changes(hub, client):
    hub.answers = [ok(interval=0.05)]
    client()
    hub.wait(lambda messages: messages)
    new = hub.folder / "new"
    new.write_text("secret-2")
    new.replace(hub.token_file)
    hub.wait(lambda messages: hub.tokens[-1] == "secret-2")
    assert hub.tokens[0] == "secret-1"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_transient_errors_are_retried(hub, client, warnings, quick, status):
    hub.answers = [lambda message: (status, {}, {})] * 2 + [ok()]
    note(client(), step=5)
    assert hub.wait(lambda messages: len(messages) > 2)["step"] == 5
    assert warnings == []


def test_retry_after_is_respected(hub, client, quick):
    hub.answers = [lambda message: (503, {"Retry-After": "0.7"}, {}), ok()]
    one = client()
    hub.wait(lambda messages: messages)
    note(one, step=1, checkpoint=True)
    hub.wait(lambda messages: len(messages) > 1)
    assert hub.at[1] - hub.at[0] > 0.6


def test_pauses_grow_and_are_bounded(monkeypatch):
    monkeypatch.setattr(transport.random, "uniform", lambda low, high: 1.0)
    one = transport.Transport("http://127.0.0.1:1/v1/report", "/none")
    pauses = [one.pause(transport.SendFailed("away"), 5.0) for _ in range(20)]
    assert pauses[:5] == [5.0, 5.0, 8.0, 16.0, 32.0]
    assert set(pauses[5:]) == {60.0}
    assert one.pause(transport.SendFailed("busy", retry_after=1e9), 5.0) <= 700


@pytest.mark.parametrize("status", [400, 413, 415])
def test_a_rejected_message_is_dropped_with_one_warning(hub, client, warnings, quick, status):
    hub.answers = [lambda message: (status, {}, {"error": "no step"})]
    client()
    hub.wait(lambda messages: len(messages) > 2)
    assert warnings == [f'allranks: the operator rejected a report: {status} {{"error": "no step"}}\n']


def test_reports_end_with_the_attempt(hub, client, warnings, quick):
    hub.answers = [lambda message: (409, {}, {})]
    one = client()
    assert one._over.wait(300)
    note(one, step=3, checkpoint=True)
    one.finish()
    assert len(hub.messages) == 1
    assert warnings == []


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[1]", b"\xff\xfe"])
def test_an_invalid_answer_is_ignored(content):
    assert transport.as_object(content) == {}


def test_no_server_is_listening(hub, client, warnings, quick):
    """The operator starts later, or restarts."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    one = client(f"http://127.0.0.1:{port}/v1/report")
    note(one, step=1)
    began = time.monotonic()
    one.finish(20)
    assert time.monotonic() - began < 10
    assert warnings == []


def test_the_last_checkpoint_is_sent_again_until_the_operator_knows_of_it(hub, client, quick):
    """An operator is replaced while the program ends."""
    one = client()
    hub.wait(lambda messages: messages)
    hub.answers = [lambda message: (503, {}, {})] * 3 + [ok()]
    note(one, step=7, checkpoint=True)
    one.finish()
    assert len(hub.messages) >= 4
    assert (hub.messages[-1]["checkpoint"]["step"], hub.messages[-1]["done"]) == (7, True)


def test_a_silent_server_delays_the_end_by_one_second_only(hub, client):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        one = client(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/report")
        note(one, step=1)
        began = time.monotonic()
        one.finish()
        assert 0.9 < time.monotonic() - began < 3


def test_a_missing_token_file(hub, client, warnings, quick):
    hub.token_file.unlink()
    note(client(), step=1)
    late = Path(f"{hub.token_file}.late")
    late.write_text("secret-3")
    assert hub.messages == []
    late.replace(hub.token_file)
    hub.wait(lambda messages: messages)
    assert (hub.tokens[0], warnings) == ("secret-3", [])


def test_each_stack_dump_id_dumps_stacks_once(hub, client):
    hub.answers = [*(ok(0.05, text) for text in ("a", "a", "", "a", "b", "a")), ok(0.05, "b")]
    requested: list[str] = []
    one = client()
    one.answer_stacks = requested.append
    hub.wait(lambda messages: len(messages) > 8)
    assert requested == ["a", "b"]


def test_a_checkpoint_is_requested_until_one_is_stored_or_the_request_is_withdrawn(hub, client):
    hub.answers = [ok(0.05), ok(0.05, checkpoint=7)]
    one = client()
    eventually(lambda: one.checkpoint_request() == 7)
    note(one, step=3, checkpoint=True)
    assert one.checkpoint_request() == 0
    count = len(hub.messages)
    hub.wait(lambda messages: len(messages) > count + 2)
    assert one.checkpoint_request() == 0, "the answers repeat the same request"
    hub.answers = [ok(0.05, checkpoint=8)]
    eventually(lambda: one.checkpoint_request() == 8)
    hub.answers = [ok(0.05)]
    eventually(lambda: one.checkpoint_request() == 0)


def test_the_operator_learns_that_the_program_stores_checkpoints_on_request_and_of_the_checkpoint_at_once(hub, client):
    hub.answers = [ok(0.05), ok(60.0, checkpoint=7)]
    one = client()
    note(one, step=1)
    one.checkpoint_request()
    hub.wait(lambda messages: any(message["savesOnRequest"] for message in messages))
    eventually(lambda: one.checkpoint_request() == 7)
    note(one, step=2, checkpoint=True)
    hub.wait(lambda messages: (messages[-1]["checkpoint"] or {}).get("step") == 2)


def test_answers_of_other_servers_request_no_checkpoint(hub, client):
    hub.answers = [lambda message: (200, {}, {"interval": 0.05, "checkpoint": "now"}), ok(0.05, checkpoint=-1)]
    one = client()
    hub.wait(lambda messages: len(messages) > 3)
    assert one.checkpoint_request() == 0


def test_a_rank_that_asks_again_without_a_checkpoint_of_its_own_is_done_with_the_request(hub, client):
    hub.answers = [ok(0.05), ok(0.05, checkpoint=7)]
    one = client()
    eventually(one.checkpoint_requested)
    count = len(hub.messages)
    hub.wait(lambda messages: len(messages) > count + 2)
    assert hub.messages[-1]["handledRequest"] == 0, "the program may be storing it"
    assert one.checkpoint_requested(), "it stays requested until it is stored"
    hub.wait(lambda messages: messages[-1]["handledRequest"] == 7)


def due(step: int, agreed: bool = True):
    return lambda message: (200, {}, {"interval": 0.05, "due": {"step": step, "agreed": agreed}})


def answers(one: Client, *steps: int) -> list[bool]:
    return [one.checkpoint_due(step) for step in steps]


def test_a_checkpoint_is_due_once_after_the_step_that_all_ranks_received(hub, client):
    hub.answers = [due(3)]
    one, other = client(), client()
    assert answers(one, 0) == answers(other, 0) == [False]
    hub.wait(lambda messages: messages and messages[-1].get("dueStep") == 3)
    eventually(lambda: one.due_step(3) == other.due_step(3) == 3)
    assert answers(one, 1, 2, 3, 3, 4) == answers(other, 1, 2, 3, 3, 4) == [False, False, True, False, False]


def test_a_step_that_is_never_asked_about_is_due_after_the_next_one(hub, client):
    hub.answers = [due(15)]
    one = client()
    assert not one.checkpoint_due(0)
    eventually(lambda: one.due_step(15) == 15)
    assert answers(one, 10, 20, 30) == [False, True, False]


def test_nothing_is_due_before_all_ranks_have_received_the_step(hub, client):
    hub.answers = [due(3, agreed=False)]
    one = client()
    assert not one.checkpoint_due(2)
    hub.wait(lambda messages: messages and messages[-1].get("dueStep") == 3)
    assert answers(one, 3, 4) == [False, False]


def test_a_rank_that_begins_beyond_the_step_stores_nothing(hub, client):
    hub.answers = [due(3)]
    one = client()
    eventually(lambda: one.due_step(5) == 3)
    assert answers(one, 5, 6) == [False, False]


def test_the_time_of_a_save_is_sent_with_its_checkpoint(hub, client, monkeypatch):
    hub.answers = [due(2)]
    one = client()
    one.checkpoint_due(1)
    eventually(lambda: one.due_step(2) == 2)
    clock = [time.monotonic()]
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep))
    note(one, step=2)
    assert one.checkpoint_due()
    clock[0] += 7.0
    note(one, checkpoint=True)
    found = hub.wait(lambda messages: messages[-1]["checkpoint"])
    assert (found["checkpoint"]["step"], found["checkpoint"]["seconds"]) == (2, 7.0)
    note(one, step=3, checkpoint=True)
    found = hub.wait(lambda messages: messages[-1]["checkpoint"]["step"] == 3)
    assert "seconds" not in found["checkpoint"], "this one was not due"


def test_a_save_in_the_background_has_no_measured_time(hub, client):
    hub.answers = [due(2)]
    one = client()
    one.checkpoint_due(1)
    eventually(lambda: one.due_step(2) == 2)
    note(one, step=2)
    assert one.checkpoint_due()
    note(one, step=3)
    note(one, checkpoint=True)
    assert "seconds" not in hub.wait(lambda messages: messages[-1]["checkpoint"])["checkpoint"]


@pytest.mark.parametrize("answer", [7, None, {"step": "3"}, {"step": -1, "agreed": True}, {"step": True}, [3, True]])
def test_answers_of_other_servers_make_no_checkpoint_due(hub, client, answer):
    hub.answers = [lambda message: (200, {}, {"interval": 0.05, "due": answer})]
    one = client()
    hub.wait(lambda messages: len(messages) > 2)
    assert answers(one, 0, 1, 3, 7) == [False] * 4


# --- the package -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["from allranks import report", "import allranks; report = allranks.report"])
def test_the_package_that_is_called_says_what_to_call(statement):
    """The program has imported nothing of allranks before."""
    program = f"""
{statement}
import cloudpickle, pickle
assert cloudpickle.loads(cloudpickle.dumps(report)) is report is pickle.loads(pickle.dumps(report))
assert cloudpickle.loads(cloudpickle.dumps(lambda: report.report(step=1)))() is None
report(step=1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1] == (
        "TypeError: allranks.report is a module: import the function with `from allranks.report import report`, and "
        "call report(step=...)"
    )
