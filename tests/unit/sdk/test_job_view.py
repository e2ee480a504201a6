"""A job on a cluster in a notebook: what is displayed, and when it is read again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from allranks.errors import ClusterError
from allranks.kube.cluster import Where
from allranks.sdk import notebook
from allranks.sdk.job import Job
from allranks.sdk.run_view import ClusterJobView

METADATA = {"name": "birds", "namespace": "team", "uid": "1"}


def manifest(phase: str, step: int) -> dict[str, Any]:
    times = [f"2026-03-04T10:00:0{second}Z" for second in range(3)]
    curve = [{"time": time, "attempt": 0, "step": place, "value": 2.0 - place} for place, time in enumerate(times)]
    ranks = [{"rank": 1, "replica": "worker-1", "step": step}]
    progress = {"step": step, "totalSteps": 10, "curveMetric": "loss", "curve": curve, "ranks": ranks}
    return {"metadata": METADATA, "spec": {"framework": "pytorch"}, "status": {"phase": phase, "progress": progress}}


class Display:
    """IPython's display, which records what is shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import IPython.display

        self.pages: list[str] = []
        self.changed = threading.Event()
        monkeypatch.setattr(notebook, "in_notebook", lambda: True)
        monkeypatch.setattr(IPython.display, "display", self.show)

    def show(self, view: Any, display_id: bool) -> Display:
        assert display_id
        self.pages.append(view._repr_html_())
        return self

    def update(self, view: Any) -> None:
        self.pages.append(view._repr_html_())
        self.changed.set()


def test_the_view_has_the_progress_the_curve_and_the_ranks_of_the_status() -> None:
    view = ClusterJobView("birds", lambda: manifest("Running", 5))
    assert repr(view) == "birds: Pending"
    view.read()
    page = view._repr_html_()
    assert "step 5/10" in page
    assert "<polyline" in page
    assert "worker-1" in page
    assert repr(view) == "birds: Running, step 5/10"


def test_a_block_displays_the_changes_of_the_job_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    display = Display(monkeypatch)
    states = [manifest("Running", 5)]
    with notebook.displayed(ClusterJobView("birds", lambda: states[-1]), 0.01):
        assert display.changed.wait(300)
        states.append(manifest("Succeeded", 10))
    assert "step 5/10" in display.pages[1]
    assert "Succeeded" in display.pages[-1]
    assert "step 10/10" in display.pages[-1]


def test_a_job_that_cannot_be_read_ends_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    display = Display(monkeypatch)
    tried = threading.Event()

    def fails() -> dict[str, Any]:
        tried.set()
        raise ClusterError("away")

    with notebook.displayed(ClusterJobView("birds", fails), 0.01):
        assert tried.wait(300)
    assert "birds" in display.pages[-1]


def test_a_cell_that_ends_with_a_job_shows_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "_refresh", lambda _: manifest("Running", 7))
    job = Job(manifest("Running", 5), Where())
    assert "step 7/10" in (job._repr_html_() or "")

    def away(_: Job) -> dict[str, Any]:
        raise ClusterError("away")

    monkeypatch.setattr(Job, "_refresh", away)
    assert job._repr_html_() is None
