"""`allranks top`: its plain output, its full-screen view, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allranks.cli.live import dashboard
from allranks.cli.main import cli
from allranks.views.job_view import JobView
from allranks.views.report.forms import rendered
from support import reported
from support.builders import table
from support.reported import at
from support.some_api import SomeApi

# --- content ---------------------------------------------------------------------------------------------------------


def shown(job: dict[str, Any], seconds: float, width: int = 100, height: int = 0, unicode: bool = False) -> list[str]:
    return list(dashboard.plain(dashboard.job(JobView.decode(job, at(seconds)), width, height, unicode)))


def listed(*jobs: dict[str, Any], width: int = 0, height: int = 0, namespaces: bool = False) -> list[str]:
    views = [JobView.decode(job, at(500)) for job in jobs]
    return list(dashboard.plain(dashboard.jobs(views, width, height, False, namespaces=namespaces)))


def test_one_job_has_its_curve_times_restarts_and_ranks():
    assert shown(reported.running(), 500) == [
        "penguins  team  pytorch  Running  4/4 pods running  attempt 1  8:20",
        "all pods are running",
        "",
        "###############-----------------  600/1310 45%  epoch 9  2 steps/s  512 samples/s  ETA 5m55s",
        "loss 0.5132, checkpoint of step 560 20s ago, reported 2s ago",
        "",
        "loss",
        "       2.3  *******",
        "                   *****",
        "                        ********",
        "                                *******",
        "                                       ****************",
        "    0.4121                                             *******  ********************",
        "",
        "times       ··---============================================================xxxxxxx",
        "            · queued 12s 2.4%   - starting 18s 3.6%   = productive 7m 84.0%   x lost 50s 10.0%",
        "goodput     86.1%   lost by Error 50s",
        "restarts    1 (Error 1)",
        "last failure on node-7: worker-1 in attempt 0: signal 9 (SIGKILL)",
        "slow        rank 3 (worker-2) on node-9: 2.3x the time of its peers",
        "",
        "2 of 4 ranks: those that lag most, then the slowest",
        "  RANK  REPLICA   STEP  LAG  STEP TIME  BUSY",
        "  3     worker-2  598   2    500 ms     480 ms",
        "  0     master-0  600        500 ms     210 ms",
    ]


def test_goodput_without_reports_is_marked():
    assert shown(reported.silent(), 500)[1:] == [
        "",
        "times       ··-=====================================================================",
        "            · queued 12s 2.4%   - starting 8s 1.6%   = running 8m 96.0%   x lost 0s 0.0%",
        "goodput     not measured   (no rank has reported a step; at most 98.4%, if all running time was productive)",
    ]


def test_a_job_without_status_is_shown():
    assert shown(reported.job(), 500) == ["penguins  team  pytorch  Pending  8:20", ""]


def test_a_restarting_job_has_no_rates_and_no_eta():
    job = reported.running()
    job["status"] |= {"phase": "Restarting"}
    text = "\n".join([*shown(job, 500), *listed(job), rendered(job, "text", at(500)), rendered(job, "html", at(500))])
    assert "600/1310 45%" in text
    assert "steps/s  " not in text
    assert "5m55s" not in text


def test_running_jobs_are_first_in_the_table():
    jobs = [reported.finished("zebra"), reported.running(), reported.silent(), reported.job("new")]
    lines = listed(*jobs, namespaces=True)
    assert lines[0] == "4 jobs: 2 Running, 1 Pending, 1 Succeeded; goodput 78.1%"
    assert lines[2].split() == [
        *("NAMESPACE", "NAME", "FRAMEWORK", "PHASE", "PROGRESS", "RATE"),
        *("ETA", "RESTARTS", "GOODPUT", "SLOW", "CURVE"),
    ]
    first, second, third, last = (re.split(r"\s{2,}", line) for line in lines[3:])
    assert second[:5] == ["team", "penguins", "pytorch", "Running", "####---- 600/1310 45%"]
    assert second[5:10] == ["2 steps/s", "5m55s", "1", "86.1%", "1"]
    assert (first[1], third[1], last[1]) == ("digits", "new", "zebra")
    assert last[4:7] == ["######## 1310/1310 100%", "2", "73.8%"]


def test_a_narrow_terminal_shows_the_most_important_columns():
    wide = listed(reported.running())[2].split()
    for width in range(130, 40, -1):
        lines = listed(reported.running(), width=width)
        header = lines[2].split()
        assert header == [title for title in wide if title in header]
        assert {"NAME", "PHASE", "PROGRESS", "ETA", "GOODPUT"} <= set(header)
        assert width < 72 or max(map(len, lines)) <= width
    assert len(header) < len(wide)


def test_jobs_that_do_not_fit_are_counted():
    jobs = [reported.silent(f"job-{number:03}") for number in range(100)]
    lines = listed(*jobs, height=20)
    assert len(lines) <= 20
    assert lines[-1] == "and 85 more"
    assert len(listed(*jobs)) == 103


def test_one_job_fits_the_height_of_the_terminal():
    job = reported.running()
    job["status"]["progress"] |= {"reporting": 64, "ranks": reported.RANKS * 8}
    assert len(shown(job, 500)) == 39
    lines = shown(job, 500, height=30)
    assert len(lines) <= 30
    assert "6 of 64 ranks: those that lag most, then the slowest" in lines


def test_control_sequences_are_removed():
    job = reported.running()
    evil = "a\x1b[2J\x07b"
    job["status"]["progress"] |= {"metrics": {evil: 1.0}, "curveMetric": evil, "summary": evil, "eta": evil}
    job["status"]["progress"]["stragglers"][0] |= {"replica": evil, "node": evil}
    job["status"]["lastFailure"] |= {"message": evil, "node": evil, "role": evil, "reason": evil, "signal": None}
    job["status"]["times"]["byReason"] = {evil: 1.0}
    job["status"]["restarts"]["byReason"] = {evil: 1}
    job["status"]["conditions"][0]["message"] = evil
    job["metadata"] |= {"name": evil, "namespace": evil}
    job["spec"]["framework"] = evil
    text = "\n".join([*shown(job, 500), *listed(job, namespaces=True)])
    assert not set("\x1b\x07") & set(text)
    assert "ab" in text


# --- printed once ----------------------------------------------------------------------------------------------------


@pytest.fixture
def api(tmp_path: Path) -> Iterator[SomeApi]:
    with SomeApi(tmp_path, reported.running(), reported.finished("zebra")) as some:
        yield some


def allranks(api: SomeApi, *args: str) -> Result:
    return CliRunner().invoke(cli, ["top", *args, "--kubeconfig", str(api.kubeconfig)], catch_exceptions=False)


def test_without_a_terminal_it_prints_once(api):
    result = allranks(api)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[0] for line in result.stdout.splitlines() if line] == ["2", "NAME", "penguins", "zebra"]
    one = allranks(api, "penguins")
    assert one.stdout.startswith("penguins  team  pytorch  Running  4/4 pods running  attempt 1")
    assert "2 of 4 ranks" in one.stdout
    assert allranks(api, "-A").stdout.splitlines()[2].startswith("NAMESPACE")


def test_json_output(api):
    job = json.loads(allranks(api, "zebra", "-o", "json").stdout)
    assert (job["name"], job["namespace"], job["phase"], job["goodput"]) == ("zebra", "team", "Succeeded", 0.7376)
    assert job["times"] == {"queued": 12, "starting": 18, "productive": 655, "lost": 215}
    assert job["progress"]["summary"] == "1310/1310 100%"
    everything = json.loads(allranks(api, "-o", "json").stdout)
    assert {one["name"]: one["stepsPerSecond"] for one in everything["jobs"]} == {"penguins": 2.0, "zebra": None}


@table(
    ("a job that is not there", ["penguin"], 1, "there is no job penguin in namespace team, did you mean penguins?"),
    ("a name and all namespaces", ["penguins", "-A"], 2, "a job name needs one namespace: use -n, not -A."),
    ("a name and a selector", ["penguins", "-l", "a=b"], 2, "specify either a name or a selector, not both."),
    ("another kind", ["pod/penguins"], 2, "this command supports only jobs"),
    ("no duration", ["--interval", "often"], 2, "often is not a duration"),
)
def test_errors(case, api):
    args, status, sentence = case
    result = allranks(api, *args)
    assert (result.exit_code, result.stdout) == (status, "")
    assert sentence in " ".join(result.stderr.split())


def test_a_namespace_without_jobs(tmp_path):
    with SomeApi(tmp_path) as api:
        assert allranks(api).stdout == "No jobs in namespace team.\n"
        assert allranks(api, "-A").stdout == "No jobs in any namespace.\n"


def test_help_has_examples_and_says_how_to_quit():
    text = CliRunner().invoke(cli, ["top", "--help"]).stdout
    assert "allranks top penguins --once" in text
    assert "until q or Ctrl-C" in text


# --- on a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A command on a terminal of 100 columns and 30 lines."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master, self.process = master, process
        self.output = b""

    def until(self, text: str, seconds: float = 300) -> None:
        """Reads until the text appears in new output."""
        deadline, begin = time.monotonic() + seconds, len(self.output)
        while text.encode() not in self.output[max(0, begin - len(text)) :]:
            assert time.monotonic() < deadline, f"no {text!r} in {self.output[begin:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self.output += os.read(self._master, 65536)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self, seconds: float = 300) -> int:
        """Waits for the command. Returns its exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.output
            if select.select([self._master], [], [], 0.05)[0]:
                self._rest()
        while select.select([self._master], [], [], 0.05)[0] and self._rest():
            pass
        return self.process.returncode

    def _rest(self) -> bytes:
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return b""  # the command has closed the terminal
        self.output += data
        return data


