"""A real mpirun, started like the launcher of an MPI job: the rank that failed first is reported, whether mpirun starts
ranks itself or through its daemons, as over ssh."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from allranks.frameworks.mpirun import read_mpirun_report
from support.builders import job, table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun on this machine (Debian: openmpi-bin)"),
]

# Two ranks that write whole lines. Rank 0 fails like a rank of Horovod whose peer failed; rank 1 takes longer to end.
PROGRAM = """
import atexit, os, signal, sys, time
from pathlib import Path

sys.stdout.write(f"rank {os.environ['OMPI_COMM_WORLD_RANK']} begins\\n")
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    sys.stderr.write("epoch 3\\n")
    if sys.argv[1] == "be killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "exit at once":
        os._exit(138)
    if sys.argv[1] == "raise":
        atexit.register(time.sleep, 30)
        atexit.register(Path("failed").touch)
        raise ValueError("mine")
    if sys.argv[1] == "exit":
        Path("failed").touch()
        time.sleep(0.5)
        sys.exit(3)
while sys.argv[1] != "be well" and not Path("failed").exists():
    time.sleep(0.02)
if sys.argv[1] != "be well":
    raise RuntimeError("Horovod has been shut down. This was caused by an exception on one of the ranks")
"""
# The daemon of each host is a process of this machine with its own /tmp.
REMOTE = """#!/bin/sh
export TMPDIR="${0%/*}/$1"
mkdir "$TMPDIR"
shift
exec sh -c "$*"
"""


@pytest.fixture(params=["here", "through daemons"])
def launch(request, tmp_path):
    """Runs a launcher; returns its exit status and log."""
    fields = {"framework": "horovod", "horovod": {"controller": "MPI"}, "roles": {"worker": 2, "launcher": 1}}

    def run(*command: str, own: bool = False) -> tuple[int, str]:
        roles = {**fields["roles"], **({"launcher": {"command": list(command)}} if own else {})}
        of = job(**{**fields, "roles": roles}, command=list(command))
        made = pods.objects(of, Status(), Platform(helper_image="", local=True))
        [files] = [thing["data"] for thing in made.companions if thing["kind"] == "ConfigMap"]
        for name, content in {**files, "program.py": PROGRAM, "remote": REMOTE}.items():
            (tmp_path / name).write_text(content)
        (tmp_path / "remote").chmod(0o755)
        [trainer] = [pod["spec"]["containers"][0] for pod in made.pods if "launcher" in pod["metadata"]["name"]]
        env = {"PYTHONHASHSEED": "1"} | {variable["name"]: variable["value"] for variable in trainer["env"]}
        if request.param == "through daemons":
            env |= {"OMPI_MCA_plm_rsh_agent": str(tmp_path / "remote")}
            env |= {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile")}
            (tmp_path / "hostfile").write_text("worker-0 slots=1\nworker-1 slots=1\n")
        done = subprocess.run(
            [word.replace("/etc/allranks", str(tmp_path)) for word in trainer["command"]],
            env=os.environ | env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout

    return run


# Name, action of rank 1, expected report: exit code, signal, last line.
FAILURES = [
    ("a rank that raises and is slow to end", "raise", (1, None, "ValueError: mine")),
    ("a rank that exits and is slow to end", "exit", (3, None, "epoch 3")),
    ("a rank that exits at once", "exit at once", (138, None, "epoch 3")),
    ("a rank that is killed", "be killed", (137, int(signal.SIGKILL), "epoch 3")),
]


@table(*FAILURES)
def test_the_rank_that_failed_first_is_reported(case, launch):
    how, (code, number, last) = case
    status, log = launch(sys.executable, "program.py", how)
    found = read_mpirun_report(as_kubelet(log))
    assert found, log
    assert (found.rank, found.exit_code, found.signal) == (1, code, number), log
    assert found.message.splitlines()[-1] == last
    assert status == code


def test_a_command_of_the_user_needs_no_change(launch):
    _, log = launch("sh", "-c", f"mpirun -np 2 '{sys.executable}' program.py raise", own=True)
    found = read_mpirun_report(as_kubelet(log))
    assert (found.rank, found.message.splitlines()[-1]) == (1, "ValueError: mine")


def test_on_success_the_log_is_only_that_of_the_program(launch):
    status, log = launch(sys.executable, "program.py", "be well")
    # Open MPI and the daemon that it starts both call setpgid. It warns if the daemon was first, which does no harm.
    lines = [line for line in log.splitlines() if "plm:rsh: Warning: setpgid" not in line]
    assert (status, sorted(lines)) == (0, ["epoch 3", "rank 0 begins", "rank 1 begins"])


def test_lines_of_several_ranks_are_whole(launch):
    """Open MPI reads up to 4 KiB at once, so it can still divide a line of a program that prints more than that."""
    text = (
        "import os, time\nfor number in range(500):\n  print('rank', os.environ['OMPI_COMM_WORLD_RANK'], 'at', number)"
    )
    status, log = launch(sys.executable, "-c", f"{text}\n  time.sleep(0.001)")
    assert (status, sorted(log.splitlines())) == (
        0,
        sorted(f"rank {rank} at {n}" for rank in (0, 1) for n in range(500)),
    )


def as_kubelet(text: str) -> str:
    """FallbackToLogsOnError: the last 80 lines, and at most the last 2048 bytes of them."""
    return "".join(text.splitlines(keepends=True)[-80:]).encode()[-2048:].decode(errors="ignore")
