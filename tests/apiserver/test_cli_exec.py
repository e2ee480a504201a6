"""`allranks exec`, `attach`, `port-forward` and `cp`: kubectl and a real API server; the kubelet records requests."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from support.commands import Commands, Result, failure
from support.kubelet_logs import LogKubelet


@pytest.fixture
def with_kubectl(allranks: Commands, programs: Path, monkeypatch) -> Commands:
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return allranks


def exec_(allranks: Commands, *arguments: str) -> Result:
    """Options after `--` would belong to the command in the pod."""
    return allranks("exec", *allranks.cluster_options, *arguments, where=False)


def requested(kubelet: LogKubelet) -> tuple[str, dict[str, list[str]]]:
    """(path, query) of the last request for a stream."""
    parts = urlsplit(kubelet.streams[-1])
    return parts.path, parse_qs(parts.query)


def refused_by_kubelet(result: Result) -> None:
    assert result.exit_code == 1, result
    assert "forbidden" in result.stderr.lower() or "runs no containers" in result.stderr, result.stderr


def test_a_command_reaches_the_kubelet_of_the_pod_that_has_the_rank(with_kubectl, job, kubelet, namespace):
    job.run(*job.pods(kubelet.node))
    refused_by_kubelet(exec_(with_kubectl, "penguins", "--rank", "2", "--", "ls", "-l", "a b"))
    path, query = requested(kubelet)
    assert path == f"/exec/{namespace}/penguins-worker-1-0/trainer"
    assert query["command"] == ["ls", "-l", "a b"]
    assert "input" not in query


def test_a_file_is_copied_by_a_command_in_the_pod_of_the_rank(with_kubectl, job, kubelet, namespace, tmp_path):
    job.run(*job.pods(kubelet.node))
    result = with_kubectl("cp", "penguins:/tmp/trace.json", str(tmp_path / "t"), "--role", "worker", "--index", "1")
    refused_by_kubelet(result)
    path, query = requested(kubelet)
    assert path == f"/exec/{namespace}/penguins-worker-1-0/trainer"
    assert query["command"] == ["tar", "cf", "-", "/tmp/trace.json"]


def test_a_terminal_is_attached_to_the_pod_of_rank_0_by_default(with_kubectl, job, kubelet, namespace):
    job.run(*job.pods(kubelet.node))
    refused_by_kubelet(with_kubectl("attach", "penguins"))
    assert requested(kubelet)[0] == f"/attach/{namespace}/penguins-master-0-0/trainer"


def kubectl_line(result: Result, allranks: Commands) -> list[str]:
    """The arguments of kubectl after those that select the cluster."""
    assert (result.exit_code, result.stderr) == (0, ""), result
    words = shlex.split(result.stdout)
    assert words[0] == "kubectl"
    assert words[2] == f"--namespace={allranks.namespace}"
    return words[3:]


def test_dry_run_prints_the_kubectl_command(allranks, job):
    job.run(*job.pods("node-1"))
    ports = allranks("port-forward", "penguins", "6006", "8080:80", "--rank", "1", "--dry-run")
    assert kubectl_line(ports, allranks) == ["port-forward", "penguins-worker-0-0", "6006", "8080:80"]
    copy = allranks("cp", "train.py", "penguins:/src/train.py", "--dry-run")
    remote = f"{allranks.namespace}/penguins-master-0-0:/src/train.py"
    assert kubectl_line(copy, allranks) == ["cp", "--container=trainer", "--", "train.py", remote]
    shell = exec_(allranks, "penguins", "-c", "sidecar", "--dry-run")
    assert kubectl_line(shell, allranks)[:5] == ["exec", "penguins-master-0-0", "--container=sidecar", "--", "sh"]


def test_the_newest_pod_of_a_replica_that_restarted_alone_is_used(allranks, job):
    job.status(attempt=3)
    job.run(*job.pods("node-1", attempt=2))
    job.run(*job.pods("node-1", attempt=3))
    found = exec_(allranks, "penguins", "--rank", "1", "--dry-run", "--", "true")
    assert kubectl_line(found, allranks)[1] == "penguins-worker-0-3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "7"], "penguins has no rank 7: its ranks are 0 to 2 (one for each pod)."),
        (["--role", "ps"], "penguins has no role ps: its roles are master and worker."),
        (["--index", "5"], "penguins has no worker-5: the indexes of worker are 0-1."),
        (["--rank", "1", "--index", "1"], "specify either --rank, or --role and --index, not both."),
    ],
)
def test_a_rank_that_the_job_does_not_have_is_an_error_with_the_existing_ones(allranks, job, options, message):
    result = exec_(allranks, "penguins", *options, "--", "true")
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_rank_without_a_running_pod_is_an_error_that_says_why(allranks, job):
    status = "error: penguins is Running, and worker-0 has no pod yet: allranks describe penguins shows why\n"
    assert exec_(allranks, "penguins", "--rank", "1") == (1, "", status.replace("Running", "Pending"))
    job.status()
    master, first, second = job.pods("node-1")
    job.run(master)
    job.end(first, 3)
    job.waits(second, "ImagePullBackOff", "no such image")
    ended = exec_(allranks, "penguins", "--rank", "1")
    assert ended.stderr == (
        "error: the pod of worker-0, penguins-worker-0-0, has ended with exit code 3: "
        "allranks logs penguins --role worker --index 0 prints its output\n"
    )
    waits = exec_(allranks, "penguins", "--rank", "2")
    assert waits.stderr == (
        "error: the pod of worker-1, penguins-worker-1-0, does not run yet: it is Pending (no such image)\n"
    )
    for pod in (master, first, second):
        job.delete_pod(pod)
    job.status(phase="Failed", lastFailure=failure())
    gone = exec_(allranks, "penguins")
    assert gone.stderr == "error: penguins is Failed, and the pod of master-0 is deleted\n"


def test_without_kubectl_the_command_names_what_is_missing(allranks, job, monkeypatch, tmp_path):
    job.run(*job.pods("node-1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = exec_(allranks, "penguins", "--", "nvidia-smi")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: this command runs kubectl, which is not in the PATH: install it (https://")
    assert "penguins-master-0-0 --container=trainer -- nvidia-smi" in result.stderr
