"""Deletion of the ConfigMaps of past attempts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from allranks.kube import pod_codec
from allranks.operator.apply import Executor
from allranks.operator.cache import PodCache
from allranks.operator.job_state import Rejections
from support.builders import UID, table
from support.scripted import Answer, Scripted, client_of, says, status

JOB = {"metadata": {"name": "job", "namespace": "team", "uid": UID}}
PATH = "/api/v1/namespaces/team/configmaps/job-files-0"


def stored(owner: str) -> Answer:
    """The ConfigMap as the API server returns it."""
    reference = {"apiVersion": "v1", "kind": "X", "name": "job", "uid": owner, "controller": True}
    return says({"metadata": {"name": "job-files-0", "namespace": "team", "uid": "u", "ownerReferences": [reference]}})


def apply(*answers: Answer) -> Scripted:
    async def scenario() -> Scripted:
        async with client_of(*answers) as (client, asked):
            executor = Executor(client, PodCache(lambda _: None), pod_codec.to_cached_pod)
            await executor.create(JOB, (), Rejections(), ("job-files-0",))
            return asked

    return asyncio.run(scenario())


GET, DELETE = ("GET", None), ("DELETE", {"preconditions": {"uid": "u"}})


@table(
    ("one that the job owns is deleted, by its UID", [stored(UID), says({})], [GET, DELETE]),
    ("one of another owner stays", [stored("somebody-else")], [GET]),
    ("one that does not exist is no error", [status(404, "NotFound")], [GET]),
    ("one that was replaced in the meantime stays", [stored(UID), status(409, "Conflict")], [GET, DELETE]),
)
def test_superseded(case: tuple[list[Answer], list[Any]]) -> None:
    answers, expected = case
    asked = apply(*answers).asked
    assert {path for _, path, _, _ in asked} == {PATH}
    assert [(verb, body and {"preconditions": body["preconditions"]}) for verb, _, _, body in asked] == expected


def test_a_refused_deletion_does_not_stop_the_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """The operator's role may be older than the operator."""
    with caplog.at_level(logging.ERROR):
        apply(stored(UID), status(403, "Forbidden", "no"))
    assert "cannot delete ConfigMap team/job-files-0" in caplog.text
