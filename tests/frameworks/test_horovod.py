"""Horovod's wiring: gloo without ssh, and MPI over an ssh of the job's own."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core import desired
from allranks.core.desired import Objects
from allranks.core.model import Platform
from builders import CLUSTER, job, table

HELPER = ["python3", "/allranks/horovod_gloo.py"]
MPI = {"horovod": {"controller": "mpi"}, "roles": {"worker": 2, "launcher": 1}}
LOCAL = Platform(helper_image="", local=True)


def objects(platform: Platform = CLUSTER, **fields: Any) -> Objects:
    return desired.objects(job(framework="horovod", **fields), Status(), platform)


def trainers(made: Objects) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0] for pod in made.pods}


def environment(trainer: dict[str, Any], *prefixes: str) -> dict[str, str]:
    return {v["name"]: v["value"] for v in trainer["env"] if v["name"].startswith(prefixes)}


def gloo(worker: int, workers: int, slots: int = 1, **more: str) -> dict[str, str]:
    known = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "job-worker-0-0.job.team.svc",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29400",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",
        "HOROVOD_SIZE": str(workers * slots),
        "HOROVOD_LOCAL_SIZE": str(slots),
        "HOROVOD_CROSS_SIZE": str(workers),
        "HOROVOD_CROSS_RANK": str(worker),
        "HOROVOD_HOSTNAME": f"job-worker-{worker}-0",
    }
    return known | more


def rank(number: int) -> dict[str, str]:
    return {"HOROVOD_RANK": str(number), "HOROVOD_LOCAL_RANK": "0"}


def hosts(slots: int, workers: int = 2) -> dict[str, str]:
    return {"ALLRANKS_HOROVOD_HOSTS": ",".join(f"job-worker-{index}-0:{slots}" for index in range(workers))}


# Sentence, job, variables of each worker.
GLOO = [
    (
        "with one slot each worker is one rank",
        {"roles": {"worker": 2}},
        [gloo(0, 2) | rank(0) | hosts(1), gloo(1, 2) | rank(1)],
    ),
    (
        "with two slots the helper numbers the ranks",
        {"roles": {"worker": 2}, "horovod": {"slotsPerWorker": 2}},
        [gloo(0, 2, 2) | hosts(2), gloo(1, 2, 2)],
    ),
    (
        "auto is one slot for each GPU",
        {"roles": {"worker": 2}, "resources": {"limits": {"nvidia.com/gpu": 4}}},
        [gloo(0, 2, 4) | hosts(4), gloo(1, 2, 4)],
    ),
    (
        "the port is the user's",
        {"roles": {"worker": 1}, "horovod": {"port": 1234}},
        [gloo(0, 1, HOROVOD_GLOO_RENDEZVOUS_PORT="1234") | rank(0) | hosts(1, 1)],
    ),
]


@table(*GLOO)
def test_gloo(case):
    fields, expected = case
    found = trainers(objects(**fields)).values()
    assert [environment(trainer, "HOROVOD_", "ALLRANKS_HOROVOD_") for trainer in found] == expected


def test_with_gloo_every_worker_is_started_by_the_helper_and_there_is_no_ssh():
    made = objects(roles={"worker": 2}, command=["python3", "train.py"], args=["--epochs=3"])
    for trainer in trainers(made).values():
        assert trainer["command"] == [*HELPER, "python3", "train.py"]
        assert trainer["args"] == ["--epochs=3"]
    assert [thing["kind"] for thing in made.companions] == ["Service"]


def test_with_gloo_only_the_first_worker_listens():
    found = trainers(objects(roles={"worker": 2}))
    assert [trainer.get("ports") for trainer in found.values()] == [
        [{"name": "rendezvous", "containerPort": 29400}],
        None,
    ]


def test_where_the_platform_says_so_the_ranks_meet_elsewhere():
    here = Platform(helper_image="", local=True, endpoints={("job-worker-0-0", 29400): ("127.0.0.1", 40001)})
    for trainer in trainers(objects(here, roles={"worker": 2})).values():
        found = environment(trainer, "HOROVOD_GLOO_RENDEZVOUS")
        assert found == {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "40001"}


def test_mpi_has_a_hostfile_and_a_key_of_the_job_alone():
    service, files, key = objects(**MPI, resources={"limits": {"nvidia.com/gpu": 2}}).companions
    assert service["kind"] == "Service"
    assert (files["kind"], files["metadata"]["name"]) == ("ConfigMap", "job-files-0")
    hosts = "job-worker-0-0.job.team.svc slots=2\njob-worker-1-0.job.team.svc slots=2\n"
    assert files["data"]["hostfile"] == hosts
    assert (key["kind"], key["type"]) == ("Secret", "kubernetes.io/ssh-auth")
    assert key["metadata"]["name"] == "job-ssh-6d9ce3a2", "with the beginning of the job's UID"
    assert "data" not in key, "its data is random: whoever creates it makes it"


def test_mpi_starts_all_ranks_from_the_launcher():
    launcher = trainers(objects(**MPI))["job-launcher-0-0"]
    command = launcher["command"]
    assert command[:3] == ["mpirun", "-np", "2"]
    assert command[-2:] == ["python3", "train.py"]
    mounts = {mount["mountPath"]: mount["name"] for mount in launcher["volumeMounts"]}
    assert mounts["/etc/allranks"] == "allranks-files"
    assert mounts["/etc/allranks-ssh"] == "allranks-ssh"
    found = environment(launcher, "OMPI_")
    assert found["OMPI_MCA_orte_default_hostfile"] == "/etc/allranks/hostfile"
    assert found["OMPI_MCA_plm_rsh_args"] == "-F /etc/allranks/ssh_config -p 2222 -i /etc/allranks-ssh/ssh-privatekey"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs an ssh client")
@pytest.mark.parametrize("tries", [1, 3])
def test_ssh_waits_for_a_name_that_dns_does_not_know_yet(tmp_path, tries):
    """It is refused then, and would try again: the name alone is not asked for twice by ssh itself."""
    [config] = [made["data"]["ssh_config"] for made in objects(**MPI).companions if made["kind"] == "ConfigMap"]
    assert "ConnectionAttempts 60" in config
    (tmp_path / "config").write_text(config.replace("ConnectionAttempts 60", "ConnectionAttempts 1"))
    getent = tmp_path / "getent"
    getent.write_text(f'#!/bin/sh\necho "$2" >>{tmp_path}/asked\n[ $(wc -l <{tmp_path}/asked) -ge {tries} ]\n')
    getent.chmod(0o755)
    command = ["ssh", "-F", str(tmp_path / "config"), "-p", "1", "localhost", "true"]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SHELL": "/bin/sh"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert "Connection refused" in done.stderr
    assert (tmp_path / "asked").read_text() == tries * "localhost\n"


def forwarded(made: Objects) -> list[str]:
    """Names that mpirun is told to give to its ranks."""
    command = trainers(made)["job-launcher-0-0"]["command"]
    return [command[place + 1] for place, word in enumerate(command) if word == "-x"]


# Sentence, job, names.
FORWARDED = [
    ("ours", MPI, {"ALLRANKS_JOB", "ALLRANKS_ATTEMPT", "PYTHONUNBUFFERED"}),
    ("the job's variables", MPI | {"env": [{"name": "X", "value": "1"}]}, {"X"}),
    (
        "the launcher's variables",
        MPI | {"roles": {"worker": 2, "launcher": {"env": [{"name": "Y", "value": "1"}]}}},
        {"Y"},
    ),
    ("the checkpoint's directory", MPI | {"checkpoint": {"claim": "a"}}, {"ALLRANKS_CHECKPOINT_DIR"}),
]


@table(*FORWARDED)
def test_mpi_gives_variables_to_the_ranks_as_sshd_does_not(case):
    fields, names = case
    assert names <= set(forwarded(objects(**fields)))


def test_mpi_is_told_of_no_variable_that_the_launcher_does_not_have():
    """mpirun warns of each."""
    made = objects(**MPI, env=[{"name": "X", "value": "1"}])
    found = forwarded(made)
    assert set(found) <= {v["name"] for v in trainers(made)["job-launcher-0-0"]["env"]}
    assert len(found) == len(set(found))


def test_mpi_workers_run_a_non_root_sshd_on_an_unprivileged_port():
    for name in ("job-worker-0-0", "job-worker-1-0"):
        worker = trainers(objects(**MPI))[name]
        assert worker["command"][0] == "/usr/sbin/sshd"
        assert "-oPort=2222" in worker["command"]
        assert "args" not in worker
        assert worker["ports"] == [{"name": "ssh", "containerPort": 2222}]
        assert {"name": "allranks-ssh", "mountPath": "/etc/allranks-ssh", "readOnly": True} in worker["volumeMounts"]


def test_a_launcher_with_a_command_of_its_own_starts_its_ranks_itself():
    roles = {"worker": 2, "launcher": {"command": ["horovodrun", "-np", "2", "python3", "x.py"]}}
    launcher = trainers(objects(horovod={"controller": "mpi"}, roles=roles))["job-launcher-0-0"]
    assert launcher["command"] == ["horovodrun", "-np", "2", "python3", "x.py"]


def test_on_one_machine_mpirun_starts_all_ranks_there_and_workers_stand_by():
    made = objects(LOCAL, **MPI)
    found = trainers(made)
    assert [thing["kind"] for thing in made.companions] == ["Service"]
    assert found["job-worker-0-0"]["command"] == ["sleep", "infinity"]
    assert found["job-launcher-0-0"]["command"][:3] == ["mpirun", "-np", "2"]
    assert "OMPI_MCA_orte_default_hostfile" not in environment(found["job-launcher-0-0"], "OMPI_")
