"""CRDs that are older than the operator."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest
from aiohttp import web

from allranks.api.crd import RESOURCES, crd
from allranks.api.job import KIND
from allranks.api.pool import KIND as POOL
from allranks.operator import crd_check
from allranks.operator.metrics import Metrics
from support.scripted import Answer, client_of, says, status


def serves(definitions: dict[str, Any]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        kind = next(kind for kind, resource in RESOURCES.items() if resource.plural in request.path)
        found = definitions.get(kind)
        return await (says(found) if found else status(404, "NotFound"))(request)

    return answer


def missing(definitions: dict[str, Any]) -> list[str]:
    async def scenario() -> list[str]:
        async with client_of(serves(definitions)) as (client, _):
            return await crd_check.missing_fields(client)

    return asyncio.run(scenario())


def installed() -> dict[str, Any]:
    return {kind: json.loads(json.dumps(crd(kind))) for kind in RESOURCES}


def schema(definitions: dict[str, Any]) -> Any:
    return definitions[KIND]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def test_the_crds_of_this_version_have_every_field() -> None:
    assert missing(installed()) == []


def test_fields_and_values_that_the_installed_crd_does_not_have() -> None:
    older = installed()
    del schema(older)["status"]["properties"]["goodput"]
    del schema(older)["spec"]["properties"]["restart"]["properties"]["rules"]["items"]["properties"]["action"]
    schema(older)["status"]["properties"]["conditions"]["items"]["properties"]["type"]["enum"].remove("Suspended")
    assert sorted(missing(older)) == [
        "DistributedTraining.spec.restart.rules[].action",
        "DistributedTraining.status.conditions[].type=Suspended",
        "DistributedTraining.status.goodput",
    ]


def test_a_newer_crd_and_an_absent_crd_of_pools_are_fine() -> None:
    newer = copy.deepcopy(installed())
    schema(newer)["status"]["properties"]["more"] = {"type": "string"}
    del newer[POOL]
    assert missing(newer) == []


@pytest.mark.parametrize(
    ("answer", "outdated"),
    [(status(403, "Forbidden"), 0), (status(503), 0), (says({}), 0), (says([1]), 0), (None, 1)],
    ids=["no right", "unavailable", "no CRD", "no object", "outdated"],
)
def test_the_metric_and_one_line_of_the_log(
    answer: Answer | None, outdated: int, caplog: pytest.LogCaptureFixture
) -> None:
    older = installed()
    del schema(older)["status"]["properties"]["goodput"]
    metrics = Metrics()

    async def scenario() -> None:
        async with client_of(answer or serves(older), retry_timeout=0.0) as (client, asked):
            run = asyncio.create_task(crd_check.run(client, metrics, 0.01))
            async with asyncio.timeout(300):
                while len(asked.asked) < 6:
                    await asyncio.sleep(0.01)
            run.cancel()

    asyncio.run(scenario())
    assert metrics.registry.get_sample_value("allranks_crds_outdated") == outdated
    lines = [r for r in caplog.records if "older than the operator" in r.getMessage()]
    assert len(lines) == outdated
    assert all("missing: DistributedTraining.status.goodput" in r.getMessage() for r in lines)
