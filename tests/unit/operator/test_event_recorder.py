"""Events are sent in the background, counted when they repeat, and rate-limited per job."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from allranks.core.facts.model import Event
from allranks.operator import event_recorder
from allranks.operator.event_recorder import Recorder
from support.scripted import client_of, says, status

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str = "demo", uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": "7"}}


def sent(*answers: Any, record: Any) -> tuple[Recorder, list[Any]]:
    async def scenario() -> tuple[Recorder, list[Any]]:
        async with client_of(*answers, retry_timeout=0.0) as (client, api):
            recorder = Recorder(client)
            record(recorder)
            await recorder.flush(5)
            return recorder, api.asked

    return asyncio.run(scenario())


def test_an_event_names_the_job_so_that_describe_shows_it() -> None:
    _, [(verb, path, _, body)] = sent(
        says({}), record=lambda r: r.record(job(), Event("RankFailed", "why", warning=True), NOW, 3)
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


def test_a_repeated_event_is_one_event_with_a_count() -> None:
    _, asked = sent(says({}), record=lambda r: [r.record(job(), Event("A", "b"), NOW, 0) for _ in range(3)])
    assert [verb for verb, *_ in asked] == ["POST", "PATCH", "PATCH"]
    assert [body["count"] for *_, body in asked] == [1, 2, 3]
    assert asked[1][1].endswith(f"/{asked[0][3]['metadata']['name']}")


def test_an_event_from_before_a_restart_is_counted_too() -> None:
    _, asked = sent(status(409, "AlreadyExists"), says({}), record=lambda r: r.record(job(), Event("A", "b"), NOW, 0))
    assert [verb for verb, *_ in asked] == ["POST", "PATCH"]
    assert asked[1][3]["count"] == 2


def test_a_repeated_event_is_created_again_after_it_has_expired() -> None:
    _, asked = sent(
        *(says({}), status(404), says({})),
        record=lambda r: [r.record(job(), Event("A", "b"), NOW, 0) for _ in range(3)],
    )
    assert [verb for verb, *_ in asked] == ["POST", "PATCH", "POST", "PATCH"]
    assert [body["count"] for *_, body in asked] == [1, 2, 1, 2]


def test_another_attempt_and_another_job_of_the_same_name_have_their_own_events() -> None:
    def record(recorder: Recorder) -> None:
        recorder.record(job(), Event("A", "b"), NOW, 0)
        recorder.record(job(), Event("A", "b"), NOW, 1)
        recorder.record(job(uid="other"), Event("A", "b"), NOW, 0)

    _, asked = sent(says({}), record=record)
    assert len({body["metadata"]["name"] for *_, body in asked}) == 3


def test_a_job_with_too_many_events_is_rate_limited_and_other_jobs_are_not() -> None:
    def record(recorder: Recorder) -> None:
        for number in range(100):
            recorder.record(job(), Event("A", str(number)), NOW, 0)
        recorder.record(job("other", "o"), Event("A", "b"), NOW, 0)

    recorder, asked = sent(says({}), record=record)
    assert len(asked) == event_recorder.BURST + 1
    assert recorder.dropped == 100 - event_recorder.BURST


def test_a_rejected_event_is_dropped_and_the_next_one_is_sent() -> None:
    async def scenario() -> list[Any]:
        async with client_of(status(403), says({}), retry_timeout=0.0) as (client, api), asyncio.timeout(60):
            recorder = Recorder(client)
            run = asyncio.create_task(recorder.run())
            recorder.record(job(), Event("A", "first"), NOW, 0)
            recorder.record(job(), Event("A", "second"), NOW, 0)
            while len(api.asked) < 2 or not recorder.idle:
                await asyncio.sleep(0.01)
            run.cancel()
            return [body["message"] for *_, body in api.asked]

    assert asyncio.run(scenario()) == ["first", "second"]


def test_a_long_message_is_truncated_to_the_limit_of_an_event() -> None:
    _, [(*_, body)] = sent(says({}), record=lambda r: r.record(job(), Event("A", "x" * 5000), NOW, 0))
    assert len(body["message"]) == 1024
