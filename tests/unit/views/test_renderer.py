"""Output while a job runs."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from allranks.api.status import CurvePoint, Failure, ProgressStatus, RestartCounts, Status, Verdict
from allranks.core.facts.model import Event, Exit, Pod
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.hints import LogReader
from allranks.views.format.duration import elapsed
from allranks.views.format.outcome import ended_how, failure_block
from allranks.views.live import renderer
from allranks.views.live.renderer import Renderer
from allranks.views.live.summary import Summary, progress_line
from support.builders import NOW, table


def pod(role: str, index: int, phase: Any = "Running", **fields: Any) -> Pod:
    return Pod(f"job-{role}-{index}-0", "u", role, index, 0, phase=phase, **fields)


def status(phase: Any, ready: str = "0/2", attempt: int = 0, **fields: Any) -> Status:
    return Status(phase=phase, ready=ready, attempt=attempt, start_time=NOW, **fields)


class Output:
    """A renderer without a terminal."""

    def __init__(self, reader: LogReader | None = None, log_dir: Path | None = None, **options: Any) -> None:
        self.stream = io.StringIO()
        self.renderer = Renderer(self.stream, live=False, colour=False, on_closed=lambda: None, **options)
        self.renderer.begin("job", reader, log_dir)

    def lines(self) -> list[str]:
        self.renderer.end()
        return [re.sub(r"^ *[\d.]+s ", "", line) for line in self.stream.getvalue().splitlines()]


def test_status_changes_and_log_lines_with_their_rank() -> None:
    output = Output()
    pods = (pod("master", 0), pod("worker", 10))
    output.renderer.status(Status(), ())
    output.renderer.status(status("Pending"), pods)
    output.renderer.status(status("Pending"), pods)
    output.renderer.status(status("Running", "2/2"), pods)
    output.renderer.output(pods[1], "trainer", b"start\nepoch 1\nepo")
    output.renderer.output(pods[0], "exporter", b"serving\n")
    output.renderer.output(pods[1], "trainer", b"ch 2\n")
    output.renderer.event(Event("RankFailed", "worker-10 was ended by signal 9", warning=True))
    output.renderer.event(Event("PodsCreated", "2 pods"))
    output.renderer.status(status("Restarting", "0/2", attempt=1), ())
    output.renderer.status(status("Running", "2/2", attempt=1), pods)
    output.renderer.status(status("Succeeded", "2/2", attempt=1), pods)
    assert output.lines() == [
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


def test_status_lines_are_rate_limited() -> None:
    output = Output()
    for ready in range(1001):
        output.renderer.status(status("Pending" if ready < 1000 else "Running", f"{ready}/1000"), ())
    assert output.lines() == ["Pending, 0/1000 pods running", "Running, 1000/1000 pods running"]


def test_no_logs_and_quiet() -> None:
    for options, lines in (({"logs": False}, ["Running, 2/2 pods running"]), ({"quiet": True}, [])):
        output = Output(**options)
        output.renderer.status(status("Running", "2/2"), ())
        output.renderer.output(pod("worker", 0), "trainer", b"epoch 1\n")
        assert output.lines() == lines


def test_without_a_terminal_a_progress_bar_is_printed_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "BAR_SECONDS", 0.3)
    output = Output()
    began = time.monotonic()
    while output.stream.getvalue().count("40%") < 2:
        output.renderer.output(pod("worker", 0), "trainer", b"\r 40%|####      |")
        time.sleep(0.05)
    output.renderer.output(pod("worker", 0), "trainer", b"\r 100%|##########|\n")
    lines = output.lines()
    assert lines[-1] == "worker-0 |  100%|##########|"
    assert lines.count("worker-0 |  40%|####      |") <= (time.monotonic() - began) / 0.3 + 1


def test_a_closed_stream_stops_the_output() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def fileno(self) -> int:
            return spare.fileno()

    gone: list[bool] = []
    with open("/dev/null") as spare:
        shown = Renderer(Closed(), live=False, colour=False, on_closed=lambda: gone.append(True))
        shown.begin("job")
        shown.message("hello")
        shown.end()
        shown.begin("next")
        shown.message("hello")
        shown.end()
    assert gone == [True]


@table(
    ("seconds", 12.34, "12.3s"),
    ("minutes", 125, "2:05"),
    ("hours", 3723, "1:02:03"),
)
def test_durations(case: tuple[float, str]) -> None:
    assert elapsed(case[0]) == case[1]


@table(
    ("an exit code", (3, None, "Error"), "exit code 3"),
    ("a signal by its name", (137, 9, "Error"), "signal 9 (SIGKILL)"),
    ("a signal without a name", (160, 32, "Error"), "signal 32"),
    ("a reason of the kubelet", (137, 9, "OOMKilled"), "OOMKilled, signal 9 (SIGKILL)"),
    ("only a reason", (None, None, "NodeLost"), "NodeLost"),
)
def test_how_a_rank_ended(case: tuple[tuple[int | None, int | None, str], str]) -> None:
    assert ended_how(*case[0]) == case[1]


@table(
    ("reads from the standard input", "Traceback\nEOFError: EOF when reading a line\n", 1),
    ("another error", "EOFError: Ran out of input", 0),
    ("no log", "", 0),
)
def test_a_failure_by_input_has_a_hint(case: tuple[str, int]) -> None:
    message, count = case
    failure = Failure(attempt=0, role="worker", index=1, exit_code=1, message=message, time=NOW)
    lines = [line for line in failure_block(status("Failed", last_failure=failure)) if line.startswith("Hint: ")]
    assert lines == count * [
        "Hint: the standard input of a rank is always empty; pass values as arguments or environment variables "
        "instead of input()"
    ]


def test_an_interface_that_a_pod_does_not_have_is_a_matter_of_its_variable() -> None:
    line = "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: net1"
    failure = Failure(attempt=0, role="worker", index=1, exit_code=1, message=f"Traceback\n{line}\n", time=NOW)
    [hint] = [line for line in failure_block(status("Failed", last_failure=failure)) if line.startswith("Hint: ")]
    assert hint.endswith("GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME of the job or of its pool chooses it")


@table(
    ("a verdict", "Node", "Verdict: Node (the node of the pod, or one of its devices)"),
    ("a status of an older version", None, ""),
)
def test_the_verdict_is_below_the_lines_of_the_failure(case: tuple[Verdict | None, str]) -> None:
    verdict, line = case
    failure = Failure(role="worker", exit_code=1, message="ECC error", verdict=verdict, time=NOW)
    lines = [*failure_block(status("Failed", last_failure=failure))]
    assert lines[lines.index("  | ECC error") + 1 :] == ([line] if line else [])


def drawn(summary: Summary, width: int = 70, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(summary)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_summary_has_a_line_for_each_rank_and_the_last_failure() -> None:
    failure = Failure(attempt=0, role="worker", index=1, exit_code=1, message="Traceback\nValueError: no", time=NOW)
    now = status("Running", "2/3", attempt=1, last_failure=failure, restarts=RestartCounts(counted=1))
    ended = Exit(0, NOW + timedelta(seconds=75))
    pods = (
        pod("master", 0, "Succeeded", started_at=NOW, exit=ended),
        pod("worker", 0, "Pending", waiting_reason="Unschedulable", waiting_message="waiting for GPUs"),
        pod("worker", 1, "Running", deleted_at=NOW),
    )
    pods = tuple(Pod(**{**{f: getattr(p, f) for f in p.__slots__}, "attempt": 1}) for p in pods)
    lines = drawn(
        Summary("job", 61.5, now, pods, {"job-master-0-0": b"saved " + b"x" * 99, "job-worker-1-0": b" 40%\r"}, {})
    )
    assert lines == [
        "job  Running  2/3 pods running  attempt 1  61.5s  ────────────────────",
        " master-0  Succeeded         75.0s  saved xxxxxxxxxxxxxxxxxxxxxxxxxxx…",
        " worker-0  waiting for GPUs",
        " worker-1  Stopping                  40%",
        " 1 restart, last failure: worker-1 in attempt 0: exit code 1: ValueEr…",
    ]


def test_many_ranks_are_counted_to_fit_the_terminal() -> None:
    pods = [pod("master", 0), *(pod("worker", n, "Running" if n % 10 else "Pending") for n in range(100))]
    lines = drawn(Summary("job", 5, status("Pending", "91/101"), pods, {}, {}))
    assert lines[1:] == [" master  1 Running", " worker  90 Running, 10 Pending"]
    assert len(drawn(Summary("job", 5, status("Pending", "91/101"), pods, {}, {}), height=3)) <= 3


def progressed(step: int, **fields: Any) -> Status:
    fixed: dict[str, Any] = {"total_steps": 900, "metrics": {"accuracy": 0.9, "loss": 0.3068}, "curve_metric": "loss"}
    curve = [CurvePoint(time=NOW + timedelta(seconds=n), step=n * 10, value=1 / (n + 1)) for n in range(4)]
    summary = f"{step}/900 {step / 9:.0f}%"
    progress = ProgressStatus(**fixed, step=step, samples_per_second=810.5, eta="3m", curve=curve, summary=summary)
    return status("Running", "2/2", progress=progress, **fields)


def test_progress_lines_are_rate_limited_but_the_last_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "PROGRESS_SECONDS", 1e6)
    output = Output()
    for step in (10, 20, 30):
        output.renderer.status(progressed(step), ())
    monkeypatch.setattr(renderer, "PROGRESS_SECONDS", 0.0)
    output.renderer.status(progressed(40), ())
    output.renderer.status(progressed(40), ())
    monkeypatch.setattr(renderer, "PROGRESS_SECONDS", 1e6)
    last = progressed(900, completion_time=NOW)
    output.renderer.status(replace(last, phase="Succeeded"), ())
    rates = "10 steps/s, 810.5 samples/s, ETA 3m, loss 0.3068, accuracy 0.9"
    assert output.lines() == [
        f"step 10/900 1%, {rates}",
        "Running, 2/2 pods running",
        f"step 40/900 4%, {rates}",
        "step 900/900 100%, loss 0.3068, accuracy 0.9",
        "Succeeded",
    ]


def test_quiet_prints_no_progress() -> None:
    output = Output(quiet=True)
    output.renderer.status(progressed(10), ())
    assert output.lines() == []


def test_summary_has_a_line_of_progress() -> None:
    shown = Summary("job", 5, progressed(450), (pod("worker", 0),), {}, {})
    lines = drawn(shown, width=120)
    assert lines[1] == (
        " ██████████████░░░░░░░░░░░░░░  450/900 50%  10 steps/s  810.5 samples/s  ETA 3m  loss 0.3068  ███▃▃▃▁▁▁▁▁▁  "
        "accuracy 0.9"
    )
    assert lines[2].startswith(" worker-0  Running")
    many = [pod("worker", n) for n in range(16)]
    assert len(drawn(Summary("job", 5, progressed(450), many, {}, {}))) <= 24 - 8 + 2


@pytest.mark.parametrize("width", range(12, 240, 6))
def test_the_line_of_progress_uses_the_width_and_cuts_no_number(width: int) -> None:
    parts = progress_line(progressed(450), True, width, NOW)
    line = "".join(text for text, _ in parts)
    assert len(line) <= width
    texts = ["450/900 50%", "10 steps/s", "810.5 samples/s", "ETA 3m", "loss 0.3068", "accuracy 0.9"]
    words = [text for text, style in parts if style not in ("green", "cyan") and text.strip()]
    assert words == [text for text in texts if text in words]
    assert "450/900 50%" in words
    assert width < 36 or "loss 0.3068" in words
    bar = next((len(text) for text, style in parts if style == "green"), 0)
    assert width < 25 or bar >= 8
    if width >= 180:
        assert (words, bar) == (texts, 60)


def test_the_line_of_progress_says_how_old_it_is() -> None:
    def shown(seconds: float, **fields: Any) -> str:
        now = progressed(450, **fields)
        assert now.progress
        progress = replace(now.progress, last_report=NOW - timedelta(seconds=seconds))
        return "".join(t for t, _ in progress_line(replace(now, progress=progress), True, 200, NOW))

    assert "450/900 50%  12s ago  10 steps/s" in shown(12)
    assert "ago" not in shown(2)


def test_a_line_of_the_attempt_before_is_not_shown_beside_a_running_rank() -> None:
    shown = Renderer(io.StringIO(), live=False, colour=False, on_closed=lambda: None)
    shown.begin("job")
    before, after = pod("worker", 0), Pod("job-worker-0-1", "v", "worker", 0, 1, phase="Running")
    shown.status(status("Running", attempt=0), (before,))
    shown.output(before, "trainer", b"RuntimeError: CUDA error\n")
    shown.status(status("Restarting", attempt=1), (after,))
    assert "RuntimeError" not in "".join(drawn(shown._summary()))
    shown.output(after, "trainer", b"step 1\n")
    assert "step 1" in drawn(shown._summary())[1]
    shown.end()


COMPLAINT = (Path(__file__).parents[1] / "frameworks/torchrun/exit_barrier.log").read_bytes()
FIRST = COMPLAINT.decode().partition("\n")[0]
HIDDEN = COMPLAINT.count(b"\n") - 1


def shown_after(*chunks: bytes, log_dir: Path | None = Path("logs")) -> list[str]:
    """The log of a rank under torchrun that prints this."""
    output = Output(reader=FRAMEWORKS["pytorch"].log, log_dir=log_dir)
    for chunk in chunks:
        output.renderer.output(pod("worker", 1), "trainer", chunk)
    return [line.removeprefix("worker-1 | ") for line in output.lines()]


@table(
    ("between lines of the program", [b"trained\n", COMPLAINT, b"bye\n"], ["trained", FIRST, "MORE", "bye"]),
    ("in small parts", [COMPLAINT[at : at + 100] for at in range(0, len(COMPLAINT), 100)], [FIRST, "MORE"]),
    ("at the end of a container", [COMPLAINT, b""], [FIRST, "MORE"]),
    ("before a traceback of the program", [COMPLAINT, b"ValueError: no\n"], [FIRST, "MORE", "ValueError: no"]),
    ("no complaint", [b"frame #0: a\n  indented\n\nend\n"], ["frame #0: a", "  indented", "", "end"]),
)
def test_of_a_complaint_the_first_line_and_the_number_of_lines_are_shown(case: tuple[list[bytes], list[str]]) -> None:
    chunks, expected = case
    more = f"... {HIDDEN} more lines, see logs/job-worker-1-0.log"
    assert shown_after(*chunks) == [more if line == "MORE" else line for line in expected]


def test_without_log_files_a_fold_names_the_log() -> None:
    assert shown_after(COMPLAINT, log_dir=None)[-1] == f"... {HIDDEN} more lines, see the log"
