"""The sshd of an MPI worker and the ssh of its launcher, with the options that allranks writes: the job's key runs
commands, and another pod on the network gets nowhere. Needs OpenSSH's server, which the images have."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from allranks.api.status import Status
from allranks.core.objects import pods
from allranks.operator.secret_data import key_pair
from support.builders import CLUSTER, job
from support.controlplane import free_ports
from support.live import eventually

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SSHD and shutil.which("ssh")), reason="OpenSSH's client and server are not installed"),
]


class Worker(NamedTuple):
    port: int
    keys: Path
    config: Path

    def ssh(
        self, *options: str, key: Path | None = None, run: str = "echo reached"
    ) -> subprocess.CompletedProcess[str]:
        """Runs the ssh of mpirun, with more options before its own. `key` replaces the key of the job."""
        config = self.config.with_name("ssh_config_of_call")
        lines = self.config.read_text().splitlines()
        if key:
            lines = [f"  IdentityFile {key}" if "IdentityFile" in line else line for line in lines]
        config.write_text("\n".join(lines))
        words = ["ssh", "-F", str(config), *options, "-p", str(self.port), "127.0.0.1", run]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)


def written(folder: Path) -> Path:
    """The files of a new Secret, as in both volumes of a pod."""
    data = key_pair()
    for volume, mode in ((folder, 0o444), (folder.with_name(f"{folder.name}-root"), 0o400)):
        volume.mkdir()
        for name, content in data.items():
            (volume / name).write_bytes(base64.b64decode(content))
            (volume / name).chmod(mode)
    return folder


def private_key(folder: Path) -> Path:
    """The key for the user of this process."""
    return (folder if os.geteuid() else folder.with_name(f"{folder.name}-root")) / "ssh-privatekey"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = pods.objects(job("mpi", {"worker": 1, "launcher": 1}), Status(), CLUSTER)
    [command] = [
        pod["spec"]["containers"][0]["command"] for pod in made.pods if pod["metadata"]["name"] == "job-worker-0-0"
    ]
    [config] = [companion["data"]["ssh_config"] for companion in made.companions if companion["kind"] == "ConfigMap"]
    [port], keys = free_ports(1, "127.0.0.1"), written(tmp_path / "keys")
    (tmp_path / "ssh_config").write_text(config.replace("/etc/allranks-ssh", str(keys)))
    words = [word.replace("/etc/allranks-ssh", str(keys)).replace("=2222", f"={port}") for word in command]
    words = [SSHD if word == "/usr/sbin/sshd" else word for word in words]
    with subprocess.Popen([*words, "-oListenAddress=127.0.0.1"], stderr=subprocess.PIPE, text=True) as server:
        try:

            def listens() -> bool:
                assert server.poll() is None, server.stderr and server.stderr.read()
                with socket.socket() as client:
                    return client.connect_ex(("127.0.0.1", port)) == 0

            eventually(listens, seconds=120)
            yield Worker(port, keys, tmp_path / "ssh_config")
        finally:
            server.kill()


def test_the_key_of_the_job_runs_commands_and_every_other_way_in_is_closed(worker: Worker, tmp_path: Path) -> None:
    reached = worker.ssh()
    assert (reached.returncode, reached.stdout) == (0, "reached\n"), reached.stderr
    another = written(tmp_path / "another")
    for options in (
        (),
        ("-oPreferredAuthentications=password,keyboard-interactive,hostbased,none", "-oBatchMode=no"),
        ("-oPreferredAuthentications=none",),
    ):
        refused = worker.ssh(*options, key=private_key(another))
        assert refused.returncode == 255
        assert "Permission denied (publickey)" in refused.stderr, "no other method is offered"


@pytest.mark.parametrize(
    "options",
    [
        ("-oExitOnForwardFailure=yes", "-R", "127.0.0.1:0:127.0.0.1:1"),
        ("-W", "127.0.0.1:1"),
        ("-oTunnel=yes", "-w", "any:any", "-oExitOnForwardFailure=yes"),
    ],
    ids=["a listener on the worker", "a connection through the worker", "a tunnel"],
)
def test_a_key_that_leaked_forwards_nothing(worker: Worker, options: tuple[str, ...]) -> None:
    said = worker.ssh(*options) if options[0] != "-W" else worker.ssh(*options, run="")
    assert said.returncode == 255
    assert "reached" not in said.stdout


def test_the_launcher_sends_nothing_to_a_host_without_the_key_of_the_job(worker: Worker, tmp_path: Path) -> None:
    """Such as a pod of someone else that answers under the address of a worker that has ended."""
    another = written(tmp_path / "another")
    impostor = worker.config.read_text().replace(str(worker.keys), str(another))
    worker.config.write_text(impostor)
    said = worker.ssh(key=private_key(worker.keys))
    assert said.returncode == 255
    assert "Host key verification failed" in said.stderr
    assert said.stdout == ""


def test_a_job_whose_secret_an_earlier_version_made_still_starts(worker: Worker) -> None:
    (worker.keys / "ssh-knownhosts").unlink()
    assert worker.ssh().stdout == "reached\n"
