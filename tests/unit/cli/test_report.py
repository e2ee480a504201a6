"""`allranks report`: text, HTML and JSON reports, and escaping of untrusted text."""

from __future__ import annotations

import copy
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from allranks.local.run_directories import in_use
from allranks.views.format import plots
from allranks.views.report import html, run_files
from allranks.views.report import plots as drawn_plots
from allranks.views.report.forms import rendered
from allranks.views.report.model import Report, build_report
from allranks.views.report.run_files import read_run_files
from support import reported
from support.builders import table
from support.reported import at
from support.some_api import SomeApi
from support.sweep_samples import a_sweep

FINISHED = """\
penguins Succeeded in 15:00 (4 pods, 2 restarts)
training completed

Job         team/penguins
Framework   pytorch, 1 master, 3 workers
Image       me/train:1
Command     python3 train.py
Created     2026-03-04 10:00:00 UTC
Ended       2026-03-04 10:15:00 UTC, after 15:00
Progress    1310/1310 100%, epoch 20, loss 0.0871, accuracy 0.985
Throughput  519.1 samples/s on average
Goodput     73.8% (productive / all but queued, by reports)
Restarts    2 after failures of the program

Time
            ·--====================================================xxxxxxxxxxxxxxxxx
  · queued           12.0s    1.3%
  - starting         18.0s    2.0%
  = productive       10:55   72.8%
  x lost              3:35   23.9%

Attempts
  0         --===================xxx                                                  Error
  1                                 x=============xxxxxxxxxxxx                        Hang
  2                                                          xx=====================  Completed
            0:00                                                               15:00

loss
       2.3    ****
                  ***
                     ***
                        *******
                               *************
    0.0817                                  ********           *********************
  restarts                          ^                        ^
            0:00                                                               15:00

Throughput in samples/s
       527     ********************   **************            *******************

         0
  restarts                          ^                        ^
            0:00                                                               15:00

Lost time by cause
  Hang       2:45   76.7%  #######################
  Error     50.0s   23.3%  #######

Restarts and failures
  AT      ATTEMPT   CAUSE   COUNTED   WHO                 NODE     EXIT                 STEPS     LAST LINE
  5:00    0         Error   yes       rank 2 (worker-1)   node-7   signal 9 (SIGKILL)   0-540     step 540 loss 0.71
  10:20   1         Hang    yes       rank 3 (worker-2)   node-9                        480-840   rank 3 is at step 839
"""


def text(job: dict[str, Any], seconds: float, **options: Any) -> str:
    return rendered(job, "text", at(seconds), **options)


def report(job: dict[str, Any], seconds: float = 5000) -> Report:
    return build_report(job, at(seconds))


# --- text ------------------------------------------------------------------------------------------------------------


def test_report_on_a_job_that_was_killed_hung_and_succeeded():
    assert text(reported.finished(), 5000, unicode=False) == FINISHED


def test_report_on_a_finished_job_does_not_change():
    assert text(reported.finished(), 900) == text(reported.finished(), 900_000)


def test_report_on_a_running_job_covers_the_time_until_now():
    lines = text(reported.running(), 500).splitlines()
    assert lines[0] == "penguins is Running: attempt 1, 4/4 pods running"
    assert "As of       2026-03-04 10:08:20 UTC, after 8:20" in lines
    assert "Progress    600/1310 45%, epoch 9, loss 0.5132" in lines
    assert "ETA         5m55s" in lines
    # 240 s and 180 s of 488 s.
    assert "Goodput     86.1% (productive / all but queued, by reports)" in lines
    assert lines[-1].split() == ["3", "worker-2", "node-9", "2.3x"]


def test_goodput_without_reports_is_marked():
    lines = text(reported.silent(), 500).splitlines()
    assert (
        "Goodput     not measured: no rank has reported a step; at most 98.4%, if all running time was productive"
        in lines
    )
    assert any(line.split()[1:] == ["running", "8:00", "96.0%"] for line in lines)
    assert not any(line.split()[1:2] == ["productive"] for line in lines)
    assert not any("loss" in line or "Throughput" in line for line in lines)


def test_report_on_a_job_without_status():
    lines = text(reported.job(), 500).splitlines()
    assert lines[0] == "penguins is Pending: the operator has not processed it yet"
    assert "Goodput     not available: no time accounting" in lines


