"""The watch: pages, bookmarks, 410, lost connections, silence, permissions, objects that do not decode."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from allranks.kube import watch as watches
from allranks.kube.decoding import decoder
from allranks.kube.errors import Unavailable
from allranks.kube.raw_pod import Raw
from allranks.kube.watch import Watch
from support.scripted import Answer, client_of, hangs, resets, says, status, streams


@pytest.fixture(autouse=True)
def short_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(watches, "LAST_BACKOFF_SECONDS", 0.02)


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}}


def page(version: int, *items: Any, further: str = "") -> Answer:
    return says({"metadata": {"resourceVersion": str(version), "continue": further}, "items": list(items)})


def event(kind: str, name: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version)}


class Log(list[Any]):
    """The callbacks of a watch, and when to stop."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self.enough, self.done = enough, asyncio.Event()

    def add(self, item: Any) -> None:
        self.append(item)
        if len(self) >= self.enough:
            self.done.set()


def watched(enough: int, *script: Answer, silence: float = 5, **how: Any) -> tuple[list[Any], list[Any], Watch[Raw]]:
    """(the callbacks, the requests, the watch) after `enough` callbacks."""

    async def scenario() -> tuple[list[Any], list[Any], Watch[Raw]]:
        log = Log(enough)
        async with client_of(*script, retry_timeout=0.0) as (client, api), asyncio.timeout(60):
            watch = Watch(
                client,
                "/pods",
                decoder(Raw),
                listed=lambda found, version: log.add(("listed", [r.metadata.name for r in found], version)),
                changed=lambda raw, gone: log.add((raw.metadata.name, int(raw.metadata.resource_version), gone)),
                silence=silence,
                **how,
            )
            task = asyncio.create_task(watch.run())
            await log.done.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return list(log), [(path, query) for _, path, query, _ in api.asked], watch

    return asyncio.run(scenario())


def test_everything_is_listed_in_pages_then_watched() -> None:
    log, asked, watch = watched(
        4,
        page(7, pod("a", 1), further="more"),
        page(7, pod("b", 2)),
        streams(event("ADDED", "c", 8), event("MODIFIED", "a", 9), event("DELETED", "b", 10), then="hang"),
    )
    assert log == [("listed", ["a", "b"], 7), ("c", 8, False), ("a", 9, False), ("b", 10, True)]
    assert asked[1][1]["continue"] == "more"
    assert (asked[2][1]["watch"], asked[2][1]["resourceVersion"]) == ("1", "7")
    assert watch.synced.is_set()


@pytest.mark.parametrize("timeout", [status(504), status(500, "ServerTimeout")], ids=["504", "ServerTimeout"])
def test_a_page_that_takes_too_long_is_asked_for_again_with_fewer_objects_and_the_list_continues(
    timeout: Answer,
) -> None:
    log, asked, _ = watched(
        1,
        page(7, pod("a", 1), further="more"),
        timeout,
        page(7, pod("b", 2), further="rest"),
        page(7, pod("c", 3)),
        hangs,
    )
    assert log == [("listed", ["a", "b", "c"], 7)]
    pages = [(query.get("continue", ""), query["limit"]) for _, query in asked if "limit" in query]
    assert pages == [("", "500"), ("more", "500"), ("more", "125"), ("rest", "250")]


def test_a_renewed_watch_continues_from_the_last_bookmark() -> None:
    log, asked, _ = watched(
        2,
        page(7),
        streams({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}}),
        streams(event("ADDED", "a", 51), then="hang"),
    )
    assert log == [("listed", [], 7), ("a", 51, False)]
    assert asked[2][1]["resourceVersion"] == "50"


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}


@pytest.mark.parametrize("answer", [streams(GONE), status(410, "Expired", "too old")], ids=["in the stream", "at once"])
def test_a_version_that_is_too_old_causes_a_relist(answer: Answer) -> None:
    log, _, _ = watched(2, page(7, pod("a", 1)), answer, page(60, pod("b", 59)), streams(then="hang"))
    assert log == [("listed", ["a"], 7), ("listed", ["b"], 60)]


