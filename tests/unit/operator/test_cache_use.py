"""Which entries of the cache the jobs of a namespace use."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.cache_key import cache_key
from allranks.core.model import Manifest
from allranks.core.uploads import CacheUse
from allranks.kube import compact_jobs
from allranks.operator import cache_use as module
from allranks.operator.cache_use import cache_use
from support.builders import manifest


def job(phase: str = "Running", namespace: str = "team", revision: str | None = "r1", **more: Any) -> Manifest:
    found = manifest(inputs=[{"name": "data", "from": "s3://b/p", "path": "/data", **more}])
    found["metadata"]["namespace"] = namespace
    each = {"name": "data", "state": "Ready"} | ({"revision": revision} if revision else {})
    return compact_jobs.compact({**found, "status": {"phase": phase, "inputs": [each]}})


@pytest.mark.parametrize(
    ("found", "pin"),
    [
        (job(), "r1"),
        (job("Suspended"), "r1"),
        (job(sha256="ab" * 32), "sha256:" + "ab" * 32),
        (job("Succeeded"), None),
        (job("Failed"), None),
        (job(namespace="other"), None),
        (job(revision=None), None),
        (compact_jobs.compact({**manifest(), "status": None}), None),
        (None, None),
    ],
)
def test_the_data_of_unfinished_jobs_is_used(found: Manifest | None, pin: str | None) -> None:
    assert cache_use([found], "team") == CacheUse((cache_key("s3://b/p", pin),) if pin else ())


def test_nothing_may_be_evicted_if_jobs_use_too_much_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 1)
    assert cache_use([job()], "team") is not None
    assert cache_use([job(), job(revision="r2")], "team") is None