@contextmanager
def terminal(api: SomeApi, *args: str, kind: str = "xterm-256color") -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-m", "allranks", "top", *args, "--interval", "200ms"]
    env = {**os.environ, "TERM": kind, "PYTHONIOENCODING": "utf-8"}

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*command, "--kubeconfig", str(api.kubeconfig)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        preexec_fn=take_terminal,
    )
    try:
        yield Terminal(master, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


ENTER_ALTERNATE_SCREEN, LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def test_on_a_terminal_it_runs_until_q(api):
    with terminal(api, "penguins") as screen:
        screen.until("600/1310 45%")
        assert ENTER_ALTERNATE_SCREEN in screen.output
        changed = reported.running()
        changed["status"]["progress"] |= {"step": 700, "summary": "700/1310 53%"}
        api.put(changed)
        screen.until("700/1310 53%")
        screen.press(b"q")
        assert screen.end() == 0
    assert screen.output.rstrip().endswith(LEAVE_ALTERNATE_SCREEN)


def test_ctrl_c_restores_the_terminal(api):
    with terminal(api) as screen:
        screen.until("penguins")
        screen.press(b"\x03")
        assert screen.end() == 130
    assert LEAVE_ALTERNATE_SCREEN in screen.output
    assert b"Traceback" not in screen.output


def test_it_ends_with_its_job_and_leaves_the_final_state_on_the_terminal(api):
    with terminal(api, "penguins") as screen:
        screen.until("600/1310 45%")
        api.put(reported.finished())
        assert screen.end() == 0
    assert "1310/1310 100%" in screen.output.rpartition(LEAVE_ALTERNATE_SCREEN)[2].decode()


def test_it_ends_when_its_job_is_deleted(api):
    with terminal(api, "penguins") as screen:
        screen.until("600/1310 45%")
        api.delete("penguins")
        assert screen.end() == 1
    assert "penguins was deleted" in screen.output.rpartition(LEAVE_ALTERNATE_SCREEN)[2].decode()


def test_on_a_dumb_terminal_it_prints_once(api):
    with terminal(api, "penguins", kind="dumb") as screen:
        assert screen.end() == 0
    assert b"600/1310 45%" in screen.output
    assert b"\x1b" not in screen.output


def test_a_finished_job_is_printed_once(api):
    with terminal(api, "zebra") as screen:
        assert screen.end() == 0
    assert ENTER_ALTERNATE_SCREEN not in screen.output
    assert b"1310/1310 100%" in screen.output
