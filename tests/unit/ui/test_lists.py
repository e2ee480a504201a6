"""Lists of whole objects: bounded together, and namespaces share the room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from allranks.kube.object_text import LEFT_OUT, object_text
from allranks.shares import Share
from allranks.ui import cluster_jobs
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import ClusterJobs, JobRoom
from support.sweep_samples import a_sweep
from support.ui_samples import a_job


class Sweeps:
    """A cluster with sweeps."""

    def __init__(self, *sweeps: dict[str, Any]) -> None:
        self._sweeps = sweeps

    async def items(self, _path: str, _query: Any, decode: Callable[[bytes], Any], _turn: Any) -> list[Any]:
        return [decode(json.dumps(sweep).encode()) for sweep in self._sweeps]


def sweep(namespace: str, number: int) -> dict[str, Any]:
    return a_sweep(f"sweep-{number}", f"{namespace}-{number}", namespace)


def test_a_namespace_with_many_objects_leaves_room_for_others_and_of_the_rest_there_is_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = len(json.dumps(sweep("loud", 0)))
    monkeypatch.setattr(cluster_jobs, "MOST_LISTED_BYTES", 8 * size)
    cluster: Any = Sweeps(*(sweep("loud", number) for number in range(20)), sweep("calm", 0))
    texts = asyncio.run(ClusterJobs(cluster, None, Hub()).texts("/sweeps", None, "TrainingSweep"))
    whole = [text.metadata["uid"] for text in texts if "spec" in text.manifest()]
    assert 5 <= len(whole) <= 8
    assert whole[-1] == "calm-0"
    bare = next(text for text in texts if text.metadata["uid"] == "loud-19")
    assert bare.manifest()["metadata"]["name"] == "sweep-19"
    assert bare.metadata["annotations"][LEFT_OUT].startswith("all but its name")


class Jobs:
    """A cluster in which single jobs can be read."""

    client: Any = None

    async def get(self, path: str) -> dict[str, Any]:
        return a_job(path.rpartition("/")[2], "Running")


def event(kind: str, number: int, version: int = 1) -> bytes:
    job = a_job(f"job-{number}", "Running")
    job["metadata"] |= {"resourceVersion": str(version), "labels": {"stage": "test"}}
    return json.dumps({"type": kind, "object": job}).encode()


def test_jobs_without_room_keep_their_status_and_are_read_whole_when_they_are_shown():
    size = len(object_text(json.dumps(json.loads(event("ADDED", 0))["object"]).encode()).json)
    share = Share(8 * size)
    cluster: Any = Jobs()
    mirrors = [ClusterJobs(cluster, None, Hub(), room=JobRoom(share, "loud")) for _ in range(3)]
    watches = [jobs.watch() for jobs in mirrors]
    for watch in watches:
        for number in range(4):
            watch._process(event("ADDED", number))
    entries = [jobs.get("team", f"job-{number}") for jobs in mirrors for number in range(4)]
    reduced = [entry for entry in entries if entry.left_out]
    assert 4 <= len(reduced) <= 7
    assert reduced[-1].left_out == f"spec: {cluster_jobs._NO_ROOM_FOR_JOBS}"
    assert (reduced[-1].phase, reduced[-1].metadata["labels"]) == ("Running", {"stage": "test"})
    assert reduced[-1].manifest["spec"] == {"framework": "pytorch"}
    whole = asyncio.run(mirrors[-1].whole(reduced[-1]))
    assert whole.manifest["spec"]["roles"]
    calm = ClusterJobs(cluster, None, Hub(), room=JobRoom(share, "calm"))
    calm.watch()._process(event("ADDED", 0))
    assert calm.get("team", "job-0").left_out == ""
    for watch in watches[:2]:
        for number in range(4):
            watch._process(event("DELETED", number))
    watches[2]._process(event("MODIFIED", 3, version=2))
    assert mirrors[2].get("team", "job-3").left_out == "", "there is room again"
    for jobs in (*mirrors, calm):
        asyncio.run(jobs.close())
    assert share.fits("any", 6 * size)
