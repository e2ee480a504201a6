"""What a user reads while a job runs."""

from __future__ import annotations

import io
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from allranks.api.status import CurvePoint, Failure, ProgressStatus, RestartCounts, Status
from allranks.cli.live import renderer as views
from allranks.cli.live.renderer import View
from allranks.cli.live.summary import Summary, duration, ended_how
from allranks.core.model import Event, Exit, Pod
from support.builders import NOW, table


def pod(role: str, index: int, phase: Any = "Running", **fields: Any) -> Pod:
    return Pod(f"job-{role}-{index}-0", "u", role, index, 0, phase=phase, **fields)


def status(phase: Any, ready: str = "0/2", attempt: int = 0, **fields: Any) -> Status:
    return Status(phase=phase, ready=ready, attempt=attempt, start_time=NOW, **fields)


class Told:
    """A view on something that is no terminal."""

    def __init__(self, **options: Any) -> None:
        self.stream = io.StringIO()
        self.view = View(self.stream, live=False, colour=False, hung_up=lambda: None, **options)
        self.view.begin("job")

    def lines(self) -> list[str]:
        self.view.end()
        return [re.sub(r"^ *[\d.]+s ", "", line) for line in self.stream.getvalue().splitlines()]


def test_the_status_is_told_when_it_changes_and_lines_carry_their_rank() -> None:
    told = Told()
    pods = (pod("master", 0), pod("worker", 10))
    told.view.status(Status(), ())
    told.view.status(status("Pending"), pods)
    told.view.status(status("Pending"), pods)
    told.view.status(status("Running", "2/2"), pods)
    told.view.output(pods[1], "trainer", b"start\nepoch 1\nepo")
    told.view.output(pods[0], "exporter", b"serving\n")
    told.view.output(pods[1], "trainer", b"ch 2\n")
    told.view.event(Event("RankFailed", "worker-10 was ended by signal 9", warning=True))
    told.view.event(Event("PodsCreated", "2 pods"))
    told.view.status(status("Restarting", "0/2", attempt=1), ())
    told.view.status(status("Running", "2/2", attempt=1), pods)
    told.view.status(status("Succeeded", "2/2", attempt=1), pods)
    assert told.lines() == [
        "Pending, 0/2 pods running",
        "Running, 2/2 pods running",
        "worker-10         | start",
        "worker-10         | epoch 1",
        "master-0/exporter | serving",
        "worker-10         | epoch 2",
        "worker-10 was ended by signal 9",
        "Restarting: attempt 1, 0/2 pods running",
        "Running, 2/2 pods running",
        "Succeeded",
    ]


def test_a_thousand_pods_do_not_make_a_thousand_status_lines() -> None:
    told = Told()
    for ready in range(1001):
        told.view.status(status("Pending" if ready < 1000 else "Running", f"{ready}/1000"), ())
    assert told.lines() == ["Pending, 0/1000 pods running", "Running, 1000/1000 pods running"]


def test_no_logs_and_quiet_leave_out_what_they_say() -> None:
    for options, lines in (({"logs": False}, ["Running, 2/2 pods running"]), ({"quiet": True}, [])):
        told = Told(**options)
        told.view.status(status("Running", "2/2"), ())
        told.view.output(pod("worker", 0), "trainer", b"epoch 1\n")
        assert told.lines() == lines


def test_a_progress_bar_is_shown_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "BAR_SECONDS", 0.3)
    told = Told()
    began = time.monotonic()
    while time.monotonic() < began + 1.5:
        told.view.output(pod("worker", 0), "trainer", b"\r 40%|####      |")
        time.sleep(0.05)
    told.view.output(pod("worker", 0), "trainer", b"\r 100%|##########|\n")
    lines = told.lines()
    assert lines[-1] == "worker-0 |  100%|##########|"
    assert 1 <= lines.count("worker-0 |  40%|####      |") <= 5


def test_a_stream_that_nobody_reads_any_more_is_given_up() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def fileno(self) -> int:
            return spare.fileno()

    gone: list[bool] = []
    with open("/dev/null") as spare:
        view = View(Closed(), live=False, colour=False, hung_up=lambda: gone.append(True))
        view.begin("job")
        view.say("hello")
        view.end()
        view.begin("next")
        view.say("hello")
        view.end()
    assert gone == [True]


@table(
    ("seconds", 12.34, "12.3s"),
    ("minutes", 125, "2:05"),
    ("hours", 3723, "1:02:03"),
)
def test_durations(case: tuple[float, str]) -> None:
    assert duration(case[0]) == case[1]


