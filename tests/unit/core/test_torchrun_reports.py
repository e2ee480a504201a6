"""Root causes under torchrun, which turns every worker's exit code into 1: the report at the end of its log decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from allranks.api.status import Status
from allranks.core.diagnosis import comparison, root_cause
from allranks.core.diagnosis.last_words import last_words
from allranks.core.facts.model import Exit
from allranks.frameworks.hints import RootCause
from allranks.frameworks.torchrun_log import read_torchrun_report
from support.builders import at, failed, job

LOGS = Path(__file__).parent / "fixtures"


def first(of, *pods):
    return next(root_cause.failures(of, Status(), pods, (), at(300)))


def log(name: str) -> str:
    return (LOGS / f"torchrun-{name}.log").read_text()


def as_kubelet(text: str, size: int = 2048) -> str:
    """FallbackToLogsOnError: the last 80 lines, of these the last 2048 bytes."""
    return "".join(text.splitlines(keepends=True)[-80:]).encode()[-size:].decode(errors="ignore")


ERROR = "ValueError: learning rate must not be negative: -0.1"
STEP = "rank 0 step 2 loss 0.333"
OUT_OF_MEMORY = next(line for line in log("nccl-1").splitlines() if "CUDA out of memory" in line)

# Log, exit code, signal, last line of the message: of the whole log, and of what kubelet keeps of it.
REPORTS = [
    ("raise-1", 0, 1, None, ERROR, ERROR),
    ("raise-2", 1, 1, None, STEP, STEP),
    ("record-1", 0, 1, None, ERROR, ERROR),
    ("record-2", 1, 1, None, ERROR, ERROR),
    ("exit-1", 0, 3, None, STEP, STEP),
    ("exit-2", 1, 3, None, STEP, STEP),
    ("kill-1", 0, 137, 9, STEP, STEP),
    ("kill-2", 1, 137, 9, STEP, STEP),
    ("nccl-1", 0, 1, None, OUT_OF_MEMORY, "rank 0 exited with code 1"),
]


@pytest.mark.parametrize("cut", [False, True], ids=["the whole log", "what kubelet keeps"])
@pytest.mark.parametrize("case", REPORTS, ids=[case[0] for case in REPORTS])
def test_torchruns_report_names_the_rank_that_failed_first(case, cut):
    name, rank, code, signal, last, last_of_cut = case
    text = as_kubelet(log(name)) if cut else log(name)
    report = read_torchrun_report(text)
    assert report is not None
    lines = (report.message or "").splitlines()
    assert (report.rank, report.exit_code, report.signal) == (rank, code, signal)
    assert lines[-1] == (last_of_cut if cut else last)


CHATTER = ("====", "----", "ChildFailedError", "closing signal", "/torchrun", "error_file", "no error file")
CHATTER += ("/torch/distributed/run.py", "/torch/distributed/launcher", "OMP_NUM_THREADS")


@pytest.mark.parametrize("name", [case[0] for case in REPORTS])
def test_torchruns_own_output_is_not_part_of_the_message(name):
    """Wherever kubelet truncates: longer paths leave less of the beginning."""
    cut = (as_kubelet(log(name).replace("/opt/venv", "/opt/venv" + "x" * longer)) for longer in range(90))
    for text in (log(name), *cut):
        report = read_torchrun_report(text)
        assert report is not None
        assert report.message
        assert not [line for line in report.message.splitlines() if any(word in line for word in CHATTER)]


def test_a_truncated_report_without_program_output_gives_a_message():
    assert read_torchrun_report(as_kubelet(log("exit-1"), 700)) == RootCause(
        rank=0, exit_code=3, signal=None, message="rank 0 exited with code 3", time=datetime(2026, 11, 21, 12, 11, 37)
    )
    assert read_torchrun_report(as_kubelet(log("kill-1"), 700)) == RootCause(
        rank=0,
        exit_code=137,
        signal=9,
        message="rank 0 was ended by signal 9",
        time=datetime(2026, 11, 21, 12, 11, 24),
    )


@pytest.mark.parametrize("longer", range(30))
def test_an_exception_is_one_wherever_kubelet_truncates_its_traceback(longer):
    """Most of what kubelet keeps is the report of torchrun: the more, the longer the paths."""
    frames = "".join(
        f'  File "/app/layer_{number}.py", line 7, in call\n    return inner(*args)\n' for number in range(9)
    )
    text = f"Traceback (most recent call last):\n{frames}RuntimeError: no driver\n" + log("exit-1")
    report = read_torchrun_report(as_kubelet(text.replace("/opt/venv", "/opt/venv" + "x" * longer)))
    assert report is not None
    words = last_words(report.message or "")
    assert words is not None
    assert words.line == "RuntimeError: no driver"


@pytest.mark.parametrize(
    "text",
    ["", "ValueError: no data\n", "Root Cause (first observed failure):\n", log("raise-1")[:1500]],
    ids=["an empty message", "a program without torchrun", "a title alone", "a report that was cut short"],
)
def test_a_message_without_a_report_is_left_as_it_is(text):
    assert read_torchrun_report(text) is None


def test_the_report_replaces_torchruns_own_exit_code():
    of = job(pytorch={"processesPerNode": 2})
    finished = datetime.fromisoformat("2026-11-21T12:11:40+00:00")
    report = log("kill-2")
    ended = replace(failed(index=1), exit=Exit(1, finished, "Error", as_kubelet(report)))
    found = first(of, ended)
    assert (found.rank, found.exit_code, found.signal, found.reason) == (1, 137, 9, "Error")


def reporting(index: int, ended: datetime, reported: str) -> object:
    """A pod whose torchrun ended at `ended` and reported its worker's failure at `reported` (in local time)."""
    text = log("raise-1")
    original = next(line for line in text.splitlines() if line.startswith("  time      :"))
    return replace(
        failed(index=index), exit=Exit(1, ended, "Error", text.replace(original, f"  time      : {reported}"))
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-03-04_10:00:01", "2026-03-04_10:00:03"),
        ("2026-03-04_15:30:01", "2026-03-04_15:30:03"),
        ("2026-03-03_23:00:01", "2026-03-03_23:00:03"),
    ],
    ids=["UTC", "a time zone of half hours", "yesterday in another time zone"],
)
def test_the_time_of_torchruns_report_decides_because_torchrun_exits_later(one, other):
    """Worker 0 failed first, but its torchrun needed 30 s to end the other processes."""
    pods = reporting(0, at(31), one), reporting(1, at(5), other)
    found = first(job(), *pods)
    assert (found.index, found.time) == (0, at(1))


