"""The helper around mpirun and around its ranks, as real processes. The fake mpirun starts ranks as Open MPI does: an
agent and a process group for each, and the variables that identify a rank."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

import pytest

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from allranks.frameworks.mpirun import read_mpirun_report
from support.builders import job, table

SOON = 300.0
MPIRUN = """
import os, signal, subprocess, sys
agent = os.environ.get("OMPI_MCA_orte_fork_agent", "").split()
shared = dict(os.environ, PMIX_NAMESPACE=os.environ.get("NAMESPACE", "1"))
ranks = {}
for rank, script in enumerate(sys.argv[1:]):
    command = [*agent, "sh", "-c", script]
    begun = subprocess.Popen(command, env={**shared, "OMPI_COMM_WORLD_RANK": str(rank)}, process_group=0)
    ranks[begun.pid] = begun
code = 0
while ranks:
    pid, raw = os.wait()
    ended = ranks.pop(pid)
    ended.returncode = os.waitstatus_to_exitcode(raw)
    if ended.returncode and not code:
        code = ended.returncode
        print("mpirun ends the others", flush=True)
        for other in ranks:
            os.killpg(other, signal.SIGTERM)
sys.exit(code if code >= 0 else 128 - code)
"""
AFTER = "until grep -q mine log; do sleep 0.02; done"
"""The line was forwarded, so the helper has read it."""
TRACEBACK = "echo Traceback \\(most recent call last\\): >&2"
RAISES = f"{TRACEBACK}; echo ValueError: mine >&2"
PEER_FAILS = f"{AFTER}; sleep 1; {TRACEBACK}; echo HorovodInternalError: a peer is gone >&2"
"""A second later: the launcher knows when a rank raised except for the time that the report travels."""
HANGS = f"sleep {SOON}"
IDLE = f"{HANGS} >/dev/null 2>&1"
SHUT_DOWN = "Horovod has been shut down."

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def helper(tmp_path) -> Path:
    """The files as in the pods of a job."""
    of = job(framework="horovod", horovod={"controller": "MPI"}, roles={"worker": 2, "launcher": 1})
    made = pods.objects(of, Status(), Platform(helper_image="", local=True))
    [files] = [thing["data"] for thing in made.companions if thing["kind"] == "ConfigMap"]
    # The usual limits are too short for a busy machine.
    longer = dict.fromkeys(("ENDING_SECONDS", "REPORT_SECONDS", "CAUSE_SECONDS"), SOON / 3)
    files["mpi_rank.py"] = with_limits(files["mpi_rank.py"], **longer)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "mpirun").write_text(MPIRUN)
    return tmp_path / "mpi_rank.sh"


def with_limits(text: str, **seconds: float) -> str:
    """The text of mpi_rank.py with these values of its constants."""
    for name, value in seconds.items():
        text, count = re.subn(rf"^{name} = .*", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text


@pytest.fixture
def start(helper) -> Iterator[Start]:
    begun: list[subprocess.Popen[str]] = []

    def one(*command: str, stderr: int | IO[str] = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["/bin/sh", str(helper), *command],
            env={"PATH": os.environ["PATH"]} | env,
            cwd=helper.parent,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield one
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if process.stderr:
            process.stderr.close()


@pytest.fixture
def mpirun(start, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Exit status, stdout and stderr of a launcher whose mpirun runs these ranks, given as scripts."""

    def run(*ranks: str, **env: str) -> tuple[int, str, str]:
        with (tmp_path / "log").open("w") as log:
            process = start("launch", "127.0.0.1", sys.executable, "mpirun", *ranks, stderr=log, **env)
        out, _ = process.communicate(timeout=SOON)
        return process.returncode, out, (tmp_path / "log").read_text()

    return run


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_output_of_ranks_passes_unchanged_and_nothing_is_added_on_success(mpirun, tmp_path):
    lines = "".join(f"line {number} of many, which fill more than a pipe\n" for number in range(20_000))
    (tmp_path / "lines").write_text(lines)
    assert mpirun("echo out; cat lines >&2", "true") == (0, "out\n", lines)


def test_ranks_report_to_a_launcher_with_an_ipv6_address(start, tmp_path):
    process = start("launch", "::1", sys.executable, "mpirun", f"{RAISES}; exit 1", HANGS)
    _, stderr = process.communicate(timeout=SOON)
    assert process.returncode == 1
    found = read_mpirun_report(stderr)
    assert found is not None
    assert (found.rank, found.exit_code) == (0, 1)
    assert "allranks: rank 0 failed first" in stderr


