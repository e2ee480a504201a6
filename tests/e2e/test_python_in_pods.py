"""`allranks.submit` and `packages` with real containers: functions, values and exceptions, and pip's packages."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import zipfile
from pathlib import Path
from typing import Any

import pytest

import allranks
from support.data_servers import Behaviour, http_server

from .cluster import PATIENCE, Cluster
from .jobs import Team, image, training

pytestmark = pytest.mark.nightly


@pytest.fixture
def how(team: Team) -> dict[str, Any]:
    found = team.cluster.ask("get", "nodes")
    assert found.returncode == 0
    return {"image": image("pytorch"), "namespace": team.namespace, "kubeconfig": str(team.cluster.kubeconfig)}


def summed(values: list[float], factor: float = 1.0) -> tuple[float, str, int]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = torch.tensor(values[dist.get_rank()])
    dist.all_reduce(found)
    print("rank", dist.get_rank(), "runs in", os.uname().nodename)
    dist.destroy_process_group()
    return float(found) * factor, platform.python_version(), os.getuid()


def test_the_value_of_a_function_comes_back_from_containers(team: Team, how: dict[str, Any]) -> None:
    job = allranks.submit(summed, [1.5, 2.5], ranks=2, factor=10, name="summed", framework="pytorch", **how)
    value, version, user = job.result(timeout=PATIENCE)
    assert value == 40.0
    assert version.rpartition(".")[0] == platform.python_version().rpartition(".")[0]
    assert user == 65532
    lines = [str(line) for line in job.logs()]
    assert any("rank 1 runs in" in line for line in lines), lines
    found = allranks.job("summed", namespace=how["namespace"], kubeconfig=how["kubeconfig"])
    assert found.result() == (value, version, user)


def summed_by_jax() -> float:
    import jax
    import numpy
    from jax.experimental import multihost_utils

    jax.distributed.initialize()
    return float(multihost_utils.process_allgather(numpy.float32(1 + jax.process_index())).sum())


def summed_by_horovod() -> float:
    import horovod.torch as hvd  # type: ignore[import-not-found]
    import torch

    hvd.init()
    return float(hvd.allreduce(torch.tensor(1.0 + hvd.rank()), op=hvd.Sum))


def summed_by_mpi() -> float:
    from mpi4py import MPI  # type: ignore[import-not-found]

    return float(MPI.COMM_WORLD.allreduce(1.0 + MPI.COMM_WORLD.rank))


FUNCTIONS = {"jax": summed_by_jax, "horovod": summed_by_horovod, "mpi": summed_by_mpi}


@pytest.mark.parametrize("framework", FUNCTIONS)
def test_a_function_of_another_framework_returns_its_value(framework: str, how: dict[str, Any]) -> None:
    settings = how | {"image": image(framework)}
    job = allranks.submit(FUNCTIONS[framework], ranks=2, framework=framework, name=framework, **settings)
    assert job.result(timeout=PATIENCE) == 3.0


def fails_on_rank_1(what: str) -> None:
    import time

    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise LookupError(f"no {what}")
    # A rank that loses its peer may end in the same second: Kubernetes does not tell which of the two was first.
    time.sleep(600)


def test_the_exception_of_the_first_failed_rank_comes_back(team: Team, how: dict[str, Any]) -> None:
    job = allranks.submit(fails_on_rank_1, "data", ranks=2, restarts=0, name="fails", framework="pytorch", **how)
    with pytest.raises(allranks.RankFailed) as caught:
        job.result(timeout=PATIENCE)
    error = caught.value
    assert (error.rank, error.exit_code, error.pod) == (1, 1, "fails-worker-1-0")
    assert error.node == team.get("pod", "fails-worker-1-0")["spec"]["nodeName"]
    assert isinstance(error.__cause__, LookupError)
    assert 'raise LookupError(f"no {what}")' in error.traceback


def wheel(name: str, version: str, text: str) -> bytes:
    """A wheel with one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in files.items()]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return made.getvalue()


def _digest(content: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()


def test_packages_are_installed_from_an_index_that_pods_reach(team: Team, cluster: Cluster, tmp_path: Path) -> None:
    file = "bird_names-1.2.0-py3-none-any.whl"
    link = f'<html><body><a href="/files/{file}">{file}</a></body></html>'.encode()
    page = {"Content-Type": "text/html"}
    web = Behaviour(files={f"/files/{file}": wheel("bird_names", "1.2.0", "best = 'Gentoo'\n")})
    web.answers["/simple/bird-names/"] = lambda _: (200, page, link)
    with http_server(web, cluster.our_address) as url:
        env = [
            {"name": "PIP_INDEX_URL", "value": f"{url}/simple"},
            {"name": "PIP_TRUSTED_HOST", "value": cluster.our_address},
        ]
        program = "import bird_names, torch; print('the best is', bird_names.best, torch.__version__)"
        command, packages = ("python3", "-c", program), ["bird_names==1.2.0"]
        job = team.start(training("packages", *command, packages=packages, env=env))
        team.completes(job)
        assert "the best is Gentoo 2." in team.kubectl("logs", f"{job}-master-0-0")
        missing = ["no-such-bird==9"]
        job = team.start(training("missing", "true", packages=missing, env=env, restart={"maxRestarts": 0}))
        team.wait(f"dt/{job}", "--for=jsonpath={.status.completionTime}")
    message = team.status(job)["lastFailure"]["message"]
    assert "no-such-bird==9 cannot be installed" in message
