"""Lists of whole objects: bounded together, and namespaces share the room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from allranks.kube.object_text import LEFT_OUT
from allranks.ui import cluster_jobs
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import ClusterJobs
from support.sweep_samples import a_sweep


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