@table(
    ("an exit code", (3, None, "Error"), "exit code 3"),
    ("a signal by its name", (137, 9, "Error"), "signal 9 (SIGKILL)"),
    ("a signal without a name", (160, 32, "Error"), "signal 32"),
    ("a reason of the kubelet's", (137, 9, "OOMKilled"), "OOMKilled, signal 9 (SIGKILL)"),
    ("nothing but a reason", (None, None, "NodeLost"), "NodeLost"),
)
def test_how_a_rank_ended(case: tuple[tuple[int | None, int | None, str], str]) -> None:
    assert ended_how(*case[0]) == case[1]


def drawn(summary: Summary, width: int = 70, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(summary)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_summary_has_a_line_for_each_rank_and_one_for_the_last_failure() -> None:
    failure = Failure(attempt=0, role="worker", index=1, exit_code=1, message="Traceback\nValueError: no", time=NOW)
    now = status("Running", "2/3", attempt=1, last_failure=failure, restarts=RestartCounts(counted=1))
    ended = Exit(0, NOW + timedelta(seconds=75))
    pods = (
        pod("master", 0, "Succeeded", started_at=NOW, exit=ended),
        pod("worker", 0, "Pending", waiting_reason="Unschedulable", waiting_message="waiting for GPUs"),
        pod("worker", 1, "Running", deleted_at=NOW),
    )
    pods = tuple(Pod(**{**{f: getattr(p, f) for f in p.__slots__}, "attempt": 1}) for p in pods)
    lines = drawn(Summary("job", 61.5, now, pods, {"master-0": b"saved " + b"x" * 99, "worker-1": b" 40%\r"}, {}))
    assert lines == [
        "job  Running  2/3 pods running  attempt 1  61.5s  ────────────────────",
        " master-0  Succeeded         75.0s  saved xxxxxxxxxxxxxxxxxxxxxxxxxxx…",
        " worker-0  waiting for GPUs",
        " worker-1  Stopping                  40%",
        " 1 restart, last failure: worker-1 in attempt 0: exit code 1: ValueEr…",
    ]


def test_many_ranks_are_counted_so_that_the_summary_fits_the_terminal() -> None:
    pods = [pod("master", 0), *(pod("worker", n, "Running" if n % 10 else "Pending") for n in range(100))]
    lines = drawn(Summary("job", 5, status("Pending", "91/101"), pods, {}, {}))
    assert lines[1:] == [" master  1 Running", " worker  90 Running, 10 Pending"]
    assert len(drawn(Summary("job", 5, status("Pending", "91/101"), pods, {}, {}), height=3)) <= 3


def progressed(step: int, **fields: Any) -> Status:
    known: dict[str, Any] = {"total_steps": 900, "metrics": {"accuracy": 0.9, "loss": 0.3068}, "curve_metric": "loss"}
    curve = [CurvePoint(time=NOW + timedelta(seconds=n), step=n * 10, value=1 / (n + 1)) for n in range(4)]
    summary = f"{step}/900 {step / 9:.0f}%"
    progress = ProgressStatus(**known, step=step, samples_per_second=810.5, eta="3m", curve=curve, summary=summary)
    return status("Running", "2/2", progress=progress, **fields)


def test_progress_is_told_at_first_and_then_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PROGRESS_SECONDS", 1e6)
    told = Told()
    for step in (10, 20, 30):
        told.view.status(progressed(step), ())
    monkeypatch.setattr(views, "PROGRESS_SECONDS", 0.0)
    told.view.status(progressed(40), ())
    told.view.status(progressed(40), ())
    monkeypatch.setattr(views, "PROGRESS_SECONDS", 1e6)
    last = progressed(900, completion_time=NOW)
    told.view.status(last.model_copy(update={"phase": "Succeeded"}), ())
    rates = "10 steps/s, 810.5 samples/s, ETA 3m, loss 0.3068, accuracy 0.9"
    assert told.lines() == [
        f"step 10/900 1%, {rates}",
        "Running, 2/2 pods running",
        f"step 40/900 4%, {rates}",
        "step 900/900 100%, loss 0.3068, accuracy 0.9",
        "Succeeded",
    ]


def test_quiet_tells_no_progress() -> None:
    told = Told(quiet=True)
    told.view.status(progressed(10), ())
    assert told.lines() == []


def test_the_summary_has_a_line_of_progress() -> None:
    shown = Summary("job", 5, progressed(450), (pod("worker", 0),), {}, {})
    lines = drawn(shown, width=120)
    assert (
        lines[1]
        == " ████████░░░░░░░░  450/900 50%  10 steps/s  810.5 samples/s  ETA 3m  loss 0.3068  █▃▁▁  accuracy 0.9"
    )
    assert lines[2].startswith(" worker-0  Running")
    assert drawn(shown, width=60)[1].endswith("…")
    many = [pod("worker", n) for n in range(16)]
    assert len(drawn(Summary("job", 5, progressed(450), many, {}, {}))) <= 24 - 8 + 2
