"""The Python interface on a real API server, with the real operator, and with ranks that are real processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import allranks
from allranks.sdk import payload
from support import live
from support.controlplane import ControlPlane, free_ports
from support.data_servers import s3_environment, s3_server
from support.process_kubelet import ProcessKubelet, process_kubelet

PLAIN = {"framework": "tensorflow", "image": "example.org/python:3"}
"""Ranks that are plain Python programs with variables, which need no package."""


class World:
    """A namespace with an operator that receives reports, and a node that runs processes."""

    def __init__(self, control_plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.control_plane, self.namespace, self.folder = control_plane, namespace, folder
        self.where = {"namespace": namespace, "kubeconfig": str(control_plane.kubeconfig)}

    @contextlib.contextmanager
    def running(self, environ: dict[str, str] | None = None, **settings: Any) -> Iterator[ProcessKubelet]:
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}/v1/report"
        connection = live.connection(self.control_plane)
        with (
            live.operator(connection, self.namespace, report_url=url, report_port=port, pools=False, **settings),
            process_kubelet(self.control_plane, self.namespace, self.folder, environ) as kubelet,
        ):
            yield kubelet


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> World:
    return World(control_plane, namespace, tmp_path)


def scaled(values: list[int], factor: int = 1) -> tuple[list[int], int]:
    print("hello from", os.environ["ALLRANKS_INDEX"])
    return [factor * value for value in values], int(os.environ["ALLRANKS_INDEX"])


def test_a_function_runs_on_the_cluster_and_its_value_comes_back(world: World, capsys: Any) -> None:
    with world.running():
        value = allranks.run(scaled, [1, 2] * 250_000, ranks=2, factor=3, **PLAIN, **world.where)
    printed = capsys.readouterr().out
    assert value == ([3, 6] * 250_000, 0)
    assert "worker-0 | hello from 0" in printed
    assert "worker-1 | hello from 1" in printed


def waits_and_fails(what: str) -> None:
    if os.environ["ALLRANKS_INDEX"] == "1":
        raise LookupError(f"no {what}")
    threading.Event().wait(600)  # ended with the job


@pytest.mark.nightly
def test_the_first_failure_is_raised_with_its_own_exception(world: World) -> None:
    with world.running():
        job = allranks.submit(waits_and_fails, "data", ranks=2, restarts=0, name="fails", **PLAIN, **world.where)
        with pytest.raises(allranks.RankFailed) as caught:
            job.result()
        node = world.control_plane.api.get("Pod", world.namespace, "fails-worker-1-0")["spec"]["nodeName"]
    error = caught.value
    assert (error.rank, error.exit_code, error.pod, error.node) == (1, 1, "fails-worker-1-0", node)
    assert isinstance(error.__cause__, LookupError)
    assert error.__cause__.args == ("no data",)
    assert 'raise LookupError(f"no {what}")' in error.traceback


@pytest.mark.nightly
def test_a_restarted_job_returns_the_value_of_its_last_attempt(world: World) -> None:
    def attempts() -> int:
        if os.environ["ALLRANKS_ATTEMPT"] == "0":
            raise OSError("the first attempt fails")
        return int(os.environ["ALLRANKS_ATTEMPT"])

    with world.running():
        job = allranks.submit(attempts, ranks=2, every_rank=True, **PLAIN, **world.where)
        assert job.result() == 1
        assert job.results() == [1, 1]
        assert job.status.restarts.counted == 1


@pytest.mark.nightly
def test_another_program_finds_the_job_and_gets_its_value_and_logs(world: World) -> None:
    with world.running():
        job = allranks.submit(scaled, [4], ranks=1, **PLAIN, **world.where)
        program = (
            "import sys, allranks\n"
            "where = {'namespace': sys.argv[2], 'kubeconfig': sys.argv[3]}\n"
            "job = allranks.job(sys.argv[1], **where)\n"
            "lines = [line for line in job.logs(follow=True)]\n"
            "print(job.result(), [line.text for line in lines], [str(line) for line in job.logs()])\n"
            "print([found.name for found in allranks.jobs(phase='Succeeded', **where)] == [job.name])\n"
            "print(allranks.jobs(phase=('Running', 'Failed'), **where))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, job.name, world.namespace, world.where["kubeconfig"]],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.stderr == ""
        first, *rest = done.stdout.splitlines()
        assert first == "([4], 0) ['hello from 0'] ['worker-0 | hello from 0']"
        assert rest == ["True", "[]"]
        assert "Created" in {event.reason for event in job.events()} or job.events()
        assert "Succeeded" in job.report().text


@pytest.mark.nightly
def test_a_job_is_suspended_resumed_scaled_and_cancelled(world: World) -> None:
    def runs() -> None:
        threading.Event().wait(600)

    with world.running():
        job = allranks.submit(runs, ranks=1, name="runs", **PLAIN, **world.where)
        live.eventually(lambda: job.status.phase == "Running", 300)
        with pytest.raises(allranks.WaitTimeout, match=r"runs is still Running after 0\.1 s; it continues"):
            job.result(timeout=0.1)
        with pytest.raises(allranks.ClusterError, match="there is already a DistributedTraining runs"):
            allranks.submit(runs, ranks=1, name="runs", **PLAIN, **world.where)
        job.suspend()
        live.eventually(lambda: job.status.phase == "Suspended", 300)
        job.scale(2)
        job.resume()
        live.eventually(lambda: job.status.ready == "2/2", 300)
        job.cancel()
        job.cancel()
        with pytest.raises(allranks.JobDeleted, match=r"runs in namespace .* was deleted"):
            job.result()


@pytest.mark.nightly
def test_another_version_of_python_fails_the_job_at_once_with_both_versions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload.sys, "version_info", (3, 7, 0))
    with world.running():
        job = allranks.submit(scaled, [4], ranks=1, **PLAIN, **world.where)
        monkeypatch.undo()
        with pytest.raises(allranks.CannotRun, match=r"sent by Python 3\.7, and the ranks run Python 3"):
            job.result()
        assert job.status.restarts.counted == 0


@pytest.mark.nightly
def test_a_value_arrives_after_an_outage_of_the_operator(world: World) -> None:
    def large() -> bytes:
        return b"abc" * 300_000

    [port] = free_ports(1)
    how = {"report_url": f"http://127.0.0.1:{port}/v1/report", "report_port": port, "pools": False}
    connection = live.connection(world.control_plane)
    with process_kubelet(world.control_plane, world.namespace, world.folder) as kubelet:
        with live.operator(connection, world.namespace, **how):
            job = allranks.submit(large, ranks=1, **PLAIN, **world.where)
            pod = f"{job.name}-worker-0-0"
            live.eventually(lambda: world.control_plane.api.find("Pod", world.namespace, pod), 300)
        live.eventually(lambda: kubelet.runs(pod), 300)
        with live.operator(connection, world.namespace, **how):
            assert job.result() == b"abc" * 300_000


def many(number: int) -> list[int]:
    return list(range(number))


@pytest.mark.nightly
def test_a_value_that_is_too_large_comes_back_from_the_object_store_of_an_output(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    source = str(Path(__file__).parents[2] / "operator")
    with s3_server() as url, contextlib.ExitStack() as stack:
        for name, value in s3_environment(url).items():
            monkeypatch.setenv(name, value)
        store = boto3.client("s3")
        stack.callback(store.close)
        store.create_bucket(Bucket="values")
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # the image of transfers
        environ = {**os.environ, "PYTHONPATH": source, "PATH": path}
        kubelet = stack.enter_context(world.running(environ, data_claim="data"))
        kubelet.claims["data"] = tmp_path / "data"
        outputs = {"results": "s3://values/birds"}
        large = allranks.submit(many, 1_000_000, ranks=1, outputs=outputs, **PLAIN, **world.where)
        assert large.result(timeout=300) == many(1_000_000)
        small = allranks.submit(many, 3, ranks=1, outputs=outputs, **PLAIN, **world.where)
        assert small.result(timeout=300) == [0, 1, 2]
        assert small.status.outputs[0].state == "Uploaded"
        names = [one["Key"] for one in store.list_objects_v2(Bucket="values")["Contents"]]
        [pickled] = [name for name in names if f"results/{large.name}-" in name]
        store.put_object(Bucket="values", Key=pickled, Body=b"another")
        with pytest.raises(allranks.ResultError, match=f"s3://values/{pickled}, which cannot be read here: it is not"):
            large.result()


@pytest.mark.nightly
def test_a_directory_of_code_is_sent_with_the_function_and_with_a_script(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "beside.py").write_text("def answer():\n    return 42\n")
    (project / "train.py").write_text("import sys, beside\nprint(beside.answer(), *sys.argv[1:])\n")
    monkeypatch.chdir(project)

    def uses_it() -> int:
        import beside  # type: ignore[import-not-found]

        return int(beside.answer())

    with world.running():
        assert allranks.run(uses_it, ranks=1, code=".", logs=False, **PLAIN, **world.where) == 42
        job = allranks.submit("train.py", "--epochs", 3, ranks=1, code=".", **PLAIN, **world.where)
        assert job.result() is None
        assert [line.text for line in job.logs()] == ["42 --epochs 3"]


TORCH = {"image": "example.org/pytorch:1"}


@pytest.mark.slow
@pytest.mark.nightly
def test_ranks_of_PyTorch_meet_and_every_rank_returns(world: World, frameworks: Path) -> None:
    def train(rate: float) -> tuple[int, float]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([rate])
        dist.all_reduce(total)
        rank = dist.get_rank()
        dist.destroy_process_group()
        return rank, total.item()

    path = os.pathsep.join((str(frameworks / "bin"), os.environ["PATH"]))
    with world.running({**os.environ, "PATH": path}):
        job = allranks.submit(train, 0.5, ranks=2, every_rank=True, **TORCH, **world.where)
        assert job.results() == [(0, 1.0), (1, 1.0)]
