"""Events of a job: only their own fields, and only the newest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from allranks.kube import events
from allranks.kube.events import MAX_MESSAGE, MOST_EVENTS, events_of_job

JOB = {"name": "penguins", "namespace": "team", "uid": "u1", "creationTimestamp": "2026-03-04T10:00:00Z"}


def event(name: str, created: str = "2026-03-04T10:00:01Z", about: str = "penguins", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "creationTimestamp": created}
    return {"metadata": metadata, "involvedObject": {"name": about}, "reason": "Noise", **more}


class Events:
    """A cluster whose only answers are Events of the job, and of pods."""

    def __init__(self, of_job: list[dict[str, Any]], of_pods: list[dict[str, Any]]) -> None:
        self._answers = {"involvedObject.uid=u1": of_job, "involvedObject.kind=Pod": of_pods}

    async def items(self, _path: str, query: dict[str, Any], decode: Callable[[bytes], Any], _turn: Any) -> list[Any]:
        decoded = [decode(json.dumps(item).encode()) for item in self._answers[query["fieldSelector"]]]
        return [item for item in decoded if item is not None]


def read(of_job: list[dict[str, Any]], of_pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cluster: Any = Events(of_job, of_pods)
    return asyncio.run(events_of_job(cluster, JOB))


def test_of_any_number_of_events_the_newest_are_kept():
    many = [event(f"e{n:04}", f"2026-03-04T{10 + n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z") for n in range(1500)]
    assert [item["metadata"]["name"] for item in read(many[::-1], [])] == [f"e{n:04}" for n in range(500, 1500)]
    assert MOST_EVENTS == 1000


def test_an_event_has_only_its_own_fields_and_no_text_of_any_length():
    large = event("e", message="x" * 100_000, type="Warning", count=3, source={"component": "y" * 100_000})
    large["metadata"] |= {"annotations": {"a": "x" * 200_000}, "labels": {"b": "x"}, "managedFields": [{}]}
    large["involvedObject"]["fieldPath"] = "z" * 100_000
    [kept] = read([large], [])
    assert kept["metadata"] == {"name": "e", "namespace": "team", "creationTimestamp": "2026-03-04T10:00:01Z"}
    assert (kept["message"], kept["type"], kept["count"]) == ("x" * MAX_MESSAGE, "Warning", 3)
    assert len(json.dumps(kept)) < MAX_MESSAGE + 3 * events.MAX_TEXT


def test_events_of_pods_are_only_of_the_pods_of_this_job():
    others = [event("a", about="other-worker-0-0"), event("b", "2026-03-04T09:00:00Z", "penguins-worker-0-0")]
    assert [item["metadata"]["name"] for item in read([], [*others, event("c", about="penguins-worker-0-0")])] == ["c"]
