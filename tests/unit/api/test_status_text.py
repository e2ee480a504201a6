"""Text of a status and of an Event, which programs and images of others wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields as fields_of
from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from allranks.api.status import Failure, ProgressStatus, RestartCounts, Status
from allranks.api.sweep_status import SweepStatus
from allranks.core.facts.model import Event
from allranks.fields import StatusPart, TextPart, decode, printable
from support.builders import failure

HOSTILE = "a\x1b[8mb\x1b]52;c;aGk=\x07\u202ec\r\x9b2J"
PRINTED = "abc"
VALUES_OF_THE_SPEC = {
    "Status.resumed_from",
    "Trial.parameters",
    "Best.parameters",
    # The API server and Kueue checked these.
    "Status.replica_restarts",
    "Status.ignored",
    "Status.avoided_nodes",
    "Status.notifications",
    "SweepStatus.notifications",
    "PodPlacement.node_selector",
    "PodPlacement.labels",
    "PodPlacement.annotations",
}


def parts(kind: type[StatusPart]) -> Iterator[type[StatusPart]]:
    for part in kind.__subclasses__():
        yield part
        yield from parts(part)


def samples(hint: Any) -> Iterator[Any]:
    """Values with hostile text that a field of this type can have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from samples(arguments[0])
    elif origin in (Union, UnionType):
        for option in arguments:
            yield from samples(option)
    elif origin is list:
        yield from ([value] for value in samples(arguments[0]))
    elif origin is dict:
        yield {HOSTILE: 1}
    elif hint is str:
        yield HOSTILE


@pytest.mark.parametrize("kind", sorted(set(parts(StatusPart)) - {TextPart}, key=lambda kind: kind.__name__))
def test_no_text_of_any_status_keeps_control_sequences(kind: type[StatusPart]) -> None:
    hints = get_type_hints(kind, include_extras=True)
    empty = object.__new__(kind)
    for field in fields_of(kind):  # type: ignore[arg-type]
        object.__setattr__(empty, field.name, None)
    for field in fields_of(kind):  # type: ignore[arg-type]
        if f"{kind.__name__}.{field.name}" in VALUES_OF_THE_SPEC:
            continue
        for value in samples(hints[field.name]):
            text = repr(getattr(replace(empty, **{field.name: value}), field.name))  # type: ignore[type-var]
            assert PRINTED in text and "\\" not in text, f"{kind.__name__}.{field.name}"  # noqa: PT018


def test_a_status_that_an_older_version_stored_is_clean_when_it_is_read() -> None:
    stored = {"attempt": 1, "lastFailure": {"message": HOSTILE, "time": "2026-01-01T00:00:00Z"}}
    last = decode(Status, stored).last_failure
    assert last is not None
    assert last.message == PRINTED


def test_lines_and_text_of_every_language_stay() -> None:
    text = "Zeile 1 äöü\n\t日本語 é 😀"
    assert failure(message=text).message == text


def test_a_reason_of_which_nothing_is_left_is_still_a_reason() -> None:
    assert failure(reason="\x1b[8m").reason == "?"
    assert printable("") == ""


def test_what_a_program_gets_is_not_changed() -> None:
    assert Status(resumed_from="s3://bucket/a\u200db").resumed_from == "s3://bucket/a\u200db"
    trial = {"number": 0, "job": "s-0", "parameters": {"text": "a\u200db\r"}}
    [decoded] = decode(SweepStatus, {"trials": [trial]}).trials
    assert decoded.parameters == trial["parameters"]


def test_keys_that_programs_and_containers_name_are_clean() -> None:
    assert ProgressStatus(metrics={HOSTILE: 1.0}).metrics == {PRINTED: 1.0}
    assert RestartCounts(by_reason={HOSTILE: 2}).by_reason == {PRINTED: 2}


def test_events_are_clean_too() -> None:
    event = Event("RankFailed", f"worker 0: {HOSTILE}")
    assert event.message == f"worker 0: {PRINTED}"
    assert isinstance(failure(), Failure)
