"""The helper that reads a program's output: real processes, a fake report server, helpers copied by `allranks
inject`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allranks.pod_bundle import HELPERS
from support.fake_report_server import ok

sys.path.append(str(HELPERS))
import log_progress_matcher

PATTERN = r"step (?P<step>[\d,]+)/(?P<total_steps>\d+).*?loss=(?P<loss>\S+)|(?P<checkpoint>saved)"


@pytest.fixture
def start(helpers, hub) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `watch.py -- PROGRAM...`, by default with a pattern and a report server."""
    started: list[subprocess.Popen[bytes]] = []

    def one(*program: str, **env: str | None) -> subprocess.Popen[bytes]:
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON", "RANK"))
        }
        ours |= {**hub.environment, "ALLRANKS_LOG_PATTERN": PATTERN, "HOSTNAME": "job-worker-0-0"}
        for name, value in env.items():
            ours.pop(name, None)
            if value is not None:
                ours[name] = value
        started.append(
            subprocess.Popen(
                [sys.executable, str(helpers / "watch.py"), "--", *program],
                env=ours,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        )
        return started[-1]

    yield one
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def python(text: str) -> tuple[str, str, str]:
    return sys.executable, "-c", text


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


# --- output, signals, exit codes -------------------------------------------------------------------------------------


def test_output_passes_unchanged(start):
    program = r"""
import os
os.write(1, b"one\r\ntwo\rthree \xff\x00 no newline")
os.write(2, b"\x1b[31mred\x1b[0m\n" + b"x" * 300_000)
"""
    status, out, err = ended(start(*python(program)))
    assert (status, out) == (0, b"one\r\ntwo\rthree \xff\x00 no newline")
    assert err == b"\x1b[31mred\x1b[0m\n" + b"x" * 300_000


def test_output_passes_without_delay(start):
    process = start("sh", "-c", "printf 'no newline'; exec sleep 600")
    assert process.stdout.read1(100) == b"no newline"
    process.terminate()
    assert process.wait(300) == 128 + signal.SIGTERM


def test_one_pipe_for_both_streams_keeps_their_order(helpers, hub):
    program = "import os\nfor n in range(2000): os.write(1 + n % 2, b'%d\\n' % n)"
    env = {**os.environ, **hub.environment, "ALLRANKS_LOG_PATTERN": PATTERN}
    done = subprocess.run(
        [sys.executable, str(helpers / "watch.py"), "--", *python(program)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    assert done.stdout.split() == [b"%d" % number for number in range(2000)]


@pytest.mark.parametrize("pattern", [PATTERN, None], ids=["with a pattern", "without one"])
@pytest.mark.parametrize(
    ("program", "status"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -ABRT $$", 134)],
)
def test_the_exit_code_is_the_programs(start, program, status, pattern):
    process = start("sh", "-c", program, ALLRANKS_LOG_PATTERN=pattern)
    code, _, err = ended(process)
    number, name = {137: (9, b"SIGKILL"), 134: (6, b"SIGABRT")}.get(status, (0, b""))
    line = b"allranks: the program was ended by signal %d (%s)\n" % (number, name) if number and pattern else b""
    # Without a pattern exec replaces the helper.
    assert (code if code >= 0 else 128 - code, err) == (status, line)


def test_an_exit_with_the_code_of_a_signal_is_no_signal(start):
    assert ended(start("sh", "-c", "exit 138")) == (138, b"", b"")


@pytest.mark.parametrize(("program", "status"), [("/none/such", 127), ("/", 126)])
@pytest.mark.parametrize("pattern", [PATTERN, None], ids=["with a pattern", "without one"])
def test_a_program_that_cannot_be_started(start, program, status, pattern):
    code, _, err = ended(start(program, ALLRANKS_LOG_PATTERN=pattern))
    assert code == status
    assert err.startswith(f"allranks: cannot start {program}: ".encode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_forwarded(start, number):
    program = f"""
import signal, sys
signal.signal({int(number)}, lambda number, _: sys.exit(40 + number))
print("ready", flush=True)
signal.pause()
"""
    process = start(*python(program))
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.wait(300) == 40 + number


def test_a_process_left_behind_does_not_delay_the_end(start):
    process = start("sh", "-c", "sleep 900 & echo left $!")
    assert process.wait(300) == 0
    os.kill(int(process.stdout.read1(100).split()[1]), signal.SIGKILL)


def test_a_program_notices_that_its_output_is_closed(start):
    process = start("yes")
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    process.stdout = None
    assert process.wait(300) == 128 + signal.SIGPIPE


# --- what the program finds ------------------------------------------------------------------------------------------


def test_the_program_can_import_the_library(start, helpers):
    program = "from allranks.report import report; report(step=3); import allranks; print(allranks.__file__)"
    status, out, err = ended(start(*python(program)))
    assert (status, out.decode(), err) == (0, f"{helpers}/python/allranks/__init__.py\n", b"")


def test_without_a_pattern_the_program_takes_the_place_of_the_helper(start, helpers):
    process = start(*python("import allranks, os; print(os.getpid(), allranks.__file__)"), ALLRANKS_LOG_PATTERN=None)
    _, out, _ = ended(process)
    assert out.decode().split() == [str(process.pid), f"{helpers}/python/allranks/__init__.py"]


@pytest.mark.parametrize(
    "env", [{"ALLRANKS_REPORT_URL": None}, {"ALLRANKS_REPORT_TOKEN_FILE": None}, {"ALLRANKS_LOG_PATTERN": "("}]
)
def test_without_a_report_server_it_does_nothing(start, env):
    process = start("sh", "-c", "echo $$", **env)
    status, out, err = ended(process)
    assert (status, out) == (0, b"%d\n" % process.pid)
    assert (b"is not a regular expression" in err) == ("ALLRANKS_LOG_PATTERN" in env)


def test_the_environments_own_sitecustomize_runs_too(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = __name__\n")
    _, out, err = ended(start(*python("import sys; print(sys.own)"), PYTHONPATH=str(tmp_path)))
    assert (out, err) == (b"sitecustomize\n", b"")


# --- reports ---------------------------------------------------------------------------------------------------------


def test_what_the_pattern_finds_is_reported(start, hub):
    program = r"""
import sys, time
for step in (1, 2, 1200):
    print(f"step {step:,}/5000: \x1b[1mloss={1 / step:.3f}\x1b[0m", end="\r", file=sys.stderr)
print("saved", file=sys.stderr)
"""
    status, _, err = ended(start(*python(program)))
    assert (status, err.count(b"allranks")) == (0, 0), err
    last = hub.messages[-1]
    assert (last["step"], last["totalSteps"], last["metrics"]) == (1200, 5000, {"loss": 0.001})
    assert (last["checkpoint"]["step"], last["rank"], last["done"]) == (1200, None, True)


def test_one_process_in_a_pod_has_its_rank(start, hub):
    ended(start("echo", "step 1/2 loss=1", RANK="3"))
    assert hub.messages[-1]["rank"] == 3


@pytest.mark.nightly
def test_a_catastrophically_slow_pattern_delays_nothing(start, hub, tmp_path):
    program = rf"""
import pathlib, time
print("a" * 5000 + "!")
for line in range(20000):
    print("x" * 100)
print("end", flush=True)
while not pathlib.Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.05)
"""
    pattern = r"(?P<step>\d+)|(?P<loss>(a+)+)$"
    process = start(*python(program), ALLRANKS_LOG_PATTERN=pattern)
    out = b""
    while not out.endswith(b"end\n"):  # the pattern alone would take years
        out += process.stdout.read1(1 << 20)
    message = b"allranks: progress.logPattern takes longer than 0.5 s for a line: the line is skipped\n"
    assert process.stderr.readline() == message
    (tmp_path / "go").touch()
    status, _, err = ended(process)
    assert (status, len(out.split()), err) == (0, 20002, b"")


def test_a_program_that_writes_much_is_not_slowed_down(start):
    process = start(*python("import os\nfor n in range(2000): os.write(1, (b'x' * 99 + b'\\n') * 650)"))
    began, size = time.monotonic(), 0
    while chunk := process.stdout.read1(1 << 20):
        size += len(chunk)
    assert size == 2000 * 65000
    assert ended(process) == (0, b"", b"")
    assert time.monotonic() - began < 300  # 130 MB


def test_stacks_of_programs_that_do_not_use_the_library(start, hub):
    program = r"""
import subprocess, sys, time
def lost_collective():
    time.sleep(600)
if sys.argv[1:]:
    print("step 1/2 loss=1", flush=True)
    lost_collective()
sys.exit(subprocess.call([sys.executable, "-c", open("/proc/self/cmdline").read().split("\0")[2], "rank"]))
"""
    process = start(*python(program))
    hub.wait(lambda messages: messages and messages[-1]["step"] == 1)
    hub.answers = [ok(60, "hang-1")]
    err = b""
    while err.count(b"stacks, asked for") < 2 or b"in lost_collective" not in err:
        read = process.stderr.read1(1 << 16)
        assert read
        err += read
    assert err.count(b"pod job-worker-0-0): stacks, asked for because the job makes no progress (hang-1)") == 2
    process.terminate()
    process.wait(300)


def test_a_program_that_cannot_dump_its_stacks_is_reported(start, hub):
    hub.answers = [ok(60, "hang-1")]
    process = start("sleep", "600")
    assert process.stderr.readline() == (
        b"allranks: no process of pod job-worker-0-0 can show its stacks, "
        b"asked for because the job makes no progress (hang-1)\n"
    )
    process.terminate()
    process.wait(300)


# --- lines -----------------------------------------------------------------------------------------------------------


def cut(*chunks: bytes) -> list[bytes]:
    lines = log_progress_matcher.Lines()
    return (b"".join(lines.completed_by(chunk) for chunk in chunks) + lines.rest()).split(b"\n")[:-1]


def test_lines_end_with_a_newline_a_carriage_return_or_the_stream():
    assert cut(b"a", b"b\nc\rd\r", b"\nlast") == [b"ab", b"c", b"d", b"", b"last"]


def test_a_line_without_end_is_bounded():
    chunk, limit = b"x" * 40_000, log_progress_matcher.LINE_BYTES
    lines = log_progress_matcher.Lines()
    given = [lines.completed_by(chunk) for _ in range(1000)]
    assert sum(map(len, given)) <= limit + 1
    assert lines.completed_by(b"still\nnext\n") == b"next\n"


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ({"step": "12", "total_steps": "90", "loss": ".5"}, {"step": 12, "total_steps": 90, "metrics": {"loss": 0.5}}),
        ({"step": "1,200"}, {"step": 1200}),
        ({"step": "1,2"}, {}),
        ({"step": "1e3", "epoch": "2.5"}, {"step": 1000}),
        ({"loss": "nan", "lr": "1e-4", "text": "hello"}, {"metrics": {"lr": 1e-4}}),
        ({"checkpoint": "Saved to /x", "step": None}, {"checkpoint": True}),
        ({"checkpoint": None, "samples": "32"}, {"samples": 32}),
    ],
)  # fmt: skip
def test_numbers_in_groups(groups, found):
    assert log_progress_matcher.values(groups) == found


def test_lines_that_arrive_together_are_one_report_up_to_a_checkpoint():
    found: list[dict[str, Any]] = []
    for new in (
        {"step": 1, "samples": 8, "metrics": {"loss": 2.0}},
        {"step": 2, "samples": 8, "metrics": {"lr": 0.1}},
        {"checkpoint": True},
        {"step": 3, "metrics": {"loss": 1.0}},
        {},
    ):
        log_progress_matcher.merge(found, new)
    assert found == [
        {"step": 2, "samples": 16, "metrics": {"loss": 2.0, "lr": 0.1}, "checkpoint": True},
        {"step": 3, "metrics": {"loss": 1.0}},
    ]
