"""Stack dumps that users request."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from allranks.api.status import Status
from allranks.core.facts import rank_reports
from allranks.core.facts.model import Observed, Platform
from allranks.core.facts.rank_reports import (
    STACKS_ANNOTATION,
    Reports,
    new_stack_request,
    stack_dump_id,
    stacks_requested_at,
)
from allranks.core.reconcile import reconcile
from allranks.kube import compact_jobs
from support.builders import NOW, job, pod, rank

REQUEST = new_stack_request(2, datetime(2026, 11, 25, 7, 45, tzinfo=UTC), 0x9F3)


def test_a_request_says_the_attempt_and_the_time():
    assert REQUEST == "2-20261125T074500-09f3"
    assert stacks_requested_at(REQUEST) == datetime(2026, 11, 25, 7, 45, tzinfo=UTC)
    assert stack_dump_id(REQUEST, 2) == f"requested {REQUEST}"


@pytest.mark.parametrize("attempt", [0, 1, 3, 22])
def test_a_request_is_for_the_ranks_of_one_attempt(attempt):
    assert stack_dump_id(REQUEST, attempt) == ""


@pytest.mark.parametrize("text", ["", "now", f"{REQUEST}\n", f"0{REQUEST}", "2-20261399T074500-09f3", "2-x-09f3"])
def test_any_other_text_is_no_request(text):
    assert stacks_requested_at(text) is None
    assert stack_dump_id(text, 2) == ""


def observed(request: str, attempt: int = 0):
    found = job(roles={"worker": 2}, hang={"timeoutSeconds": 60})
    metadata = found.metadata.model_copy(update={"annotations": {STACKS_ANNOTATION: request}})
    status = Status(start_time=NOW, attempt_time=NOW, running_time=NOW, phase="Running", attempt=attempt)
    pods = tuple(pod(index=place, attempt=attempt) for place in range(2))
    reports = Reports(NOW, (rank(0, 3), rank(1, 3)))
    found = found.model_copy(update={"metadata": metadata})
    return Observed(found, status, pods, NOW, Platform(helper_image="helper"), reports=reports)


def test_the_operator_passes_a_request_on_to_the_ranks_of_its_attempt():
    request = new_stack_request(1, NOW, 1)
    assert reconcile(observed(request, attempt=1)).stack_dump_id == f"requested {request}"
    assert reconcile(observed(request, attempt=0)).stack_dump_id == ""
    assert reconcile(observed("rm -rf /", attempt=1)).stack_dump_id == ""


@pytest.mark.parametrize(("value", "kept"), [(REQUEST, {STACKS_ANNOTATION: REQUEST}), ("x" * 5000, None)])
def test_the_operator_keeps_the_annotation_in_memory_unless_it_is_long(value, kept):
    raw = {"metadata": {"name": "a", "annotations": {STACKS_ANNOTATION: value, "other": "b"}}, "spec": {}}
    assert compact_jobs.compact(raw)["metadata"].get("annotations") == kept


def test_the_id_fits_into_what_ranks_accept():
    longest = rank_reports.stack_dump_id(new_stack_request(999_999_999, NOW, 0xFFFF), 999_999_999)
    assert 0 < len(longest) < 200
