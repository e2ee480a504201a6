"""The images in containers with any user ID, a read-only root and no capabilities."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.api.status import Status
from allranks.core.objects import pods
from allranks.operator.secret_data import key_pair
from allranks.pod_bundle import HELPERS
from allranks.version import __version__
from support.builders import CLUSTER, job
from support.controlplane import free_ports
from support.images import IMAGES as FRAMEWORKS

from . import building
from .conftest import Images
from .containers import HOSTNAME, Mount, any_user

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(building.SECONDS)]

MEGABYTE = 1_000_000
CHECKPOINTS = "/tmp/checkpoints"
EVERY_IMAGE = ["operator", "ui", "data", "archiver", *FRAMEWORKS]


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout
    return done.stdout


def size(root: Path) -> int:
    found = subprocess.run(["du", "--summarize", "--bytes", root], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


@pytest.mark.parametrize("name", EVERY_IMAGE)
def test_any_user_has_a_home_to_write_to(image: Images, name: str):
    user = any_user()
    said = succeeded(
        image(name).run("sh", "-c", 'touch "$HOME/a" && python3 -c "import os; print(os.getuid())"', user=user)
    )
    assert said.strip() == user.partition(":")[0]


@pytest.mark.parametrize("name", EVERY_IMAGE)
def test_an_image_contains_no_key_and_no_package_list(image: Images, name: str):
    root = image(name).root
    assert list(root.glob("etc/ssh/ssh_host_*")) == []
    assert list(root.glob("var/lib/apt/lists/*")) == []
    assert list(root.glob("root/.cache/*")) == []


@pytest.mark.parametrize("name", EVERY_IMAGE)
def test_an_image_is_labeled_with_its_name_and_version(image: Images, name: str):
    built = image(name)
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in built.config["Labels"].items()}
    assert labels["version"] == __version__
    assert re.fullmatch("[0-9a-f]{40}", labels["revision"])
    assert labels["title"] == f"allranks {name}"
    assert built.config["User"] == "65532:65532"


# The operator.


def test_the_operators_image_runs_the_command_line(image: Images):
    operator = image("operator")
    assert (
        succeeded(operator.run("allranks", "--version", user=any_user())).strip() == f"allranks, version {__version__}"
    )
    assert "--kubeconfig" in succeeded(operator.run("allranks", "operator", "--help", user=any_user()))
    manifest = Mount(Path(__file__).parents[2] / "examples", "/examples")
    succeeded(operator.run("allranks", "validate", "/examples/penguins-pytorch.yaml", mounts=[manifest]))


def test_the_operators_image_runs_the_operator_by_itself(image: Images):
    """It prints one message if there is no cluster."""
    done = image("operator").run(user=any_user())
    assert done.returncode == 1
    assert done.stdout.startswith("Error: no cluster is configured")


def test_the_operators_image_brings_the_helpers_into_a_pod(image: Images, tmp_path: Path):
    tmp_path.chmod(0o777)  # an emptyDir
    helpers = [Mount(tmp_path, "/allranks", writable=True)]
    succeeded(image("operator").run("allranks", "inject", "/allranks", user=any_user(), mounts=helpers))
    own = {path.name for pattern in ("[!_]*.py", "*.sh") for path in HELPERS.glob(pattern)}
    assert {path.name for path in tmp_path.iterdir()} == own | {"python", "startup"}
    assert (tmp_path / "python/allranks/report/__init__.py").exists()


def test_the_operators_image_is_small(image: Images):
    root = image("operator").root
    assert size(root / "opt" / "allranks") < 150 * MEGABYTE
    packages = next((root / "opt" / "allranks" / "lib").glob("python3*/site-packages"))
    there = {path.name for path in packages.iterdir()}
    assert not there & {"kubernetes", "torch", "tensorflow", "horovod", "numpy", "pip", "setuptools"}


MEASURE = """
import json, resource, time
start = time.perf_counter()
import allranks.operator.app
print(json.dumps([time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def test_the_operators_program_needs_less_memory_than_the_chart_requests(image: Images):
    said = succeeded(image("operator").run("python3", "-c", MEASURE, user=any_user()))
    seconds, memory = json.loads(said)
    print(f"import: {seconds:.2f} s, {memory / MEGABYTE:.0f} MB")
    assert memory < 128 * 1024 * 1024


# The web UI.


def test_the_uis_image_serves_without_a_cluster_and_holds_no_operator(image: Images):
    built = image("ui")
    done = built.run(user=any_user())
    assert "name the API server with --api-server URL" in done.stdout
    program = "import allranks.ui.app as app; from allranks.kube.auth import Connection; app.in_cluster(Connection('http://x'))"
    succeeded(built.run("python3", "-c", program, user=any_user()))
    packages = next((built.root / "opt" / "allranks" / "lib").glob("python3*/site-packages"))
    assert not {path.name for path in packages.iterdir()} & {"kopf", "kubernetes", "torch", "pip"}


# Transfers.


def test_the_image_for_data_has_the_clients_of_stores_and_git(image: Images):
    built = image("data")
    program = "import s3fs, gcsfs, adlfs, huggingface_hub, allranks.data.pod; print('ready')"
    said = succeeded(built.run("sh", "-c", f'git --version && python3 -c "{program}"', user=any_user()))
    assert said.splitlines()[-1] == "ready"
    packages = next((built.root / "opt" / "allranks" / "lib").glob("python3*/site-packages"))
    assert not {path.name for path in packages.iterdir()} & {"kopf", "kubernetes", "torch", "pip"}


# The archiver.


def test_the_archivers_image_runs_without_a_cluster_and_holds_no_operator(image: Images):
    built = image("archiver")
    done = built.run("allranks", "archiver", "--archive", "/tmp", user=any_user())
    assert "no cluster is configured" in done.stdout
    program = "import s3fs; from allranks.archive.store import open_store; open_store('s3://bucket/prefix')"
    succeeded(built.run("python3", "-c", program, user=any_user()))
    packages = next((built.root / "opt" / "allranks" / "lib").glob("python3*/site-packages"))
    assert not {path.name for path in packages.iterdir()} & {"kopf", "kubernetes", "torch", "pip", "fastapi"}


# PyTorch.


def test_pytorch_can_use_GPUs_and_CPUs(image: Images):
    program = """
import torch, torch.distributed as dist
assert dist.is_gloo_available() and dist.is_nccl_available() and torch.version.cuda
print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version())
"""
    assert succeeded(image("pytorch").run("python3", "-c", program, user=any_user())).startswith("2.")


def test_pytorch_trains_with_two_ranks(image: Images):
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", "train/penguins_pytorch.py"]
    options = ["--epochs=8", f"--checkpoint-dir={CHECKPOINTS}"]
    said = succeeded(image("pytorch").run(*command, *options, user=any_user(), timeout=300))
    assert "rank 0 of 2: started on cpu (gloo)" in said
    assert_learned(said)


def test_pytorch_trains_on_images(image: Images):
    """The data sets of scikit-learn are files of the package, on a read-only root."""
    said = succeeded(
        image("pytorch").run("python3", "train/digits_pytorch.py", "--epochs=1", user=any_user(), timeout=300)
    )
    assert "epoch 1/1" in said


def assert_learned(said: str) -> None:
    [accuracy] = re.findall(r"rank 0 of 2: test accuracy ([\d.]+)", said)
    assert float(accuracy) > 0.9, said


# TensorFlow.


def test_tensorflow_trains_with_two_workers(image: Images):
    tensorflow = image("tensorflow")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with (
        tensorflow.start(*tensorflow_worker(), user=any_user(), env=tf_config(addresses, 1)) as other,
        tensorflow.start(*tensorflow_worker(), user=any_user(), env=tf_config(addresses, 0)) as chief,
    ):
        said, _ = chief.communicate(timeout=300)
        others, _ = other.communicate(timeout=300)
    assert (chief.returncode, other.returncode) == (0, 0), said + others
    assert_learned(said)


def tensorflow_worker() -> list[str]:
    return ["python3", "train/penguins_tensorflow.py", "--epochs=8", f"--checkpoint-dir={CHECKPOINTS}"]


def tf_config(addresses: list[str], index: int) -> dict[str, str]:
    task = {"type": "worker", "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}


def test_tensorflow_has_legacy_keras_too(image: Images):
    program = "import tensorflow as tf; print(tf.keras.Sequential.__module__)"
    tensorflow = image("tensorflow")
    for legacy, beginning in (("0", "keras."), ("1", "tf_keras.")):
        env = {"TF_USE_LEGACY_KERAS": legacy, "TF_CPP_MIN_LOG_LEVEL": "3"}
        said = succeeded(tensorflow.run("python3", "-c", program, user=any_user(), env=env))
        assert said.splitlines()[-1].startswith(beginning), said


# Horovod.


@pytest.mark.parametrize("program", ["penguins_horovod.py", "penguins_horovod_keras.py"])
def test_horovod_trains_by_gloo(image: Images, program: str):
    command = ["horovodrun", "-np", "2", "--gloo", "python3", f"train/{program}", "--epochs=8"]
    env = {"HOROVOD_GLOO_IFACE": "lo", "HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
    said = succeeded(image("horovod").run(*command, user=any_user(), env=env, timeout=900))
    assert_learned(said)


def test_horovod_trains_with_the_operators_helper(image: Images, tmp_path: Path):
    """As in the pod of a job: the init container copies the helper, which starts the ranks."""
    tmp_path.chmod(0o777)
    helpers = Mount(tmp_path, "/allranks", writable=True)
    succeeded(image("operator").run("allranks", "inject", "/allranks", user=any_user(), mounts=[helpers]))

    [port] = free_ports(1)
    made = pods.objects(job(framework="horovod", roles={"worker": 1}, horovod={"slotsPerWorker": 2}), Status(), CLUSTER)
    [pod] = made.pods
    trainer = pod["spec"]["containers"][0]
    own = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "localhost", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    own |= {"HOROVOD_HOSTNAME": HOSTNAME, "ALLRANKS_HOROVOD_HOSTS": f"{HOSTNAME}:2"}
    env = environment(trainer) | own
    command = [*trainer["command"][:2], "python3", "train/penguins_horovod.py", "--epochs=8"]
    said = succeeded(image("horovod").run(*command, user=any_user(), env=env, mounts=[helpers], timeout=300))
    assert_learned(said)


def test_horovod_trains_by_MPI_over_an_sshd_without_root(image: Images, tmp_path: Path):
    """The pods of an MPI job, with other names and port: the sshd of the worker, and the mpirun of the launcher that
    starts the ranks over ssh. mpirun does not use ssh for 127.0.0.1, which is its own address."""
    horovod = image("horovod")
    worker_address = "127.0.0.2"
    [port] = free_ports(1, worker_address)
    made = pods.objects(
        job(
            framework="horovod",
            command=["python3", "train/penguins_horovod.py", "--epochs=8"],
            roles={"worker": 1, "launcher": 1},
            horovod={"controller": "MPI", "slotsPerWorker": 2},
        ),
        Status(),
        CLUSTER,
    )
    trainers = {pod["metadata"]["name"]: pod["spec"]["containers"][0] for pod in made.pods}
    worker, launcher = trainers["job-worker-0-0"], trainers["job-launcher-0-0"]
    files, keys = tmp_path / "files", tmp_path / "keys"
    [config] = [companion["data"] for companion in made.companions if companion["kind"] == "ConfigMap"]
    config = {**config, "hostfile": f"{worker_address} slots=2\n"}
    for folder, contents in (
        (files, {name: content.encode() for name, content in config.items()}),
        (keys, decoded(key_pair())),
    ):
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o444)
    mounts = [Mount(keys, "/etc/allranks-ssh"), Mount(files, "/etc/allranks")]

    sshd = [word.replace("Port=2222", f"Port={port}") for word in worker["command"]]
    env = {name: value.replace("-p 2222", f"-p {port}") for name, value in environment(launcher).items()}
    env |= {"OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}
    with horovod.start(*sshd, mounts=mounts) as serving:
        wait_for(worker_address, port, serving)
        said = succeeded(horovod.run(*launcher["command"], env=env, mounts=mounts, timeout=300))
    assert_learned(said)


def environment(trainer: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in trainer["env"]}


def decoded(data: dict[str, str]) -> dict[str, bytes]:
    return {name: base64.b64decode(content) for name, content in data.items()}


def wait_for(host: str, port: int, serving: subprocess.Popen[str], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=5):
                return
        except OSError:
            assert serving.poll() is None, serving.communicate()[0]
            time.sleep(0.1)
    raise TimeoutError(f"nothing listens at {host}:{port} after {seconds} s")
