"""Sweeps on a real API server, with real processes as trials, and an operator that dies."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import live
from support.api import Manifest
from support.controlplane import ControlPlane, free_ports
from support.live import eventually
from support.process_kubelet import process_kubelet

PROGRAM = """
import sys, time
from allranks.report import report
lr = float(sys.argv[1])
for step in range(1, 13):
    # The end of a program waits until the operator knows of its last checkpoint, but only a second for other values.
    report(step=step, total_steps=12, loss=lr + 1 / step, checkpoint=step == 12)
    time.sleep(float(sys.argv[2]))
"""
COMPARED = """
import pathlib, sys, time
from allranks.report import report
lr, checked = float(sys.argv[1]), pathlib.Path(sys.argv[0]).parent / "checked"
for step in range(1, 13):
    while lr >= 5 and step == 2 and not checked.exists():
        time.sleep(0.05)  # without others at its first check, a trial passes it
    report(step=step, total_steps=12, loss=lr + 1 / step)
    while step == 2 and not checked.exists():
        time.sleep(0.05)
    while lr >= 5 and step == 4:
        time.sleep(1)  # until it is stopped
    time.sleep(float(sys.argv[2]))
"""
"""The good trials are at their first check, at step 2, before the others get there."""


class World:
    def __init__(self, control_plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.control_plane, self.namespace, self.folder = control_plane, namespace, folder
        self.api = control_plane.api
        self.port = free_ports(1)[0]
        self.program = folder / "train.py"
        self.program.write_text(PROGRAM)

    @contextlib.contextmanager
    def operator(self, **settings: Any) -> Iterator[Any]:
        url = f"http://127.0.0.1:{self.port}/v1/report"
        with live.operator(
            *(live.connection(self.control_plane), self.namespace),
            report_url=url,
            report_port=self.port,
            pools=False,
            **settings,
        ) as operator:
            yield operator

    @contextlib.contextmanager
    def kubelet(self) -> Iterator[None]:
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "operator")}
        with process_kubelet(self.control_plane, self.namespace, self.folder, environ):
            yield

    def create(self, seconds: float = 0.1, **spec: Any) -> None:
        job = {
            "framework": "spmd",
            "image": "example.org/x:1",
            "command": [sys.executable, str(self.program), "$(lr)", str(seconds)],
            "roles": {"worker": {"replicas": 1}},
            "restart": {"maxRestarts": 0},
        }
        whole = {
            "parameters": {"lr": {"values": [0.1, 0.2, 0.3, 0.4]}},
            "objective": {"metric": "loss", "goal": "Minimize"},
            "algorithm": "Grid",
            "parallel": 2,
            "template": {"spec": job},
            **spec,
        }
        manifest = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingSweep", "metadata": {"name": "search"}}
        self.api.create({**manifest, "spec": whole}, self.namespace)

    def status(self) -> Manifest:
        return self.api.get("TrainingSweep", self.namespace, "search").get("status") or {}

    def ended(self, phase: str) -> Manifest:
        eventually(lambda: self.status().get("phase") in ("Succeeded", "Failed"), what="the end of the sweep")
        found = self.status()
        assert found["phase"] == phase, found["conditions"]
        return found

    def jobs(self) -> dict[str, Manifest]:
        return {job["metadata"]["name"]: job for job in self.api.list("DistributedTraining", self.namespace)}


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> World:
    return World(control_plane, namespace, tmp_path)


def test_a_sweep_runs_all_trials_and_finds_the_best(world: World) -> None:
    with world.operator(), world.kubelet():
        world.create()
        found = world.ended("Succeeded")
        expected = {"TrialCreated", "TrialSucceeded", "TrialsEnded"}
        eventually(lambda: expected <= {event["reason"] for event in world.api.list("Event", world.namespace)})
    assert [trial["parameters"]["lr"] for trial in found["trials"]] == ["0.1", "0.2", "0.3", "0.4"]
    assert found["best"]["trial"] == 0
    assert found["best"]["value"] == pytest.approx(0.1 + 1 / 12, rel=0.01)
    assert found["summary"] == "4/4"
    [owner] = world.jobs()["search-3"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("TrainingSweep", "search")


@pytest.mark.nightly
def test_an_operator_that_dies_continues_with_the_same_trials(world: World) -> None:
    with world.kubelet():
        world.create(seconds=0.3)
        parameters: dict[int, dict[str, str]] = {}
        for number in range(1, 4):
            with world.operator():
                eventually(lambda number=number: len(world.status().get("trials", ())) > number - 1)
            for trial in world.status()["trials"]:
                assert parameters.setdefault(trial["number"], trial["parameters"]) == trial["parameters"]
        with world.operator():
            found = world.ended("Succeeded")
    assert {trial["number"]: trial["parameters"] for trial in found["trials"]}.items() >= parameters.items()
    assert sorted(world.jobs()) == [f"search-{number}" for number in range(4)]
    assert found["disruptions"] == 0


@pytest.mark.nightly
def test_a_worse_trial_is_stopped_while_it_runs_and_keeps_its_job(world: World) -> None:
    world.program.write_text(COMPARED)
    with world.operator(), world.kubelet():
        values = {"values": [0.1, 5, 6, 0.2]}
        world.create(seconds=1.0, parameters={"lr": values}, parallel=4, stop={"rule": "ASHA", "minSteps": 2})
        good = [True, False, False, True]
        eventually(lambda: [bool(trial.get("checks")) for trial in world.status().get("trials", ())] == good)
        (world.folder / "checked").touch()
        found = world.ended("Succeeded")
        eventually(lambda: world.jobs()["search-1"]["status"]["phase"] == "Suspended")
    phases = [trial["phase"] for trial in found["trials"]]
    assert phases[1:3] == ["Stopped", "Stopped"]
    assert "Succeeded" in phases
    stopped = world.jobs()["search-1"]
    assert stopped["spec"]["suspend"] is True
    assert stopped["status"]["progress"]["step"] < 12
    assert found["trials"][1]["reason"] == "ASHA"


def test_the_same_bug_in_the_first_trials_ends_the_sweep(world: World) -> None:
    world.program.write_text("raise ValueError('bad shape')")
    with world.operator(), world.kubelet():
        world.create()
        found = world.ended("Failed")
    [failed] = [condition for condition in found["conditions"] if condition["type"] == "Failed"]
    assert failed["reason"] == "SameFailure"
    assert "ValueError: bad shape" in failed["message"]
    assert found["counts"]["failed"] >= 3


@pytest.mark.nightly
def test_a_job_that_is_deleted_is_run_again(world: World) -> None:
    with world.operator(), world.kubelet():
        world.create(seconds=0.3, parameters={"lr": {"values": [0.1]}})
        eventually(lambda: world.status().get("trials", [{}])[0].get("observed"))
        world.api.delete("DistributedTraining", world.namespace, "search-0")
        found = world.ended("Succeeded")
    assert (found["trials"][0]["job"], found["disruptions"]) == ("search-0-r1", 1)


def test_a_sweep_with_a_mistake_that_the_API_server_does_not_find_fails_with_the_field(world: World) -> None:
    with world.operator():
        world.create(parameters={"lr": {"uniform": {"min": 2, "max": 1, "points": 3}}})
        found = world.ended("Failed")
    [condition] = found["conditions"]
    assert condition["reason"] == "InvalidSpec"
    assert condition["message"] == "spec.parameters.lr.uniform.max: must be larger than min"


@pytest.mark.nightly
def test_a_job_that_a_quota_refuses_is_named_and_created_when_the_quota_is_gone(world: World) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    limits = {"hard": {"count/distributedtrainings.allranks.dev": "0"}}
    world.api.create({**quota, "spec": limits}, world.namespace)
    eventually(lambda: world.api.get("ResourceQuota", world.namespace, "none").get("status", {}).get("hard"))
    with world.operator(), world.kubelet():
        world.create()
        eventually(lambda: [c for c in world.status().get("conditions", ()) if c["reason"] == "Forbidden"])
        [condition] = world.status()["conditions"]
        assert "the job of trial 0 is refused" in condition["message"]
        assert "exceeded quota" in condition["message"]
        world.api.delete("ResourceQuota", world.namespace, "none")
        world.ended("Succeeded")


def test_a_deleted_sweep_takes_its_jobs_with_it(world: World) -> None:
    with world.operator(), world.kubelet():
        world.create(seconds=1)
        eventually(world.jobs)
        world.api.delete("TrainingSweep", world.namespace, "search", propagation="Background")
        eventually(lambda: not world.jobs())


def test_a_suspended_sweep_suspends_its_jobs_and_a_resumed_one_continues_them(world: World) -> None:
    def suspended() -> list[bool]:
        return [bool(job["spec"].get("suspend")) for job in world.jobs().values()]

    with world.operator():
        world.create()
        eventually(lambda: len(world.jobs()) == 2)
        world.api.patch("TrainingSweep", world.namespace, "search", {"spec": {"suspend": True}})
        eventually(lambda: world.status().get("phase") == "Suspended" and suspended() == [True, True])
        world.api.patch("TrainingSweep", world.namespace, "search", {"spec": {"suspend": False}})
        eventually(lambda: world.status().get("phase") == "Running" and suspended() == [False, False])


def test_a_job_that_resumes_from_another_one_writes_where_its_checkpoints_are(world: World) -> None:
    def job(name: str, **spec: Any) -> None:
        program = {"framework": "spmd", "image": "example.org/x:1", "command": ["python3"]}
        manifest = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": name}}
        whole = {**program, "roles": {"worker": {"replicas": 1}}, "checkpoint": {"claim": "c", "subPath": name}, **spec}
        world.api.create({**manifest, "spec": whole}, world.namespace)

    with world.operator():
        job("first", suspend=True)
        eventually(lambda: world.jobs()["first"].get("status", {}).get("phase") == "Suspended")
        job("second", resumeFrom="first")
        job("third", resumeFrom="none")
        eventually(lambda: world.jobs()["third"].get("status", {}).get("phase") == "Failed")
        eventually(lambda: len(world.api.list("Pod", world.namespace)) == 1)
    assert world.jobs()["second"]["status"]["resumedFrom"] == "claim://c/first"
    [pod] = world.api.list("Pod", world.namespace)
    assert "allranks-resume" in {container["name"] for container in pod["spec"]["initContainers"]}
    [failed] = [each for each in world.jobs()["third"]["status"]["conditions"] if each["type"] == "Failed"]
    where = f"there is no DistributedTraining none in namespace {world.namespace}"
    assert failed["message"] == f"spec.resumeFrom: {where}"
