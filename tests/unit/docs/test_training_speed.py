"""What bench/train.py says follows from what it measured, and docs/reference/training-speed.md shows what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.train_runs import FRAMEWORKS, PROGRAMS, bare, free_ports, job
from bench.train_table import GOAL, Comparison, Spread, page, verdict

from allranks.api.validation import parse
from allranks.core.objects import pods

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
PAGE = ROOT / "docs" / "reference" / "training-speed.md"
README = ROOT / "README.md"


def run(step: float, alone: float = 0.03, started: float = 1.0) -> dict:
    """A start with one round, whose steps take so many seconds, but for one that was disturbed."""
    steps = [step, step, 9.0, step]
    return {"steps": [steps], "alone": [[alone]], "samples": 120, "started": started, "stepped": started + 2}


RUNS = {
    "bare": [run(0.040), run(0.050), run(0.042)],
    "allranks": [run(0.042, started=1.5), run(0.040, started=1.4), run(0.042, started=1.6)],
    "reports": [run(0.044), run(0.045), run(0.046)],
    "one": [run(0.030), run(0.032), run(0.030)],
    "saves": [{"usual": 0.2, "saves": {"torch.save": {"held": [0.1, 0.3, 0.2], "all": [0.15, 0.35, 0.25]}}}],
}
DOCUMENT = {
    "machine": {
        "date": "2026-03-04",
        "commit": "abc1234",
        "cores": 2,
        "processor": "A Processor",
        "load": 0.04,
        "versions": {"Python": "3.11.2", "torch": "2.15.0"},
    },
    "frameworks": {"pytorch": {"title": "PyTorch DDP", "launcher": "torchrun"}},
    "starts": 3,
    "rounds": 1,
    "steps": 4,
    "results": {"pytorch": RUNS},
}
SAID = """\
2026-03-04, commit abc1234: 2 cores (A Processor), load 0.0 at the start; Python 3.11.2, torch 2.15.0. \
Starts: 3, rounds per start: 1, steps per round: 4.

### Step time

|  | bare launcher | bare, ms | under allranks, ms | ratio | ratio of each round | at least 0.98 |
| --- | --- | --- | --- | --- | --- | --- |
| PyTorch DDP | `torchrun` | 42.0 (40.0 to 50.0) | 42.0 (40.0 to 42.0) | **1.000** | 1.000 (0.952 to 1.250) | yes |
| PyTorch DDP, with reports | `torchrun` | 42.0 (40.0 to 50.0) | 45.0 (44.0 to 46.0) | **0.933** | \
0.913 (0.909 to 1.111) | **no** |

Ratio at least 0.98: 1 of 2. PyTorch DDP 1.000 yes; PyTorch DDP, with reports 0.933 **no**.

### Start-up of a rank

|  | first line: bare, s | first line: under allranks, s | first line: difference, s | first step done: bare, s | \
first step done: under allranks, s | first step done: difference, s |
| --- | --- | --- | --- | --- | --- | --- |
| PyTorch DDP | 1.00 (1.00 to 1.00) | 1.50 (1.40 to 1.60) | +0.50 | 3.00 (3.00 to 3.00) | 3.50 (3.40 to 3.60) | +0.50 |

### Scaling from 1 to 2 ranks

|  | 1 rank, samples/s | 2 ranks, samples/s | speedup | speedup without all-reduce | all-reduce, ms per step |
| --- | --- | --- | --- | --- | --- |
| PyTorch DDP | 4,000 | 5,714 | **1.43** | 2.00 | 12.0 |

### Checkpoint of 100 MB

|  | saved with | step without save, ms | loop blocked, ms | total delay, ms |
| --- | --- | --- | --- | --- |
| PyTorch DDP | `torch.save` | 200 | 200 (100 to 300) | 250 (150 to 350) |"""


def test_the_page_is_the_medians_of_the_runs_and_their_ratios() -> None:
    assert page(DOCUMENT) == SAID


def test_a_part_that_did_not_run_has_no_table() -> None:
    timed = page(DOCUMENT | {"results": {"pytorch": {way: RUNS[way] for way in RUNS if way != "saves"}}})
    saved = page(DOCUMENT | {"results": {"pytorch": {"saves": RUNS["saves"]}}})
    assert re.findall(r"### (.*)", timed) == ["Step time", "Start-up of a rank", "Scaling from 1 to 2 ranks"]
    assert re.findall(r"### (.*)", saved) == ["Checkpoint of 100 MB"]


@pytest.mark.parametrize(
    ("bare", "ours", "answer"),
    [(0.98, 1.0, "yes"), (0.9799, 1.0, "**no**"), (1.1, 1.0, "yes"), (1.0, 2.0, "**no**")],
    ids=["just reached", "just missed", "faster than bare", "half as fast"],
)
def test_a_ratio_is_bare_by_allranks_and_reaches_the_goal_or_not(bare: float, ours: float, answer: str) -> None:
    compared = Comparison("x", "y", Spread((bare,)), Spread((ours,)))
    assert compared.ratio == bare / ours
    assert compared.answer == answer
    assert verdict([compared]).startswith(f"Ratio at least {GOAL}: {int(answer == 'yes')} of 1.")


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.name)
@pytest.mark.parametrize("way", ["allranks", "reports", "one"])
def test_bare_and_under_allranks_the_same_program_gets_the_same_arguments(framework, way) -> None:
    program = [str(PROGRAMS / framework.program), "result.json", "--steps=3"]
    manifest = job(framework, way, program)
    assert pods.problems(parse(manifest)) == []
    assert manifest["spec"]["command"][1:] == program
    assert ("progress" in manifest["spec"]) == (way == "reports")
    assert all(arguments[-3:] == program for arguments, _ in bare(framework, program))


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(5))) == 5


def test_the_documentation_shows_every_ratio_as_the_command_printed_it() -> None:
    text = PAGE.read_text()
    if "Not measured yet" in text:
        pytest.skip("docs/reference/training-speed.md has no table yet: bench/train.py --page writes it")
    titles = [title for one in FRAMEWORKS for title in (one.title, f"{one.title}, with reports")]
    rows = dict(re.findall(r"^\| ([^|]+) \|.*\| \*\*(\d\.\d{3})\*\* \|.*\| (?:yes|\*\*no\*\*) \|$", text, re.MULTILINE))
    assert list(rows) == titles
    said = "; ".join(f"{title} {rows[title]} {answer(float(rows[title]))}" for title in titles)
    reached = sum(float(ratio) >= GOAL for ratio in rows.values())
    assert f"Ratio at least {GOAL}: {reached} of {len(titles)}. {said}." in text


def answer(ratio: float) -> str:
    return "yes" if ratio >= GOAL else "**no**"


def test_the_readme_has_the_numbers_of_the_page():
    steps = PAGE.read_text().split("### Step time")[1].split("###")[0]
    number = r"([\d.]+)(?: \([^)]*\))?"
    measured = re.findall(rf"^\| (\w[^|]*) \| [^|]* \| {number} \| {number} \| \*\*([\d.]+)\*\*", steps, re.MULTILINE)
    shown = re.findall(rf"^\| (\w[^|]*) \| {number} \| {number} \| ([\d.]+) \|$", README.read_text(), re.MULTILINE)
    assert len(shown) == 3
    assert set(shown) <= set(measured)
