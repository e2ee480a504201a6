"""Sweeps on one machine with real processes: the best trial, early stopping, interruption and continuation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ALLRANKS = [sys.executable, "-m", "allranks"]
PROGRAM = """
import os, sys, time
from pathlib import Path
from allranks.report import report
lr, folder = float(sys.argv[1]), Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])
done = folder / "step"
first = int(done.read_text()) if done.exists() else 0
with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{os.environ['ALLRANKS_PARAM_LR']} {first}\\n")
for step in range(first + 1, 11):
    report(step=step, total_steps=10, loss=lr + 1 / step)
    done.write_text(str(step))
    while step == 3 and not os.path.exists(os.environ["STARTS"] + ".go"):
        time.sleep(0.05)
    time.sleep(float(os.environ["SECONDS_PER_STEP"]) * max(1, lr))  # worse trials leave time to stop them
"""


class World:
    def __init__(self, folder: Path) -> None:
        self.folder, self.starts = folder, folder / "starts"
        (folder / "train.py").write_text(PROGRAM)
        self.go = folder / "starts.go"
        self.go.touch()

    def document(self, seconds: float, values: list[Any], **spec: Any) -> dict[str, Any]:
        variables = {"STARTS": str(self.starts), "SECONDS_PER_STEP": str(seconds)}
        job = {
            "framework": "spmd",
            "image": "example.org/x:1",
            "command": [sys.executable, str(self.folder / "train.py"), "$(lr)"],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "roles": {"worker": {"replicas": 1}},
            "checkpoint": {"claim": "checkpoints"},
        }
        whole = {
            "parameters": {"lr": {"values": values}},
            "objective": {"metric": "loss", "goal": "Minimize"},
            "algorithm": "Grid",
            "template": {"spec": job},
            **spec,
        }
        kind = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingSweep", "metadata": {"name": "search"}}
        return {**kind, "spec": whole}

    def start(self, seconds: float, values: list[Any], *options: str, **spec: Any) -> subprocess.Popen[str]:
        file = self.folder / "sweep.yaml"
        file.write_text(yaml.safe_dump(self.document(seconds, values, **spec)))
        command = [
            *ALLRANKS,
            "sweep",
            str(file),
            "--run-dir",
            str(self.folder / "run"),
            "--grace-period",
            "1",
            *options,
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)

    def sweep(self, seconds: float, values: list[Any], *options: str, **spec: Any) -> tuple[int, str, str]:
        process = self.start(seconds, values, *options, **spec)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "run" / "sweep.json").read_text())["status"]
        except FileNotFoundError:
            return {}
        return found

    def until(self, condition: Any, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.status()
            time.sleep(0.05)

    def processes(self) -> list[str]:
        """Processes of the program that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            found += [line] if str(self.folder) in line else []
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_manifest_of_the_best_trial_is_printed_and_stored_ready_to_run(world: World) -> None:
    code, out, err = world.sweep(0, [0.5, 0.1], parallel=2)
    assert code == 0, err
    best = yaml.safe_load(out)
    assert best["metadata"] == {"name": "search-best"}
    assert best["spec"]["command"][-1] == "0.1"
    assert best["spec"]["checkpoint"] == {"claim": "checkpoints", "subPath": "search-best"}
    assert json.loads((world.folder / "run" / "best.yaml").read_text()) == best
    assert "trial 1 succeeded, loss 0.2" in err
    assert "search Succeeded: the best loss is 0.2, of trial 1" in err
    assert world.processes() == []


def test_output_json_is_the_sweep_with_its_status(world: World) -> None:
    code, out, err = world.sweep(0, [0.5], "-o", "json", "--quiet")
    assert code == 0, err
    found = json.loads(out)
    assert (found["kind"], found["status"]["phase"]) == ("TrainingSweep", "Succeeded")
    assert found["status"]["best"]["parameters"] == {"lr": "0.5"}
    assert "trial 0: " not in err


