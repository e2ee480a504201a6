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


def test_a_process_that_does_more_than_serve_keeps_its_collections(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(garbage, "_process_serves", False)
    before = gc.get_freeze_count()
    garbage.after_list()
    assert gc.get_freeze_count() == before
