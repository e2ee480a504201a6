"""The manifest and the code of `allranks.submit`, before anything is sent, and what Ctrl-C does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

import allranks
from allranks.client import interrupt
from allranks.inpod.call_function import UNUSABLE
from allranks.kube.cluster import Where
from allranks.sdk.documents import Options
from allranks.sdk.job import Job
from allranks.sdk.submit import PAYLOAD, prepare
from support.builders import Life, failed, job
from support.some_api import SomeApi

IMAGE = "registry.example.org/train:1"


def train(rate: float) -> float:
    import torch  # type: ignore[import-not-found]

    return float(torch.tensor(rate))


def options(**given: Any) -> Options:
    return Options(**{"replicas": 2, "image": IMAGE, **given})


def test_a_function_travels_with_the_modules_that_load_it():
    document, bundle = prepare(train, (0.1,), {}, options(gpus=1), None)
    assert document["metadata"] == {"generateName": "train-", "annotations": {"allranks.dev/function": "train"}}
    spec = document["spec"]
    assert spec["framework"] == "pytorch"
    assert spec["command"] == [
        "torchrun", "/allranks/call_function.py", "/workspace/.allranks/function.pickle", "--report"
    ]  # fmt: skip
    assert spec["restart"] == {"rules": [{"exitCodes": [78], "action": "Fail"}]}
    assert (spec["roles"], spec["image"]) == ({"worker": {"replicas": 2}}, IMAGE)
    assert spec["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert bundle is not None
    names = [file.name for file in bundle.files]
    assert PAYLOAD in names
    assert ".allranks/python/cloudpickle/cloudpickle.py" in names
    assert spec["code"]["configMap"] == bundle.config_map


def test_a_function_of_another_version_of_python_fails_the_job_while_other_pods_have_not_started():
    document, _ = prepare(train, (0.1,), {}, options(replicas=3), None)
    life = Life(job(roles={"worker": 3}, restart=document["spec"]["restart"]))
    life.settle(0)
    life.put(failed(index=0, code=UNUSABLE, after=5))
    assert [pod.phase for pod in life.pods.values()] == ["Failed", "Pending", "Pending"]
    life.settle(6)
    assert (life.status.phase, life.status.restarts.counted) == ("Failed", 0)
    assert list(life.pods) == ["job-worker-0-0"]  # it has ended, and its log stays


def test_outputs_are_uploaded_and_have_values_that_are_too_large():
    places = {"model": "s3://models/birds", "results": {"to": "s3://results/birds", "secret": "aws"}}
    spec = prepare(train, (0.1,), {}, options(outputs=places), None)[0]["spec"]
    assert spec["outputs"] == [
        {"name": "model", "path": "/outputs/model", "to": "s3://models/birds"},
        {"name": "results", "path": "/outputs/results", "to": "s3://results/birds", "secret": "aws"},
    ]
    assert spec["command"][-3:] == ["--output", "/outputs/results", "--keep"]
    del places["results"]
    assert prepare(train, (0.1,), {}, options(outputs=places), None)[0]["spec"]["command"][-2:] == [
        "--output", "/outputs/model"
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"outputs\['model'\]: must be an address such as s3://BUCKET/PREFIX"):
        prepare(train, (0.1,), {}, options(outputs={"model": {"secret": "aws"}}), None)


def test_each_parameter_is_a_field_of_the_manifest():
    given = options(
        replicas=(2, 8), name="mine", pool="h200", checkpoint="models", packages=("timm",), restarts=1,
        env={"SEED": "1"}, every_rank=True,
    )  # fmt: skip
    document, _ = prepare(train, (0.1,), {}, given, None)
    assert document["metadata"]["name"] == "mine"
    assert document["metadata"]["annotations"]["allranks.dev/results"] == "every-rank"
    spec = document["spec"]
    assert spec["command"][-1] == "--every-rank"
    assert spec["elastic"] == {"minReplicas": 2, "maxReplicas": 8}
    assert spec["roles"] == {"worker": {"replicas": 8}}
    assert (spec["pool"], spec["checkpoint"]) == ("h200", {"claim": "models"})
    assert (spec["packages"], spec["env"]) == (["timm"], [{"name": "SEED", "value": "1"}])
    assert spec["restart"]["maxRestarts"] == 1


def test_a_script_is_the_command_of_the_job_and_its_directory_is_sent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\ntorch.distributed.init_process_group()\n")
    document, bundle = prepare("train.py", ("--epochs", 3), {}, options(), ".")
    assert (document["spec"]["command"], document["spec"]["args"]) == (["torchrun", "train.py"], ["--epochs", "3"])
    assert "annotations" not in document["metadata"]
    assert bundle is not None
    assert [file.name for file in bundle.files] == ["train.py"]


REFUSED = [
    ({"image": None}, allranks.CannotRun, r"image= is missing: name an image that has Python 3\.\d+ and the packages"),
    ({"framework": "keras"}, ValueError, "framework='keras': must be one of"),
    ({"every_rank": True, "replicas": 65}, ValueError, "at most 64 ranks send their values back, and the job has 65"),
    (
        {"every_rank": True, "replicas": 9, "gpus": 8},
        ValueError,
        "at most 64 ranks send their values back, and the job has 72",
    ),
    ({"name": "Not A Name"}, allranks.InvalidManifest, "metadata.name"),
    ({"env": {"RANK": "0"}}, allranks.InvalidManifest, "RANK"),
]


@pytest.mark.parametrize(("given", "kind", "message"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_what_cannot_run_is_refused_before_anything_is_sent(given, kind, message):
    with pytest.raises(kind, match=message):
        prepare(train, (0.1,), {}, options(**given), None)


@pytest.mark.parametrize("ranks", [0, -2, True, (2,), (0, 4), "4", 2.0])
def test_a_wrong_number_of_ranks_is_refused(ranks):
    with pytest.raises(ValueError, match="must be the number of replicas on a cluster"):
        allranks.submit(train, 0.1, ranks=ranks, image=IMAGE)


INTERRUPTS = [
    (False, "", False, "train-x continues: allranks.job('train-x', namespace='team').result() waits for it"),
    (True, "\n", False, "train-x continues"),
    (True, "", False, "train-x continues"),
    (True, "c\n", True, "train-x is deleted"),
]


@pytest.mark.parametrize(("terminal", "answer", "cancelled", "message"), INTERRUPTS)
def test_an_interrupt_deletes_the_job_only_if_the_user_says_so(
    terminal, answer, cancelled, message, monkeypatch, capsys
):
    monkeypatch.setattr(interrupt, "can_ask", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    deleted: list[Job] = []

    def interrupt_wait(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "_run", interrupt_wait)
    monkeypatch.setattr(Job, "cancel", lambda self: deleted.append(self))
    job = Job({"metadata": {"name": "train-x", "namespace": "team"}}, Where())
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert deleted == ([job] if cancelled else [])
    assert message in capsys.readouterr().err


def test_a_notebook_is_never_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert not interrupt.can_ask()


def test_importing_allranks_imports_neither_a_framework_nor_a_client_of_kubernetes():
    light = (
        "import sys, allranks; print(sorted(m for m in sys.modules if m.split('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", light], capture_output=True, text=True, env={
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}, timeout=300)  # fmt: skip
    assert done.stdout.strip() == "['__main__', 'allranks', 'allranks.version']", done.stderr


def test_every_public_name_can_be_imported():
    for name in allranks._LAZY:
        assert getattr(allranks, name).__name__ == name


JOB = {"metadata": {"name": "birds", "namespace": "team", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}}


def test_a_job_that_does_not_exist_has_suggestions(tmp_path):
    with SomeApi(tmp_path, JOB) as api:
        where = {"kubeconfig": str(api.kubeconfig)}
        with pytest.raises(allranks.ClusterError, match="did you mean birds"):
            allranks.job("brids", **where)
        with pytest.raises(allranks.ClusterError, match="no job x in namespace team: allranks get lists the jobs"):
            allranks.job("x", **where)


def test_a_missing_cluster_and_a_wrong_context_are_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(allranks.ClusterError, match="`allranks run` runs the job on this machine"):
        allranks.jobs()
    with SomeApi(tmp_path) as api:
        config = yaml.safe_load(api.kubeconfig.read_text())
        api.kubeconfig.write_text(yaml.safe_dump(config | {"current-context": "missing"}))
        with pytest.raises(allranks.ClusterError, match="choose one of them, or kubectl config use-context NAME"):
            allranks.jobs(kubeconfig=str(api.kubeconfig))
