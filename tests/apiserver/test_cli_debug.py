"""`allranks debug` with a real API server and a simulated kubelet."""

from __future__ import annotations

import stat
import tarfile
from pathlib import Path

import yaml

from support.commands import JobOnCluster, failure, kubeconfig_of_service_account

SECRET = "hf_4711deadbeef"


def contents(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        assert tar.getnames() == sorted(tar.getnames())
        return {
            entry.name: tar.extractfile(entry).read().decode()  # type: ignore[union-attr]
            for entry in tar.getmembers()
        }


def test_the_archive_has_manifest_status_events_pods_and_the_logs_of_all_attempts(
    allranks, control_plane, namespace, kubelet, tmp_path
):
    reference = {"secretKeyRef": {"name": "db", "key": "password"}}
    env = [{"name": "HF_TOKEN", "value": SECRET}, {"name": "DB_PASSWORD", "valueFrom": reference}]
    job = JobOnCluster(control_plane.api, namespace, env=[*env, {"name": "NCCL_DEBUG", "value": "INFO"}])
    job.status(attempt=1, lastFailure=failure())
    first = job.pods(kubelet.node)
    second = job.pods(kubelet.node, attempt=1)
    job.end(first[0], 3)
    job.run(*second[:2])
    job.waits(second[2], "ImagePullBackOff", "no such image")
    kubelet.write(namespace, first[0], "first attempt", f"logged in with {SECRET}")
    kubelet.write(
        namespace,
        second[0],
        "\x1b[31mred\x1b[2J",
        "allranks: rank 0 (pod penguins-master-0-1): stacks, asked for because it made no step for 60 s",
        "Thread MainThread (most recent call first):",
        '  File "train.py", line 7 in step',
        "epoch 2",
    )
    file = tmp_path / "penguins.tar.gz"
    result = allranks("debug", "penguins", "-o", str(file))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"wrote {file}: ")
    assert result.stdout.endswith(" KiB, 2 logs, stack dumps of 1\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = contents(file)
    assert sorted(found) == [
        "penguins-debug/README.txt",
        "penguins-debug/describe.txt",
        "penguins-debug/events.yaml",
        "penguins-debug/job.yaml",
        "penguins-debug/logs/penguins-master-0-0/trainer.log",
        "penguins-debug/logs/penguins-master-0-1/trainer.log",
        *(f"penguins-debug/pods/{pod}.yaml" for pod in sorted([*first, *second])),
        "penguins-debug/report.txt",
        "penguins-debug/stacks/penguins-master-0-1/trainer.txt",
        "penguins-debug/status.yaml",
        "penguins-debug/versions.yaml",
    ]
    assert not [name for name, text in found.items() if SECRET in text]
    assert not [name for name, text in found.items() if "\x1b" in text]
    spec = yaml.safe_load(found["penguins-debug/job.yaml"])["spec"]
    assert spec["env"] == [
        {"name": "HF_TOKEN", "value": "<masked>"},
        {"name": "DB_PASSWORD", "valueFrom": reference},
        {"name": "NCCL_DEBUG", "value": "INFO"},
    ]
    assert yaml.safe_load(found["penguins-debug/status.yaml"])["attempt"] == 1
    assert found["penguins-debug/logs/penguins-master-0-0/trainer.log"].splitlines()[1].endswith("with <masked>")
    stacks = [
        line.split(" ", 1)[1] for line in found["penguins-debug/stacks/penguins-master-0-1/trainer.txt"].splitlines()
    ]
    assert stacks[1:] == ["Thread MainThread (most recent call first):", '  File "train.py", line 7 in step']
    assert yaml.safe_load(found["penguins-debug/versions.yaml"])["kubernetes"].startswith("v1.")


def test_what_the_user_may_not_read_is_named_and_the_rest_is_collected(
    allranks, job, control_plane, namespace, tmp_path
):
    role = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": ["allranks.dev"], "resources": ["distributedtrainings"], "verbs": ["get", "list"]}]
    meta = {"name": "reader", "namespace": namespace}
    control_plane.api.request("POST", f"{role}/namespaces/{namespace}/roles", {"metadata": meta, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    binding = {"metadata": meta, "subjects": [subject], "roleRef": reference}
    control_plane.api.request("POST", f"{role}/namespaces/{namespace}/rolebindings", binding)
    config = kubeconfig_of_service_account(control_plane, namespace, tmp_path)
    file = tmp_path / "out.tar.gz"
    result = allranks("debug", "penguins", "-o", str(file), "--kubeconfig", str(config), "-n", namespace, where=False)
    assert result.exit_code == 0, result.stderr
    assert "not read: pods: " in result.stderr
    found = contents(file)
    assert "Not read:" in found["penguins-debug/README.txt"]
    assert yaml.safe_load(found["penguins-debug/job.yaml"])["metadata"]["name"] == "penguins"


def test_a_job_that_does_not_exist_and_a_folder_that_does_not_exist_are_errors(allranks, job, tmp_path):
    none = allranks("debug", "penguin", "-o", str(tmp_path / "out.tar.gz"))
    assert (none.exit_code, none.stdout) == (1, "")
    assert "did you mean penguins?" in none.stderr
    folder = tmp_path / "none" / "out.tar.gz"
    wrong = allranks("debug", "penguins", "-o", str(folder))
    assert wrong.exit_code == 1
    assert wrong.stderr.splitlines()[-1] == f"error: cannot write {folder}: no such file or directory"
