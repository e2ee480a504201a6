"""What a pod finds on this machine: variables, directories, ports, GPUs, and what is said about the rest."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from allranks.core.model import Manifest
from allranks.errors import CannotRun
from allranks.local import LocalRun, Options, ports
from allranks.local.environment import expand, loopback_defaults, machine_environment, quantity
from allranks.local.gpus import Gpus, narrow, parse
from allranks.local.prepare import Machine, PodPlan, prepare
from allranks.local.volumes import Mounts, Volumes
from support.builders import job as job_of


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


# Environment.


def test_wiring_of_another_job_does_not_leak_in_and_the_users_own_variables_do() -> None:
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


def test_programs_of_allranks_own_environment_are_found_last() -> None:
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
    assert command.argv == ("train", "--c=x-$(A)", "$(PATH)")  # the machine's own variables are not the manifest's


def test_fields_of_the_pod_are_there(tmp_path: Path) -> None:
    paths = ["metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['team']", "status.podIP"]
    paths += ["status.hostIP", "spec.nodeName"]
    env = [{"name": f"F{n}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in enumerate(paths)]
    got = env_of(pod({"env": env}), machine(tmp_path))
    expected = ["job-worker-1-0", "lab", "u-1", "birds", "127.0.0.1", "127.0.0.1", os.uname().nodename]
    assert [got[f"F{n}"] for n in range(len(paths))] == expected


def test_resources_are_there_in_their_units(tmp_path: Path) -> None:
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


def test_a_secrets_value_comes_from_the_users_own_environment_or_is_asked_for(tmp_path: Path) -> None:
    def secret(**more: Any) -> Manifest:
        reference = {"secretKeyRef": {"name": "wandb", "key": "key", **more}}
        return pod({"env": [{"name": "WANDB_API_KEY", "valueFrom": reference}]})

    assert env_of(secret(), machine(tmp_path, {"WANDB_API_KEY": "mine"}))["WANDB_API_KEY"] == "mine"
    assert refused(secret(), machine(tmp_path)) == [
        "WANDB_API_KEY comes from secret wandb, which is not on this machine: export WANDB_API_KEY before allranks run"
    ]
    assert "WANDB_API_KEY" not in env_of(secret(optional=True), machine(tmp_path))


def test_ranks_are_told_to_use_the_loopback_interface_unless_somebody_said_otherwise(tmp_path: Path) -> None:
    assert env_of(pod(), machine(tmp_path))["GLOO_SOCKET_IFNAME"] == "lo"
    assert env_of(pod(), machine(tmp_path, {"GLOO_SOCKET_IFNAME": "eth1"}))["GLOO_SOCKET_IFNAME"] == "eth1"
    own = pod({"env": [{"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}]})
    assert env_of(own, machine(tmp_path))["GLOO_SOCKET_IFNAME"] == "eth0"


def test_a_proxy_does_not_come_between_ranks() -> None:
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


def test_sub_paths_are_respected_and_made(tmp_path: Path) -> None:
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
def test_a_volume_that_is_not_here_is_asked_for(tmp_path: Path, kind: str) -> None:
    manifest = mounting({kind: {"name": "settings"}})
    assert refused(manifest, machine(tmp_path)) == [
        f"volume v ({kind}) is not on this machine: give its directory with --volume v=DIR"
    ]
    assert env_of(manifest, machine(tmp_path, v=tmp_path))["IN"] == str(tmp_path)


def test_a_volume_that_nobody_mounts_is_not_asked_for(tmp_path: Path) -> None:
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


def test_shared_memory_is_this_machines_own(tmp_path: Path) -> None:
    container = {"args": ["/dev/shm/x"], "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}]}
    plan = planned(pod(container, volumes=[{"name": "dshm", "emptyDir": {"medium": "Memory"}}]), machine(tmp_path))
    assert plan.main[0].command.argv == ("train", "/dev/shm/x")
    assert dict(plan.mounted) == {}


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
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


# Ports.


def test_ports_are_free_different_and_not_those_of_outgoing_connections() -> None:
    wanted = [(f"host-{number}", 29500) for number in range(200)]
    chosen = ports.choose(wanted)
    assert list(chosen) == wanted
    numbers = [port for _, port in chosen.values()]
    assert len(set(numbers)) == 200
    assert max(numbers) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with socket.create_server(chosen[wanted[0]]):
        pass


def test_a_port_that_somebody_listens_on_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        numbers = iter([taken.getsockname()[1], 23_457])
        monkeypatch.setattr(ports.random, "randrange", lambda *_: next(numbers))
        assert ports.choose([("host", 1)]) == {("host", 1): ("127.0.0.1", 23_457)}


# GPUs.

LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaa)
GPU 1: NVIDIA H200 (UUID: GPU-bbb)
  MIG 1g.18gb     Device  0: (UUID: MIG-ccc)
  MIG 1g.18gb     Device  1: (UUID: MIG-ddd)
GPU 2: NVIDIA H200 (UUID: GPU-eee)
"""


