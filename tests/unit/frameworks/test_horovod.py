"""Horovod's wiring: gloo without ssh, and MPI over ssh with a key of the job."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from allranks.core.objects.pods import Objects
from allranks.frameworks.hints import RootCause
from allranks.frameworks.mpirun import read_mpirun_report
from allranks.pod_bundle import HELPERS
from support.builders import CLUSTER, job, table

LOGS = Path(__file__).parents[1] / "core" / "fixtures"
HELPER = ["python3", "/allranks/horovod_gloo.py"]
LAUNCHER = ["/bin/sh", "/etc/allranks/mpi_rank.sh", "launch"]
MPI = {"horovod": {"controller": "MPI"}, "roles": {"worker": 2, "launcher": 1}}
LOCAL = Platform(helper_image="", local=True)


def objects(platform: Platform = CLUSTER, **fields: Any) -> Objects:
    return pods.objects(job(framework="horovod", **fields), Status(), platform)


def trainers(made: Objects) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0] for pod in made.pods}


def environment(trainer: dict[str, Any], *prefixes: str) -> dict[str, str]:
    return {v["name"]: v["value"] for v in trainer["env"] if v["name"].startswith(prefixes)}


def gloo(worker: int, workers: int, slots: int = 1, **more: str) -> dict[str, str]:
    common = {
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
    return common | more


def rank(number: int) -> dict[str, str]:
    return {"HOROVOD_RANK": str(number), "HOROVOD_LOCAL_RANK": "0"}


def hosts(slots: int) -> dict[str, str]:
    return {"ALLRANKS_HOROVOD_HOSTS": f"job-worker-{{}}-0:{slots}"}


# Sentence, job, variables of each worker.
GLOO = [
    (
        "with one slot each worker is one rank",
        {"roles": {"worker": 2}},
        [gloo(0, 2) | rank(0) | hosts(1), gloo(1, 2) | rank(1)],
    ),
    (
        "with two slots the helper assigns the ranks",
        {"roles": {"worker": 2}, "horovod": {"slotsPerWorker": 2}},
        [gloo(0, 2, 2) | hosts(2), gloo(1, 2, 2)],
    ),
    (
        "auto is one slot per GPU",
        {"roles": {"worker": 2}, "resources": {"limits": {"nvidia.com/gpu": 4}}},
        [gloo(0, 2, 4) | hosts(4), gloo(1, 2, 4)],
    ),
    (
        "the port can be set",
        {"roles": {"worker": 1}, "horovod": {"port": 1234}},
        [gloo(0, 1, HOROVOD_GLOO_RENDEZVOUS_PORT="1234") | rank(0) | hosts(1)],
    ),
]


@table(*GLOO)
def test_gloo(case):
    fields, expected = case
    found = trainers(objects(**fields)).values()
    assert [environment(trainer, "HOROVOD_", "ALLRANKS_HOROVOD_") for trainer in found] == expected


@pytest.mark.parametrize("elastic", [None, {"minReplicas": 1, "maxReplicas": 4}])
def test_each_of_several_slots_gets_threads_for_its_share_of_the_cpus(elastic):
    fields = {"roles": {"worker": 2}, "resources": {"limits": {"cpu": 8}}, "elastic": elastic}
    for slots, expected in ((4, {"ALLRANKS_THREADS": "2"}), (1, {})):
        found = trainers(objects(horovod={"slotsPerWorker": slots}, **fields)).values()
        assert [environment(trainer, "ALLRANKS_THREADS") for trainer in found] == [expected] * 2


def test_with_gloo_every_worker_is_started_by_the_helper_and_there_is_no_ssh():
    made = objects(roles={"worker": 2}, command=["python3", "train.py"], args=["--epochs=3"])
    for trainer in trainers(made).values():
        assert trainer["command"] == [*HELPER, "python3", "train.py"]
        assert trainer["args"] == ["--epochs=3"]
    assert [companion["kind"] for companion in made.companions] == ["Service", "Secret"]


@pytest.mark.parametrize("fields", [{}, {"elastic": {"minReplicas": 1, "maxReplicas": 4}}], ids=["fixed", "elastic"])
def test_with_gloo_every_worker_has_the_secret_of_the_job(fields):
    made = objects(roles={"worker": 2}, **fields)
    [secret] = [companion for companion in made.companions if companion["kind"] == "Secret"]
    assert (secret["metadata"]["name"], secret["type"]) == ("job-rendezvous-6d9ce3a2", "Opaque")
    assert "data" not in secret, "the executor adds it: this function is pure, and logs show its result"
    for pod in made.pods:
        trainer = pod["spec"]["containers"][0]
        file = environment(trainer, "ALLRANKS_RENDEZVOUS_")["ALLRANKS_RENDEZVOUS_SECRET_FILE"]
        [name] = [m["name"] for m in trainer["volumeMounts"] if m["mountPath"] == str(Path(file).parent)]
        [volume] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == name]
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
        assert volume["secret"]["optional"], "attempts of an operator without this Secret can be joined"


def test_with_gloo_only_the_first_worker_listens():
    found = trainers(objects(roles={"worker": 2}))
    assert [trainer.get("ports") for trainer in found.values()] == [
        [{"name": "rendezvous", "containerPort": 29400}],
        None,
    ]


def test_an_endpoint_of_the_platform_replaces_the_address_of_the_rendezvous():
    here = Platform(helper_image="", local=True, endpoints={("job-worker-0-0", 29400): ("127.0.0.1", 40001)})
    for trainer in trainers(objects(here, roles={"worker": 2})).values():
        found = environment(trainer, "HOROVOD_GLOO_RENDEZVOUS")
        assert found == {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "40001"}


def test_an_mpi_job_has_its_own_hostfile_and_key():
    service, files, key = objects(**MPI, resources={"limits": {"nvidia.com/gpu": 2}}).companions
    assert service["kind"] == "Service"
    assert (files["kind"], files["metadata"]["name"]) == ("ConfigMap", "job-files-0")
    hosts = "job-worker-0-0.job.team.svc slots=2\njob-worker-1-0.job.team.svc slots=2\n"
    assert files["data"]["hostfile"] == hosts
    assert (key["kind"], key["type"]) == ("Secret", "kubernetes.io/ssh-auth")
    assert key["metadata"]["name"] == "job-ssh-6d9ce3a2", "it contains the beginning of the job's UID"
    assert "data" not in key, "the executor adds the random key when it creates the Secret"


def test_mpi_starts_all_ranks_from_the_launcher():
    launcher = trainers(objects(**MPI))["job-launcher-0-0"]
    command = launcher["command"]
    assert command[:7] == [*LAUNCHER, "job-launcher-0-0.job.team.svc", "mpirun", "-np", "2"]
    assert command[-2:] == ["python3", "train.py"]
    mounts = {mount["mountPath"]: mount["name"] for mount in launcher["volumeMounts"]}
    assert mounts["/etc/allranks"] == "allranks-files"
    assert mounts["/etc/allranks-ssh"] == "allranks-ssh"
    found = environment(launcher, "OMPI_")
    assert found["OMPI_MCA_orte_default_hostfile"] == "/etc/allranks/hostfile"
    assert found["OMPI_MCA_plm_rsh_args"] == "-F /etc/allranks/ssh_config -p 2222"


@pytest.mark.parametrize("platform", [CLUSTER, LOCAL], ids=["cluster", "laptop"])
@pytest.mark.parametrize(
    "kind", [{}, MPI, {"elastic": {"minReplicas": 1, "maxReplicas": 4}}], ids=["gloo", "mpi", "elastic"]
)
def test_ranks_use_legacy_keras_unless_the_job_sets_it(platform: Platform, kind: dict[str, Any]):
    name = "TF_USE_LEGACY_KERAS"
    first = "job-launcher-0-0" if kind is MPI else "job-worker-0-0"
    assert environment(trainers(objects(platform, **kind))[first], name) == {name: "1"}
    own = trainers(objects(platform, env=[{"name": name, "value": "0"}], **kind))[first]
    assert environment(own, name) == {name: "0"}
    if kind is MPI:  # sshd passes no variables on
        assert own["command"].count(name) == 1


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs an ssh client")
@pytest.mark.parametrize("tries", [1, 3])
def test_ssh_waits_until_dns_resolves_the_name(tmp_path, tries):
    """ssh itself retries a refused connection, but not a name that cannot be resolved."""
    [config] = [made["data"]["ssh_config"] for made in objects(**MPI).companions if made["kind"] == "ConfigMap"]
    assert "ConnectionAttempts 60" in config
    (tmp_path / "config").write_text(config.replace("ConnectionAttempts 60", "ConnectionAttempts 1"))
    getent = tmp_path / "getent"
    getent.write_text(f'#!/bin/sh\necho "$2" >>{tmp_path}/queries\n[ $(wc -l <{tmp_path}/queries) -ge {tries} ]\n')
    getent.chmod(0o755)
    command = ["ssh", "-F", str(tmp_path / "config"), "-p", "1", "localhost", "true"]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SHELL": "/bin/sh"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert "Connection refused" in done.stderr
    assert (tmp_path / "queries").read_text() == tries * "localhost\n"


def forwarded(made: Objects) -> list[str]:
    """Names of the variables that mpirun forwards to its ranks."""
    command = trainers(made)["job-launcher-0-0"]["command"]
    return [command[place + 1] for place, word in enumerate(command) if word == "-x"]


# Sentence, job, names.
FORWARDED = [
    ("allranks' own variables", MPI, {"ALLRANKS_JOB", "ALLRANKS_JOB_UID", "ALLRANKS_ATTEMPT", "PYTHONUNBUFFERED"}),
    ("the job's variables", MPI | {"env": [{"name": "X", "value": "1"}]}, {"X"}),
    (
        "the launcher's variables",
        MPI | {"roles": {"worker": 2, "launcher": {"env": [{"name": "Y", "value": "1"}]}}},
        {"Y"},
    ),
    ("the checkpoint's directory", MPI | {"checkpoint": {"claim": "a"}}, {"ALLRANKS_CHECKPOINT_DIR"}),
]


@table(*FORWARDED)
def test_mpirun_forwards_variables_to_the_ranks_because_sshd_does_not(case):
    fields, names = case
    assert names <= set(forwarded(objects(**fields)))


def test_mpirun_forwards_only_variables_that_the_launcher_has():
    """It prints a warning for each other one."""
    made = objects(**MPI, env=[{"name": "X", "value": "1"}])
    found = forwarded(made)
    assert set(found) <= {v["name"] for v in trainers(made)["job-launcher-0-0"]["env"]}
    assert len(found) == len(set(found))


def test_mpi_workers_run_a_non_root_sshd_on_an_unprivileged_port():
    for name in ("job-worker-0-0", "job-worker-1-0"):
        worker = trainers(objects(**MPI))[name]
        assert "/usr/sbin/sshd" in worker["command"]
        assert "-oPort=2222" in worker["command"]
        assert "args" not in worker
        assert worker["ports"] == [{"name": "ssh", "containerPort": 2222}]
        assert {"name": "allranks-ssh", "mountPath": "/etc/allranks-ssh", "readOnly": True} in worker["volumeMounts"]


def test_the_command_of_a_launcher_replaces_mpirun():
    roles = {"worker": 2, "launcher": {"command": ["horovodrun", "-np", "2", "python3", "x.py"]}}
    launcher = trainers(objects(horovod={"controller": "MPI"}, roles=roles))["job-launcher-0-0"]
    own = ["horovodrun", "-np", "2", "python3", "x.py"]
    assert launcher["command"] == [*LAUNCHER, "job-launcher-0-0.job.team.svc", *own]


def test_in_a_local_run_mpirun_starts_all_ranks_and_the_workers_only_wait():
    made = objects(LOCAL, **MPI)
    found = trainers(made)
    assert [companion["kind"] for companion in made.companions] == ["Service", "ConfigMap"]
    assert set(made.companions[1]["data"]) == {"mpi_rank.py", "mpi_rank.sh"}
    assert found["job-worker-0-0"]["command"] == ["sleep", "infinity"]
    assert found["job-launcher-0-0"]["command"][:7] == [*LAUNCHER, "127.0.0.1", "mpirun", "-np", "2"]
    assert "OMPI_MCA_orte_default_hostfile" not in environment(found["job-launcher-0-0"], "OMPI_")


def test_the_wrapper_of_mpi_ranks_is_in_all_pods_without_an_init_container():
    made = objects(**MPI)
    [files] = [companion["data"] for companion in made.companions if companion["kind"] == "ConfigMap"]
    assert files["mpi_rank.py"] == (HELPERS / "mpi_rank.py").read_text()
    for pod in made.pods:
        assert "initContainers" not in pod["spec"]
        assert "/etc/allranks" in [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]


def test_the_wiring_of_elastic_workers_has_the_bounds_but_not_the_number_of_workers():
    made = objects(elastic={"minReplicas": 1, "maxReplicas": 4}, roles={"worker": 2})
    first, second = (environment(trainer, "HOROVOD_", "ALLRANKS_HOROVOD_") for trainer in trainers(made).values())
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "job-worker-0-0.job.team.svc",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29400",
        "HOROVOD_LOCAL_SIZE": "1",
        "ALLRANKS_HOROVOD_MIN": "1",
        "ALLRANKS_HOROVOD_MAX": "4",
        "ALLRANKS_HOROVOD_WAIT_SECONDS": "60",
    }
    assert first == common | {"HOROVOD_HOSTNAME": "job-worker-0-0", "ALLRANKS_HOROVOD_WORKERS": "2"}
    assert second == common | {"HOROVOD_HOSTNAME": "job-worker-1-0"}
    commands = [trainer["command"] for trainer in trainers(made).values()]
    assert commands == [["python3", "/allranks/horovod_elastic.py", "python3", "train.py"]] * 2


DENIED = "ValueError: learning rate must not be negative: -0.1"

# Sentence, log, rank, exit code, signal, last line.
MPIRUN = [
    ("a rank that raises", "helper-raise", (1, 1, None, DENIED)),
    ("a rank that is killed", "helper-kill", (1, 137, 9, "rank 1 has no data")),
    ("a rank that exits and is not the first to end", "helper-exit", (1, 3, None, "rank 1 has no data")),
    ("by mpirun alone, a rank that raises", "raise", (1, 1, None, "ValueError: the learning rate must be positive")),
    ("by mpirun alone, a rank that is killed", "kill", (1, 137, 9, "rank 1 was ended by signal 9")),
    ("by mpirun alone, a rank that requests a restart", "exit", (1, 138, None, "rank 1 exited with code 138")),
]


@pytest.mark.parametrize("cut", [False, True], ids=["the whole log", "the part that the kubelet keeps"])
@table(*MPIRUN)
def test_the_report_names_the_rank_that_failed_first(case, cut):
    name, (rank, code, signal, last_line) = case
    text = (LOGS / f"mpirun-{name}.log").read_text()
    found = read_mpirun_report(as_kubelet(text) if cut else text)
    assert found
    assert (found.rank, found.exit_code, found.signal) == (rank, code, signal)
    assert found.message.splitlines()[-1] == last_line
    assert not [word for word in ("mpirun", "has been shut down", "allranks: ") if word in found.message]
    assert (found.time is None) == (not name.startswith("helper"))


def as_kubelet(text: str) -> str:
    """FallbackToLogsOnError: the last 80 lines, of these the last 2048 bytes."""
    return "".join(text.splitlines(keepends=True)[-80:]).encode()[-2048:].decode(errors="ignore")


def report(how: str, rank: int = 1) -> str:
    return f"allranks: rank {rank} failed first, at 2026-11-22_01:45:14, by {how}"


WHEN = datetime(2026, 11, 22, 1, 45, 14)

# Sentence, the end of the log, the root cause.
REPORTS = [
    (
        "only an exit code",
        report("exit code 3"),
        RootCause(1, 3, None, "rank 1 exited with code 3", WHEN),
    ),
    ("only a signal", report("signal 9\n"), RootCause(1, 137, 9, "rank 1 was ended by signal 9", WHEN)),
    (
        "after a line without a newline",
        "50%" + report("exit code 3. Its last lines:\nKeyError: 1\n"),
        RootCause(1, 3, None, "KeyError: 1", WHEN),
    ),
    (
        "the last of several",
        report("signal 6\n", rank=0) + report("exit code 3. Its last lines:\na\nb"),
        RootCause(1, 3, None, "a\nb", WHEN),
    ),
]


@table(*REPORTS)
def test_report_of_the_helper(case):
    text, expected = case
    assert read_mpirun_report(text) == expected


@pytest.mark.parametrize("when", ["2026-11-22_01:45:14", "2026-13-41_29:99:99", "now"])
def test_text_that_only_resembles_a_report_is_ignored(when):
    text = f"allranks: rank one failed first, at {when}, by exit code 3"
    assert read_mpirun_report(text) is None
    assert when[:7] == "2026-11" or read_mpirun_report(text.replace("one", "1")) is None


def test_a_log_without_a_report_of_mpirun_has_no_root_cause():
    assert read_mpirun_report("Traceback (most recent call last):\nKeyError: 'loss'\n") is None
