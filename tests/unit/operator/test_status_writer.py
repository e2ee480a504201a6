"""Which decisions may wait for further changes."""

from __future__ import annotations

import pytest

from allranks.api.status import Status
from allranks.core.facts.model import Plan, Pod
from allranks.operator.status_writer import is_deferrable
from support.builders import at, job, observed, pod, succeeded


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        (pod(index=1, attempt=1), True),
        (succeeded(index=1, attempt=1), False),
        (pod(index=1, attempt=0), False),
        (pod(index=1, attempt=1, deleted_at=at(50)), False),
    ],
    ids=["a running rank", "all have ended", "a rank of an older attempt", "a terminating rank"],
)
def test_success_waits_for_running_ranks_of_this_attempt(other: Pod, waits: bool) -> None:
    current = observed(job(), Status(phase="Running", attempt=1), [succeeded(attempt=1), other], now=60)
    assert is_deferrable(current, Plan(next=Status(phase="Succeeded", attempt=1), write_ahead=True)) is waits


def test_a_failure_is_written_immediately() -> None:
    current = observed(job(), Status(phase="Running"), [pod()], now=60)
    assert not is_deferrable(current, Plan(next=Status(phase="Failed"), write_ahead=True))
