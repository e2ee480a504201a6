"""The Lease and answers that are lost: a leader keeps what it holds, and only that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web

from allranks.kube.auth import Connection
from allranks.operator.app import Operator
from allranks.operator.leader_election import Lease
from allranks.operator.settings import Settings
from support.scripted import client_of, says, status


class Leases:
    """One Lease with optimistic concurrency. `lost` answers are replaced by that of `instead`, after the write."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.lost = 0
        self.instead = 503
        self.before_write: Callable[[], None] = lambda: None
        self.holders: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return await (says(self.lease) if self.lease else status(404, "NotFound"))(request)
        body = json.loads(await request.text())
        self.before_write()
        current = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != current:
            return await status(409, "Conflict")(request)
        self.write(body)
        if self.lost:
            self.lost -= 1
            return await status(self.instead)(request)
        return await says(self.lease)(request)

    def write(self, body: dict[str, Any]) -> None:
        self.version += 1
        self.lease = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        self.holders.append(body["spec"]["holderIdentity"])


def run(scenario: Callable[[Leases, Lease], Coroutine[Any, Any, None]]) -> None:
    async def with_lease() -> None:
        leases = Leases()
        async with client_of(leases, retry_timeout=5.0) as (client, _), asyncio.timeout(30):
            await scenario(leases, Lease(client, "ns", "operator", "me", 10))

    asyncio.run(with_lease())


@pytest.mark.parametrize("acquired", [False, True], ids=["acquiring", "renewing"])
def test_a_write_whose_answer_was_lost_does_not_lose_the_lease(acquired: bool) -> None:
    """The client sends it again, which conflicts with the first one."""

    async def scenario(leases: Leases, lease: Lease) -> None:
        if acquired:
            await lease.acquire()
        leases.lost = 1
        assert await lease._try()
        assert lease.held
        assert set(leases.holders) == {"me"}

    run(scenario)


def test_a_conflict_with_someone_who_edits_annotations_does_not_lose_the_lease() -> None:
    async def scenario(leases: Leases, lease: Lease) -> None:
        await lease.acquire()

        def edit() -> None:
            leases.before_write = lambda: None
            assert leases.lease
            annotated = leases.lease["metadata"] | {"annotations": {"a": "b"}}
            leases.write(leases.lease | {"metadata": annotated})

        leases.before_write = edit
        assert await lease._try()
        assert lease.held

    run(scenario)


def test_a_conflict_with_another_holder_loses_the_lease() -> None:
    async def scenario(leases: Leases, lease: Lease) -> None:
        await lease.acquire()

        def take() -> None:
            leases.before_write = lambda: None
            assert leases.lease
            leases.write(leases.lease | {"spec": leases.lease["spec"] | {"holderIdentity": "other"}})

        leases.before_write = take
        assert not await lease._try()
        assert leases.holders[-1] == "other"

    run(scenario)


def test_a_lease_is_released_after_a_renewal_whose_answer_was_lost() -> None:
    async def scenario(leases: Leases, lease: Lease) -> None:
        await lease.acquire()
        assert leases.lease
        leases.write(leases.lease)  # the answer never came
        await lease.release()
        assert leases.holders[-1] == ""

    run(scenario)


def test_errors_in_a_row_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(leases: Leases, lease: Lease) -> None:
        for instead in (403, 403, 0, 403):
            leases.lost, leases.instead = bool(instead), instead
            leases.lease = None
            await lease._try()

    run(scenario)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(":")[0] for line in warnings] == 2 * ["cannot read or write lease ns/operator"]


def test_the_identity_is_the_same_in_all_sessions_of_a_process() -> None:
    """So a session that follows a failed one does not wait until its own Lease expires."""

    async def scenario() -> None:
        settings = Settings(leader_election=True, lease_namespace="ns", address="127.0.0.1", port=0)
        leases = Leases()
        async with client_of(leases) as (_, asked), asyncio.timeout(300):
            operator = Operator(settings, Connection(asked.url))
            stopping = asyncio.create_task(asyncio.Event().wait())
            identities = set()
            for _ in range(2):
                async with operator._elected(stopping) as lease:
                    assert lease
                    assert lease.held
                    identities.add(lease.identity)
            assert len(identities) == 1
            stopping.cancel()

    asyncio.run(scenario())
