"""The command of a container on this machine: its variables, its directories, and reasons why it cannot run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from allranks.core.facts.model import Manifest
from allranks.local.environment import (
    expand,
    hash_seed_default,
    loopback_defaults,
    machine_environment,
    quantity,
    threads_default,
)
from allranks.local.prepare import Machine, PodPlan, prepare
from allranks.local.volumes import Mounts, Volumes


def pod(container: dict[str, Any] | None = None, **spec: Any) -> Manifest:
    trainer = {"name": "trainer", "command": ["train"], **(container or {})}
    metadata = {"name": "job-worker-1-0", "namespace": "lab", "uid": "u-1", "labels": {"team": "birds"}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [trainer], **spec}}


def machine(tmp_path: Path, environ: dict[str, str] | None = None, **mapped: Path) -> Machine:
    volumes = Volumes(tmp_path / "run", mapped, {})
    return Machine(machine_environment(environ or {}), volumes, tmp_path)


def planned(manifest: Manifest, where: Machine) -> PodPlan:
    plan, problems = prepare(manifest, where)
    assert plan is not None, problems
    return plan


def refused(manifest: Manifest, where: Machine) -> list[str]:
    plan, problems = prepare(manifest, where)
    assert plan is None
    return problems


def env_of(manifest: Manifest, where: Machine) -> dict[str, str]:
    return planned(manifest, where).main[0].command.env


# Launchers.


@pytest.mark.parametrize(
    ("program", "package"),
    [("torchrun", "pip install torch"), ("accelerate", "pip install accelerate"), ("mpiexec", "install an MPI")],
)
def test_a_launcher_that_is_not_installed_is_named_with_its_package(tmp_path: Path, program: str, package: str) -> None:
    environ = {"PATH": str(tmp_path)}
    manifest = pod({"command": [program, "train.py"]})
    [problem] = refused(manifest, machine(tmp_path, environ))
    assert problem.startswith(f"{program} is not on PATH of this machine: activate the environment that has it, or ")
    assert package in problem
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    assert planned(manifest, machine(tmp_path, environ))
    assert planned(pod({"command": ["/opt/torch/bin/torchrun"]}), machine(tmp_path, environ)), (
        "a path is tried as it is"
    )


# Environment.


def test_rank_variables_of_another_job_are_dropped_and_the_users_own_are_kept() -> None:
    outside = {
        "HOME": "/h",
        "PATH": "/bin",
        "RANK": "3",
        "PET_NNODES": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "TF_CONFIG": "{}",
    }
    outside |= {
        "HOROVOD_RANK": "0",
        "ALLRANKS_ROLE": "worker",
        "PMIX_RANK": "1",
        "WANDB_API_KEY": "k",
        "OMP_NUM_THREADS": "2",
    }
    inside = machine_environment(outside)
    assert set(inside) == {"HOME", "PATH", "WANDB_API_KEY", "OMP_NUM_THREADS"}


def test_programs_of_the_virtual_environment_are_last_in_the_path() -> None:
    assert machine_environment({"PATH": "/bin"})["PATH"] == f"/bin:{Path(sys.executable).parent}"


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/x", "1/x"),
        ("$$(A)", "$(A)"),
        ("$(NOPE) $A", "$(NOPE) $A"),
        ("$(A)$(A)", "11"),
        ("$(EMPTY)", ""),
    ],
)
def test_references_expand_as_in_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "EMPTY": ""}) == expanded


def test_a_variable_may_refer_to_those_before_it_and_the_command_to_all(tmp_path: Path) -> None:
    env = [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "x"}, {"name": "C", "value": "$(A)-$(B)"}]
    plan = planned(pod({"env": env, "args": ["--c=$(C)", "$(PATH)"]}), machine(tmp_path))
    command = plan.main[0].command
    assert {name: command.env[name] for name in "ABC"} == {"A": "x", "B": "$(A)", "C": "x-$(A)"}
    assert command.argv == ("train", "--c=x-$(A)", "$(PATH)")  # $(PATH) is not a variable of the manifest


def test_fields_of_the_pod_are_resolved(tmp_path: Path) -> None:
    paths = ["metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['team']", "status.podIP"]
    paths += ["status.hostIP", "spec.nodeName"]
    env = [{"name": f"F{n}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in enumerate(paths)]
    got = env_of(pod({"env": env}), machine(tmp_path))
    expected = ["job-worker-1-0", "lab", "u-1", "birds", "127.0.0.1", "127.0.0.1", os.uname().nodename]
    assert [got[f"F{n}"] for n in range(len(paths))] == expected


def test_resources_are_resolved_in_their_units(tmp_path: Path) -> None:
    def reference(resource: str, **more: str) -> dict[str, Any]:
        return {"valueFrom": {"resourceFieldRef": {"resource": resource, **more}}}

    env = [
        {"name": "MEMORY", **reference("limits.memory", divisor="1Mi")},
        {"name": "CPU", **reference("limits.cpu")},
        {"name": "ALL", **reference("requests.cpu")},
    ]
    got = env_of(pod({"env": env, "resources": {"limits": {"memory": "2Gi", "cpu": "1500m"}}}), machine(tmp_path))
    assert (got["MEMORY"], got["CPU"], got["ALL"]) == ("2048", "2", "2")
    assert quantity("1e3") == 1000


def test_a_secrets_value_comes_from_the_users_environment_or_is_an_error(tmp_path: Path) -> None:
    def secret(**more: Any) -> Manifest:
        reference = {"secretKeyRef": {"name": "wandb", "key": "key", **more}}
        return pod({"env": [{"name": "WANDB_API_KEY", "valueFrom": reference}]})

    assert env_of(secret(), machine(tmp_path, {"WANDB_API_KEY": "mine"}))["WANDB_API_KEY"] == "mine"
    assert refused(secret(), machine(tmp_path)) == [
        "WANDB_API_KEY comes from secret wandb, which is not on this machine: export WANDB_API_KEY before allranks run"
    ]
    assert "WANDB_API_KEY" not in env_of(secret(optional=True), machine(tmp_path))


def test_ranks_use_the_loopback_interface_unless_a_variable_is_set(tmp_path: Path) -> None:
    assert env_of(pod(), machine(tmp_path))["GLOO_SOCKET_IFNAME"] == "lo"
    assert env_of(pod(), machine(tmp_path, {"GLOO_SOCKET_IFNAME": "eth1"}))["GLOO_SOCKET_IFNAME"] == "eth1"
    own = pod({"env": [{"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}]})
    assert env_of(own, machine(tmp_path))["GLOO_SOCKET_IFNAME"] == "eth0"


def test_ranks_do_not_use_a_proxy_for_each_other() -> None:
    assert loopback_defaults({"http_proxy": "http://p", "no_proxy": "intra"})["no_proxy"] == "intra,localhost,127.0.0.1"
    assert "no_proxy" not in loopback_defaults({})


# Volumes.


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/data", "/real"),
        ("/data/train.csv", "/real/train.csv"),
        ("--dir=/data/x", "--dir=/real/x"),
        ("/lib:/data/lib", "/lib:/real/lib"),
        ("cd /data && ls '/data/x' > /data/y", "cd /real && ls '/real/x' > /real/y"),
        ("/data/deep/x", "/other/x"),
        ("/database", "/database"),
        ("/my/data", "/my/data"),
        ("s3://data/x", "s3://data/x"),
        ("/data-2", "/data-2"),
    ],
)
def test_mount_paths_are_replaced_where_the_manifest_names_them(text: str, rewritten: str) -> None:
    mounts = Mounts({"/data": Path("/real"), "/data/deep": Path("/other")})
    assert mounts.rewrite(text) == rewritten


def mounting(volume: dict[str, Any], **mount: Any) -> Manifest:
    container = {
        "args": ["--in=/in/x"],
        "env": [{"name": "IN", "value": "/in"}],
        "workingDir": "/in/src",
        "volumeMounts": [{"name": "v", "mountPath": "/in", **mount}],
    }
    return pod(container, volumes=[{"name": "v", **volume}])


def test_an_empty_dir_is_the_pods_own_directory(tmp_path: Path) -> None:
    where = machine(tmp_path)
    command = planned(mounting({"emptyDir": {"medium": "Memory"}}), where).main[0].command
    directory = tmp_path / "run/pods/job-worker-1-0/v"
    assert command.argv == ("train", f"--in={directory}/x")
    assert command.env["IN"] == str(directory)
    assert command.directory == directory / "src"


def test_sub_paths_are_created(tmp_path: Path) -> None:
    where = machine(tmp_path, v=tmp_path / "mine")
    plan = planned(mounting({"emptyDir": {}}, subPath="runs/1"), where)
    assert plan.main[0].command.env["IN"] == str(tmp_path / "mine/runs/1")
    where.volumes.make_folders(plan.folders)
    assert (tmp_path / "mine/runs/1").is_dir()


def test_a_claim_is_one_directory_for_all_pods_or_the_users_own(tmp_path: Path) -> None:
    claim = mounting({"persistentVolumeClaim": {"claimName": "corpus"}})
    assert env_of(claim, machine(tmp_path))["IN"] == str(tmp_path / "run/volumes/corpus")
    for name in ("corpus", "v"):
        assert env_of(claim, machine(tmp_path, **{name: tmp_path / "mine"}))["IN"] == str(tmp_path / "mine")


@pytest.mark.parametrize("kind", ["configMap", "secret", "hostPath", "nfs", "csi", "projected"])
def test_a_volume_without_a_directory_is_an_error(tmp_path: Path, kind: str) -> None:
    manifest = mounting({kind: {"name": "settings"}})
    assert refused(manifest, machine(tmp_path)) == [
        f"volume v ({kind}) is not on this machine: give its directory with --volume v=DIR"
    ]
    assert env_of(manifest, machine(tmp_path, v=tmp_path))["IN"] == str(tmp_path)


def test_a_volume_that_is_not_mounted_needs_no_directory(tmp_path: Path) -> None:
    planned(pod(volumes=[{"name": "v", "hostPath": {"path": "/x"}}]), machine(tmp_path))


def test_config_maps_of_the_job_itself_are_files(tmp_path: Path) -> None:
    where = machine(tmp_path)
    where.volumes.add_files({"kind": "ConfigMap", "metadata": {"name": "hosts"}, "data": {"hostfile": "a\nb\n"}})
    plan = planned(mounting({"configMap": {"name": "hosts", "defaultMode": 0o755}}), where)
    for volume, _ in plan.directories:
        where.volumes.make("job-worker-1-0", volume)
    file = tmp_path / "run/pods/job-worker-1-0/v/hostfile"
    assert (file.read_text(), oct(file.stat().st_mode)[-3:]) == ("a\nb\n", "755")
    where.volumes.remove("job-worker-1-0")
    assert not file.exists()


def test_a_variable_from_a_config_map_of_the_job_itself_has_its_value_and_others_may_refer_to_it(
    tmp_path: Path,
) -> None:
    where = machine(tmp_path, environ={"HOSTS": "of the machine"})
    where.volumes.add_files({"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"hosts": '["$(A)"]'}})
    reference = {"configMapKeyRef": {"name": "mine", "key": "hosts"}}
    env = [{"name": "A", "value": "1"}, {"name": "HOSTS", "valueFrom": reference}, {"name": "B", "value": "{$(HOSTS)}"}]
    found = env_of(pod({"env": env}), where)
    # As on a cluster, a value that comes from a ConfigMap is not expanded itself.
    assert (found["HOSTS"], found["B"]) == ('["$(A)"]', '{["$(A)"]}')


def test_shared_memory_is_this_machines_own(tmp_path: Path) -> None:
    container = {"args": ["/dev/shm/x"], "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}]}
    plan = planned(pod(container, volumes=[{"name": "dshm", "emptyDir": {"medium": "Memory"}}]), machine(tmp_path))
    assert plan.main[0].command.argv == ("train", "/dev/shm/x")
    assert dict(plan.mounted) == {}


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    container = {
        "command": [],
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "volumeMounts": [{"name": "gone", "mountPath": "/x"}],
    }
    assert refused(pod(container), machine(tmp_path)) == [
        "TOKEN comes from secret s, which is not on this machine: export TOKEN before allranks run",
        "container trainer mounts volume gone, which the pod does not have",
        "container trainer has no command, and its image's entrypoint is not available here: set spec.command",
    ]


# GPUs.


def test_a_manifest_that_sets_visible_gpus_is_not_changed(tmp_path: Path) -> None:
    container = {
        "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    assert planned(pod(container), machine(tmp_path)).gpus is None


def test_all_ranks_of_a_job_have_one_seed_of_hashes_unless_the_user_sets_it():
    rank = {"ALLRANKS_JOB_UID": "uid-1"}
    assert hash_seed_default(rank | {"RANK": "0"}) == hash_seed_default(rank | {"RANK": "1"}) != {}
    assert hash_seed_default(rank) != hash_seed_default({"ALLRANKS_JOB_UID": "uid-2"})
    assert hash_seed_default(rank | {"PYTHONHASHSEED": "0"}) == {}


def test_ranks_that_share_this_machine_share_its_cpus_unless_the_user_sets_their_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    rank = {"ALLRANKS_JOB_UID": "uid-1"}
    assert threads_default(rank, 4) == {"OMP_NUM_THREADS": "2"}
    assert threads_default(rank, 16) == {"OMP_NUM_THREADS": "1"}
    assert threads_default(rank, 1) == {}
    assert threads_default(rank | {"OMP_NUM_THREADS": "6"}, 4) == {}
    assert threads_default({}, 4) == {}, "a container beside the ranks"