def test_report_on_a_failed_job_has_the_first_failure_and_its_last_lines():
    lines = text(failed(), 5000).splitlines()
    assert lines[0] == "penguins Failed after 15:00: TooManyRestarts (4 pods, 2 restarts)"
    assert lines[1] == "worker-1 failed for the third time"
    assert lines[-4:] == [
        "Last failure",
        "  First failure: worker-1 (rank 2) in attempt 2: exit code 1",
        "    | Traceback",
        "    | ValueError: negative",
    ]


def test_control_sequences_are_removed_from_text():
    job = reported.finished()
    job["status"]["history"][0]["failure"]["message"] = "\x1b[2Jgone\x07 \x1b]0;title\x07\u202e"
    job["metadata"]["name"] = "a\x1b[31m\nb"
    assert not set("\x1b\x07") & set(text(job, 5000))


# --- segments of attempts --------------------------------------------------------------------------------------------


def seconds_by_kind(found: Report) -> dict[str, float]:
    parts = [*found.between, *(part for attempt in found.attempts for part in attempt.segments)]
    return {kind: sum(part.seconds for part in parts if part.kind == kind) for kind in {part.kind for part in parts}}


@table(
    ("finished", reported.finished, 5000),
    ("running", reported.running, 500),
    ("without reports", reported.silent, 500),
)
def test_segments_add_up_to_the_times_in_the_status(case):
    job, seconds = case
    found = report(job(), seconds)
    assert seconds_by_kind(found) == pytest.approx({kind: value for kind, value in found.times.items() if value})
    assert sum(found.times.values()) == found.seconds


def test_suspended_time_counts_as_queued():
    job = reported.running()
    job["status"]["history"][0] |= {"reason": "Suspended", "endTime": reported.stamp(200), "productiveSeconds": 140}
    del job["status"]["history"][0]["failure"]
    job["status"]["times"] |= {"queued": 112, "productive": 140, "starting": 38, "lost": 30}
    found = report(job, 500)
    assert [(part.kind, part.seconds) for part in found.between] == [("queued", 1.0), ("queued", 100.0)]
    assert [(part.kind, part.seconds) for part in found.attempts[1].segments] == [
        ("starting", 20.0),
        ("productive", 180.0),
    ]


def test_attempts_dropped_from_the_status_are_marked():
    job = reported.finished()
    for past in job["status"]["history"]:
        past["attempt"] += 7
    job["status"]["history"][0]["startTime"] = reported.stamp(25)
    job["status"] |= {"attempt": 9}
    assert "  The status no longer has the details of attempts 0 to 6, only their time." in text(job, 5000)
    assert "?" in text(job, 5000)
    assert "no longer has the details" in rendered(job, "html", at(5000))


def test_unknown_fields_of_a_newer_operator_are_ignored():
    job = reported.finished()
    job["status"] |= {"mood": "good"}
    job["status"]["progress"] |= {"step": "many"}
    assert text(job, 5000).startswith("penguins Succeeded")


# --- HTML ------------------------------------------------------------------------------------------------------------

VOID = {"meta", "br", "hr", "img", "link", "input"}
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "h1", "h2", "p", "span"),
    *("pre", "dl", "div", "dt", "dd", "small", "ul", "li", "i", "details", "summary", "table", "thead", "tbody", "tr"),
    *("th", "td", "svg", "desc", "rect", "text", "line", "polyline", "circle"),
}