# Name, scripts of the ranks; exit status, then the reported rank, exit code, signal and last line.
FIRST = [
    (
        "the rank that raised is named though its peer ended before it",
        (f"{PEER_FAILS}; touch gone; exit 1", f"{RAISES}; until [ -e gone ]; do sleep 0.02; done; sleep 0.1; exit 1"),
        (1, 1, 1, None, "ValueError: mine"),
    ),
    (
        "the rank that raised is named though mpirun ended it for its peer's end",
        (f"{PEER_FAILS}; exit 1", f"{RAISES}; {HANGS}"),
        (1, 1, 1, None, "ValueError: mine"),
    ),
    (
        "the rank that raised is named where it ends at once",
        (f"{PEER_FAILS}; exit 1", f"{RAISES}; exit 1"),
        (1, 1, 1, None, "ValueError: mine"),
    ),
    (
        "a rank that is killed is named with the signal and what it said last",
        (HANGS, "echo epoch 3 >&2; kill -9 $$"),
        (137, 1, 137, 9, "epoch 3"),
    ),
    (
        "a rank that ends without a traceback is named though its peer failed by its end, and has ended before it",
        (
            f"{AFTER}; {TRACEBACK}; echo HorovodInternalError: {SHUT_DOWN} >&2; exit 1",
            "echo no data is mine >&2; sleep 0.5; exit 3",
        ),
        (3, 1, 3, None, "no data is mine"),
    ),
    (
        "what was only a warning does not count for a rank that is killed",
        (f"{RAISES}; {HANGS}", f"{AFTER}; kill -9 $$"),
        (137, 1, 137, 9, "rank 1 was ended by signal 9"),
    ),
    ("an exit code is reported", (HANGS, "echo again >&2; exit 138"), (138, 1, 138, None, "again")),
    ("a rank without output is reported too", (HANGS, "exit 3"), (3, 1, 3, None, "rank 1 exited with code 3")),
    (
        "a rank that ends with an error after SIGTERM is not the cause",
        ("until [ -e up ]; do sleep 0.02; done; exit 3", f"trap '{RAISES}; exit 143' TERM; touch up; {IDLE} & wait"),
        (3, 0, 3, None, "rank 0 exited with code 3"),
    ),
    (
        "a missing program is reported by its name",
        ("exec ./mpi_rank.sh",),
        (126, 0, 126, None, "sh: 1: exec: ./mpi_rank.sh: Permission denied"),
    ),
]


@table(*FIRST)
def test_the_first_failure_is_chosen(case, mpirun):
    ranks, expected = case
    code, _, err = mpirun(*ranks)
    found = read_mpirun_report(as_kubelet(err))
    assert found
    assert found.message
    assert (code, found.rank, found.exit_code, found.signal, found.message.splitlines()[-1]) == expected
    assert abs(datetime.now() - found.time) < timedelta(seconds=SOON)


def test_without_another_cause_the_rank_that_failed_because_its_peer_ended_is_named(helper, mpirun):
    program = helper.with_name("mpi_rank.py")
    program.write_text(with_limits(program.read_text(), CAUSE_SECONDS=0.5))
    code, _, err = mpirun(f"echo {SHUT_DOWN} >&2; exit 1", HANGS)
    found = read_mpirun_report(as_kubelet(err))
    assert found
    assert (code, found.rank, found.exit_code, found.message) == (1, 0, 1, SHUT_DOWN)


def test_the_report_is_the_end_of_the_log_and_fits_into_a_termination_message(mpirun):
    line = "é" * 90
    _, _, err = mpirun(f"for i in $(seq 100); do echo {line} $i >&2; done; exit 1", f"{HANGS}")
    report = err[err.index("allranks: ") :]
    assert len(report.encode()) < 2048
    found = read_mpirun_report(report)
    assert found.message.splitlines()[-2:] == [f"{line} 99", f"{line} 100"]


def test_when_the_command_continues_after_a_failure_the_later_failure_is_reported(start):
    once = f"'{sys.executable}' mpirun"
    both = f"NAMESPACE=1 {once} 'exit 3' 'exit 3'; NAMESPACE=2 {once} true 'echo the other >&2; exit 4'"
    _, err = start("launch", "127.0.0.1", "sh", "-c", both).communicate(timeout=SOON)
    found = read_mpirun_report(err)
    assert (found.rank, found.exit_code, found.message) == (1, 4, "the other")


