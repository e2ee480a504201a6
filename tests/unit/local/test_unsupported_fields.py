"""Notes on settings without an effect on one machine, and jobs that cannot run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allranks.errors import CannotRun
from allranks.local import LocalRun, Options
from support.builders import job as job_of


def notes_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...] = (), **spec: Any) -> list[str]:
    monkeypatch.setattr("allranks.local.runner.list_gpus", lambda _: list(gpus))
    options = Options(run_dir=tmp_path / "run", workdir=tmp_path, volumes=spec.pop("volumes", {}), environ={})
    return LocalRun(job_of("pytorch", {"master": 1, "worker": 2}, **spec), options).check()


def test_there_is_no_note_on_fields_that_a_manifest_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert notes_of(tmp_path, monkeypatch) == ["image me/train:1 is not used here: programs come from this machine"]
    assert not (tmp_path / "run").exists()


def test_each_setting_without_an_effect_has_one_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        restart={"holdSeconds": 60},
    )
    run = tmp_path / "run/volumes"
    assert said == [
        "image me/train:1 is not used here: programs come from this machine",
        "the job asks for 6 GPUs, this machine has none: all ranks run on the CPU",
        "resources are not limited here: memory",
        "pool gpu is not used here: it describes nodes of a cluster, their GPUs and their variables",
        "pods are not placed here, so these do nothing: nodeSelector, tolerations, scheduling.priorityClassName",
        "securityContext, livenessProbe: not applied to processes",
        "envFrom tokens is not on this machine: export its variables before allranks run",
        "restart.holdSeconds is ignored here: the logs of a failed run stay in its directory",
        "/scratch (scratch) is a separate directory for each pod, removed with the pod",
        f"/data is {tmp_path}",
        f"/checkpoints (claim weights) is {run}/weights, new for this run: --volume weights=DIR keeps it",
        f"workingDir /workspace/x is not on this machine: programs start in {tmp_path} (--workdir)",
    ]


ASKED = "the job asks for 3 GPUs, this machine has"


@pytest.mark.parametrize(
    ("asked", "has", "said"),
    [
        (1, "abc", f"{ASKED} 3: each pod sees its own (CUDA_VISIBLE_DEVICES)"),
        (1, "a", f"{ASKED} 1: all ranks run on the CPU (CUDA_VISIBLE_DEVICES is empty)"),
        (0, "a", "this machine has 1 GPU, the job asks for none (resources.limits, nvidia.com/gpu): all ranks run on "
                 "the CPU, as on a cluster"),
    ],
)  # fmt: skip
def test_requested_gpus_are_compared_with_those_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, has: str, said: str
) -> None:
    resources = {"limits": {"nvidia.com/gpu": asked}} if asked else {}
    assert notes_of(tmp_path, monkeypatch, tuple(has), resources=resources)[1:] == [said]


NO_GPUS = "spec.pytorch.backend: NCCL needs GPUs, and the ranks of this job have none: use Gloo or Auto"


@pytest.mark.parametrize(
    ("fields", "has", "said"),
    [
        ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "", [NO_GPUS]),
        ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "abc", []),
        ({"pool": "h200"}, "", [NO_GPUS]),
        ({}, "", []),  # commands print the advice that follows from the manifest
    ],
)
def test_nccl_on_a_machine_without_gpus_is_noted_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], has: str, said: list[str]
) -> None:
    notes = notes_of(tmp_path, monkeypatch, tuple(has), pytorch={"backend": "NCCL"}, **fields)
    assert [note for note in notes if "NCCL" in note] == said


def test_a_job_that_cannot_run_here_is_rejected_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotRun, match="has no command, and its image's entrypoint is not available here"):
        notes_of(tmp_path, monkeypatch, command=[])
    assert not (tmp_path / "run").exists()


def test_more_pods_than_the_open_file_limit_allows_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.local.runner.resource.getrlimit", lambda _: (64, 70))
    with pytest.raises(CannotRun, match="3 pods need 76 open files, and 70 are allowed: raise the limit"):
        notes_of(tmp_path, monkeypatch)
