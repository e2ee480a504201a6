"""The types of statuses: dataclasses, so that mypy checks each change, and as strict as a spec when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel, ValidationError

from allranks.api.status import Failure, RankProgress, RoleStatus, Status
from allranks.api.sweep_status import SweepStatus
from allranks.fields import StatusPart, decode, encode, validated
from support.builders import NOW

STAMP = "2026-03-04T10:00:00Z"


def parts(kind: Any, visited: set[Any]) -> Iterator[type]:
    """Yield the classes in a type, and in the fields of these classes."""
    for inner in get_args(kind):
        yield from parts(inner, visited)
    if isinstance(kind, type) and issubclass(kind, (StatusPart, BaseModel)) and kind not in visited:
        visited.add(kind)
        yield kind
        for hint in get_type_hints(kind).values():
            yield from parts(hint, visited)


@pytest.mark.parametrize("kind", [Status, SweepStatus])
def test_all_parts_of_a_status_are_frozen_dataclasses(kind: type[StatusPart]) -> None:
    """mypy does not check changes of pydantic models."""
    kinds = list(parts(kind, set()))
    assert len(kinds) > 5
    for part in kinds:
        assert issubclass(part, StatusPart), part
        assert is_dataclass(part), part
        assert part.__dataclass_params__.frozen, part  # type: ignore[attr-defined]
        assert all(field.kw_only for field in fields(part)), part


@pytest.mark.parametrize(
    ("stored", "place"),
    [
        ({"phse": "Running"}, "phse"),
        ({"attempt": "1"}, "attempt"),
        ({"attempt": -1}, "attempt"),
        ({"observed_generation": 1}, "observed_generation"),
        ({"roles": {"worker": {"desired": 1.0}}}, "roles.worker.desired"),
        ({"lastFailure": {"pod": "job-worker-0-0"}}, "lastFailure.time"),
        ({"conditions": [3]}, "conditions.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_stored_status_is_validated(stored: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as error:
        decode(Status, stored)
    assert [".".join(map(str, detail["loc"])) for detail in error.value.errors()] == [place]


def test_a_status_is_stored_in_camel_case_without_empty_fields() -> None:
    status = Status(attempt=1, start_time=NOW, last_failure=Failure(time=NOW), roles={"worker": RoleStatus(desired=2)})
    stored = encode(status)
    assert stored["lastFailure"]["time"] == stored["startTime"] == STAMP
    assert stored["roles"]["worker"]["desired"] == 2
    assert "completionTime" not in stored
    assert "exitCode" not in stored["lastFailure"]
    assert decode(Status, stored) == status


def test_a_change_keeps_the_status_that_it_begins_with() -> None:
    before = Status(attempt=1, start_time=NOW)
    assert replace(before, attempt=2, ready="0/3") == Status(attempt=2, start_time=NOW, ready="0/3")
    assert before == Status(attempt=1, start_time=NOW)


def test_values_of_other_programs_are_validated_on_request() -> None:
    part = RankProgress(replica="worker-0", step=3, step_seconds=1)
    assert validated(part) == part
    with pytest.raises(ValidationError, match="step"):
        validated(replace(part, step=2**31))
