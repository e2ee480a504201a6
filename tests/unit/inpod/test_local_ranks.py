"""The helper that starts several ranks in one pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from allranks.frameworks.rank_report import read_rank_report
from allranks.pod_bundle import HELPERS

HELPER = [sys.executable, str(HELPERS / "local_ranks.py")]
ENVIRONMENT = {**os.environ, "RANK": "4", "LOCAL_WORLD_SIZE": "3"}
WAIT = "import os, sys, time; rank = os.environ['RANK']\n"


def run(program: str, size: int = 3, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [*HELPER, "--", sys.executable, "-c", WAIT + program]
    environment = {**ENVIRONMENT, "LOCAL_WORLD_SIZE": str(size), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_each_process_has_its_rank():
    done = run("sys.stdout.write(rank + ' ' + os.environ['LOCAL_RANK'] + '\\n')")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["4 0", "5 1", "6 2"]
    assert done.stderr == ""


def test_the_threads_of_the_user_or_the_image_are_not_replaced():
    program = "sys.stdout.write(os.environ['OMP_NUM_THREADS'] + '\\n')"
    assert run(program, ALLRANKS_THREADS="2").stdout == "2\n2\n2\n"
    assert run(program, ALLRANKS_THREADS="2", OMP_NUM_THREADS="5").stdout == "5\n5\n5\n"


def test_the_first_failure_ends_the_others_and_is_reported():
    done = run("time.sleep(0 if rank == '5' else 600)\nraise ValueError('no data')")
    assert done.returncode == 1
    found = read_rank_report(done.stderr)
    assert found is not None
    assert (found.rank, found.exit_code) == (5, 1)
    assert found.message.endswith("ValueError: no data")


def test_a_killed_process_is_reported_with_its_signal():
    done = run("os.kill(os.getpid(), 9) if rank == '6' else time.sleep(600)")
    assert done.returncode == 137
    found = read_rank_report(done.stderr)
    assert found is not None
    assert (found.rank, found.signal) == (6, 9)


def test_a_killed_process_that_is_alone_differs_from_an_exit_code():
    done = run("os.kill(os.getpid(), 9)", size=1)
    assert (done.returncode, done.stderr) == (137, "allranks: the program was ended by signal 9 (SIGKILL)\n")
    done = run("sys.exit(137)", size=1)
    assert (done.returncode, done.stderr) == (137, "")


def test_sigterm_reaches_every_process_and_is_no_failure_of_a_rank(tmp_path: Path):
    program = (
        "import signal\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(tmp_path)!r} + '/ended' + rank, 'w'), sys.exit(143)))\n"
        "sys.stdout.write('ready\\n')\nsys.stdout.flush()\nsignal.pause()\nsignal.pause()"
    )
    helper = subprocess.Popen(
        [*HELPER, "--", sys.executable, "-c", WAIT + program],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert helper.stdout
        ready = [helper.stdout.readline() for _ in range(3)]
        helper.send_signal(signal.SIGTERM)
        _, stderr = helper.communicate(timeout=300)
    finally:
        helper.kill()
    assert ready == ["ready\n"] * 3
    assert helper.returncode == 143
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ended4", "ended5", "ended6"]
    assert "failed first" not in stderr


def test_a_program_that_does_not_exist_is_an_error_of_a_shell():
    done = subprocess.run(
        [*HELPER, "--", "no-such-program"], env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (
        127,
        "allranks: cannot start no-such-program: No such file or directory\n",
    )
    assert subprocess.run(HELPER, env=ENVIRONMENT, capture_output=True, timeout=300, check=False).returncode == 2