LINE = next(line for line in log("raise-1").splitlines() if "failed (exitcode: " in line)

# The line of torchrun's log, the microsecond that is read.
LINES = [
    ("the line as it is", LINE, 467000),
    ("another process", LINE.replace("(pid: 961)", "(pid: 962)"), None),
    ("another second", LINE.replace("12:11:14.", "12:11:15."), None),
    ("another day", LINE.replace("E1121", "E1120"), None),
    ("a line whose beginning was truncated", LINE[3:], None),
    ("a line that another rank's output interrupted", LINE[:-60], None),
    ("no such line", "", None),
]


@pytest.mark.parametrize(("line", "expected"), [case[1:] for case in LINES], ids=[case[0] for case in LINES])
def test_the_microsecond_is_that_of_the_line_about_the_same_process_and_second(line, expected):
    report = read_torchrun_report(log("raise-1").replace(LINE, line))
    assert report is not None
    assert (report.time, report.microsecond) == (datetime(2026, 11, 21, 12, 11, 14), expected)


def test_the_last_such_line_counts():
    """Earlier ones are of the program's own output, or of a restart by torchrun with the same pid."""
    report = read_torchrun_report(LINE.replace(".467000", ".100000") + "\n" + log("raise-1"))
    assert report is not None
    assert report.microsecond == 467000


@pytest.mark.parametrize("name", ["raise-1", "exit-1", "kill-1", "exit-2"])
def test_what_the_kubelet_keeps_has_the_microsecond(name):
    report = read_torchrun_report(as_kubelet(log(name)))
    assert report is not None
    assert report.microsecond is not None


