"""The parts of outcomes: they are assembled in order, in bounded room, and one job does not take that of another."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allranks.inpod import call_function, send_outcome
from allranks.telemetry import outcomes
from allranks.telemetry.messages import Answer, ReportSource
from allranks.telemetry.outcomes import Outcome, OutcomeLimits, Outcomes

SENDER = ReportSource(("team", "demo"), "uid-1", "demo-worker-0-0", "pod-1", "worker", 0, 0, 0, "node-a")


class World:
    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.outcomes = Outcomes(limits=OutcomeLimits(**limits), monotonic=lambda: self.now)

    def part(self, content: bytes, offset: int, sender: ReportSource = SENDER, **header: Any) -> Outcome | Answer:
        fields = {"kind": "returned", "rank": 0, "size": len(content), "offset": offset, **header}
        part = content[offset : offset + outcomes.PART_BYTES]
        return self.outcomes.take(sender, json.dumps(fields).encode() + b"\n" + part)

    def send(self, content: bytes, sender: ReportSource = SENDER, **header: Any) -> Outcome | Answer:
        """All parts, as the helper in the pod sends them."""
        offset = 0
        while True:
            answer = self.part(content, offset, sender, **header)
            if isinstance(answer, Outcome) or answer.status != 200:
                return answer
            offset = answer.body["received"]


def pod(number: int, job: str = "uid-1") -> ReportSource:
    return replace(SENDER, pod=f"demo-worker-{number}-0", pod_uid=f"pod-{number}", index=number, job_uid=job)


def test_a_content_of_any_length_arrives_whole() -> None:
    for size in (1, outcomes.PART_BYTES, outcomes.PART_BYTES + 1, outcomes.VALUE_BYTES):
        content = bytes(index % 251 for index in range(size))
        assert World().send(content) == Outcome("returned", 0, content)


def test_a_sender_learns_where_to_continue_after_a_restart_of_the_operator() -> None:
    content = b"x" * (3 * outcomes.PART_BYTES)
    answer = World().part(content, 2 * outcomes.PART_BYTES)
    assert answer == Answer(200, {"received": 0})


def test_an_outcome_of_a_process_that_is_dead_is_not_stored_for_the_attempt_which_runs_in_its_pod() -> None:
    world, later = World(), replace(SENDER, attempt=3)
    assert world.send(b"x", later, attempt=2).status == 409  # type: ignore[union-attr]
    assert world.send(b"x", later, attempt=3) == Outcome("returned", 0, b"x")


def test_a_part_that_is_sent_again_changes_nothing() -> None:
    world, content = World(), b"ab" * outcomes.PART_BYTES
    assert world.part(content, 0) == Answer(200, {"received": outcomes.PART_BYTES})
    assert world.part(content, 0) == Answer(200, {"received": outcomes.PART_BYTES})
    assert world.part(content, outcomes.PART_BYTES) == Outcome("returned", 0, content)


BAD = [
    (b"{}\n", 400),
    (b"no json", 400),
    (b"[" * 20_000, 400),
    (b'{"kind": "returned", "rank": 0, "size": 3, "offset": 0}\nfour', 400),
    (b'{"kind": "other", "rank": 0, "size": 3, "offset": 0}\nabc', 400),
    (b'{"kind": "returned", "rank": 1, "size": 70000, "offset": 0}\nabc', 413),
    (b'{"kind": "returned", "rank": 64, "size": 3, "offset": 0}\nabc', 413),
    (b'{"kind": "raised", "rank": 0, "size": 140000, "offset": 0}\n', 413),
]


@pytest.mark.parametrize(("body", "status"), BAD, ids=range(len(BAD)))
def test_a_wrong_or_too_long_message_is_refused(body: bytes, status: int) -> None:
    answer = World().outcomes.take(SENDER, body)
    assert isinstance(answer, Answer)
    assert answer.status == status


def test_many_unfinished_outcomes_of_one_job_leave_room_for_another() -> None:
    world, content = World(of_job=2), b"x" * 20_000
    assert [world.part(content, 0, pod(number)).status for number in range(3)] == [200, 200, 503]
    assert world.send(content, pod(7, "uid-2")) == Outcome("returned", 0, content)


def test_unfinished_outcomes_of_one_namespace_leave_room_for_another() -> None:
    world, content = World(room_bytes=100_000, of_job=9), b"x" * 20_000
    asked = [world.part(content, 0, pod(number, f"uid-{number}")).status for number in range(8)]
    assert asked == [200] * 3 + [503] * 5
    assert world.outcomes.large == {"team": 0.6}
    other = replace(pod(20, "uid-20"), job=("calm", "job"))
    assert world.send(content, other) == Outcome("returned", 0, content)


def test_the_room_of_a_silent_sender_is_used_again() -> None:
    world, content = World(room_bytes=56_000, pressed_seconds=10, of_job=9), b"x" * 20_000
    assert [world.part(content, 0, pod(number)).status for number in range(3)] == [200, 200, 503]
    world.now = 11
    assert world.send(content, pod(2)) == Outcome("returned", 0, content)
    assert world.part(content, outcomes.PART_BYTES, pod(0)) == Answer(200, {"received": 0})


def test_a_pod_that_floods_is_slowed_down() -> None:
    world = World(burst=3, rate=1.0)
    assert [world.send(b"x", pod(number)).__class__ for number in (0, 0, 0, 0, 1)] == [
        *[Outcome] * 3, Answer, Outcome
    ]  # fmt: skip
    world.now = 1.0
    assert isinstance(world.send(b"x", pod(0)), Outcome)


def test_no_further_exception_is_received_when_enough_are_stored() -> None:
    """Ten thousand ranks that raise at once send one small message each."""
    world = World()
    body = b'{"kind": "raised", "rank": 3, "size": 90000, "offset": 0}\n'
    assert world.outcomes.take(SENDER, body) == Answer(200, {"received": 0})
    assert world.outcomes.take(SENDER, body, full=True) == Answer(200, {"received": 90000, "stored": False})


def test_the_helper_in_the_pod_has_the_same_limits() -> None:
    """It cannot import them."""
    assert send_outcome.PART_BYTES == outcomes.PART_BYTES
    names = ("VALUE_BYTES", "FURTHER_VALUE_BYTES", "VALUE_RANKS", "ERROR_BYTES")
    assert [getattr(call_function, name) for name in names] == [getattr(outcomes, name) for name in names]
