"""Jobs of which the operator does not decode the spec until it is needed."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest

from allranks.api import validation
from allranks.errors import InvalidManifest
from allranks.kube import compact_jobs, job_codec
from allranks.kube.decoding import decoder
from support.builders import manifest, table

METADATA = {"name": "a", "namespace": "ns", "uid": "u", "generation": 2, "resourceVersion": "7"}


def stored(**spec: Any) -> dict[str, Any]:
    document = manifest(**spec)
    extra = {"labels": {"a": "b"}, "annotations": {"a": "b"}, "managedFields": [{"manager": "m"}]}
    return {**document, "metadata": {**METADATA, **extra}, "status": {"phase": "Running"}}


def test_a_response_a_page_and_an_event_give_the_same_job() -> None:
    job = stored(pool="h200")
    found = compact_jobs.job(json.dumps(job).encode())
    assert found["metadata"] == METADATA
    assert found["status"] == {"phase": "Running"}
    assert (found["spec"].framework, found["spec"].pool) == ("pytorch", "h200")
    assert compact_jobs.expanded(found)["spec"] == job["spec"]
    page = compact_jobs.page(json.dumps({"metadata": {"resourceVersion": "9"}, "items": [job]}).encode())
    assert page["items"] == [found]
    event = json.loads(compact_jobs.line(json.dumps({"type": "MODIFIED", "object": job}).encode()))
    assert compact_jobs.compact(event["object"]) == found
    same = compact_jobs.compact(job)
    assert same["metadata"] == METADATA
    assert json.loads(same["spec"].json) == job["spec"]


@pytest.mark.parametrize("line", [b'{"type":"ERROR","object":{"code":410}}', b'{"type":"BOOKMARK"}', b"<html>"])
def test_what_is_no_job_is_left_to_kopf(line: bytes) -> None:
    assert compact_jobs.line(line) == line


@pytest.mark.parametrize("job", [{"metadata": METADATA}, {"metadata": METADATA, "spec": [1]}, stored(framework=3)])
def test_a_job_that_was_stored_without_a_schema_is_marked_like_any_other(job: dict[str, Any]) -> None:
    found = compact_jobs.job(json.dumps(job).encode())
    with pytest.raises(job_codec.DecodeError):
        job_codec.job(compact_jobs.expanded(found))


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", [100, 950, 9_900])
def test_a_template_that_is_nested_deeply_is_refused_with_its_path(depth: int) -> None:
    """`json` stops at about a thousand levels, and the API server stores ten thousand: one such job would end the watch
    for all others, again and again."""
    text = json.dumps(stored(template={"x": "@"})).replace('"@"', nested(depth)).encode()
    event = json.loads(compact_jobs.line(b'{"type":"ADDED","object":%s}' % text))
    [listed] = compact_jobs.page(b'{"metadata":{},"items":[%s]}' % text)["items"]
    limit = sys.getrecursionlimit()
    if compact_jobs.spec_of(listed).left_out:
        listed = compact_jobs.job(text)
    for found in (compact_jobs.compact(event["object"]), listed):
        with pytest.raises(job_codec.DecodeError, match=r"^spec\.template: is nested more than 64 levels deep"):
            job_codec.job(compact_jobs.expanded(found))
    assert sys.getrecursionlimit() == limit


def test_a_list_keeps_of_a_large_spec_only_what_other_jobs_and_sweeps_need() -> None:
    inputs = [{"name": "data", "from": "https://example.org/x", "path": "/data"}]
    job = stored(suspend=True, inputs=inputs, pool="h200", template={"x": "y" * compact_jobs.LARGE_BYTES})
    [found] = compact_jobs.page(json.dumps({"metadata": {}, "items": [job]}).encode())["items"]
    spec = compact_jobs.spec_of(found)
    assert (spec.left_out, spec.framework, spec.pool) == (True, "pytorch", "h200")
    assert json.loads(spec.json) == {"suspend": True, "inputs": inputs}
    assert compact_jobs.without_large_spec(found) == found
    with pytest.raises(RuntimeError, match="read the job first"):
        compact_jobs.expanded(found)


def test_of_a_large_spec_with_large_inputs_nothing_is_kept() -> None:
    job = stored(inputs=[{"name": "data", "from": "https://example.org/" + "x" * compact_jobs.LARGE_BYTES}])
    [found] = compact_jobs.page(json.dumps({"metadata": {}, "items": [job]}).encode())["items"]
    assert compact_jobs.spec_of(found).json == b"null"


def test_a_decoder_reports_what_is_nested_too_deeply_for_the_stack() -> None:
    with pytest.raises(msgspec.DecodeError):
        decoder(msgspec.Raw)(b"[" * 100_000 + b"]" * 100_000)


LARGE = "x" * 200_000
SIZES = [
    ("one template", {"template": {"a": LARGE + LARGE}}, True),
    ("two templates together", {"template": {"a": LARGE}, "roles": {"worker": {"template": {"a": LARGE}}}}, True),
    (
        "many valueFrom",
        {"env": [{"name": "A", "valueFrom": {"a": LARGE}}, {"name": "B", "valueFrom": {"a": LARGE}}]},
        True,
    ),
    ("a volume", {"checkpoint": {"volume": {"a": LARGE + LARGE}}}, True),
    ("a template below the limit", {"template": {"a": LARGE}}, False),
    ("arguments have their own limit", {"args": ["x" * 8_000] * 100}, False),
]


@table(*SIZES)
def test_parts_without_a_schema_have_a_limit_in_total(case) -> None:
    """The operator and `allranks validate` say the same."""
    fields, refused = case
    found = compact_jobs.job(json.dumps(stored(**fields)).encode())
    document = manifest(**fields)
    if not refused:
        assert job_codec.job(compact_jobs.expanded(found))
        assert validation.parse(document)
        return
    assert found["spec"].json == b"null", "nothing of it is kept"
    with pytest.raises(job_codec.DecodeError) as error:
        compact_jobs.expanded(found)
    with pytest.raises(InvalidManifest) as invalid:
        validation.parse(document)
    assert str(error.value) in str(invalid.value)
    assert "more than 256 KiB in total" in str(error.value)


@pytest.mark.parametrize(
    ("roles", "pools"),
    [
        ({"worker": {"replicas": 1}, "ps": {"replicas": 1, "pool": "cpu"}}, ("cpu",)),
        ({"worker": {"pool": "gpu"}, "ps": {"pool": "cpu"}, "chief": {"pool": None}}, ("cpu", "gpu")),
        ({"worker": {"replicas": 1}}, ()),
        ({"worker": {"pool": 3}}, ()),
        (["pool"], ()),
    ],
)
def test_the_pools_of_roles_are_kept_beside_the_spec(roles: Any, pools: tuple[str, ...]) -> None:
    job = {"metadata": METADATA, "spec": {"framework": "pytorch", "roles": roles}}
    assert compact_jobs.spec_of(compact_jobs.job(json.dumps(job).encode())).role_pools == pools