class Page(HTMLParser):
    """Parses a page, and fails if its tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> closes nothing in HTML"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page(job: dict[str, Any], seconds: float = 5000) -> tuple[Page, str]:
    made = rendered(job, "html", at(seconds))
    return Page(made), made


def failed() -> dict[str, Any]:
    """The job of `reported.finished`, but its last attempt failed."""
    job = reported.finished()
    failure = reported.failure(2, exitCode=1, message="Traceback\nValueError: negative")
    last = {"attempt": 2, "reason": "Error", "failure": failure | {"message": "ValueError: negative"}}
    job["status"] |= {
        "phase": "Failed",
        "conditions": [reported.condition("Failed", "TooManyRestarts", "worker-1 failed for the third time", 900)],
        "lastFailure": failure,
        "history": [reported.KILLED, reported.HUNG, reported.COMPLETED | last],
    }
    return job


JOBS = [reported.finished, reported.running, reported.silent, reported.job, failed]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_html_is_well_formed_and_self_contained(job):
    parsed, made = page(job(), 500)
    assert made.startswith("<!DOCTYPE html>\n<html lang=")
    assert {tag for tag, _ in parsed.tags} <= TAGS
    for tag, attributes in parsed.tags:
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert not re.search(r"https?:|//[a-z]|url\(|@import|javascript:", made)
    [policy] = [a["content"] for tag, a in parsed.tags if tag == "meta" and a.get("http-equiv")]
    assert str(policy).startswith("default-src 'none';")


def test_every_plot_has_a_title_a_description_and_a_table():
    parsed, made = page(reported.finished())
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawn = [attributes for tag, attributes in parsed.tags if tag == "svg" and attributes.get("class") != "strokes"]
    assert len(drawn) == 5
    for attributes in drawn:
        assert attributes["role"] == "img"
        assert set(str(attributes["aria-labelledby"]).split()) <= set(ids)
    for section in re.findall(r"<section>.*?</section>", made, re.DOTALL):
        assert ("<svg" in section) <= ("<table>" in section)


def test_html_has_attempts_times_curves_causes_and_the_outcome():
    parsed, made = page(reported.finished())
    headings = [words for tag, words in parsed.texts if tag == "h2"]
    assert headings == [
        "Timeline of attempts",
        "Where the time went",
        "loss",
        "Throughput in samples/s",
        "Lost time by cause",
        "Restarts and failures",
        "The job",
    ]
    for words in ("penguins Succeeded in 15:00 (4 pods, 2 restarts)", "73.8%", "signal 9 (SIGKILL)", "node-9"):
        assert words in made
    bars = [attributes["class"] for tag, attributes in parsed.tags if tag == "rect"]
    assert bars[:5] == ["queued", "queued", "starting", "productive", "lost"]
    assert made.count('class="curve"') == 6  # three attempts in two plots: curves are interrupted between attempts
    assert made.count('class="mark"') == 4


def tiles(made: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)<small>", made))


def test_a_job_that_never_trained_has_no_goodput_and_no_empty_plots():
    job = failed()
    job["status"].pop("progress")
    job["status"]["times"]["measured"] = False
    parsed, made = page(job)
    assert tiles(made)["Goodput"] == "not measured"
    assert "at most 73.8%, if all running time was productive" in made
    assert "productive</li>" not in made
    headings = [words for tag, words in parsed.texts if tag == "h2"]
    assert headings[:3] == ["Timeline of attempts", "Where the time went", "Lost time by cause"]
    found = json.loads(rendered(job, "json", at(5000)))
    assert (found["goodput"], found["goodputLimit"], found["measured"]) == (None, 0.7376, False)


def test_the_failure_is_the_first_part_of_the_page():
    _, made = page(failed())
    assert 0 < made.index("First failure: worker-1") < made.index('<dl class="tiles">') < made.index("<svg")


def test_labels_of_a_logarithmic_axis_are_powers_of_ten_and_fit():
    job = reported.finished()
    for number, point in enumerate(job["status"]["progress"]["curve"]):
        point["value"] = 9.7 * 10 ** (-number / 12)
    made = report(job)
    strokes = made.strokes(lambda point: point.value)
    plot = drawn_plots.curve("id", "", "", strokes, made.seconds)
    assert [label for _, label in plot.y_labels] == ["0.001", "0.01", "0.1", "1"]


@pytest.mark.parametrize("values", [[0.0001874] * 2, [-0.0001874] * 2, [1e-7, 1.5e-7], [123456.0, 9876543.0]])
def test_labels_of_the_y_axis_fit_beside_the_plot(values):
    plot = drawn_plots.curve("id", "", "", [list(enumerate(values))], 2.0)
    assert plot.y_labels
    assert all(len(label) <= drawn_plots.MOST_CHARACTERS for _, label in plot.y_labels)


def test_plots_are_as_wide_as_the_page_and_labels_are_not_scaled():
    _, made = page(reported.finished())
    outer = [tag for tag in re.findall(r"<svg[^>]*>", made) if 'class="strokes"' not in tag]
    assert not any("viewBox" in tag or "width" in tag for tag in outer)
    ends = [float(x) for x in re.findall(r'x2="([\d.]+)%"', made)]
    assert max(ends) == 100


def test_durations_of_a_short_job_have_one_format():
    _, made = page(reported.silent(), 90)
    assert tiles(made)["Duration"] == "90.0s"
    assert not re.search(r"\d:\d\d\b", made.replace("10:01:30 UTC", "").replace("10:00:00 UTC", ""))
    assert ">30s</text>" in made


def test_throughput_leaves_out_the_ends_of_an_attempt_where_only_some_ranks_ran():
    job = reported.finished()
    curve = job["status"]["progress"]["curve"]
    for place in (0, 19, 20, 39):
        curve[place]["samplesPerSecond"] = 128
    found = report(job)
    rates = [point.samples_per_second for point in found.points]
    assert 128 not in rates
    assert (rates.count(None), len(rates)) == (6, 60)
    assert float(tiles(page(job)[1])["samples/s"]) > 512


# --- local runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stored run with three metrics, a commit and two logs; the working directory is above it."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "runs" / "penguins" / "20260304-100000"
    (directory / "logs").mkdir(parents=True)
    job = reported.finished()
    job["spec"] |= {"args": ["--lr", "3 e"], "env": [{"name": "TOKEN", "value": "s3cret"}]}
    job["spec"]["roles"]["worker"]["env"] = [{"name": "A", "value": "s3cret"}]
    job["status"]["progress"]["lastReport"] = reported.stamp(30 + 199)
    (directory / "job.json").write_text(json.dumps(job))
    points = [
        {
            "time": reported.stamp(30 + n),
            "attempt": 0,
            "step": n,
            "metrics": {"lr": 1 / (n + 1), "loss": 5 - n / 50, "a<b": n},
        }
        for n in range(200)
    ]
    (directory / "progress.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points) + '{"time": "2')
    (directory / "code.json").write_text(json.dumps({"commit": "5" * 40, "dirty": True}))
    for name in ("penguins-worker-0-0", "penguins-worker-1-0"):
        (directory / "logs" / f"{name}.log").write_text("x")
    (directory.parent / "latest").symlink_to(directory.name)
    return directory


def test_report_on_a_local_run_has_all_metrics_points_the_commit_and_names_of_variables(run_dir):
    found = json.loads(allranks("--run-dir", "runs/penguins", "-o", "json").stdout)
    assert len(found["points"]) == 200
    assert found["points"][1]["metrics"] == {"lr": 0.5, "loss": 4.98, "a<b": 1.0}
    assert (found["commit"], found["dirty"], found["environment"]) == ("5" * 40, True, ["A", "TOKEN"])
    assert [Path(log).name for log in found["logs"]] == ["penguins-worker-0-0.log", "penguins-worker-1-0.log"]
    lines = allranks("--run-dir", "runs/penguins").stdout.splitlines()
    assert "Command     python3 train.py --lr '3 e'" in lines
    assert f"Code        commit {'5' * 40} with uncommitted changes" in lines
    assert [line.split() for line in lines if line.startswith("  lr ")] == [["lr", "1", "0.005", "0.005", "1"]]
    for form in ("text", "html", "json"):
        assert "s3cret" not in allranks("--run-dir", str(run_dir), "-o", form).stdout


def test_html_of_a_local_run_has_a_plot_of_each_metric_and_links_to_the_logs(run_dir):
    assert allranks("--run-dir", "runs/penguins", "-o", "out.html").stderr == "wrote out.html\n"
    made = Path("out.html").read_text()
    parsed = Page(made)
    headings = [words for tag, words in parsed.texts if tag == "h2"]
    assert headings[2:6] == ["loss", "Throughput in steps/s", "a<b", "lr"]
    assert {tag for tag, _ in parsed.tags} <= TAGS | {"a"}
    links = [str(attributes["href"]) for tag, attributes in parsed.tags if tag == "a"]
    assert links == [f"./runs/penguins/20260304-100000/logs/penguins-worker-{n}-0.log" for n in (0, 1)]
    assert all(Path(link).exists() for link in links)
    assert "Table: 100 of 200 points" in made
    printed = Page(allranks("--run-dir", str(run_dir), "-o", "html").stdout)
    addresses = [str(attributes["href"]) for tag, attributes in printed.tags if tag == "a"]
    assert addresses == [path.as_uri() for path in sorted((run_dir / "logs").iterdir())]


def test_the_record_of_metrics_is_a_table_with_all_values(run_dir):
    result = allranks("--run-dir", "runs/penguins", "-o", "csv")
    header, *rows = [row.split(",") for row in result.stdout.splitlines()]
    assert header == ["step", "time", "attempt", "metric", "value", "repeated"]
    assert len(rows) == 600
    assert rows[4] == ["1", "2026-03-04T10:00:31Z", "0", "loss", "4.98", "false"]
    assert allranks("--run-dir", str(run_dir), "-o", "values.csv").stderr == "wrote values.csv\n"
    assert Path("values.csv").read_text() == result.stdout
    of_status = allranks("-f", str(run_dir / "job.json"), "-o", "csv").stdout.splitlines()
    assert of_status[0] == result.stdout.splitlines()[0]
    assert {row.split(",")[3] for row in of_status[1:]} == {"loss"}


def test_event_files_need_a_package_and_no_other_output(run_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    missing = allranks("--run-dir", str(run_dir), "--tensorboard", "events")
    assert missing.exit_code == 1
    assert "the Python package tensorboardX, which is not installed: " in missing.stderr
    assert "tensorboard]" in missing.stderr
    assert not Path("events").exists()
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=None))
    Path("events").mkdir()
    Path("events/events.out.tfevents.1.host").touch()
    again = allranks("--run-dir", str(run_dir), "--tensorboard", "events")
    assert (again.exit_code, again.stderr.startswith("error: events has event files already")) == (1, True)
    both = allranks("--run-dir", str(run_dir), "--tensorboard", "events", "-o", "json")
    assert (both.exit_code, both.stderr.splitlines()[-1]) == (2, "Error: specify either -o or --tensorboard, not both.")


@pytest.mark.parametrize("words", [("-o", "csv"), ("--tensorboard", "events")])
def test_a_sweep_has_no_record_of_metrics(tmp_path, words):
    (tmp_path / "sweep.json").write_text(json.dumps(a_sweep()))
    result = allranks("-f", str(tmp_path / "sweep.json"), *words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a sweep has no record of metrics of its own: name one of its trials" in result.stderr


def test_many_points_are_thinned_but_not_the_end_of_an_attempt(tmp_path):
    lines = [
        {"time": reported.stamp(30 + n), "attempt": n // 2500, "step": n, "metrics": {"loss": float(n)}}
        for n in range(5000)
    ]
    (tmp_path / "progress.jsonl").write_text("\n".join(map(json.dumps, lines)))
    steps = [sample.step for sample in read_run_files(tmp_path).samples]
    assert run_files.MOST_POINTS <= len(steps) <= run_files.MOST_POINTS + 2
    assert {0, 2499, 4999} <= set(steps)


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", "3", '{"time": "x"}', '{"time": "2026-03-04T10:00:00", "attempt": 0, "step": 1}']
)
def test_damaged_files_of_a_run_are_left_out(tmp_path, line):
    for name in ("progress.jsonl", "code.json"):
        (tmp_path / name).write_text(line)
    assert read_run_files(tmp_path) == run_files.RunFiles(active=False)


def test_html_supports_light_dark_and_print():
    _, made = page(reported.finished())
    assert "@media (prefers-color-scheme: dark)" in made
    assert "@media print" in made


EVIL = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b]0;x\x07"


def hostile(value: Any) -> Any:
    """Replaces every text by a hostile one, except timestamps and enums of the API."""
    if isinstance(value, dict):
        chosen = {"time", "phase", "type", "status", "kind", "state", "since", "apiVersion"}
        return {
            key: item
            if (key in chosen and isinstance(item, str)) or key.endswith(("Time", "Timestamp", "Since"))
            else hostile(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return EVIL if isinstance(value, str) else value


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_hostile_text_is_escaped(job):
    harmless, _ = page(job(), 500)
    evil = hostile(job())
    status = evil["status"]
    if status:
        status["times"]["byReason"] = {EVIL: 3.0}
        status["replicaRestarts"] = {EVIL: {"count": 1, "restartTime": reported.stamp(3)}}
        status["roles"] = {EVIL: {"desired": 1}}
    if "progress" in status:
        status["progress"]["metrics"] = {EVIL: 1.0}
    parsed, made = page(evil, 500)
    assert {tag for tag, _ in parsed.tags} <= TAGS
    assert parsed.count("style") == parsed.count("head") == harmless.count("head") == 1
    assert not [a for _, a in parsed.tags for name in a if name.startswith("on") or name == "src"]
    assert any("<script>alert(1)</script>" in words for _, words in parsed.texts)
    assert not set("\x00\x1b\x07") & set(made)


def test_the_template_never_turns_escaping_off():
    template = (Path(html.__file__).parent / "report.html.j2").read_text()
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", template.partition("#}")[2])


@table(
    ("a constant", [1.0] * 5),
    ("ten orders of magnitude", [1e6, 10.0, 1e-4]),
    ("negative values", [-3.0, -2.0, -5.0]),
    ("a single value", [3.0]),
    ("huge values", [1e308, -1e308]),
    ("no values", []),
    ("missing values", [1.0, None, 2.0, None]),
)
def test_every_curve_can_be_drawn(case):
    [values] = case
    job = reported.finished()
    job["status"]["progress"]["curve"] = [
        {"time": reported.stamp(30 + place), "step": place} | ({} if value is None else {"value": value})
        for place, value in enumerate(values)
    ]
    _, made = page(job)
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', made)
    assert text(job, 5000)


# --- text plots ------------------------------------------------------------------------------------------------------


def test_short_times_get_one_character_in_a_stacked_bar():
    times = {"queued": 0.0, "starting": 0.1, "productive": 1000.0, "lost": 0.1}
    assert [(kind, len(part)) for kind, part in plots.parts(times, 10)] == [
        ("starting", 1),
        ("productive", 8),
        ("lost", 1),
    ]
    assert plots.parts(dict.fromkeys(times, 0.0), 10) == []


def test_sparkline_follows_the_values_and_has_gaps():
    assert plots.sparkline([4, 3, 2, None, 1], 10) == "█▆▃ ▁"
    assert plots.sparkline([4, 3, 2, None, 1], 10, unicode=False) == "#+. _".replace(".", "-")
    assert len(plots.sparkline(list(range(1000)), 20)) == 20
    assert plots.sparkline([5, 5], 10) == "▅▅"
    assert plots.sparkline([float("nan"), float("inf"), 1.0], 10) == "  ▅"


def test_curve_is_drawn_in_braille_or_in_ascii():
    assert plots.curve([[(0, 0), (1, 1)]], 4, 2, unicode=False) == ["  **", "**  "]
    assert plots.curve([[(0, 0), (1, 1)]], 2, 1) == ["⡠⠊"]


# --- the command -----------------------------------------------------------------------------------------------------


def allranks(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["report", *args], input=stdin, catch_exceptions=False)


def test_report_reads_a_run_directory_a_file_and_standard_input(tmp_path):
    job = reported.finished()
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "list.yaml").write_text(yaml.safe_dump({"kind": "List", "items": [job]}))
    results = [
        allranks("--run-dir", str(tmp_path)),
        allranks("-f", str(tmp_path / "job.yaml")),
        allranks("-f", str(tmp_path / "list.yaml"), "penguins"),
        allranks("-f", "-", stdin=json.dumps(job)),
    ]
    assert {(result.exit_code, result.stdout) for result in results} == {(0, text(job, 5000))}


def test_report_on_an_unfinished_job_in_a_file_ends_at_its_last_timestamp(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(reported.running()))
    with in_use(tmp_path):
        made = [allranks("--run-dir", str(tmp_path), "-o", form).stdout for form in ("text", "html")]
    assert made == [rendered(reported.running(), form, at(498)) for form in ("text", "html")]


def test_unquoted_yaml_timestamps_are_read(tmp_path):
    bare = re.sub(r"'(\d{4}-[^']+Z)'", r"\1", yaml.safe_dump(reported.finished()))
    assert "creationTimestamp: 2026-03-04T10:00:00Z\n" in bare
    assert allranks("-f", "-", stdin=bare).stdout == text(reported.finished(), 5000)
    assert allranks("-f", "-", stdin=bare.replace("Z\n", "\n")).stdout == text(reported.finished(), 5000)


@pytest.mark.parametrize("option", ["-o", "--output"])
def test_output_is_a_format_or_a_file_in_the_format_of_its_suffix(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    job = json.dumps(reported.finished())
    for name, begins in (("a.html", "<!DOCTYPE html>"), ("a.json", "{"), ("a.txt", "penguins Succeeded")):
        result = allranks("-f", "-", option, name, stdin=job)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"wrote {name}\n")
        assert Path(name).read_text().startswith(begins)
    before = sorted(tmp_path.iterdir())
    for form, begins in (("html", "<!DOCTYPE html>"), ("json", "{"), ("text", "penguins Succeeded")):
        assert allranks("-f", "-", option, form, stdin=job).stdout.startswith(begins)
    assert sorted(tmp_path.iterdir()) == before
    # The form that earlier versions took.
    assert allranks("-f", "-", "-o", "html", "--output", "page", stdin=job).stderr == "wrote page\n"
    assert Path("page").read_text().startswith("<!DOCTYPE html>")


@table(
    (
        "an unknown suffix",
        ["-o", "a.pdf"],
        "a.pdf: specify text, html, json, diff or csv, or a file whose name ends in .txt",
    ),
    ("no suffix", ["-o", "htlm"], "htlm: specify text, html, json, diff or csv, or a file"),
    ("two formats", ["-o", "html", "-o", "json"], "html, json: specify one format and one file at most."),
    ("two files", ["-o", "a.html", "-o", "b.html"], "a.html, b.html: specify one format and one file at most."),
)
def test_an_output_that_is_neither_a_format_nor_a_file_is_refused(case, tmp_path, monkeypatch):
    args, sentence = case
    monkeypatch.chdir(tmp_path)
    result = allranks("-f", "-", *args)
    assert (result.exit_code, result.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert sentence in " ".join(result.stderr.split())


def test_json_has_the_same_data():
    found = json.loads(allranks("-f", "-", "-o", "json", stdin=json.dumps(reported.finished())).stdout)
    assert found["times"] == {"queued": 12, "starting": 18, "productive": 655, "lost": 215}
    assert found["lost"] == {"Hang": 165, "Error": 50}
    assert (found["goodput"], found["measured"], found["phase"], found["over"]) == (0.7376, True, "Succeeded", True)
    assert [attempt["reason"] for attempt in found["attempts"]] == ["Error", "Hang", "Completed"]
    assert found["attempts"][0]["cause"]["lastLine"] == "step 540 loss 0.71"
    assert found["progress"]["totalSteps"] == 1310
    assert len(found["points"]) == 60


@table(
    ("no source", [], "", 2, "specify a job name, --run-dir DIR or -f FILE."),
    ("two sources", ["-f", "-", "--run-dir", "."], "", 2, "specify either --run-dir or -f, not both."),
    ("no file", ["-f", "gone.yaml"], "", 1, "gone.yaml does not exist"),
    ("a directory", ["-f", "."], "", 1, "cannot read .: is a directory"),
    ("no run directory", ["--run-dir", "."], "", 1, "a run directory of allranks run contains job.json"),
    ("no YAML", ["-f", "-"], "a: [", 1, "stdin is neither YAML nor JSON"),
    ("another kind", ["-f", "-"], "kind: Pod\nmetadata: {}", 1, "- contains no DistributedTraining"),
    ("no objects", ["-f", "-"], "[1]\n---\nx", 1, "- contains no DistributedTraining"),
    ("a malformed object", ["-f", "-"], "kind: DistributedTraining\nmetadata: 3", 1, "contains no DistributedTraining"),
    (
        "no such job",
        ["-f", "-", "other"],
        yaml.safe_dump(reported.finished()),
        1,
        "contains no DistributedTraining other",
    ),
    (
        "several",
        ["-f", "-"],
        yaml.safe_dump_all([reported.finished("a"), reported.finished("b")]),
        1,
        "- contains 2 jobs: specify one of a, b",
    ),
    (
        "a file that cannot be written",
        ["-f", "-", "--output", "no/such/file.txt"],
        yaml.safe_dump(reported.finished()),
        1,
        "cannot write no/such/file.txt: No such file or directory",
    ),
)
def test_errors(case, tmp_path, monkeypatch):
    args, stdin, status, sentence = case
    monkeypatch.chdir(tmp_path)
    result = allranks(*args, stdin=stdin)
    assert (result.exit_code, result.stdout) == (status, "")
    assert sentence in " ".join(result.stderr.split())


def test_report_on_a_job_of_a_cluster_and_on_a_missing_job(tmp_path: Path):
    with SomeApi(tmp_path, copy.deepcopy(reported.finished())) as api:
        where = ["--kubeconfig", str(api.kubeconfig)]
        assert allranks("penguins", *where).stdout == text(reported.finished(), 5000)
        result = allranks("penguin", *where)
        error = "error: there is no job penguin in namespace team, did you mean penguins?\n"
        assert (result.exit_code, result.stderr) == (1, error)
