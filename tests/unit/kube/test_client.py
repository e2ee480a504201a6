"""The client: retries, errors, the fence against writes of a former leader."""

from __future__ import annotations

import asyncio
import time

import pytest

from allranks.kube import client as clients
from allranks.kube.auth import Connection
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Conflict, Fenced, Gone, NotFound, Refused, Unavailable
from support.mortal_transport import MortalTransport
from support.scripted import Answer, client_of, hangs, resets, says, server, status


@pytest.mark.parametrize(
    "fault",
    [
        status(429, Retry_After="0"),
        status(500),
        status(503),
        status(504),
        status(401),
        resets,
    ],
    ids=["429", "500", "503", "504", "401", "reset"],
)
def test_transient_errors_are_retried(fault: Answer) -> None:
    async def scenario() -> None:
        async with client_of(fault, fault, says({"ok": True})) as (client, api):
            assert await client.create("/x", {"a": 1}) == b'{"ok": true}'
            assert api.asked == [("POST", "/x", {}, {"a": 1})] * 3
            assert client.writes == 1

    asyncio.run(scenario())


def test_a_request_without_an_answer_is_retried() -> None:
    async def scenario() -> None:
        async with client_of(hangs, says({})) as (client, api), asyncio.timeout(300):
            client._timeout = clients.aiohttp.ClientTimeout(total=0.2)
            await client.get("/x")
            assert len(api.asked) == 2

    asyncio.run(scenario())


def test_retry_after_is_respected() -> None:
    async def scenario() -> None:
        async with client_of(status(429, Retry_After="1"), says({})) as (client, _):
            began = time.monotonic()
            await client.get("/x")
            assert time.monotonic() - began >= 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "error"),
    [(400, Refused), (403, Refused), (404, NotFound), (409, Conflict), (410, Gone), (413, Refused), (422, Refused)],
)
def test_other_errors_are_raised_at_once(code: int, error: type[ApiError]) -> None:
    async def scenario() -> None:
        async with client_of(status(code, "Because", "it is so")) as (client, api):
            with pytest.raises(error) as raised:
                await client.create("/x", {})
            assert (raised.value.status, raised.value.reason, str(raised.value)) == (code, "Because", "it is so")
            assert len(api.asked) == 1

    asyncio.run(scenario())


def test_after_the_retry_timeout_it_raises_unavailable() -> None:
    async def scenario() -> None:
        async with client_of(status(500, message="etcd is away"), retry_timeout=0.5) as (client, api):
            with pytest.raises(Unavailable, match="POST /x: 500: etcd is away"):
                await client.create("/x", {})
            assert len(api.asked) > 1

    asyncio.run(scenario())


def test_behind_the_fence_only_reads_are_sent() -> None:
    async def scenario() -> None:
        async with client_of(says({}), fence=lambda: False) as (client, api):
            await client.get("/x")
            for ask in (client.create("/x", {}), client.patch("/x", {}), client.delete("/x", "uid")):
                with pytest.raises(Fenced):
                    await ask
            assert [verb for verb, *_ in api.asked] == ["GET"]

    asyncio.run(scenario())


def test_the_fence_is_checked_before_every_retry() -> None:
    """A leader that lost its Lease between two tries must not send the second one."""

    async def scenario() -> None:
        may = [True, False]
        async with client_of(status(500), fence=lambda: may.pop(0)) as (client, api):
            with pytest.raises(Fenced):
                await client.create("/x", {})
            assert len(api.asked) == 1

    asyncio.run(scenario())


def test_a_delete_request_has_the_uid_as_precondition() -> None:
    async def scenario() -> None:
        async with client_of(says({})) as (client, api):
            await client.delete("/x", "u-1")
            assert api.asked[0][3]["preconditions"] == {"uid": "u-1"}
            assert "gracePeriodSeconds" not in api.asked[0][3]

    asyncio.run(scenario())


def test_a_delete_request_can_replace_the_grace_period_of_a_pod() -> None:
    async def scenario() -> None:
        async with client_of(says({})) as (client, api):
            await client.delete("/x", "u-1", grace_seconds=0)
            assert api.asked[0][3]["gracePeriodSeconds"] == 0

    asyncio.run(scenario())


def test_the_token_is_sent_and_never_printed() -> None:
    async def scenario() -> None:
        async with client_of(status(403, "Forbidden", "no")) as (client, api):
            with pytest.raises(Refused) as raised:
                await client.get("/x")
            assert api.headers[0]["Authorization"] == "Bearer secret"
            assert "secret" not in str(raised.value) + repr(client.connection)

    asyncio.run(scenario())


def test_a_token_file_is_read_again_when_the_token_is_rejected(tmp_path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")

    async def refuse_and_rotate(_):
        file.write_text("new\n")
        return await status(401)(_)

    async def scenario() -> None:
        async with client_of(refuse_and_rotate, says({})) as (client, api):
            client.connection = Connection(api.url, token_file=file)
            await client.get("/x")
            assert [headers["Authorization"] for headers in api.headers] == ["Bearer old", "Bearer new"]

    asyncio.run(scenario())


def test_concurrent_requests_are_bounded() -> None:
    async def scenario() -> None:
        busy, most = 0, 0

        async def slow(_):
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.01)
            busy -= 1
            return await says({})(_)

        async with client_of(slow, concurrency=4) as (client, _):
            paths = ("/x", "/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods", "/api/v1/namespaces/c/pods")
            await asyncio.gather(*(client.get(path) for path in paths * 20))
            assert most == 4

    asyncio.run(scenario())


def test_requests_about_one_namespace_that_take_long_leave_room_for_others() -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def answer(request):
            if "/namespaces/slow/" in request.path:
                await release.wait()
            return await says({})(request)

        async with client_of(answer, concurrency=8) as (client, _):
            waiting = [asyncio.ensure_future(client.get(f"/api/v1/namespaces/slow/pods/{n}")) for n in range(100)]
            await asyncio.sleep(0)
            await asyncio.wait_for(client.get("/api/v1/namespaces/quick/pods/1"), 60)
            await asyncio.wait_for(client.get("/api/v1/nodes"), 60)
            assert not any(request.done() for request in waiting)
            release.set()
            await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_nothing_leaves_a_transport_that_has_died() -> None:
    async def scenario() -> None:
        async with server(says({})) as api:
            connection = Connection(api.url)
            transport = MortalTransport(connection)
            client = Client(connection, transport=transport)
            await transport.die()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.create("/x", {}), 0.1)
            assert api.asked == []
            await client.close()

    asyncio.run(scenario())
