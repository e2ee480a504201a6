"""MPI's wiring: the launcher's command and variables and the hosts file, for each implementation."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import commands, pods
from allranks.core.objects.pods import Objects
from allranks.frameworks import FRAMEWORKS
from support.builders import CLUSTER, environment, job, table

ROLES = {"worker": 2, "launcher": 1}
LOCAL = Platform(helper_image="", local=True)
LAUNCH = ["/bin/sh", "/etc/allranks/mpi_rank.sh", "launch", "job-launcher-0-0.job.team.svc"]
SSH = "-F /etc/allranks/ssh_config -p 2222"


def made(platform: Platform = CLUSTER, implementation: str = "OpenMPI", **fields: Any) -> Objects:
    options = {"implementation": implementation, **fields.pop("mpi", {})}
    return pods.objects(job("mpi", **{"roles": ROLES, "mpi": options, **fields}), Status(), platform)


def launcher(objects: Objects) -> dict[str, Any]:
    [pod] = [pod for pod in objects.pods if "launcher" in pod["metadata"]["name"]]
    return pod


def command(objects: Objects) -> list[str]:
    found: list[str] = launcher(objects)["spec"]["containers"][0]["command"]
    return found


def files(objects: Objects) -> dict[str, str]:
    [found] = [thing["data"] for thing in objects.companions if thing["kind"] == "ConfigMap"]
    return found


HOSTS = ["job-worker-0-0.job.team.svc", "job-worker-1-0.job.team.svc"]


@table(
    ("Open MPI", ("OpenMPI", "{} slots=4", "OMPI_MCA_orte_default_hostfile", "OMPI_MCA_plm_rsh_args")),
    ("Open MPI 5", ("OpenMPI", "{} slots=4", "PRTE_MCA_prte_default_hostfile", "PRTE_MCA_plm_ssh_args")),
    ("MPICH", ("MPICH", "{}:4", "HYDRA_HOST_FILE", "HYDRA_LAUNCHER_EXTRA_ARGS")),
    ("Intel MPI", ("Intel", "{}:4", "I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")),
)
def test_each_implementation_has_its_own_hosts_file_and_variables(case):
    [(implementation, line, hosts, arguments)] = case
    objects = made(implementation=implementation, mpi={"slotsPerWorker": 4})
    assert files(objects)["hostfile"].splitlines() == [line.format(host) for host in HOSTS]
    variables = environment(objects, launcher(objects))
    assert (variables[hosts], variables[arguments]) == ("/etc/allranks/hostfile", SSH)


def test_open_mpi_starts_the_program_for_each_slot_and_forwards_variables_by_name():
    found = command(made(env=[{"name": "MY", "value": "1"}], mpi={"slotsPerWorker": 3}))
    assert found[:10] == [*LAUNCH, "mpirun", "-np", "6", "--allow-run-as-root", "--bind-to", "none"]
    assert found[-6:] == ["-x", "MY", "-x", "OMP_NUM_THREADS", "python3", "train.py"]


def test_each_of_several_slots_gets_threads_for_its_share_of_the_cpus_of_a_worker():
    roles = {"launcher": 1, "worker": {"replicas": 2, "resources": {"limits": {"cpu": 8}}}}
    objects = made(roles=roles, mpi={"slotsPerWorker": 4})
    assert environment(objects, launcher(objects))["OMP_NUM_THREADS"] == "2"
    assert command(objects)[-4:] == ["-x", "OMP_NUM_THREADS", "python3", "train.py"]
    of_user = made(roles=roles, mpi={"slotsPerWorker": 4}, env=[{"name": "OMP_NUM_THREADS", "value": "3"}])
    assert environment(of_user, launcher(of_user))["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in command(made(roles=roles, mpi={"slotsPerWorker": 1}))


@pytest.mark.parametrize("implementation", ["MPICH", "Intel"])
def test_hydra_starts_each_rank_below_the_wrapper_that_reports_the_first_failure(implementation):
    wrapper = ["/bin/sh", "/etc/allranks/mpi_rank.sh", "rank", "env"]
    found = command(made(implementation=implementation))
    assert found == [*LAUNCH, "mpirun", "-np", "2", *wrapper, "python3", "train.py"]


@pytest.mark.parametrize("program", ["mpirun", "/opt/bin/mpirun", "mpiexec", "mpiexec.hydra"])
def test_a_command_that_begins_with_mpirun_is_used_as_it_is(program):
    own = [program, "-np", "2", "hello"]
    assert command(made(command=own)) == [*LAUNCH, *own]


def test_the_launchers_own_command_is_used_as_it_is():
    own = ["bash", "run.sh"]
    roles = {"worker": 2, "launcher": {"replicas": 1, "command": own}}
    assert command(made(roles=roles)) == [*LAUNCH, *own]


def test_workers_run_sshd_and_hold_one_rank_for_each_gpu():
    objects = made(resources={"limits": {"nvidia.com/gpu": 8}})
    [worker, _] = [pod for pod in objects.pods if "worker" in pod["metadata"]["name"]]
    assert "/usr/sbin/sshd" in worker["spec"]["containers"][0]["command"]
    assert command(objects)[5:7] == ["-np", "16"]


def test_in_a_local_run_mpirun_starts_all_ranks_itself():
    for implementation in ("OpenMPI", "MPICH", "Intel"):
        objects = made(LOCAL, implementation)
        assert "hostfile" not in files(objects)
        assert command(objects)[:4] == [*LAUNCH[:3], "127.0.0.1"]
        assert not any("HOST_FILE" in name or "hostfile" in name for name in environment(objects, launcher(objects)))


def own(*command: str) -> dict[str, Any]:
    return {"roles": {"worker": 2, "launcher": {"replicas": 1, "command": list(command)}}}


@table(
    ("a program", {"command": ["python3", "-m", "mpi4py", "train.py"]}, None),
    ("mpirun", {"command": ["mpirun", "-np", "2", "hello"]}, None),
    ("a script of the launcher", own("bash", "run.sh"), None),
    ("a launcher with hosts of its own", own("deepspeed", "--hostfile", "/etc/allranks/hostfile", "train.py"), None),
    ("options of the program", own("mpirun", "-np", "16", "all_reduce_perf", "-b", "8", "-f", "2"), None),
    (
        "hosts for MPICH",
        own("mpiexec", "-f", "mine", "hello"),
        (
            "spec.roles.launcher.command[1]",
            "allranks writes the hostfile of mpirun, so this is not used: -f mine",
            "note",
        ),
    ),
    (
        "no mpirun",
        own("python3", "train.py"),
        (
            "spec.roles.launcher.command[0]",
            "runs once, without mpirun: move it to spec.command, and allranks starts it for each rank",
            "warning",
        ),
    ),
    (
        "a command of the workers",
        {"roles": {"launcher": 1, "worker": {"replicas": 2, "command": ["python3"]}}, "command": ["hello"]},
        ("spec.roles.worker.command[0]", "has no effect: workers run sshd, and mpirun starts the ranks", "warning"),
    ),
)
def test_a_command_that_contradicts_allranks_is_noted(case):
    fields, expected = case
    assert commands.remarks(job("mpi", **{"roles": ROLES, **fields})) == ([expected] if expected else [])


HYDRA = """\
Traceback: none
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   {}
===================================================================================
"""


@table(
    ("a signal", "RANK 1 PID 13215 RUNNING AT vm\n=   KILLED BY SIGNAL: 9 (Killed)", (1, 137, 9)),
    ("an exit code", "RANK 3 PID 1 RUNNING AT vm\n=   EXIT STATUS: 5", (3, 5, None)),
)
def test_the_report_of_intel_mpi_names_the_rank(case):
    text, expected = case
    found = FRAMEWORKS["mpi"].log.root_cause(HYDRA.format(text))
    assert found is not None
    assert (found.rank, found.exit_code, found.signal) == expected
    assert found.message == "Traceback: none"


def test_the_report_of_mpich_has_no_rank():
    assert FRAMEWORKS["mpi"].log.root_cause(HYDRA.format("PID 1 RUNNING AT vm\n=   EXIT CODE: 9")) is None


def test_the_report_of_open_mpi_5_names_the_rank():
    text = "prterun noticed...\n   Process name: [prterun-vm-9908@1,1]\n   Exit code:    3\n"
    found = FRAMEWORKS["mpi"].log.root_cause(f"first process to do so was:\n\n{text.partition(chr(10))[2]}")
    assert found is not None
    assert (found.rank, found.exit_code) == (1, 3)


def test_the_report_of_open_mpi_5_names_a_killed_rank_in_two_lines():
    line = "-" * 74
    report = "prterun noticed that process rank 1 with PID 25153 on node vm exited on\nsignal 9 (Killed)."
    text = f"epoch 3\n{line}\n{report}\n{line}\n"
    found = FRAMEWORKS["mpi"].log.root_cause(text)
    assert found is not None
    assert (found.rank, found.signal, found.message) == (1, 9, "epoch 3")
