"""Events: told in the background, counted when they repeat, cut short when there are too many."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from allranks.core.model import Event
from allranks.operator import event_recorder
from allranks.operator.event_recorder import Recorder
from support.scripted import client_of, says, status

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str = "demo", uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": "7"}}


def told(*answers: Any, tell: Any) -> tuple[Recorder, list[Any]]:
    async def scenario() -> tuple[Recorder, list[Any]]:
        async with client_of(*answers, retry_timeout=0.0) as (client, api):
            recorder = Recorder(client)
            tell(recorder)
            await recorder.flush(5)
            return recorder, api.asked

    return asyncio.run(scenario())


def test_an_event_names_the_job_so_that_describe_shows_it() -> None:
    _, [(verb, path, _, body)] = told(
        says({}), tell=lambda r: r.tell(job(), Event("RankFailed", "why", warning=True), NOW, 3)
    )
    assert (verb, path) == ("POST", "/api/v1/namespaces/ns/events")
    assert body["involvedObject"] == {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "name": "demo",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
    }
    assert (body["type"], body["reason"], body["message"]) == ("Warning", "RankFailed", "why")
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2026-01-01T00:00:00Z"


def test_what_repeats_itself_is_one_event_that_is_counted() -> None:
    _, asked = told(says({}), tell=lambda r: [r.tell(job(), Event("A", "b"), NOW, 0) for _ in range(3)])
    assert [verb for verb, *_ in asked] == ["POST", "PATCH", "PATCH"]
    assert [body["count"] for *_, body in asked] == [1, 2, 3]
    assert asked[1][1].endswith(f"/{asked[0][3]['metadata']['name']}")


def test_what_a_former_life_told_already_is_counted_too() -> None:
    _, asked = told(status(409, "AlreadyExists"), says({}), tell=lambda r: r.tell(job(), Event("A", "b"), NOW, 0))
    assert [verb for verb, *_ in asked] == ["POST", "PATCH"]
    assert asked[1][3]["count"] == 2


def test_what_repeats_itself_after_the_event_has_expired_is_told_anew() -> None:
    _, asked = told(
        *(says({}), status(404), says({})), tell=lambda r: [r.tell(job(), Event("A", "b"), NOW, 0) for _ in range(3)]
    )
    assert [verb for verb, *_ in asked] == ["POST", "PATCH", "POST", "PATCH"]
    assert [body["count"] for *_, body in asked] == [1, 2, 1, 2]


def test_another_attempt_and_another_job_of_the_same_name_tell_events_of_their_own() -> None:
    def tell(recorder: Recorder) -> None:
        recorder.tell(job(), Event("A", "b"), NOW, 0)
        recorder.tell(job(), Event("A", "b"), NOW, 1)
        recorder.tell(job(uid="other"), Event("A", "b"), NOW, 0)

    _, asked = told(says({}), tell=tell)
    assert len({body["metadata"]["name"] for *_, body in asked}) == 3


def test_a_job_that_has_too_much_to_say_is_cut_short_and_no_other_with_it() -> None:
    def tell(recorder: Recorder) -> None:
        for number in range(100):
            recorder.tell(job(), Event("A", str(number)), NOW, 0)
        recorder.tell(job("other", "o"), Event("A", "b"), NOW, 0)

    recorder, asked = told(says({}), tell=tell)
    assert len(asked) == event_recorder.BURST + 1
    assert recorder.dropped == 100 - event_recorder.BURST


def test_an_event_that_is_refused_is_given_up_and_the_next_one_is_told() -> None:
    async def scenario() -> list[Any]:
        async with client_of(status(403), says({}), retry_timeout=0.0) as (client, api), asyncio.timeout(60):
            recorder = Recorder(client)
            run = asyncio.create_task(recorder.run())
            recorder.tell(job(), Event("A", "first"), NOW, 0)
            recorder.tell(job(), Event("A", "second"), NOW, 0)
            while len(api.asked) < 2 or not recorder.idle:
                await asyncio.sleep(0.01)
            run.cancel()
            return [body["message"] for *_, body in api.asked]

    assert asyncio.run(scenario()) == ["first", "second"]


def test_a_long_message_is_cut_to_what_an_event_may_hold() -> None:
    _, [(*_, body)] = told(says({}), tell=lambda r: r.tell(job(), Event("A", "x" * 5000), NOW, 0))
    assert len(body["message"]) == 1024
