"""Status objects are changed only by the names of their fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import allranks.core
from allranks.api.status import Failure, PastAttempt, ProgressStatus, ReplicaRestarts, RoleStatus, Status, Times
from allranks.core.facts import status_update
from allranks.core.facts.status_update import changed
from support.builders import NOW

CORE = Path(allranks.core.__file__).parent
CHANGES: list[tuple[type[Any], type[Any]]] = [
    (Status, status_update.StatusChanges),
    (ProgressStatus, status_update.ProgressChanges),
    (Times, status_update.TimesChanges),
    (PastAttempt, status_update.PastAttemptChanges),
    (RoleStatus, status_update.RoleChanges),
    (ReplicaRestarts, status_update.ReplicaRestartsChanges),
    (Failure, status_update.FailureChanges),
]


def test_a_change_gives_a_new_status_and_keeps_the_old_one() -> None:
    before = Status(attempt=1, start_time=NOW)
    assert changed(before, attempt=2, ready="0/3") == Status(attempt=2, start_time=NOW, ready="0/3")
    assert before == Status(attempt=1, start_time=NOW)


def test_a_misspelt_field_raises() -> None:
    with pytest.raises(TypeError, match="Status has no field lastFailure, phse"):
        changed(Status(), phse="Running", lastFailure=None, attempt=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(("model", "changes"), CHANGES)
def test_the_types_that_mypy_checks_are_those_of_the_model(model: type[Any], changes: type[Any]) -> None:
    of_model = get_type_hints(model)
    assert {name: of_model.get(name) for name in get_type_hints(changes)} == get_type_hints(changes)


def test_the_core_changes_status_in_no_other_way() -> None:
    unchecked = [
        path.name
        for path in CORE.rglob("*.py")
        if path.name != "status_update.py" and re.search(r"model_copy\(|model_construct\(", path.read_text())
    ]
    assert unchecked == []