def test_when_the_command_succeeds_after_a_failure_nothing_is_reported(start):
    command = f"'{sys.executable}' mpirun 'exit 3' || true"
    process = start("launch", "127.0.0.1", "sh", "-c", command)
    assert process.communicate(timeout=SOON) == ("mpirun ends the others\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize("python", [None, "#!/bin/sh\nexit 1\n"], ids=["no Python", "an old Python"])
@pytest.mark.parametrize("mode", ["launch", "rank"])
def test_without_python_the_command_runs_unchanged(mode, python, start, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("sh", "echo"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    if python:
        (tmp_path / "bin" / "python3").write_text(python)
        (tmp_path / "bin" / "python3").chmod(0o755)
    process = start(mode, "host:1:key", "sh", "-c", 'echo "$@"; exit 7', "sh", "a  b", "c", PATH=f"{tmp_path}/bin")
    assert process.communicate(timeout=SOON) == ("a  b c\n", "")
    assert process.returncode == 7


def test_a_launch_agent_of_the_user_is_kept(mpirun):
    assert mpirun("exit 3", OMPI_MCA_orte_fork_agent="/usr/bin/env X=1")[::2] == (3, "")


@pytest.mark.parametrize("where", ["127.0.0.1:1:key", "no-such-host.invalid:1:key"])
def test_a_rank_ends_like_its_program_when_the_launcher_is_unreachable(where, start):
    begun = time.monotonic()
    process = start("rank", where, "sh", "-c", "echo words >&2; exit 5", OMPI_COMM_WORLD_RANK="0")
    assert process.communicate(timeout=SOON) == ("", "words\n")
    assert (process.returncode, time.monotonic() - begun < SOON) == (5, True)


@pytest.mark.parametrize("mode", ["launch", "rank"])
def test_a_program_that_cannot_be_started_is_named(mode, start):
    process = start(mode, "127.0.0.1:1:key", "nowhere")
    assert process.communicate(timeout=SOON)[1] == "allranks: cannot start nowhere: No such file or directory\n"
    assert process.returncode == 127


def test_a_rank_ends_by_the_signal_that_ended_its_program(start):
    """So that mpirun prints its usual message."""
    process = start("rank", "127.0.0.1:1:key", "sh", "-c", "kill -SEGV $$", OMPI_COMM_WORLD_RANK="0")
    assert process.wait(timeout=SOON) == -signal.SIGSEGV


TRAPS = 'for name in USR1 TERM; do trap "echo $name >> got" $name; done; touch up; while :; do sleep 0.05; done'


def test_a_signal_from_mpirun_reaches_the_program_once(start, tmp_path):
    """mpirun sends SIGUSR1 to its child process and SIGTERM to the process group."""
    process = start("rank", "127.0.0.1:1:key", "sh", "-c", TRAPS, OMPI_COMM_WORLD_RANK="0")
    wait_for((tmp_path / "up").exists)
    os.kill(process.pid, signal.SIGUSR1)
    wait_for((tmp_path / "got").exists)
    os.killpg(process.pid, signal.SIGTERM)
    wait_for(lambda: "TERM" in (tmp_path / "got").read_text())
    os.kill(process.pid, signal.SIGUSR1)
    wait_for(lambda: len((tmp_path / "got").read_text().split()) >= 3)
    assert (tmp_path / "got").read_text().split() == ["USR1", "TERM", "USR1"]
    assert process.poll() is None


def test_a_signal_to_the_launcher_reaches_its_command(start, tmp_path):
    process = start(
        "launch",
        "127.0.0.1",
        "sh",
        "-c",
        "trap 'echo ended; exit 9' TERM; touch up; sleep 30 >/dev/null 2>&1 & wait",
    )
    wait_for((tmp_path / "up").exists)
    process.terminate()
    assert process.communicate(timeout=SOON)[0] == "ended\n"
    assert process.returncode == 9


def test_processes_left_behind_keep_their_output_after_success_and_do_not_delay_a_failure(
    start,
):
    env = {"OMPI_COMM_WORLD_RANK": "0"}
    process = start("rank", "127.0.0.1:1:key", "sh", "-c", "(sleep 0.3; echo late >&2) >/dev/null &", **env)
    assert process.communicate(timeout=SOON) == ("", "late\n")
    process = start("rank", "127.0.0.1:1:key", "sh", "-c", "sleep 30 >/dev/null & exit 2", **env)
    assert process.wait(timeout=SOON) == 2


@pytest.mark.parametrize(
    "said",
    [b"", b"\n", b"{}\n", b"[]\n", b"x" * 100_000, b'{"key": "guess", "ago": 1e9}\n', None],
    ids=["nothing", "a line", "no key", "a list", "too much", "a wrong key", "no number"],
)
def test_messages_without_the_key_are_ignored(said, start, tmp_path):
    env = {"OMPI_COMM_WORLD_RANK": "0"}
    command = "echo $OMPI_MCA_orte_fork_agent > agent; mv agent up; until [ -e go ]; do sleep 0.02; done"
    process = start("launch", "127.0.0.1", "sh", "-c", f"{command}; $OMPI_MCA_orte_fork_agent sh -c 'exit 3'", **env)
    wait_for((tmp_path / "up").exists)
    host, port, key = (tmp_path / "up").read_text().split()[-1].split(":")
    valid = {"key": key, "ago": "long", "job": "", "rank": 0, "code": 1, "lines": ""}
    with socket.create_connection((host, int(port))) as stranger, contextlib.suppress(OSError):
        stranger.sendall(json.dumps(valid).encode() + b"\n" if said is None else said)
        stranger.shutdown(socket.SHUT_WR)
        stranger.recv(16)
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=SOON)
    assert read_mpirun_report(err).message == "rank 0 exited with code 3"


def as_kubelet(text: str) -> str:
    """FallbackToLogsOnError: the last 80 lines, and at most the last 2048 bytes of them."""
    return "".join(text.splitlines(keepends=True)[-80:]).encode()[-2048:].decode(errors="ignore")