def test_gpus_are_listed_and_split_ones_by_their_parts() -> None:
    assert parse(LISTING) == [("0", "GPU-aaa"), ("", "MIG-ccc"), ("", "MIG-ddd"), ("2", "GPU-eee")]
    assert narrow(parse(LISTING), None) == ["0", "MIG-ccc", "MIG-ddd", "2"]
    assert narrow(parse(LISTING), "2,0,7") == ["2", "0"]
    assert narrow(parse(LISTING), "MIG-d") == ["MIG-d"]
    assert narrow(parse(LISTING), "") == []


def test_each_pod_gets_its_own_gpus_and_waits_for_those_of_an_earlier_attempt() -> None:
    async def scenario() -> None:
        gpus = Gpus(["a", "b", "c"], {"CUDA_VISIBLE_DEVICES": "a,b,c"})
        assert await gpus.acquire("one", 2) == {"CUDA_VISIBLE_DEVICES": "a,b"}
        assert await gpus.acquire("none", 0) == {"CUDA_VISIBLE_DEVICES": ""}
        waiting = asyncio.create_task(gpus.acquire("two", 2))
        await asyncio.sleep(0)
        assert not waiting.done()
        gpus.release("one")
        assert await waiting == {"CUDA_VISIBLE_DEVICES": "c,a"}

    asyncio.run(scenario())


def test_without_gpus_nothing_is_said_to_cuda_and_with_too_few_all_ranks_are_alike() -> None:
    async def scenario() -> None:
        assert await Gpus([], {}).acquire("one", 1) == {}
        few = Gpus(["0"], {})
        few.enabled = False
        assert await few.acquire("one", 1) == {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    asyncio.run(scenario())


def test_a_manifest_that_says_which_gpus_are_visible_is_left_alone(tmp_path: Path) -> None:
    container = {
        "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    assert planned(pod(container), machine(tmp_path)).gpus is None


# Notes.


def notes_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...] = (), **spec: Any) -> list[str]:
    monkeypatch.setattr("allranks.local.runner.list_gpus", lambda _: list(gpus))
    options = Options(run_dir=tmp_path / "run", workdir=tmp_path, volumes=spec.pop("volumes", {}), environ={})
    return LocalRun(job_of("pytorch", {"master": 1, "worker": 2}, **spec), options).check()


def test_nothing_is_said_of_what_a_manifest_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes_of(tmp_path, monkeypatch) == ["image me/train:1 is not used here: programs come from this machine"]
    assert not (tmp_path / "run").exists()


def test_what_this_machine_does_not_do_is_said_in_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = {
        "name": "trainer",
        "livenessProbe": {"exec": {"command": ["true"]}},
        "envFrom": [{"secretRef": {"name": "tokens"}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "data", "mountPath": "/data"}],
    }
    template = {
        "spec": {
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"fsGroup": 1},
            "containers": [trainer],
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "data", "hostPath": {"path": "/mnt"}}],
        }
    }
    said = notes_of(
        tmp_path,
        monkeypatch,
        volumes={"data": tmp_path},
        template=template,
        resources={"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}},
        workingDir="/workspace/x",
        checkpoint={"claim": "weights"},
        scheduling={"priorityClassName": "high"},
        pool="gpu",
    )
    run = tmp_path / "run/volumes"
    assert said == [
        "image me/train:1 is not used here: programs come from this machine",
        "the job requests 6 GPUs, this machine has none: all ranks run on the CPU",
        "resources are not limited here: memory",
        "pool gpu is not used here: it describes nodes of a cluster, their GPUs and their variables",
        "pods are not placed here, so these do nothing: nodeSelector, tolerations, scheduling.priorityClassName",
        "securityContext, livenessProbe: not applied to processes",
        "envFrom tokens is not on this machine: export its variables before allranks run",
        "/scratch (scratch) is a separate directory for each pod, removed with the pod",
        f"/data is {tmp_path}",
        f"/checkpoints (claim weights) is {run}/weights, new for this run: --volume weights=DIR keeps it",
        f"workingDir /workspace/x is not on this machine: programs start in {tmp_path} (--workdir)",
    ]


ASKED = "the job requests 3 GPUs, this machine has"


@pytest.mark.parametrize(
    ("asked", "has", "said"),
    [
        (1, "abc", f"{ASKED} 3: each pod sees its own (CUDA_VISIBLE_DEVICES)"),
        (1, "a", f"{ASKED} 1: all ranks run on the CPU (CUDA_VISIBLE_DEVICES is empty)"),
        (0, "a", "this machine has 1 GPU, the job requests none (resources.limits, nvidia.com/gpu): all ranks run on "
                 "the CPU, as on a cluster"),
    ],
)  # fmt: skip
def test_gpus_asked_for_are_compared_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, has: str, said: str
) -> None:
    resources = {"limits": {"nvidia.com/gpu": asked}} if asked else {}
    assert notes_of(tmp_path, monkeypatch, tuple(has), resources=resources)[1:] == [said]


def test_what_cannot_run_here_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotRun, match="has no command, and its image's entrypoint is not available here"):
        notes_of(tmp_path, monkeypatch, command=[])
    assert not (tmp_path / "run").exists()


def test_more_pods_than_open_files_allow_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allranks.local.runner.resource.getrlimit", lambda _: (64, 70))
    with pytest.raises(CannotRun, match="3 pods need 76 open files, and 70 are allowed: raise the limit"):
        notes_of(tmp_path, monkeypatch)
