"""The pool cache: missing permissions are reported, invalid pools are logged without their values."""

from __future__ import annotations

import asyncio

import pytest

from allranks.operator.platform_cache import Pools
from allranks.operator.settings import Settings
from support.scripted import Answer, client_of, says, status


def read(answer: Answer) -> Pools:
    """The cache after the first list."""

    async def scenario() -> Pools:
        async with client_of(answer, retry_timeout=0.0) as (client, _), asyncio.timeout(60):
            pools = Pools(client, Settings(), lambda name: None)
            run = asyncio.create_task(pools.run())
            await pools.synced.wait()
            run.cancel()
            return pools

    return asyncio.run(scenario())


@pytest.mark.parametrize("code", [403, 404])
def test_unreadable_pools_block_nothing_and_the_message_names_what_may_be_missing(code: int) -> None:
    refused = read(status(code, message="no such thing")).refused
    assert "(no such thing)" in refused
    assert "ClusterRole" in refused
    assert "CustomResourceDefinition" in refused


def test_an_invalid_pool_is_logged_without_its_values(caplog: pytest.LogCaptureFixture) -> None:
    spec = {"env": [{"name": "TOKEN", "value": "hush", "valu": "hush"}, {"name": "hush" * 100, "value": 5}]}
    page = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a100"}, "spec": spec}]}
    assert read(says(page)).get("a100") is None
    assert "TrainingPool a100 is invalid" in caplog.text
    assert "spec.env.0.valu: Extra inputs are not permitted" in caplog.text
    assert "hush" not in caplog.text