def at_microsecond(index: int, microsecond: str | None, ended: datetime) -> object:
    line = "" if microsecond is None else LINE.replace(".467000", f".{microsecond}")
    text = log("raise-1").replace(LINE, line)
    return replace(failed(index=index), exit=Exit(1, ended, "Error", as_kubelet(text)))


@pytest.mark.parametrize(
    ("zero", "one", "cause"),
    [
        ("128000", "650000", 0),
        ("650000", "128000", 1),
        (None, "650000", 1),
        ("650000", None, 0),
        (None, None, 0),
    ],
)
def test_within_one_second_the_microsecond_of_torchruns_log_decides(zero, one, cause):
    pods = [at_microsecond(0, zero, at(675)), at_microsecond(1, one, at(676))]
    for order in (pods, pods[::-1]):
        found = first(job(), *order)
        assert (found.index, found.time) == (cause, at(674))


def test_the_microsecond_decides_after_all_else():
    """A kill is more likely the cause than the exit of a peer, and an earlier second is earlier."""
    killed = LINE.replace(".467000", ".900000")
    text = log("raise-1").replace(LINE, killed).replace("exitcode  : 1 ", "exitcode  : -9 ")
    kill = replace(failed(index=1), exit=Exit(1, at(675), "Error", as_kubelet(text)))
    assert first(job(), at_microsecond(0, "100000", at(675)), kill).index == 1
    text = log("raise-1").replace(LINE, killed).replace("12:11:14", "12:11:13")
    earlier = replace(failed(index=1), exit=Exit(1, at(675), "Error", as_kubelet(text)))
    found = first(job(), at_microsecond(0, "100000", at(675)), earlier)
    assert (found.index, found.time) == (1, at(673))


def test_two_different_errors_under_torchrun_are_not_the_same_failure():
    other = log("raise-1").replace("learning rate must not be negative: -0.1", "no such file: penguins.csv")
    one, two = (first(job(), failed(message=as_kubelet(text))) for text in (log("raise-1"), other))
    assert not comparison.same_way(one, two)


def test_one_error_in_two_attempts_under_torchrun_is_the_same_failure():
    again = log("raise-1").replace("961", "17").replace("12:11:14", "12:12:33")
    one, two = (first(job(), failed(message=as_kubelet(text))) for text in (log("raise-1"), again))
    assert comparison.same_way(one, two)


@pytest.mark.parametrize(
    ("code", "recorded"), [(300, 300), (-1073741510, -1073741510), (2**31, None)], ids=["300", "Windows", "no int32"]
)
def test_an_exit_code_outside_int32_is_dropped(code, recorded):
    assert first(job(), replace(failed(index=0), exit=Exit(code, at(5)))).exit_code == recorded


def test_a_rank_out_of_range_is_dropped():
    text = log("kill-2").replace("  rank      : ", "  rank      : 99999999999")
    failure = first(job(), replace(failed(index=0), exit=Exit(1, at(5), "Error", as_kubelet(text))))
    assert failure.rank is None


# recorded: torch 2.15, two ranks in the pod; rank 3 read address 0
LOST_BY_ANOTHER_RANK = """[rank2]: Traceback (most recent call last):
[rank2]:   File "/app/train.py", line 9, in <module>
[rank2]:     dist.all_reduce(torch.ones(4))
[rank2]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:4
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-30_15:18:01
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 26289)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 26289
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_15:18:01
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : -11 (pid: 26290)  (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 26290
=======================================================
"""


def test_a_rank_that_lost_the_one_in_the_report_is_not_the_cause_although_only_it_printed_an_exception():
    of = job(roles={"worker": 2}, pytorch={"processesPerNode": 2})
    cause = first(of, failed("worker", 0, after=59, message=LOST), failed("worker", 1, message=LOST_BY_ANOTHER_RANK))
    assert (cause.index, cause.rank, cause.exit_code, cause.signal, cause.because) == (1, 3, 139, 11, None)
    assert "Connection closed by peer" not in cause.message


LOST = LOST_BY_ANOTHER_RANK[: LOST_BY_ANOTHER_RANK.index("torch.distributed.elastic")].replace("rank2", "rank0")
