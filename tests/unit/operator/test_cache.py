"""The cache: only newer versions, own writes that the watch brings later, and whom a change concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.core.model import Exit
from allranks.core.naming import JOB_LABEL
from allranks.kube.pod_codec import CachedPod, Meta, Owner, Raw, to_cached_pod
from allranks.operator.cache import JobCache, PodCache
from support.builders import NOW, at


def pod(name: str, version: int, owner: str | None = "u-1", label: str | None = "demo", job: str = "demo") -> CachedPod:
    owners = [Owner("DistributedTraining", job, owner, True)] if owner else []
    labels = {JOB_LABEL: label} if label else None
    return to_cached_pod(Raw(Meta(name, "ns", f"uid-{name}", str(version), labels, owners)))


class Woken(list[tuple[str, str]]):
    def __call__(self, key: tuple[str, str], trouble: bool) -> None:
        self.append(key)
        self.trouble = trouble


def names(cache: PodCache, uid: str = "u-1", job: str = "demo") -> dict[str, bool]:
    return {p.name: p.owned for p in cache.of(("ns", job), uid)}


def test_an_older_version_is_no_news() -> None:
    cache = PodCache(woken := Woken())
    cache.show(pod("a", 5))
    cache.show(pod("a", 4))
    cache.show(pod("a", 5))
    assert woken == [("ns", "demo")]


def test_what_we_created_is_there_before_the_watch_shows_it_and_survives_an_older_list() -> None:
    cache = PodCache(Woken())
    cache.show(pod("a", 8))
    cache.relist([], 7, None)
    assert names(cache) == {"a": True}
    cache.relist([], 9, None)
    assert names(cache) == {}


def test_who_is_gone_is_forgotten_when_no_answer_can_come_any_more(monkeypatch) -> None:
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    cache = PodCache(Woken(), late=60)
    for version in range(1, 101):
        clock += 1
        cache.show(pod(f"p-{version}", version), deleted=True)
    assert 60 <= len(cache._versions._gone) <= 62
    cache.show(pod("p-90", 89))
    assert names(cache) == {}


def test_an_answer_that_comes_after_the_deletion_was_seen_brings_nobody_back() -> None:
    cache = PodCache(Woken())
    cache.show(pod("a", 9), deleted=True)
    cache.show(pod("a", 8))
    assert names(cache) == {}
    cache.show(pod("a", 10))
    assert names(cache) == {"a": True}


def test_a_list_of_one_namespace_says_nothing_of_the_others() -> None:
    cache = PodCache(Woken())
    cache.show(pod("a", 1))
    cache.relist([], 9, "other")
    assert names(cache) == {"a": True}


def test_a_label_alone_adopts_nothing_and_an_owner_needs_no_label() -> None:
    cache = PodCache(Woken())
    cache.show(pod("spoofed", 1, owner=None))
    cache.show(pod("anothers", 2, owner="u-2"))
    cache.show(pod("bare", 3, label=None))
    assert names(cache) == {"spoofed": False, "anothers": False, "bare": True}


def test_a_pod_that_changes_sides_wakes_both_jobs() -> None:
    cache = PodCache(woken := Woken())
    cache.show(pod("a", 1))
    woken.clear()
    cache.show(pod("a", 2, owner="u-2", label="next", job="next"))
    assert sorted(woken) == [("ns", "demo"), ("ns", "next")]
    assert names(cache) == {}


WELL, BADLY = Exit(0, at(60), "Completed"), Exit(1, at(60))
ENDED = {"phase": "Succeeded", "exit": WELL}


@pytest.mark.parametrize(
    ("before", "after", "gone", "trouble"),
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
        "made",
        "runs",
        "ends well",
        "cleaned up",
        "gone after that",
        "fails",
        "its container fails",
        "failed before",
        "taken away",
        "gone after that too",
        "gone at once",
    ],
)
def test_a_failure_and_a_pod_that_is_taken_away_are_trouble(
    before: dict[str, Any] | None, after: dict[str, Any], gone: bool, trouble: bool
) -> None:
    def known(version: int, fields: dict[str, Any]) -> CachedPod:
        made = pod("a", version)
        return made._replace(pod=replace(made.pod, **fields))

    cache = PodCache(woken := Woken())
    if before is not None:
        cache.show(known(1, before))
    cache.show(known(2, after), deleted=gone)
    assert woken.trouble is trouble


def test_jobs_are_known_by_their_newest_version() -> None:
    jobs = JobCache()

    def job(version: int) -> dict:
        return {"metadata": {"namespace": "ns", "name": "demo", "resourceVersion": str(version)}}

    assert jobs.show(job(2))
    assert not jobs.show(job(1))
    assert not jobs.show(job(2))
    assert jobs.show(job(3), deleted=True)
    assert jobs.get(("ns", "demo")) is None
    assert not jobs.show(job(2))


@pytest.mark.parametrize("versions", [[3, 1, 2], [1, 2, 3], [2, 3, 1]])
def test_whatever_the_order_the_newest_stays(versions: list[int]) -> None:
    cache = PodCache(Woken())
    for version in versions:
        cache.show(pod("a", version))
    assert [version for _, version in cache.versions()] == [3]
