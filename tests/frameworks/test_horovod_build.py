"""tools/frameworks.sh installs a Horovod with gloo, MPI and both frameworks, and its ranks find each other.

The first run creates the environment: it downloads PyTorch and TensorFlow and compiles Horovod.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.environment import USERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
FRAMEWORKS = REPOSITORY / "tools" / "frameworks.sh"
EDIT_SOURCE = REPOSITORY / "images" / "horovod" / "edit_source.py"
HAS_MPI = shutil.which("mpirun") is not None
MARK = "ALLRANKS_TEST_MARK"  # identifies the processes of one command, in any session
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="no mpirun on this machine")

# Each rank prints the size: a Horovod that finds no other rank runs as rank 0 of 1 without an error.
RANK = """
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
controller = "MPI" if hvd.mpi_enabled() else "gloo"
print(f"<rank {hvd.rank()} of {hvd.size()}: sum {total.item():.0f}, {controller}>", flush=True)
"""

WHAT_IS_BUILT = """
import importlib, sys
hvd = importlib.import_module(sys.argv[1])
print(f"<built: {[name for name, built in (('Gloo', hvd.gloo_built()), ('MPI', hvd.mpi_built())) if built]}>")
"""

# Two hosts with one slot each, both on this machine, without ssh.
RANKS_WITHOUT_LAUNCHER = """
import os, subprocess, sys, threading
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

slots = get_host_assignments([HostInfo("worker-0", 1), HostInfo("worker-1", 1)], 2)
server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
server.init(slots)
threading.Thread(target=server.serve_forever, daemon=True).start()
shared = create_run_env_vars("127.0.0.1", ["lo"], str(server.server_port))
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env=os.environ | shared | create_slot_env_vars(slot))
         for slot in slots]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture(scope="module")
def venv() -> Path:
    """The environment with all frameworks; installed if it does not exist."""
    made = subprocess.run([FRAMEWORKS, "horovod"], stdout=subprocess.PIPE, text=True, check=True, env=USERS)
    return Path(made.stdout.rstrip("\n"))


@pytest.fixture
def rank_program(tmp_path: Path) -> str:
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return str(path)


class TestHorovod:
    @pytest.mark.nightly
    @pytest.mark.parametrize("framework", ["torch", "tensorflow"])
    def test_is_built_with_both_frameworks_and_with_all_controllers_of_this_machine(
        self, framework: str, venv: Path
    ) -> None:
        """`horovodrun --check-build` asks the same, but imports each framework six times."""
        finished = run(venv, ["python", "-c", WHAT_IS_BUILT, f"horovod.{framework}"])
        assert f"<built: {['Gloo', 'MPI'] if HAS_MPI else ['Gloo']}>" in finished.output, finished.output

    @pytest.mark.nightly
    def test_two_ranks_meet_over_gloo(self, venv: Path, rank_program: str) -> None:
        finished = run(venv, ["horovodrun", "-np", "2", "--gloo", "python", rank_program])
        assert_ranks_met(finished, "gloo")

    @pytest.mark.nightly
    @needs_mpi
    def test_two_ranks_meet_over_mpi(self, venv: Path, rank_program: str) -> None:
        finished = run(venv, ["mpirun", "-np", "2", "--oversubscribe", "python", rank_program])
        assert_ranks_met(finished, "MPI")

    @pytest.mark.nightly
    def test_two_ranks_meet_over_gloo_without_a_launcher(self, venv: Path, rank_program: str) -> None:
        finished = run(venv, ["python", "-c", RANKS_WITHOUT_LAUNCHER, rank_program])
        assert_ranks_met(finished, "gloo")

    def test_unexpected_source_is_not_edited(self, tmp_path: Path) -> None:
        cmake = tmp_path / "horovod" / "torch" / "CMakeLists.txt"
        cmake.parent.mkdir(parents=True)
        cmake.write_text("set(CMAKE_CXX_STANDARD 17)\n")
        edited = subprocess.run([sys.executable, EDIT_SOURCE, tmp_path], capture_output=True, text=True)
        assert edited.returncode == 1
        assert "horovod/torch/CMakeLists.txt is not that of Horovod 0.28.1" in edited.stderr


class TestFrameworksScript:
    @pytest.mark.nightly
    def test_a_second_call_does_nothing_and_prints_only_the_path(self, venv: Path) -> None:
        stamps = {path: path.stat().st_mtime_ns for path in (venv / ".allranks").iterdir()}
        again = subprocess.run([FRAMEWORKS, "horovod"], capture_output=True, text=True, check=True, env=USERS)
        assert (again.stdout, again.stderr) == (f"{venv}\n", "")
        assert {path: path.stat().st_mtime_ns for path in (venv / ".allranks").iterdir()} == stamps

    def test_an_old_python_is_rejected_with_advice(self, tmp_path: Path) -> None:
        python = tmp_path / "python3"
        python.write_text("#!/bin/sh\ncase $1 in --version) echo Python 3.10.4 ;; *) echo 310; exit 1 ;; esac\n")
        python.chmod(0o755)
        refused = call_frameworks_script("pytorch", PYTHON=str(python), ALLRANKS_CACHE=str(tmp_path))
        assert refused.returncode == 1
        assert refused.stdout == ""
        assert "Python 3.10.4 is too old: Python 3.11 or newer is needed" in refused.stderr

    def test_an_unknown_framework_is_rejected(self) -> None:
        refused = call_frameworks_script("mxnet")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "unknown argument 'mxnet'" in refused.stderr


def call_frameworks_script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FRAMEWORKS, *arguments], env=USERS | environment, capture_output=True, text=True)


@dataclass(frozen=True)
class Finished:
    """The exit status of a command, and its stdout and stderr together."""

    status: int
    output: str


def assert_ranks_met(finished: Finished, controller: str) -> None:
    printed = sorted(re.findall(r"<rank .*?>", finished.output))
    assert printed == [f"<rank {rank} of 2: sum 3, {controller}>" for rank in range(2)], finished.output
    assert finished.status == 0, finished.output


def run(venv: Path, command: list[str], timeout: float = 600) -> Finished:
    """Runs a command with the programs of the environment first on the path. Fails if it leaves a process behind."""
    mark = uuid.uuid4().hex
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HOROVOD_", "OMPI_", "PMIX_"))}
    environment = clean | {
        MARK: mark,
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
        )
    finally:
        left = end_processes_with(f"{MARK}={mark}")
    assert not left, f"{command[0]} left processes behind: {left}"
    return Finished(done.returncode, done.stdout)


def end_processes_with(mark: str, timeout: float = 10) -> list[str]:
    """Waits for all processes with this variable in their environment; kills and returns those that remain."""
    deadline = time.monotonic() + timeout
    while any(processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = []
    for process in processes_with(mark):
        left.append((process / "cmdline").read_text().replace("\0", " "))
        os.kill(int(process.name), signal.SIGKILL)
    return left


def processes_with(mark: str) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            started_with = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or belongs to another user
            continue
        if mark.encode() in started_with:
            yield process