def test_a_program_that_cannot_start_fails_the_sweep_with_its_last_line(world: World) -> None:
    (world.folder / "train.py").write_text("raise ValueError('bad shape')")
    code, out, err = world.sweep(0, [0.5, 0.1])
    assert (code, out) == (1, "")
    assert "failed in the same way (Error(1)): ValueError: bad shape" in err


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_continues_from_the_checkpoints(world: World) -> None:
    world.go.unlink()  # the trials wait after step 3
    process = world.start(0.4, [0.3, 0.2, 0.1], parallel=2)
    world.until(lambda: world.starts.exists() and world.starts.read_text().count("\n") == 2)
    world.until(lambda: all(trial.get("observed") for trial in world.status()["trials"]))
    parameters = [trial["parameters"] for trial in world.status()["trials"]]
    volumes = world.folder / "run" / "volumes"
    world.until(lambda: [file.read_text() for file in volumes.rglob("step")] == ["3", "3"])
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    world.until(lambda: world.processes() == [])
    world.go.touch()
    code, _, err = world.sweep(0.01, [0.3, 0.2, 0.1], parallel=2)
    # The manifest differs in a variable, so this is another sweep.
    assert code == 2
    assert "has another sweep" in err
    code, _, err = world.sweep(0.4, [0.3, 0.2, 0.1], parallel=2)
    assert code == 0, err
    found = world.status()
    assert [trial["parameters"] for trial in found["trials"]][:2] == parameters
    assert found["disruptions"] == 2
    starts = [line.split() for line in world.starts.read_text().splitlines()]
    assert sorted(value for value, _ in starts) == ["0.1", "0.2", "0.2", "0.3", "0.3"]
    assert all(int(first) > 0 for _, first in starts[2:4]), "they did not continue from their checkpoints"


@pytest.mark.slow
def test_ctrl_c_stops_all_trials_and_says_how_to_continue(world: World) -> None:
    process = world.start(0.5, [0.3, 0.2, 0.1], parallel=2)
    world.until(lambda: world.starts.exists() and world.starts.read_text().count("\n") == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "search was interrupted" in err
    assert f"--run-dir {world.folder / 'run'}" in err
    assert world.processes() == []


@pytest.mark.nightly
@pytest.mark.slow
def test_trials_that_are_worse_are_stopped_early(world: World) -> None:
    # One after the other: of trials that run side by side, one that is ahead has no other to be compared with.
    code, _out, err = world.sweep(0.3, [0.1, 5, 6], stop={"rule": "ASHA", "minSteps": 2, "factor": 3})
    assert code == 0, err
    found = world.status()
    assert [trial["phase"] for trial in found["trials"]] == ["Succeeded", "Stopped", "Stopped"], found
    assert found["best"]["parameters"] == {"lr": "0.1"}
    assert world.processes() == []


def test_a_directory_that_no_trial_can_use_is_an_error_before_the_first_trial(world: World) -> None:
    code, out, err = world.sweep(0, [0.5, 0.1], "--volume", "checkpoint=.", "--volume", "nothing=.")
    assert (code, out) == (2, "")
    # "checkpoint" is the volume that the pods have for the claim "checkpoints".
    assert err == (
        "error: --volume nothing: no volume, claim, input or output has this name; "
        "the jobs have checkpoint, checkpoints\n"
    )
    wrong = [{"name": "birds", "from": "claim://birds/2024", "path": "/birds"}]
    document = world.document(0, [0.5])
    document["spec"]["template"]["spec"]["inputs"] = wrong
    (world.folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    command = [*ALLRANKS, "sweep", "sweep.yaml"]
    done = subprocess.run(command, cwd=world.folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "spec.inputs[0].from: claim birds is not on this machine" in done.stderr
    assert not (world.folder / "run").exists()
    assert not (world.folder / "runs").exists()
    assert not world.starts.exists()


def test_gpus_are_divided_among_the_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from allranks.api.sweep_validation import parse_sweep
    from allranks.api.validation import parse
    from allranks.local import sweep as local
    from support.builders import manifest
    from unit.api.test_sweep import sweep

    monkeypatch.setattr(local, "list_gpus", lambda environ: ["0", "1", "2", "3", "4"])
    job = manifest(roles={"worker": 1}, resources={"limits": {"nvidia.com/gpu": 2}})
    document = sweep(parallel=8, template={"spec": job["spec"]})
    one = local.LocalSweep(parse_sweep(document), parse(job), local.SweepOptions(tmp_path))
    assert one.sweep.spec.parallel == 2

    class Alive:
        alive = True

    taken = []
    for name in ("a", "b"):
        taken.append(one._take_gpus(name))
        one._trials[name] = Alive()  # type: ignore[assignment]
    assert taken == [["0", "1"], ["2", "3"]]
