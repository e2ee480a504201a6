"""The report on a sweep: text, HTML and JSON, from a file and from a run directory."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allranks.api.sweep import Parameter
from allranks.api.sweep_validation import parse_sweep
from allranks.cli.main import cli
from allranks.kube import sweep_codec
from allranks.views.report import sweep as sweep_report
from support.builders import table
from support.sweep_world import World
from unit.api.test_sweep import sweep


def finished(trials: int = 12) -> dict[str, Any]:
    document = sweep(trials=trials, parallel=3)
    status = World(parse_sweep(document)).run()
    return {**document, "status": sweep_codec.encode(status)}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "polyline":
            found = dict(attrs)
            self.lines.append((str(found["class"]), str(found["points"])))


def test_the_page_has_a_line_for_each_trial_and_the_best_one_on_top():
    page = Page(sweep_report.rendered(finished(), "html"))
    assert len(page.lines) == 12
    assert [kind for kind, _ in page.lines].count("trial best") == 1
    assert page.lines[-1][0] == "trial best"
    best = page.lines[-1][1].split()
    assert best[-1].endswith(",260.0"), "the smallest loss is at the bottom of its axis"
    assert "script" not in page.tags


def test_text_of_a_user_is_no_markup():
    document = finished(3)
    document["status"]["conditions"][-1]["message"] = "<script>alert(1)</script>"
    page = sweep_report.rendered(document, "html")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_text_has_the_trials_and_the_importance():
    text = sweep_report.rendered(finished(), "text")
    assert "Importance" in text
    assert "between 12 trials" in text
    assert "Shown from 10 trials" in sweep_report.rendered(finished(3), "text")


@pytest.mark.parametrize("form", ["text", "html", "json"])
def test_a_sweep_that_has_not_begun_has_a_report(form: str):
    assert "search" in sweep_report.rendered(sweep(trials=3), form)


@table(
    ("a logarithm", {"logUniform": {"min": 0.0001, "max": 0.01}}, "0.001", 0.5),
    ("a range", {"uniform": {"min": 0, "max": 4}}, "1", 0.25),
    ("whole numbers", {"int": {"min": 8, "max": 16}}, "16", 1.0),
    ("a list", {"values": ["adam", "sgd", "lion"]}, "sgd", 0.5),
    ("one value", {"values": ["adam"]}, "adam", 0.5),
    ("a distribution without bounds", {"normal": {"mu": 0, "sigma": 1}}, "3.0", 0.8),
    ("a logarithm without bounds", {"logNormal": {"mu": 0, "sigma": 1}}, "0.01", 0.5),
)
def test_the_place_of_a_value_on_its_axis(case: Any):
    parameter, value, expected = case
    space = Parameter.model_validate(parameter, by_alias=True, by_name=False).space
    drawn = ["0.1", "0.001"] if "logNormal" in parameter else ["4.0", "-1.0"]
    assert sweep_report.share(space, value, sweep_report.ends(space, drawn)) == pytest.approx(expected)


def test_a_sweep_without_an_objective_has_a_report_without_metric_and_importance():
    document = sweep(trials=12, parallel=3, objective=None, parameters={"lr": {"gamma": {"shape": 2, "scale": 1}}})
    document["status"] = sweep_codec.encode(World(parse_sweep(document)).run())
    text = sweep_report.rendered(document, "text")
    first, *lines = text.splitlines()
    assert first == "search: Succeeded, 12 of 12 trials succeeded"
    assert ["TRIAL", "LR", "PHASE", "STEP", "NOTE"] in [line.split() for line in lines]
    assert not any(word in text for word in ("Importance", "Best", "None"))
    page = sweep_report.rendered(document, "html")
    assert not Page(page).lines
    assert not any(word in page for word in ("<h2>Importance", "best parameters", "None"))
    assert json.loads(sweep_report.rendered(document, "json"))["importances"] == {}


def test_the_command_reports_on_a_file_and_on_a_run_directory(tmp_path: Path):
    directory = tmp_path / "runs" / "search" / "20260304-100000"
    directory.mkdir(parents=True)
    (directory / "sweep.json").write_text(json.dumps(finished()))
    for option in (["-f", str(directory / "sweep.json")], ["--run-dir", str(directory)]):
        done = CliRunner().invoke(cli, ["report", *option, "-o", "json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["kind"] == "TrainingSweep"
        assert set(found["importances"]) == set(found["spec"]["parameters"])
