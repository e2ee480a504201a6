"""The sentences for errors of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.kube.errors import (
    CONNECT_FAILED,
    DISCONNECTED,
    LOGIN_FAILED,
    TIMED_OUT,
    UNTRUSTED,
    ApiError,
    NotFound,
    Refused,
    Target,
    Unavailable,
    explain,
)
from support.builders import table

TARGET = Target("https://api:6443", "prod", "/apis/allranks.dev/v1alpha1/namespaces/team/distributedtrainings")


def explained(error: ApiError, target: Target = TARGET) -> str:
    return str(explain(error, target))


def test_a_missing_CRD_is_reported_with_how_to_install_it():
    assert explained(NotFound("404 page not found", 404)) == (
        "https://api:6443 (context prod) does not serve DistributedTraining: its admin installs allranks there, with "
        "the Helm chart in charts/allranks or kubectl apply --server-side -f crds/distributedtrainings.yaml"
    )


@table(
    ("a rule", "spec.image", "Invalid value: cannot be changed in", "spec.image: cannot be changed in"),
    ("a rule in 1.30", "spec", 'Invalid value: "object": spec.image: cannot be', "spec.image: cannot be"),
    ("a rule for a text in 1.30", "spec.a", 'Invalid value: "string": cannot be', "spec.a: cannot be"),
    ("a type", "spec.x", 'Invalid value: "string": spec.x in body must be of', 'spec.x: "string" must be of'),
    ("a bound", "spec.x", "Invalid value: -1: spec.x in body should be at least 0", "spec.x: -1 should be at least 0"),
    ("a text", "spec.f", 'Unsupported value: "a": supported values: "b"', 'spec.f: Unsupported value: "a": supported'),
)
def test_an_invalid_field_is_named(case):
    field, message, sentence = case
    causes = {"causes": [{"field": field, "message": message}]}
    assert explained(Refused("is invalid", 422, "Invalid", causes)).startswith(sentence)


def test_the_message_of_a_webhook_or_a_quota_is_printed_without_control_characters():
    assert explained(Refused("exceeded quota: \x1b[31mgpus\x1b[0m", 403)) == "exceeded quota: gpus"


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (CONNECT_FAILED, "no API server answers at https://api:6443 (context prod): why: is the cluster up, and is it"),
        (UNTRUSTED, "the certificate of https://api:6443 (context prod) is not trusted: why: check certificate-"),
        (TIMED_OUT, "https://api:6443 (context prod) does not answer: try again"),
        (DISCONNECTED, "https://api:6443 (context prod) closed the connection (why): try again"),
        (LOGIN_FAILED, "why"),
    ],
)
def test_without_an_answer_the_sentence_says_what_to_check(reason: str, sentence: str):
    assert explained(Unavailable("why", 0, reason, context="GET /x")).startswith(sentence)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            Unavailable("Unauthorized", 401),
            "https://api:6443 does not accept your credentials: log in again",
        ),
        (
            Unavailable("etcd is down", 500),
            "https://api:6443 cannot serve the request at the moment, try again later: e",
        ),
        (
            Unavailable("slow down", 429),
            "https://api:6443 cannot serve the request at the moment, try again later: s",
        ),
        (NotFound('pods "a" not found', 404, "NotFound", {"name": "a", "kind": "pods"}), 'pods "a" not found'),
        (
            NotFound('namespaces "a" not found', 404, "NotFound", {"name": "a", "kind": "namespaces"}),
            "namespace a does not exist: choose another, or kubectl create namespace a",
        ),
        (ApiError("bad request", 400), "bad request"),
    ],
)
def test_answers(error: ApiError, sentence: str):
    target = Target("https://api:6443", "", "/api/v1/pods")
    assert explained(error, target).startswith(sentence)
    result: Any = explain(error, target)
    assert (result.status, result.reason) == (error.status, error.reason)