@pytest.mark.parametrize(
    "fault",
    [
        streams(event("ADDED", "a", 8), then="cut"),
        *(resets, status(500), status(429), status(403), status(404), hangs),
        streams({"type": "ERROR", "object": {"code": 500, "message": "etcd"}}),
    ],
    ids=["cut", "reset", "500", "429", "403", "404", "hang", "error in the stream"],
)
def test_after_any_other_error_the_watch_continues_where_it_was(fault: Answer) -> None:
    log, _, _ = watched(2, page(7), fault, fault, streams(event("ADDED", "b", 9), then="hang"), silence=0.1)
    assert log[0] == ("listed", [], 7)
    assert log[-1][0] in ("a", "b")
    assert sum(1 for item in log if item[0] == "listed") == 1


def test_a_watch_that_ends_as_soon_as_it_begins_is_retried_with_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "FIRST_BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(watches, "LAST_BACKOFF_SECONDS", 0.2)

    async def scenario() -> int:
        async with client_of(page(7), streams()) as (client, api):
            watch = Watch(client, "/pods", decoder(Raw), listed=lambda *_: None, changed=lambda *_: None)
            task = asyncio.create_task(watch.run())
            await asyncio.sleep(0.5)
            task.cancel()
            return len(api.asked)

    assert asyncio.run(scenario()) <= 7


def test_a_watch_that_is_silent_for_too_long_is_replaced() -> None:
    log, asked, _ = watched(2, page(7), streams(then="hang"), streams(event("ADDED", "a", 8), then="hang"), silence=0.1)
    assert log[-1] == ("a", 8, False)
    assert len(asked) == 3


def test_lines_may_be_of_any_length_and_come_in_pieces() -> None:
    large = event("ADDED", "a", 8)
    large["object"]["metadata"]["annotations"] = {"x": "y" * 300_000}
    log, _, _ = watched(3, page(7), streams(large, event("ADDED", "b", 9), chunk=1000, then="hang"))
    assert [item[0] for item in log] == ["listed", "a", "b"]


def test_an_object_that_does_not_decode_is_skipped() -> None:
    broken = {"type": "ADDED", "object": {"metadata": {"name": 5, "resourceVersion": "8"}}}
    log, _, _ = watched(2, page(7, {"metadata": {"name": []}}), streams(broken, event("ADDED", "b", 9), then="hang"))
    assert log == [("listed", [], 7), ("b", 9, False)]


def test_missing_permissions_are_reported_once() -> None:
    messages: list[str] = []
    watched(
        1,
        status(403, "Forbidden", "may not list"),
        status(403, "Forbidden", "may not list"),
        page(7),
        streams(),
        forbidden=messages.append,
    )
    assert messages == ["may not list"]


def test_a_garbled_stream_does_not_end_the_watch() -> None:
    async def garbled(request):
        response = await streams()(request)
        await response.write(b"not json\n")
        return response

    log, _, _ = watched(2, page(7), garbled, streams(event("ADDED", "b", 9), then="hang"))
    assert log[-1] == ("b", 9, False)
    with pytest.raises(msgspec.DecodeError):
        watches._line(b"not json")


def test_a_connection_that_was_closed_between_two_reads_is_a_lost_connection() -> None:
    async def read() -> None:
        async with client_of(streams(then="hang")) as (client, _), client.stream("/x", {}, None):
            raise RuntimeError("Connection closed.")  # as aiohttp's StreamReader

    with pytest.raises(Unavailable, match=r"Connection closed\."):
        asyncio.run(read())


def test_an_error_of_the_one_who_reads_a_stream_is_no_lost_connection() -> None:
    async def read() -> None:
        async with client_of(streams(then="hang")) as (client, _), client.stream("/x", {}, None):
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        asyncio.run(read())
