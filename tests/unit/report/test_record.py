"""The record of metrics of a process: what a message has of many values, and of few."""

from __future__ import annotations

import json
import math

from allranks.report import client as clients
from allranks.report.record import BYTES, VALUES, Record
from support.fake_report_server import program


def record_of(values: dict[str, list[float]], begin: int = 1) -> Record:
    record = Record()
    for name, numbers in values.items():
        for step, number in enumerate(numbers, begin):
            record.add(name, number, step, float(step))
    return record


def test_all_values_are_sent_if_they_are_few():
    message = record_of({"accuracy": [0.5, 0.99, 0.1]}).message(3.0, BYTES)
    assert message == {
        "accuracy": {
            "first": [1, 0.5],
            "lowest": [3, 0.1],
            "highest": [2, 0.99],
            "values": [[1, 0.5, 2.0], [2, 0.99, 1.0], [3, 0.1, 0.0]],
        }
    }


def test_the_characteristic_values_and_the_mean_are_sent_if_they_are_many():
    losses = [float(step) for step in range(1, 101)]
    losses[39], losses[69] = 500.0, -7.0
    message = record_of({"loss": losses}).message(100.0, BYTES)["loss"]
    assert [value[:2] for value in message["values"]] == [[1, 1.0], [40, 500.0], [70, -7.0], [100, 100.0]]
    assert (message["count"], message["mean"]) == (100, sum(losses) / 100)
    assert (message["first"], message["lowest"], message["highest"]) == ([1, 1.0], [70, -7.0], [40, 500.0])


def test_values_accumulate_until_they_have_arrived():
    record = record_of({"loss": [3.0, 2.0]})
    record.message(2.0, BYTES)
    record.add("loss", 1.0, 3, 3.0)
    message = record.message(3.0, BYTES)
    assert [value[0] for value in message["loss"]["values"]] == [1, 2, 3]
    record.arrived(message)
    assert record.message(4.0, BYTES) == {}
    record.add("loss", 4.0, 4, 4.0)
    message = record.message(4.0, BYTES)
    assert message["loss"]["values"] == [[4, 4.0, 0.0]]
    assert (message["loss"]["first"], message["loss"]["lowest"]) == ([1, 3.0], [3, 1.0])


def test_a_value_that_is_not_finite_is_null_and_neither_the_lowest_nor_the_highest():
    record = record_of({"loss": [2.0, math.nan, math.inf, 1.0]})
    message = record.message(4.0, BYTES)["loss"]
    assert [value[1] for value in message["values"]] == [2.0, None, None, 1.0]
    assert (message["notFinite"], message["lowest"], message["highest"]) == (2, [4, 1.0], [1, 2.0])
    diverged = record_of({"loss": [*[1.0] * 50, *[math.nan] * 50]}).message(100.0, BYTES)["loss"]
    assert [value[:2] for value in diverged["values"]] == [[1, 1.0], [51, None], [100, None]]
    assert (diverged["count"], diverged["mean"], diverged["notFinite"]) == (50, 1.0, 51)
    json.dumps(record_of({"huge": [1e308] * 40}).message(40.0, BYTES), allow_nan=False)


def test_a_message_is_bounded_and_the_others_follow():
    names = [f"{'n' * 60}{number:02}" for number in range(32)]
    record = record_of({name: [1.2345678e-300] * VALUES for name in names})
    arrived: list[str] = []
    for _ in range(32):
        message = record.message(20.0, BYTES)
        assert len(json.dumps(message)) <= BYTES
        record.arrived(message)
        arrived += message
    assert arrived == names


def test_the_slowest_reader_loses_old_values_and_not_memory(monkeypatch):
    monkeypatch.setattr("allranks.report.record.MOST_NUMBERS", 30)
    record = record_of({"loss": [float(step) for step in range(100)]})
    record.limit()
    assert len(record.reported["loss"]) == 30
    assert record.message(100.0, BYTES)["loss"]["values"][-1] == [100, 99.0, 0.0]


VALUES_OF_A_SECOND = """
from allranks.report import report
for step in range(1, 61):
    report(step=step, loss=1 / step, lr=0.5)
    if step % 10 == 0:
        report(step=step, accuracy={10: 0.5, 20: 0.99, 30: 0.6, 40: 0.2, 50: 0.2, 60: 0.1}[step])
"""


def test_each_value_of_a_metric_that_a_program_reports_now_and_then_is_sent(hub):
    assert program(hub, VALUES_OF_A_SECOND).returncode == 0
    records = [message.get("record", {}).get("accuracy", {}) for message in hub.messages]
    values = [value[:2] for record in records for value in record.get("values", ())]
    assert values == [[10, 0.5], [20, 0.99], [30, 0.6], [40, 0.2], [50, 0.2], [60, 0.1]]
    assert (records[-1]["first"], records[-1]["highest"]) == ([10, 0.5], [20, 0.99])


def test_only_the_rank_that_the_operator_asks_sends_a_record(hub):
    hub.answers = [lambda message: (200, {}, {"interval": 0.05, "record": message["rank"] == 1})]
    for rank in ("0", "1"):
        assert program(hub, VALUES_OF_A_SECOND + "import time; time.sleep(0.3)", RANK=rank).returncode == 0
    last = {message["rank"]: message.get("record") for message in hub.messages if message["done"]}
    assert last[0] is None
    assert last[1] is not None


def test_values_that_do_not_fit_into_the_last_message_are_sent_before_it(hub):
    text = """
from allranks.report import report
for step in range(15):
    report(step=step, **{f"metric_with_a_long_name_{number}": step / 7 for number in range(20)})
"""
    assert program(hub, text).returncode == 0
    names = {name for message in hub.messages for name in message.get("record", {})}
    assert len(names) == 20
    assert [message["done"] for message in hub.messages].count(True) == 1


class Tensor:
    """A number that a device computes."""

    device = "cuda"

    def __init__(self, value: float) -> None:
        self._value = value

    def numpy(self) -> float:
        return self._value


def test_values_of_a_device_are_recorded_with_their_steps(hub, client):
    one = client()
    for step, value in ((10, 0.5), (20, 0.99), (30, 0.6)):
        one.note(step, None, None, None, False, None, {"accuracy": Tensor(value)})
    one.finish(clients.LAST_CHECKPOINT_SECONDS)
    records = [message.get("record", {}).get("accuracy", {}) for message in hub.messages]
    values = [value[:2] for record in records for value in record.get("values", ())]
    assert values == [[10, 0.5], [20, 0.99], [30, 0.6]]
