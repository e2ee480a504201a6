"""What is asked of NCCL, and what becomes of its answer. NCCL is a fake here (`support/fake_nccl_ras.py`): it needs
GPUs. One answer of NCCL itself is recorded in `fixtures/`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allranks.report import nccl
from support.builders import table
from support.fake_nccl_ras import all_reduces, answer, communicator, fake_ras, missing, rank
from support.fake_report_server import SOURCE, FakeReportServer, ok, program

PID = os.getpid()


@table(
    ("all are even", all_reduces(10, 10, 10), {"launched": 30, "size": 3}),
    (
        "one is behind",
        all_reduces(6650, 6650, 6649, 6650),
        {"launched": 26599, "size": 4, "operation": "AllReduce", "number": 6650, "behind": [2], "behindCount": 1},
    ),
    (
        "a process is stopped",
        answer(communicator([rank(0, {"AllReduce": 5}, PID)], [missing(1)])),
        {"launched": 5, "size": 2, "missing": [1], "missingCount": 1},
    ),
    (
        "a small group is uneven, the large one is not",
        answer(
            communicator([rank(number, {"AllReduce": 7}, PID) for number in range(4)]),
            communicator([rank(0, {"AllGather": 3}), rank(1, {"AllGather": 2})]),
        ),
        {"launched": 33, "size": 2, "operation": "AllGather", "number": 3, "behind": [1], "behindCount": 1},
    ),
    (
        "many are behind",
        all_reduces(9, *[8] * 12),
        {
            "launched": 105,
            "size": 13,
            "operation": "AllReduce",
            "number": 9,
            "behind": [1, 2, 3, 4, 5, 6, 7, 8],
            "behindCount": 12,
        },
    ),
)
def test_the_answer_becomes_one_small_message(case: Any) -> None:
    given, expected = case
    found = nccl.summarize(given, PID)
    assert found is not None
    empty = {"operation": "", "number": 0, "behind": [], "behindCount": 0, "missing": [], "missingCount": 0}
    assert found == empty | expected


def test_the_answer_of_another_job_on_the_network_of_the_host_is_not_used() -> None:
    assert nccl.summarize(all_reduces(5, 4, pid=PID + 1), PID) is None


def test_an_answer_of_nccl_itself_is_understood() -> None:
    """Recorded on a GPU after 20 all-reduces of a group of one, which NCCL does not count. The fake has its fields."""
    recorded = json.loads((Path(__file__).parent / "fixtures" / "nccl-2.28.9.json").read_text())
    [group] = recorded["communicators"]
    [member] = group["ranks"]
    assert nccl.summarize(recorded, member["pid"]) is None
    behind = member | {"rank": 1, "pid": 0, "collective_counts": {**member["collective_counts"], "AllReduce": 3}}
    two = {
        **group,
        "size": 2,
        "ranks": [{**member, "collective_counts": behind["collective_counts"] | {"AllReduce": 4}}, behind],
    }
    found = nccl.summarize({**recorded, "communicators": [two]}, member["pid"])
    assert found is not None
    assert (found["operation"], found["number"], found["behind"]) == ("AllReduce", 4, [1])
    fake = all_reduces(1, 1)["communicators"][0]
    assert fake.keys() <= group.keys()
    assert fake["ranks"][0].keys() <= member.keys()
    assert fake["ranks"][0]["collective_counts"].keys() <= member["collective_counts"].keys()


def test_it_asks_in_json() -> None:
    with fake_ras(all_reduces(2, 1)) as ras:
        assert nccl.ask(ras.address)["communicators"][0]["size"] == 2
        assert ras.commands == ["SET FORMAT json", "STATUS"]


def test_a_version_without_json_is_not_asked_for_its_status() -> None:
    with fake_ras(all_reduces(1), speaks_json=False) as ras:
        with pytest.raises(ValueError, match="NCCL answers"):
            nccl.ask(ras.address)
        assert ras.commands == ["SET FORMAT json"]


def test_the_answer_is_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "MOST_BYTES", 1000)
    with fake_ras(all_reduces(*range(100))) as ras, pytest.raises(ValueError, match="longer than 1000 bytes"):
        nccl.ask(ras.address)


def test_the_answer_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "ANSWER_SECONDS", 0.2)
    with fake_ras(all_reduces(1), silent=True) as ras, pytest.raises(TimeoutError):
        nccl.ask(ras.address)


WATCH = """
import time
from allranks.report import nccl, report
nccl.INTERVAL_SECONDS = 0.1
{before}
print(nccl.start_watch(), flush=True)
print(nccl.start_watch(), flush=True)
{after}
input()
"""


def test_rank_0_tells_what_nccl_says_while_it_reports_no_step(hub: FakeReportServer) -> None:
    with fake_ras({}) as ras, program_in_background(hub, WATCH.format(before="", after=""), ras.address) as process:
        ras.content = all_reduces(8, 7, pid=process.pid)
        found = hub.wait(lambda messages: any("nccl" in each for each in messages))
        assert found == {"attempt": None, "nccl": nccl.summarize(ras.content, process.pid)}
        output, errors = process.communicate("\n", timeout=300)
    assert (output, errors) == ("True\nFalse\n", ""), "a second thread in the same process is not started"


@table(
    ("another rank", {"RANK": "1"}),
    ("a job without hang", {"ALLRANKS_HANG_SECONDS": ""}),
    ("outside a job", {"ALLRANKS_REPORT_URL": ""}),
)
def test_who_does_not_ask(case: Any, hub: FakeReportServer) -> None:
    [environment] = case
    given = {"RANK": "0", "ALLRANKS_HANG_SECONDS": "60"} | environment
    done = program(hub, "from allranks.report import nccl\nprint(nccl.start_watch())", **given)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_launcher_asks_less_and_less_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the variables of rank 0, and NCCL's processes are its children."""

    class Enough(Exception): ...

    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            raise Enough

    with fake_ras(all_reduces(5, 4, pid=PID + 1)) as ras:
        monkeypatch.setenv("NCCL_RAS_ADDR", ras.address)
        monkeypatch.setattr(nccl.time, "sleep", sleep)
        with pytest.raises(Enough):
            nccl._watch(nccl.Transport("http://127.0.0.1:9/", "/nowhere"), 30.0)
    assert pauses == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0]


def test_a_program_that_reports_its_steps_is_not_asked_about(hub: FakeReportServer) -> None:
    with fake_ras(all_reduces(8, 7)) as ras:
        hub.answers = [ok(0.05)]
        stepping = "report(step=1)\nnccl._steps = lambda interval, old=nccl._steps: old(1e6)"
        with program_in_background(hub, WATCH.format(before=stepping, after=""), ras.address) as process:
            hub.wait(lambda messages: any(each.get("step") == 1 for each in messages))
            hub.wait(lambda messages: len(messages) > 12)  # for longer than the interval of the thread
            process.communicate("\n", timeout=300)
        assert ras.commands == []


def program_in_background(hub: FakeReportServer, text: str, address: str) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=os.environ
        | hub.environment
        | {"PYTHONPATH": str(SOURCE), "RANK": "0", "ALLRANKS_HANG_SECONDS": "60", "NCCL_RAS_ADDR": address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
