"""`allranks report`: what it tells of a job, as text, as a page, as JSON; and that no text of a user's does harm."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.cli.commands.report import rendered
from allranks.cli.format import plots as glyphs
from allranks.cli.job_report.model import Account, account
from allranks.cli.main import cli
from support import reported
from support.builders import table
from support.reported import at
from support.some_api import SomeApi

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
Throughput  519 samples/s on average
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
       527    **************************************           *********************

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


def told(job: dict[str, Any], seconds: float = 5000) -> Account:
    return account(job, at(seconds))


# --- text ------------------------------------------------------------------------------------------------------------


def test_the_account_of_a_job_that_was_killed_once_hung_once_and_came_to_its_end():
    assert text(reported.finished(), 5000, unicode=False) == FINISHED


def test_it_says_the_same_long_after_the_jobs_end():
    assert text(reported.finished(), 900) == text(reported.finished(), 900_000)


def test_of_a_job_that_goes_on_it_tells_what_is_known_up_to_now():
    lines = text(reported.running(), 500).splitlines()
    assert lines[0] == "penguins is Running: attempt 1, 4/4 pods running"
    assert "As of       2026-03-04 10:08:20 UTC, after 8:20" in lines
    assert "Progress    600/1310 45%, epoch 9, loss 0.5132" in lines
    assert "ETA         5m55s" in lines
    # 240 s and 180 s of 488 s.
    assert "Goodput     86.1% (productive / all but queued, by reports)" in lines
    assert lines[-1].split() == ["3", "worker-2", "node-9", "2.3x"]


def test_without_reports_it_says_what_its_goodput_is_worth():
    lines = text(reported.silent(), 500).splitlines()
    assert "Goodput     98.4% (no reports: all the time that it ran counts as productive)" in lines
    assert not any("loss" in line or "Throughput" in line for line in lines)


def test_a_job_that_nobody_has_looked_at_has_an_account_too():
    lines = text(reported.job(), 500).splitlines()
    assert lines[0] == "penguins is Pending: nobody has looked at it yet"
    assert "Goodput     not known: nobody accounted for the time" in lines


def test_a_job_that_failed_is_told_with_who_was_first_and_its_last_lines():
    job = reported.finished()
    failure = reported.failure(2, exitCode=1, message="Traceback\nValueError: negative")
    last = {"attempt": 2, "reason": "Error", "failure": failure | {"message": "ValueError: negative"}}
    job["status"] |= {
        "phase": "Failed",
        "conditions": [reported.condition("Failed", "TooManyRestarts", "worker-1 failed for the third time", 900)],
        "lastFailure": failure,
        "history": [reported.KILLED, reported.HUNG, reported.COMPLETED | last],
    }
    lines = text(job, 5000).splitlines()
    assert lines[0] == "penguins Failed after 15:00: TooManyRestarts (4 pods, 2 restarts)"
    assert lines[1] == "worker-1 failed for the third time"
    assert lines[-4:] == [
        "Last failure",
        "  First failure: worker-1 (rank 2) in attempt 2: exit code 1",
        "    | Traceback",
        "    | ValueError: negative",
    ]


def test_control_sequences_of_a_program_do_not_reach_the_terminal():
    job = reported.finished()
    job["status"]["history"][0]["failure"]["message"] = "\x1b[2Jgone\x07 \x1b]0;title\x07\u202e"
    job["metadata"]["name"] = "a\x1b[31m\nb"
    assert not set("\x1b\x07") & set(text(job, 5000))


# --- what attempts did -----------------------------------------------------------------------------------------------


def seconds_by_kind(found: Account) -> dict[str, float]:
    parts = [*found.between, *(part for attempt in found.attempts for part in attempt.segments)]
    return {kind: sum(part.seconds for part in parts if part.kind == kind) for kind in {part.kind for part in parts}}


@table(
    ("finished", reported.finished, 5000),
    ("running", reported.running, 500),
    ("without reports", reported.silent, 500),
)
def test_what_attempts_did_adds_up_to_the_times_that_the_status_has(case):
    job, seconds = case
    found = told(job(), seconds)
    assert seconds_by_kind(found) == pytest.approx({kind: value for kind, value in found.times.items() if value})
    assert sum(found.times.values()) == found.seconds


def test_time_in_which_a_job_was_suspended_was_queued():
    job = reported.running()
    job["status"]["history"][0] |= {"reason": "Suspended", "endTime": reported.stamp(200), "productiveSeconds": 140}
    del job["status"]["history"][0]["failure"]
    job["status"]["times"] |= {"queued": 112, "productive": 140, "starting": 38, "lost": 30}
    found = told(job, 500)
    assert [(part.kind, part.seconds) for part in found.between] == [("queued", 1.0), ("queued", 100.0)]
    assert [(part.kind, part.seconds) for part in found.attempts[1].segments] == [
        ("starting", 20.0),
        ("productive", 180.0),
    ]


def test_attempts_that_the_status_holds_no_more_are_said_to_be_missing():
    job = reported.finished()
    for past in job["status"]["history"]:
        past["attempt"] += 7
    job["status"]["history"][0]["startTime"] = reported.stamp(25)
    job["status"] |= {"attempt": 9}
    assert "  Of attempts 0 to 6 nothing is kept but their times." in text(job, 5000)
    assert "?" in text(job, 5000)
    assert "nothing is kept" in rendered(job, "html", at(5000))


def test_a_status_of_a_newer_operator_is_told_as_far_as_it_is_understood():
    job = reported.finished()
    job["status"] |= {"mood": "good"}
    job["status"]["progress"] |= {"step": "many"}
    assert text(job, 5000).startswith("penguins Succeeded")


# --- the page --------------------------------------------------------------------------------------------------------

VOID = {"meta", "br", "hr", "img", "link", "input"}
KNOWN = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "h1", "h2", "p", "span"),
    *("pre", "dl", "div", "dt", "dd", "small", "ul", "li", "i", "details", "summary", "table", "thead", "tbody", "tr"),
    *("th", "td", "svg", "desc", "rect", "text", "line", "polyline", "circle"),
}


class Page(HTMLParser):
    """Takes a page apart, and fails where its tags do not fit."""

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


JOBS = [reported.finished, reported.running, reported.silent, reported.job]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_the_page_is_whole_and_needs_nothing_from_anywhere(job):
    parsed, made = page(job(), 500)
    assert made.startswith("<!DOCTYPE html>\n<html lang=")
    assert {tag for tag, _ in parsed.tags} <= KNOWN
    for tag, attributes in parsed.tags:
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert not re.search(r"https?:|//[a-z]|url\(|@import|javascript:", made)
    [policy] = [a["content"] for tag, a in parsed.tags if tag == "meta" and a.get("http-equiv")]
    assert str(policy).startswith("default-src 'none';")


def test_every_plot_has_a_title_a_description_and_a_table_beside_it():
    parsed, made = page(reported.finished())
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    plots = [attributes for tag, attributes in parsed.tags if tag == "svg"]
    assert len(plots) == 5
    for attributes in plots:
        assert attributes["role"] == "img"
        assert set(str(attributes["aria-labelledby"]).split()) <= set(ids)
    for section in re.findall(r"<section>.*?</section>", made, re.DOTALL):
        assert ("<svg" in section) <= ("<table>" in section)


def test_the_page_tells_attempts_times_curves_causes_and_the_verdict():
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
    assert made.count('class="curve"') == 6  # three attempts, two plots: what is between them is not joined
    assert made.count('class="mark"') == 4


def test_the_page_is_light_dark_and_fit_to_be_printed():
    _, made = page(reported.finished())
    assert "@media(prefers-color-scheme:dark)" in made
    assert "@media print" in made


EVIL = "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b]0;x\x07"


def poisoned(value: Any) -> Any:
    """Every text in it is replaced by one that would do harm, but for times and words that the API chooses."""
    if isinstance(value, dict):
        chosen = {"time", "phase", "type", "status", "kind", "state", "since", "apiVersion"}
        return {
            key: item
            if (key in chosen and isinstance(item, str)) or key.endswith(("Time", "Timestamp", "Since"))
            else poisoned(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return EVIL if isinstance(value, str) else value


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_no_text_of_a_user_or_a_program_becomes_markup(job):
    harmless, _ = page(job(), 500)
    evil = poisoned(job())
    status = evil["status"]
    if status:
        status["times"]["byReason"] = {EVIL: 3.0}
        status["replicaRestarts"] = {EVIL: {"count": 1, "restartTime": reported.stamp(3)}}
        status["roles"] = {EVIL: {"desired": 1}}
    if "progress" in status:
        status["progress"]["metrics"] = {EVIL: 1.0}
    parsed, made = page(evil, 500)
    assert {tag for tag, _ in parsed.tags} <= KNOWN
    assert parsed.count("style") == parsed.count("head") == harmless.count("head") == 1
    assert not [a for _, a in parsed.tags for name in a if name.startswith("on") or name == "src"]
    assert any("<script>alert(1)</script>" in words for _, words in parsed.texts)
    assert not set("\x00\x1b\x07") & set(made)


@table(
    ("the same value all the time", [1.0] * 5),
    ("values that differ by ten orders", [1e6, 10.0, 1e-4]),
    ("negative ones", [-3.0, -2.0, -5.0]),
    ("one", [3.0]),
    ("huge ones", [1e308, -1e308]),
    ("none", []),
    ("some that are missing", [1.0, None, 2.0, None]),
)
def test_any_curve_can_be_drawn(case):
    [values] = case
    job = reported.finished()
    job["status"]["progress"]["curve"] = [
        {"time": reported.stamp(30 + place), "step": place} | ({} if value is None else {"value": value})
        for place, value in enumerate(values)
    ]
    _, made = page(job)
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', made)
    assert text(job, 5000)


# --- characters ------------------------------------------------------------------------------------------------------


def test_what_is_there_at_all_is_seen_in_a_bar_of_parts():
    times = {"queued": 0.0, "starting": 0.1, "productive": 1000.0, "lost": 0.1}
    assert [(kind, len(part)) for kind, part in glyphs.parts(times, 10)] == [
        ("starting", 1),
        ("productive", 8),
        ("lost", 1),
    ]
    assert glyphs.parts(dict.fromkeys(times, 0.0), 10) == []


def test_a_sparkline_falls_where_the_loss_does_and_has_gaps():
    assert glyphs.sparkline([4, 3, 2, None, 1], 10) == "█▆▃ ▁"
    assert glyphs.sparkline([4, 3, 2, None, 1], 10, unicode=False) == "#+. _".replace(".", "-")
    assert len(glyphs.sparkline(list(range(1000)), 20)) == 20
    assert glyphs.sparkline([5, 5], 10) == "▅▅"
    assert glyphs.sparkline([float("nan"), float("inf"), 1.0], 10) == "  ▅"


def test_a_curve_is_drawn_in_dots_or_in_stars():
    assert glyphs.curve([[(0, 0), (1, 1)]], 4, 2, unicode=False) == ["  **", "**  "]
    assert glyphs.curve([[(0, 0), (1, 1)]], 2, 1) == ["⡠⠊"]


# --- the command -----------------------------------------------------------------------------------------------------


def allranks(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["report", *args], input=stdin, catch_exceptions=False)


def test_a_run_directory_a_file_and_standard_input(tmp_path):
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


def test_what_a_file_says_of_a_job_that_ran_is_told_up_to_its_last_moment(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(reported.running()))
    made = [allranks("--run-dir", str(tmp_path), "-o", form).stdout for form in ("text", "html")]
    assert made == [rendered(reported.running(), form, at(498)) for form in ("text", "html")]


def test_times_that_yaml_makes_objects_of_are_understood(tmp_path):
    bare = re.sub(r"'(\d{4}-[^']+Z)'", r"\1", yaml.safe_dump(reported.finished()))
    assert "creationTimestamp: 2026-03-04T10:00:00Z\n" in bare
    assert allranks("-f", "-", stdin=bare).stdout == text(reported.finished(), 5000)
    assert allranks("-f", "-", stdin=bare.replace("Z\n", "\n")).stdout == text(reported.finished(), 5000)


def test_the_files_name_says_what_it_is_to_be(tmp_path):
    job = json.dumps(reported.finished())
    for name, begins in (("a.html", "<!DOCTYPE html>"), ("a.json", "{"), ("a.txt", "penguins Succeeded")):
        result = allranks("-f", "-", "--output", str(tmp_path / name), stdin=job)
        assert (result.exit_code, result.output) == (0, "")
        assert (tmp_path / name).read_text().startswith(begins)
    assert allranks("-f", "-", "-o", "html", stdin=job).stdout.startswith("<!DOCTYPE html>")


def test_as_json_it_is_all_that_the_page_tells():
    found = json.loads(allranks("-f", "-", "-o", "json", stdin=json.dumps(reported.finished())).stdout)
    assert found["times"] == {"queued": 12, "starting": 18, "productive": 655, "lost": 215}
    assert found["lost"] == {"Hang": 165, "Error": 50}
    assert (found["goodput"], found["measured"], found["phase"], found["over"]) == (0.7376, True, "Succeeded", True)
    assert [attempt["reason"] for attempt in found["attempts"]] == ["Error", "Hang", "Completed"]
    assert found["attempts"][0]["cause"]["lastLine"] == "step 540 loss 0.71"
    assert found["progress"]["totalSteps"] == 1310
    assert len(found["points"]) == 60


@table(
    ("nothing is named", [], "", 2, "name a job, or give --run-dir DIR or -f FILE."),
    ("two are", ["-f", "-", "--run-dir", "."], "", 2, "give either --run-dir or -f, not both."),
    ("no file", ["-f", "gone.yaml"], "", 1, "there is no gone.yaml"),
    ("a directory", ["-f", "."], "", 1, ". cannot be read: is a directory"),
    ("no run directory", ["--run-dir", "."], "", 1, "a run directory of allranks run has a job.json"),
    ("no YAML", ["-f", "-"], "a: [", 1, "stdin is neither YAML nor JSON"),
    ("another kind", ["-f", "-"], "kind: Pod\nmetadata: {}", 1, "- holds no DistributedTraining"),
    ("no objects at all", ["-f", "-"], "[1]\n---\nx", 1, "- holds no DistributedTraining"),
    ("members that are none", ["-f", "-"], "kind: DistributedTraining\nmetadata: 3", 1, "holds no DistributedTraining"),
    ("no such job", ["-f", "-", "other"], yaml.safe_dump(reported.finished()), 1, "holds no DistributedTraining other"),
    (
        "several",
        ["-f", "-"],
        yaml.safe_dump_all([reported.finished("a"), reported.finished("b")]),
        1,
        "- holds 2 jobs: name one of a, b",
    ),
    (
        "a file that cannot be written",
        ["-f", "-", "--output", "no/such/file"],
        yaml.safe_dump(reported.finished()),
        1,
        "no/such/file cannot be written: No such file or directory",
    ),
)
def test_what_cannot_be_told_is_said(case, tmp_path, monkeypatch):
    args, stdin, status, sentence = case
    monkeypatch.chdir(tmp_path)
    result = allranks(*args, stdin=stdin)
    assert (result.exit_code, result.stdout) == (status, "")
    assert sentence in " ".join(result.stderr.split())


def test_the_job_of_a_cluster_is_told_and_one_that_is_not_there(tmp_path: Path):
    with SomeApi(tmp_path, copy.deepcopy(reported.finished())) as api:
        where = ["--kubeconfig", str(api.kubeconfig)]
        assert allranks("penguins", *where).stdout == text(reported.finished(), 5000)
        result = allranks("penguin", *where)
        told_so = "error: there is no job penguin in namespace team, did you mean penguins?\n"
        assert (result.exit_code, result.stderr) == (1, told_so)
