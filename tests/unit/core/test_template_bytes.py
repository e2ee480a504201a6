"""Templates are bounded in what they cost: bytes of all pods in etcd, copies for roles, and merges."""

from __future__ import annotations

import re
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.api.validation import MAX_MERGED_BYTES, MAX_TEMPLATE_BYTES, parse
from allranks.core.facts import pod_template
from allranks.core.objects import pods
from allranks.errors import InvalidManifest
from support.builders import CLUSTER, manifest


def template(size: int) -> dict[str, Any]:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "trainer", "x": "y" * size}]}}


def problems(replicas: int, size: int = 250_000, **fields: Any) -> list[tuple[str, str]]:
    return pods.problems(parse(manifest(roles={"worker": {"replicas": replicas}}, template=template(size), **fields)))


def spmd(roles: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return manifest("spmd", roles=roles, spmd={"ranks": list(roles)}, **fields)


def test_the_templates_of_all_pods_are_bounded_and_the_message_has_the_number_that_fits():
    [(path, message)] = problems(10_000)
    assert path == "spec.roles.worker.replicas"
    assert re.search(r"is too large: the template of a pod has 250\d\d\d bytes, .* all pods 250\d MB; at most", message)
    fits = int(re.findall(r"at most (\d+) replicas fit into 200 MB", message)[0])
    assert 750 < fits < 800
    assert problems(fits) == []
    assert problems(fits + 1)
    assert problems(10_000, size=15_000) == []


def test_the_largest_size_of_an_elastic_job_counts():
    [(path, message)] = problems(2, elastic={"minReplicas": 1, "maxReplicas": 5_000})
    assert path == "spec.elastic.maxReplicas"
    assert "replicas fit into 200 MB" in message


def test_if_the_other_roles_alone_have_too_many_bytes_the_message_says_so():
    roles: dict[str, Any] = {
        f"part{number}": {"replicas": 600, "template": template(100_000 - number)} for number in (1, 2)
    }
    roles |= {"last": {"replicas": 10_000, "template": template(20_000)}}
    [(path, message)] = pods.problems(parse(spmd(roles)))
    assert path == "spec.roles.last.replicas"
    assert "replicas fit into 200 MB" in message
    roles["part1"]["replicas"] = roles["part2"]["replicas"] = 1_900
    [(path, message)] = pods.problems(parse(spmd(roles)))
    assert "set fewer replicas of the other roles as well" in message


ROLES = {f"part{number}": {"replicas": 1} for number in range(16)}


def test_a_template_that_many_roles_copy_is_bounded_and_the_message_has_the_size_that_fits():
    with pytest.raises(InvalidManifest) as error:
        parse(spmd(ROLES, template=template(200_000)))
    fits = MAX_MERGED_BYTES // 16
    path, message = next(problem for problem in error.value.problems if problem[0] == "spec.template")
    assert path == "spec.template"
    assert message.endswith(f"bytes, and each of the 16 roles has a copy: at most {fits} bytes fit")
    assert parse(spmd(ROLES, template=template(fits - 200)))
    two = dict(list(ROLES.items())[:2])
    assert parse(spmd(two, template=template(MAX_TEMPLATE_BYTES - 200)))


def test_a_decision_merges_each_distinct_template_once(monkeypatch: pytest.MonkeyPatch):
    roles = {role: {**spec, "args": ["b"]} if role == "part15" else spec for role, spec in ROLES.items()}
    job = parse(spmd(roles, template=template(10)))
    merged: list[object] = []
    merge = pod_template._role_template
    monkeypatch.setattr(pod_template, "_role_template", lambda *layers: merged.append(layers) or merge(*layers))
    assert pods.problems(job) == []
    assert len(merged) == 2
    created = pods.objects(job, Status(), CLUSTER).pods
    assert len(created) == 16
    assert len(merged) <= 4, "two platforms: any, and the one of the operator"
    assert {pod["spec"]["containers"][0].get("args", ["a"])[0] for pod in created} == {"a", "b"}
