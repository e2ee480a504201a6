"""`allranks convert`: files, standard input, lists, exit statuses, and running the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.cli.main import cli

from .inputs import manifest, pods, pytorch

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"storageClassName": ""},
}


def call(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["convert", *arguments], input=stdin)


def text(*documents: Any) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False)


def kinds(result: Result) -> list[str]:
    return [one["kind"] for one in yaml.safe_load_all(result.stdout)]


def test_other_objects_stay_as_they_are():
    result = call("-", stdin=text(CLAIM, pytorch(), CLAIM))
    documents = list(yaml.safe_load_all(result.stdout))
    assert (result.exit_code, result.stderr) == (0, "")
    assert [documents[0], documents[2]] == [CLAIM, CLAIM]
    assert documents[1]["kind"] == "DistributedTraining"


def test_the_items_of_a_list_are_converted():
    listed = {"apiVersion": "v1", "kind": "List", "items": [pytorch(), CLAIM]}
    assert kinds(call("-", stdin=text(listed))) == ["DistributedTraining", "PersistentVolumeClaim"]
    typed = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJobList"}
    job = {key: value for key, value in pytorch().items() if key not in ("apiVersion", "kind")}
    assert kinds(call("-", stdin=json.dumps(typed | {"items": [job]}))) == ["DistributedTraining"]


def test_several_files_become_several_documents(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(text(pytorch()))
    assert kinds(call(str(tmp_path / "a"), str(tmp_path / "b"))) == ["DistributedTraining"] * 2


def test_what_was_dropped_is_on_standard_error_and_has_status_1():
    result = call("-", stdin=text(pytorch(runPolicy={"schedulingPolicy": {"queue": "q"}})))
    dropped = (
        "spec.runPolicy.schedulingPolicy.queue: set the annotation scheduling.volcano.sh/queue-name of the template"
    )
    assert result.exit_code == 1
    assert result.stderr == f"warning: stdin: PyTorchJob mnist: dropped {dropped}\n"
    assert f"# Dropped: {dropped}." in result.stdout
    assert kinds(result) == ["DistributedTraining"]


def test_JSON_has_the_documents_the_changes_and_what_was_dropped():
    result = call("-", "-o", "json", stdin=text(CLAIM, pytorch(unheardOf=1)))
    claim, job = json.loads(result.stdout)
    assert (claim["from"], claim["documents"]) == (None, [CLAIM])
    assert (job["from"], job["documents"][0]["kind"]) == ("PyTorchJob mnist", "DistributedTraining")
    assert job["dropped"] == [{"path": "spec.unheardOf", "message": "has no counterpart"}]
    assert "spec.restart.maxRestarts" in [change["path"] for change in job["changes"]]


def test_a_runtime_is_read_from_another_file(tmp_path):
    container = {"name": "node", "image": "me/runtime:1"}
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    jobs = {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}}
    runtime = manifest("TrainingRuntime", "trainer.kubeflow.org/v1alpha1", mlPolicy={"torch": {}}, template=jobs)
    reference = {"name": "mnist", "kind": "TrainingRuntime"}
    job = manifest(
        "TrainJob", "trainer.kubeflow.org/v1alpha1", runtimeRef=reference, trainer={"command": ["torchrun", "a.py"]}
    )
    files = [tmp_path / "job.yaml", tmp_path / "runtime.yaml"]
    files[0].write_text(text(job))
    files[1].write_text(text(runtime))
    result = call(*map(str, files))
    assert (result.exit_code, kinds(result)) == (0, ["DistributedTraining"])
    assert yaml.safe_load(result.stdout)["spec"]["image"] == "me/runtime:1"
    alone = call(str(files[0]))
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert f"error: {files[0]}: TrainJob mnist: spec.runtimeRef: the TrainingRuntime mnist is not among" in alone.stderr


def test_a_command_that_only_the_image_has_can_be_set():
    job = manifest("JAXJob", jaxReplicaSpecs={"Worker": pods("jax", command=None)})
    without = call("-", stdin=text(job))
    assert without.exit_code == 1
    assert "spec.roles.worker.command: a command is needed" in without.stderr
    assert "--set 'command=[python3, train.py]'" in without.stderr
    assert call("-", "--set", "command=[python3, a.py]", stdin=text(job)).exit_code == 0


def test_a_name_that_is_too_long_is_an_error():
    job = pytorch()
    job["metadata"]["name"] = "n" * 50
    result = call("-", stdin=text(job))
    assert result.exit_code == 1
    assert "metadata.name: at most 42 characters" in result.stderr
    assert call("-", "--set", "metadata.name=n", stdin=text(job)).exit_code == 0


def test_without_a_job_of_another_operator_the_documents_stay_as_they_are():
    result = call("-", stdin=text(CLAIM))
    assert (result.exit_code, result.stderr) == (0, "stdin: nothing to convert\n")
    assert yaml.safe_load(result.stdout) == CLAIM


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, ": cannot be read: no such file or directory"),
        (b"a: 1\nb: [\n", ":3:1: is not YAML: "),
        (b"\xff", ": is not a UTF-8 text file"),
    ],
    ids=["no file", "no YAML", "no text"],
)
def test_what_cannot_be_read_is_named(tmp_path, content, message):
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_bytes(content)
    result = call(str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {file}")
    assert message in result.stderr


@pytest.mark.parametrize("argument", ["deployment/x", "mnist"])
def test_live_needs_a_kind_that_can_be_converted(argument, tmp_path):
    config = tmp_path / "config"
    config.write_text(json.dumps(CONFIG))
    result = call("--live", argument, "--kubeconfig", str(config))
    assert result.exit_code == 2
    assert f"{argument}: --live needs KIND/NAME or KIND, where KIND is one of pytorchjob, tfjob" in result.stderr


CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
}


def check(job: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "allranks", "convert", "-", "--check"]
    return subprocess.run(
        command, input=text(job), capture_output=True, text=True, cwd=folder, env=environ, timeout=300, check=False
    )


def test_check_runs_the_result_here(tmp_path):
    program = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    job = pytorch(pods(command=[sys.executable, "-c", program]))
    done = check(job, tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(f"rank {rank} of 2" in done.stderr for rank in range(2))
    assert yaml.safe_load(done.stdout)["kind"] == "DistributedTraining"
    failing = check(pytorch(pods(command=[sys.executable, "-c", "raise SystemExit(3)"])), tmp_path)
    assert failing.returncode == 1


def test_check_runs_nothing_if_a_program_is_not_here(tmp_path):
    done = check(pytorch(pods(command=["not-here", "train.py"])), tmp_path)
    assert done.returncode == 0
    assert "note: PyTorchJob mnist: not run: not-here, train.py not on this machine" in done.stderr
