"""examples/data/cifar.yaml: CIFAR-10 in its own archive is an input, with real ranks of PyTorch."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path

import pytest

from frameworks.train.test_data import write_cifar10
from support.data_servers import Behaviour, http_server

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]


def small_archive(folder: Path) -> bytes:
    """Return an archive with the names and the format of cifar-10-python.tar.gz, and 110 images."""
    write_cifar10(folder / "cifar-10-batches-py", "python")
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(folder / "cifar-10-batches-py", "cifar-10-batches-py")
    return (folder / "cifar-10-python.tar.gz").read_bytes()


def test_the_archive_of_cifar10_is_unpacked_and_trains_a_small_vgg(run_job, tmp_path: Path, monkeypatch) -> None:
    archive = small_archive(tmp_path)
    monkeypatch.setenv("ALLRANKS_CACHE", str(tmp_path / "cache"))
    with http_server(Behaviour(files={"/cifar-10-python.tar.gz": archive})) as url:
        run = run_job(
            "examples/data/cifar.yaml",
            *("--set", f"inputs[0].from={url}/cifar-10-python.tar.gz"),
            *("--set", f"inputs[0].sha256={hashlib.sha256(archive).hexdigest()}"),
            *("--set", "args[2]=--epochs=2"),
        ).finish()
    assert run.code == 0, run.output
    assert "epoch 2/2 loss" in run.output
    assert re.search(r"rank 1 of 2: test accuracy \d", run.output)
    [state] = run.status["inputs"]
    unpacked = [path for path in (run.directory / "run" / "inputs" / "cifar").rglob("*") if path.is_file()]
    assert {path.parent.name for path in unpacked} == {"cifar-10-batches-py"}
    assert state["bytes"] == sum(path.stat().st_size for path in unpacked)
