"""The caches: only newer versions, own writes before their watch events, and which jobs a change concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.core.facts.model import Disruption, Exit
from allranks.kube.pod_codec import CachedPod, to_cached_pod
from allranks.kube.raw_pod import Labels, Meta, Owner, Raw
from allranks.operator.cache import JobCache, PodCache
from allranks.operator.timing import Clock
from support.builders import NOW, at


def pod(name: str, version: int, owner: str | None = "u-1", label: str | None = "demo", job: str = "demo") -> CachedPod:
    owners = [Owner("DistributedTraining", job, owner, True)] if owner else []
    labels = Labels(job=label or "")
    return to_cached_pod(Raw(Meta(name, "ns", f"uid-{name}", str(version), labels, owners)))


class Enqueued(list[tuple[str, str]]):
    def __call__(self, key: tuple[str, str], urgent: bool) -> None:
        self.append(key)
        self.urgent = urgent


def names(cache: PodCache, uid: str = "u-1", job: str = "demo") -> dict[str, bool]:
    return {p.name: p.owned for p in cache.for_job(("ns", job), uid)}


def test_an_older_or_equal_version_is_ignored() -> None:
    cache = PodCache(enqueued := Enqueued())
    cache.upsert(pod("a", 5))
    cache.upsert(pod("a", 4))
    cache.upsert(pod("a", 5))
    assert enqueued == [("ns", "demo")]


def test_a_created_pod_is_cached_before_its_watch_event_and_survives_an_older_list() -> None:
    cache = PodCache(Enqueued())
    cache.upsert(pod("a", 8))
    cache.relist([], 7, None)
    assert names(cache) == {"a": True}
    cache.relist([], 9, None)
    assert names(cache) == {}


class SteppedClock(Clock):
    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_tombstone_expires_when_no_response_can_still_arrive() -> None:
    cache = PodCache(Enqueued(), 60, clock := SteppedClock())
    for version in range(1, 101):
        clock.seconds += 1
        cache.upsert(pod(f"p-{version}", version), deleted=True)
    assert 60 <= cache.tombstones <= 62
    cache.upsert(pod("p-90", 89))
    assert names(cache) == {}


def test_a_response_that_arrives_after_the_deletion_does_not_restore_the_pod() -> None:
    cache = PodCache(Enqueued())
    cache.upsert(pod("a", 9), deleted=True)
    cache.upsert(pod("a", 8))
    assert names(cache) == {}
    cache.upsert(pod("a", 10))
    assert names(cache) == {"a": True}


def test_a_list_of_one_namespace_does_not_affect_other_namespaces() -> None:
    cache = PodCache(Enqueued())
    cache.upsert(pod("a", 1))
    cache.relist([], 9, "other")
    assert names(cache) == {"a": True}


def test_a_label_alone_adopts_nothing_and_an_owner_needs_no_label() -> None:
    cache = PodCache(Enqueued())
    cache.upsert(pod("spoofed", 1, owner=None))
    cache.upsert(pod("anothers", 2, owner="u-2"))
    cache.upsert(pod("bare", 3, label=None))
    assert names(cache) == {"spoofed": False, "anothers": False, "bare": True}


def test_a_pod_that_changes_its_owner_enqueues_both_jobs() -> None:
    cache = PodCache(enqueued := Enqueued())
    cache.upsert(pod("a", 1))
    enqueued.clear()
    cache.upsert(pod("a", 2, owner="u-2", label="next", job="next"))
    assert sorted(enqueued) == [("ns", "demo"), ("ns", "next")]
    assert names(cache) == {}


def test_a_deletion_event_keeps_the_status_that_says_what_removed_the_pod() -> None:
    cache = PodCache(Enqueued())
    before = pod("a", 1)
    cache.upsert(before)
    by_gc = Disruption("DeletionByPodGC", at(60))
    cache.upsert(before._replace(version=3, pod=replace(before.pod, phase="Failed", disruption=by_gc)), deleted=True)
    cache.upsert(pod("b", 4))
    cache.upsert(pod("b", 5), deleted=True)
    assert names(cache) == {}
    assert {name: gone.disruption for name, gone in cache.removed("u-1").items()} == {"a": by_gc}
    assert cache.removed("u-2") == {}


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        ({"exit": Exit(255, at(60), "ContainerStatusUnknown")}, True),  # its node rebooted
        ({"exit": Exit(137, at(60), "ContainerStatusUnknown")}, False),  # its kubelet lost track of it
        ({"exit": Exit(1, at(60))}, False),
        ({"exit": Exit(137, at(60), "LimitExceeded")}, True),
        ({"waiting_reason": "LimitExceeded"}, True),
    ],
)
def test_a_deletion_event_keeps_what_the_kubelet_said_last(last: dict[str, Any], kept: bool) -> None:
    cache = PodCache(Enqueued())
    each = pod("a", 1)
    cache.upsert(each)
    cache.upsert(each._replace(version=2, pod=replace(each.pod, phase="Failed", **last)), deleted=True)
    assert list(cache.removed("u-1")) == (["a"] if kept else [])


def test_a_deletion_event_keeps_a_pod_that_succeeded() -> None:
    cache = PodCache(Enqueued())
    each = pod("a", 1)
    cache.upsert(each)
    cache.upsert(each._replace(version=2, pod=replace(each.pod, phase="Succeeded")), deleted=True)
    assert [gone.succeeded for gone in cache.removed("u-1").values()] == [True]


def test_of_the_pods_that_are_gone_the_newest_are_kept() -> None:
    cache = PodCache(Enqueued())
    for version in range(1, 5_011):
        each = pod(f"p-{version}", version, owner=f"u-{version % 7}")
        cache.upsert(each._replace(pod=replace(each.pod, disruption=Disruption("X", NOW))), deleted=True)
    kept = {name for number in range(7) for name in cache.removed(f"u-{number}")}
    assert kept == {f"p-{version}" for version in range(11, 5_011)}


WELL, BADLY = Exit(0, at(60), "Completed"), Exit(1, at(60))
ENDED = {"phase": "Succeeded", "exit": WELL}


@pytest.mark.parametrize(
    ("before", "after", "deleted", "urgent"),
    [
        (None, {}, False, False),
        ({}, {"phase": "Running"}, False, False),
        ({}, ENDED, False, False),
        (
            ENDED,
            ENDED | {"deleted_at": at(61)},
            False,
            False,
        ),
        (ENDED, ENDED, True, False),
        ({}, {"phase": "Failed", "exit": BADLY}, False, True),
        ({}, {"exit": BADLY}, False, True),
        ({"exit": BADLY}, {"phase": "Failed", "exit": BADLY}, False, False),
        ({}, {"deleted_at": NOW}, False, True),
        ({"deleted_at": NOW}, {"deleted_at": NOW}, True, False),
        ({}, {}, True, True),
    ],
    ids=[
        "created",
        "running",
        "succeeded",
        "succeeded and terminating",
        "succeeded and deleted",
        "failed",
        "its container failed",
        "failed before",
        "terminating",
        "terminating and deleted",
        "deleted",
    ],
)
def test_failures_and_deletions_are_urgent(
    before: dict[str, Any] | None, after: dict[str, Any], deleted: bool, urgent: bool
) -> None:
    def cached(version: int, fields: dict[str, Any]) -> CachedPod:
        made = pod("a", version)
        return made._replace(pod=replace(made.pod, **fields))

    cache = PodCache(enqueued := Enqueued())
    if before is not None:
        cache.upsert(cached(1, before))
    cache.upsert(cached(2, after), deleted=deleted)
    assert enqueued.urgent is urgent


def test_the_job_cache_keeps_the_newest_version() -> None:
    jobs = JobCache()

    def job(version: int) -> dict:
        return {"metadata": {"namespace": "ns", "name": "demo", "resourceVersion": str(version)}}

    assert jobs.upsert(job(2))
    assert not jobs.upsert(job(1))
    assert not jobs.upsert(job(2))
    assert jobs.upsert(job(3), deleted=True)
    assert jobs.get(("ns", "demo")) is None
    assert not jobs.upsert(job(2))


@pytest.mark.parametrize("versions", [[3, 1, 2], [1, 2, 3], [2, 3, 1]])
def test_the_newest_version_stays_in_any_order_of_events(versions: list[int]) -> None:
    cache = PodCache(Enqueued())
    for version in versions:
        cache.upsert(pod("a", version))
    assert [cached.version for cached in cache] == [3]
