"""The table of an experiment: which columns it has, how it is sorted, and how jobs are chosen by their values."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from allranks.kube.object_text import of_manifest
from allranks.ui import experiment
from allranks.ui.entries import Entry
from allranks.ui.experiment import Values, columns, ordered, parameters, selection, values
from allranks.ui.problems import Problem
from support.ui_samples import a_job, a_run, write_run
from support.ui_server import UiServer

NOW = datetime.now(UTC)


def an_entry(name: str, *args: str, loss: float | None = None, **progress: Any) -> Entry:
    status = {"progress": {"step": 5, "metrics": {"loss": loss}, **progress}} if loss is not None or progress else {}
    job = a_job(name, "Running", **status)
    job["spec"] |= {"command": ["torchrun", "--nproc-per-node=2", "train.py"], "args": list(args)}
    return Entry("jobs", "team", name, job)


def names(entries: list[Entry]) -> str:
    return " ".join(entry.name for entry in entries)


def test_parameters_are_the_options_of_the_program_and_what_a_sweep_has_set() -> None:
    spec = {
        "command": ["torchrun", "--nproc-per-node=2", "train.py", "--lr", "0.1", "--fp16"],
        "args": ["--batch-size=32", "optimizer.name=adam", "+seed=-1", "input.txt"],
        "env": [
            {"name": "ALLRANKS_PARAM_LR", "value": "0.1"},
            {"name": "ALLRANKS_PARAM_DEPTH", "value": "7"},
            {"name": "OTHER", "value": "8"},
        ],
        "roles": {"worker": {"args": ["--width", "9"]}},
    }
    assert parameters(spec) == {
        "lr": "0.1",
        "fp16": "set",
        "batch-size": "32",
        "optimizer.name": "adam",
        "seed": "-1",
        "width": "9",
        "depth": "7",
    }
    assert parameters({"args": "text", "roles": [1], "env": {"a": 1}, "command": None}) == {}
    (value,) = parameters({"args": [f"--text={'x' * 10_000}"]}).values()
    assert len(value) == experiment.MOST_CHARACTERS
    assert len(parameters({"args": [f"--n{number}=1" for number in range(1000)]})) == experiment.MOST_OF_JOB


def test_the_columns_are_the_parameters_that_differ_and_the_metrics() -> None:
    rows = [values(an_entry(str(number), f"--lr=0.{number}", "--epochs=3", loss=0.5)) for number in range(3)]
    rows.append(values(an_entry("other", "--epochs=3", "--lr=0.1", "--warmup=5")))
    assert [column.title for column in columns(rows)] == ["lr", "warmup", "loss"]
    assert [column.title for column in columns(rows[:1])] == ["loss"], "one job differs from no other"
    chosen = columns(rows, ["param:epochs", "param:none"], "-metric:loss")
    assert [(column.title, column.is_chosen) for column in chosen] == [("epochs", True), ("loss", True)]
    many = [Values({f"p{name}": str(row) for name in range(500)}, rows[0].status) for row in range(2)]
    assert len(columns(many)) == experiment.MOST_PARAMETERS + 1
    assert len(experiment.offered(many)) == experiment.MOST_OFFERED + 1


def test_a_metric_that_is_not_finite_is_shown_as_such_and_sorted_last() -> None:
    failed = an_entry("failed", loss=0.9, notFinite={"loss": 7})
    assert values(failed).text("metric:loss") == "not finite"
    assert names(ordered([failed, an_entry("good", loss=0.5)], "-metric:loss", NOW)) == "good failed"


def test_numbers_are_sorted_as_numbers_and_jobs_without_the_value_are_last() -> None:
    jobs = [an_entry("ten", "--lr=1e1"), an_entry("none"), an_entry("two", "--lr=2"), an_entry("auto", "--lr=auto")]
    assert names(ordered(jobs, "param:lr", NOW)) == "two ten auto none"
    assert names(ordered(jobs, "-param:lr", NOW)) == "auto ten two none"
    assert names(ordered(jobs, "-name", NOW)) == "two ten none auto"
    for key in experiment.FIXED:
        assert len(ordered(jobs, key, NOW)) == 4
    for wrong in ("lr", "status", "param:"):
        with pytest.raises(Problem, match=r"sort: .* is not a column"):
            ordered(jobs, wrong, NOW)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", "a b c"),
        ("lr=0.10", "a"),
        ("lr != 0.1", "b c"),
        ("lr<=1", "a b"),
        ("lr>0.1, loss<0.5", "b"),
        ("optimizer=adam", "a"),
        ("metric:loss>=0.6", "a"),
        ("param:loss=3", ""),
    ],
)
def test_jobs_are_chosen_by_their_values(where: str, expected: str) -> None:
    jobs = [an_entry("a", "--lr=0.1", "--optimizer=adam", loss=0.6), an_entry("b", "--lr=1", loss=0.4), an_entry("c")]
    assert names(list(filter(selection(where), jobs))) == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lr", "where: 'lr' is not like lr=0.1"),
        ("lr<small", "where: 'lr<small' compares with 'small', which is not a number"),
        (",".join(["a=1"] * 11), "where: more than 10 conditions"),
    ],
)
def test_a_condition_that_cannot_be_read_is_a_problem(where: str, message: str) -> None:
    with pytest.raises(Problem, match=re.escape(message)):
        selection(where)


def test_the_parameters_of_a_job_that_is_too_large_are_not_decoded() -> None:
    job = a_job("large", "Running")
    job["spec"]["args"] = ["--lr=0.1"]
    assert values(Entry("jobs", "team", "large", of_manifest(job))).parameters == {"lr": "0.1"}
    job["spec"]["roles"]["worker"]["template"] = {"metadata": {"annotations": {"a": "x" * experiment.DECODED_BYTES}}}
    assert values(Entry("jobs", "team", "large", of_manifest(job))).parameters == {}


# --- pages -----------------------------------------------------------------------------------------------------------


def store(root: Path, number: int) -> str:
    time = f"20260304-1015{number:02}"
    job = a_job("digits", "Succeeded", progress={"step": 9, "metrics": {"loss": 1 / (number + 1)}})
    job["spec"]["args"] = [f"--lr=0.{number}", "--epochs=3"]
    write_run(a_run(root, "digits", time, "Succeeded"), job)
    return time


def times(page: str) -> list[str]:
    return re.findall(r'<tr id="runs/digits/([^"]+)"', page)


def test_runs_have_columns_are_sorted_filtered_and_selected_to_be_compared(tmp_path: Path) -> None:
    stored = [store(tmp_path, number) for number in range(3)]
    with UiServer(tmp_path / "none", tmp_path) as server:
        page = server.get("/").text
        assert re.findall(r'<th scope="col" class="value minor"><a[^>]*>([^<]+)</a>', page) == ["lr", "loss"]
        assert '<td class="value minor">0.3333</td>' in page
        assert f'name="job" value="runs/digits/{stored[0]}"' in page
        ascending = server.get(f"/?sort={quote('metric:loss')}").text
        assert times(ascending) == stored[::-1]
        assert 'aria-sort="ascending"><a href="?sort=-metric%3Aloss">loss ↑</a>' in ascending
        assert times(server.get("/?sort=-metric:loss").text) == stored
        assert times(server.get(f"/?where={quote('lr>=0.1,loss<0.4')}").text) == stored[2:]
        assert "matches the filter" in server.get(f"/?where={quote('lr>5')}").text
        assert "3</td>" in server.get("/?column=param:epochs").text
        for query, word in (("sort=lr", "sort: "), ("where=lr", "where: ")):
            wrong = server.get(f"/?{query}")
            assert (wrong.status, word in wrong.text) == (400, True)
        compared = server.get("/compare?" + "&".join(f"job=runs/digits/{time}" for time in stored[:2])).text
        side = compared.partition("side by side</h2>")[2].partition("</section>")[0]
        assert re.findall(r'<tr><th scope="row">([^<]+)</th><td>([^<]*)</td><td>([^<]*)', side) == [
            ("lr", "0.0", "0.1"),
            ("loss", "1", "0.5"),
        ]
        refused = server.get("/compare?" + "&".join(f"job=runs/a/{number}" for number in range(7)))
        assert refused.status == 422
        assert "job: 7 jobs are selected, and up to 6 can be compared" in refused.text


def test_more_runs_than_fit_on_a_page_are_on_further_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.ui.routes.pages.PAGE", 2)
    stored = [store(tmp_path, number) for number in range(3)]
    with UiServer(tmp_path / "none", tmp_path) as server:
        first = server.get("/?sort=param:lr").text
        assert times(first) == stored[:2]
        assert '<a href="?sort=param%3Alr&amp;run_page=2" rel="next">' in first
        assert times(server.get("/?sort=param:lr&run_page=2").text) == stored[2:]
