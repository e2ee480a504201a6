"""What `allranks describe` says about the tests of a job's pods."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from allranks.api.pool import PoolSpec
from allranks.api.status import CodeStatus, Status
from allranks.core.objects import pods
from allranks.kube import job_codec
from allranks.views.description import describe_job
from support.builders import CLUSTER, NOW, UID, job, manifest, table

CREATED = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
TESTS = {"gpu": True, "network": True}


def described(of_pool: dict[str, Any] | None = None, **spec: Any) -> list[str]:
    pools = {"h": PoolSpec.model_validate({"preflight": of_pool})} if of_pool else {}
    made = pods.objects(job(**spec), Status(), replace(CLUSTER, pools=pools)).pods
    listed = [pod | {"metadata": pod["metadata"] | CREATED} for pod in made]
    of = manifest(**spec)
    of["metadata"] |= CREATED
    lines = describe_job(of, listed, "", [], NOW)
    return [line for line in lines if isinstance(line, str) and line.startswith("Preflight:")]


@table(
    ("none", {}, []),
    ("of the job", {"preflight": TESTS}, ["Preflight:   gpu, network, in at most 3m"]),
    ("of the pool", {"pool": "h", "of_pool": {"disk": True}}, ["Preflight:   disk, in at most 3m"]),
)
def test_describe_says_which_tests_the_pods_make(case):
    fields, expected = case
    assert described(**fields) == expected


def test_describe_says_which_tests_a_job_without_pods_will_make():
    of = manifest(preflight=TESTS | {"timeoutSeconds": 120})
    of["metadata"] |= CREATED
    lines = [line for line in describe_job(of, [], "", [], NOW) if isinstance(line, str)]
    assert "Preflight:   gpu, network, in at most 2m" in lines


def code_line(status: Status) -> list[str]:
    of = manifest()
    of["metadata"] |= CREATED
    of["status"] = job_codec.encode(status)
    lines = describe_job(of, [], "", [], NOW)
    return [line for line in lines if isinstance(line, str) and line.startswith("Code:")]


def test_describe_says_which_code_runs_and_since_when():
    code = CodeStatus(sha256="a" * 64, commit="abcdef0123456789", dirty=True, time=NOW - timedelta(minutes=2))
    [line] = code_line(Status(code=code))
    assert (
        line == f"Code:        aaaaaaaaaaaa, commit abcdef012345 with changes, since {code.time:%H:%M:%S} UTC (2m ago)"
    )
    waiting = Status(code=replace(code, awaits_change=True), restart_time=NOW + timedelta(minutes=1))
    [line] = code_line(waiting)
    assert line.endswith(f"the ranks wait for other code until {waiting.restart_time:%H:%M:%S} UTC")
    assert code_line(Status()) == []


def test_describe_says_the_level_of_the_pods_and_why():
    [pod, *_] = pods.objects(job(), Status(), replace(CLUSTER, why_restricted="")).pods
    of = manifest()
    of["metadata"] |= CREATED | {"uid": UID}
    lines = list(describe_job(of, [pod | {"metadata": pod["metadata"] | CREATED}], "", [], NOW))
    assert "Security:    Baseline: namespace team does not enforce restricted pods" in lines


@table(
    ("none", {}, []),
    ("of the job", {"pool": "h200"}, ["Pool:        h200"]),
    (
        "of roles",
        {"pool": "h200", "roles": {"master": 1, "worker": {"replicas": 1, "pool": "spot"}}},
        ["Pool:        master: h200, worker: spot"],
    ),
)
def test_describe_says_which_pool_each_role_has(case):
    spec, expected = case
    of = manifest(**spec)
    of["metadata"] |= CREATED
    lines = [line for line in describe_job(of, [], "", [], NOW) if isinstance(line, str)]
    assert [line for line in lines if line.startswith("Pool")] == expected
