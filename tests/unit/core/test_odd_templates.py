"""Odd values in templates and in `logPattern`: the core reports them with the field's path and never raises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.api.validation import parse
from allranks.core.facts import pool_template
from allranks.core.facts.strategic_merge import merge
from allranks.core.objects import pods
from allranks.errors import InvalidManifest
from allranks.kube import job_codec
from support.builders import CLUSTER, manifest, table
from support.spec_values import ODD, TEMPLATE, places, with_value

WHERE = replace(CLUSTER, node_lost_seconds=30)


@pytest.mark.parametrize("place", list(places(TEMPLATE))[1:], ids=lambda place: ".".join(map(str, place)))
def test_an_odd_value_anywhere_in_a_template_is_reported_or_reaches_the_pod(place: tuple[Any, ...]) -> None:
    """The core does not raise, whether the value is in the template of the job, the role or the pool."""
    for number, odd in enumerate(ODD):
        template = with_value(TEMPLATE, place, odd)
        both = [template, TEMPLATE] if number % 2 else [TEMPLATE, template]
        roles = {"worker": {"replicas": 1, "template": both[1]}}
        decoded = job_codec.job(manifest(template=both[0], roles=roles))
        found = [path for path, _ in pods.problems(decoded)]
        assert all(path.startswith("spec.") for path in found)
        if not found:
            pods.objects(decoded, Status(avoided_nodes=["bad"]), WHERE)
        if isinstance(template, dict):
            pool = PoolSpec(template=template)
            if not pool_template.problems(pool):
                plain = job_codec.job(manifest(pool="p", template=TEMPLATE))
                pods.objects(plain, Status(avoided_nodes=["bad"]), replace(WHERE, pools={"p": pool}))


FOUND = [
    ("a toleration's key that is a list", {"tolerations": [{"key": ["a"]}]}, "tolerations[0].key: must be a string"),
    ("a host alias without a name", {"hostAliases": [{"ip": ["1.2.3.4"]}]}, "hostAliases[0].ip: must be a string"),
    (
        "an affinity that is a list",
        {"affinity": []},
        "affinity: must be a mapping",
    ),
    (
        "a grace period of a billion years",
        {"terminationGracePeriodSeconds": 10**17},
        "terminationGracePeriodSeconds: should be less than or equal to 315360000",
    ),
]


@table(*FOUND)
def test_the_operator_and_validate_report_the_same_sentence(case) -> None:
    spec, message = case
    document = manifest(template={"spec": spec})
    [(path, text)] = pods.problems(job_codec.job(document))
    assert f"{path}: {text}".startswith(f"spec.template.spec.{message}")
    with pytest.raises(InvalidManifest) as raised:
        parse(document)
    assert list(raised.value.problems) == [(path, text)]


def test_an_amount_that_is_not_a_number_is_no_gpu() -> None:
    document = manifest(resources={"limits": {"nvidia.com/gpu": "²"}})
    assert pods.problems(job_codec.job(document)) == []


def test_items_whose_name_is_no_text_replace_the_list() -> None:
    assert merge({"hostAliases": [{"ip": "1"}]}, {"hostAliases": [{"ip": ["2"]}]}) == {"hostAliases": [{"ip": ["2"]}]}


PATTERNS = [
    ("a repetition that is too large", r"(?P<s>\d{99999999999})", "is not a valid regular expression: the repetition"),
    ("groups nested too deeply", "(" * 500 + ")" * 500, "has too many nested groups"),
    (
        "many large ranges that ignore case, which take a second to compile",
        "(?i)(?P<s>a)" + "[\0-\uffff]" * 200,
        "has too many large character ranges",
    ),
    ("three large ranges are enough", "(?i)(?P<step>a)[\0-\uffff][\0-\uffff][\1-\uffff]", ""),
    ("an ordinary pattern that ignores case", r"(?i)step (?P<step>[0-9a-z]+)", ""),
]


@table(*PATTERNS)
def test_log_pattern(case) -> None:
    pattern, message = case
    found = pods.problems(job_codec.job(manifest(progress={"logPattern": pattern[:1024]})))
    assert bool(found) == bool(message)
    for path, text in found:
        assert path == "spec.progress.logPattern"
        assert text.startswith(message)
