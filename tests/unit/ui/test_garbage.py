"""Listed jobs are kept out of garbage collections, and garbage is not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from allranks.ui import garbage


class Node:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(garbage, "_process_serves", False)
    monkeypatch.setattr(garbage, "EVERY_SECONDS", 0.0)
    garbage.own_process()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("server")
def test_after_a_list_jobs_are_in_no_collection_and_after_the_next_one_garbage_is_freed():
    job, forgotten = Node(), Node()
    of_job, of_forgotten = weakref.ref(job), weakref.ref(forgotten)
    garbage.after_list()
    del forgotten
    assert not any(found is job for found in gc.get_objects())
    garbage.after_list()
    assert of_forgotten() is None
    assert of_job() is job
    assert not any(found is job for found in gc.get_objects())


@pytest.mark.usefixtures("server")
def test_lists_that_follow_within_a_minute_collect_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(garbage, "EVERY_SECONDS", 60.0)
    garbage.after_list()
    collected: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(None))
    garbage.after_list()
    assert collected == []
    monkeypatch.setattr(garbage, "_frozen_at", garbage.time.monotonic() - 61)
    garbage.after_list()
    assert collected == [None]


def test_a_process_that_does_more_than_serve_keeps_its_collections(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(garbage, "_process_serves", False)
    before = gc.get_freeze_count()
    garbage.after_list()
    assert gc.get_freeze_count() == before
