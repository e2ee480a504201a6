"""The curves of jobs and runs: groups of metrics, all stored values, bounds; the files that draw them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from allranks.ui import curves, state
from support.ui_samples import HOSTILE, a_run, progress
from support.ui_server import UiServer

BEGAN = datetime.now(UTC)
RUN = "runs/digits/20260304-101500"


@pytest.fixture(autouse=True)
def _began(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run began an hour before the test, which may be long after the import of this file."""
    monkeypatch.setattr(sys.modules[__name__], "BEGAN", datetime.now(UTC) - timedelta(minutes=50))


def line(at: float, step: int, attempt: int = 0, **more: Any) -> str:
    time = (BEGAN + timedelta(seconds=at)).isoformat().replace("+00:00", "Z")
    return json.dumps({"time": time, "attempt": attempt, "step": step, **more}) + "\n"


def store(root: Path, lines: list[str], time: str = "20260304-101500") -> Path:
    folder = a_run(root, "digits", time, "Succeeded", progress=progress(10) | {"lastReport": None})
    (folder / "progress.jsonl").write_text("".join(lines))
    return folder


def get(root: Path, *jobs: str) -> dict[str, Any]:
    with UiServer(root / "none", root) as server:
        answer = server.get("/api/v1/curves?" + "&".join(f"job={job}" for job in jobs))
        assert answer.status == 200, answer.text
        return dict(answer.json)


@pytest.mark.parametrize(
    ("metric", "group"),
    [
        ("loss", "loss"),
        ("val_loss", "loss"),
        ("train/loss", "loss"),
        ("eval_loss", "loss"),
        ("loss.validation", "loss"),
        ("Val-Top-5", "Top_5"),
        ("train", "train"),
        ("train_val", "val"),
        ("devices", "devices"),
        ("__", "__"),
    ],
)
def test_metrics_of_training_and_validation_share_a_plot(metric: str, group: str):
    assert curves.group_of(metric) == group


def test_a_run_has_every_stored_value_with_its_step_time_epoch_and_attempt(tmp_path: Path):
    lines = [line(place, place, metrics={"loss": 1 / (place + 1)}) for place in range(3000)]
    lines += [line(3000, 2500, 1, metrics={"loss": None, "val_loss": 0.5}, epoch=3)]
    lines += [line(3001, 2501, 1, metrics={"loss": 0.25})]
    store(tmp_path, lines)
    found = get(tmp_path, RUN)
    assert found["jobs"] == ["digits/20260304-101500"]
    assert found["thinned"] is False
    loss, val_loss = found["series"]
    assert (loss["metric"], loss["group"], val_loss["metric"], val_loss["group"]) == (
        "loss",
        "loss",
        "val_loss",
        "loss",
    )
    assert loss["step"] == [*range(3000), 2500, 2501]
    assert loss["value"][-3:] == [pytest.approx(1 / 3000), None, 0.25]
    assert loss["epoch"][-3:] == [None, 3, 3], "an epoch counts until the next one, within its attempt"
    assert loss["attempts"] == [0, 3000]
    assert loss["at"][-1] - loss["at"][0] == pytest.approx(3001)
    assert (val_loss["step"], val_loss["value"]) == ([2500], [0.5])


def test_the_number_of_points_and_values_is_bounded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [line(place, place, place // 250, metrics={"loss": 1.0, "lr": 2.0}) for place in range(500)]
    store(tmp_path, lines)
    store(tmp_path, lines, "20260304-101600")
    monkeypatch.setattr(curves, "MOST_VALUES", 100)
    found = get(tmp_path, RUN, "runs/digits/20260304-101600")
    assert found["thinned"] is True
    assert {(series["job"], series["metric"]) for series in found["series"]} == {
        (0, "loss"),
        (0, "lr"),
        (1, "loss"),
        (1, "lr"),
    }
    for series in found["series"]:
        assert len(series["value"]) <= 30
        assert {0, 249, 250, 499} <= set(series["step"]), "the first and last value of each attempt"
        assert [series["step"][place] for place in series["attempts"]] == [0, 250]
    monkeypatch.setattr(curves, "MOST_VALUES", 100_000)
    monkeypatch.setattr(state, "MOST_POINTS", 100)
    found = get(tmp_path, RUN)
    assert found["thinned"] is True
    assert len(found["series"][0]["value"]) <= 110


def test_a_job_has_the_curve_of_its_status(server: UiServer):
    [series] = server.get("/api/v1/curves?job=jobs/team/penguins").json["series"]
    assert len(series["value"]) > 1
    page = server.get("/jobs/team/penguins").text
    assert 'data-curves="/api/v1/curves?job=jobs%2Fteam%2Fpenguins"' in page
    assert "<polyline" in page, "also without a script"
    assert "curves.js" not in server.get("/jobs/team/broken").text


@pytest.mark.parametrize("query", ["job=runs/none/1", "job=x", "&".join(f"job=runs/a/{n}" for n in range(7))])
def test_curves_of_no_job_or_of_too_many_are_a_problem(server: UiServer, query: str):
    assert server.get(f"/api/v1/curves?{query}").status in (404, 422)


def test_hostile_names_of_metrics_are_only_in_json(tmp_path: Path):
    store(tmp_path, [line(place, place, metrics={HOSTILE: 1.0}) for place in range(5)])
    with UiServer(tmp_path / "none", tmp_path) as server:
        answer = server.get(f"/api/v1/curves?job={RUN}")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json["series"][0]["metric"] == HOSTILE
        assert "<script>alert" not in server.get(f"/{RUN}").text


def test_the_library_that_draws_is_served_with_its_licence_beside_it(server: UiServer):
    script = server.get("/static/uplot.js").text
    assert "uPlot (v1.6.32)" in script
    assert "eval(" not in script
    assert server.get("/static/uplot.css").headers["content-type"].startswith("text/css")
    static = Path(curves.__file__).parent / "static"
    assert "The MIT License" in (static / "uplot-LICENSE.txt").read_text()
