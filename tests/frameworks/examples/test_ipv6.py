"""Ranks that have only IPv6 addresses, as in the pods of an IPv6 cluster: real processes in a network without IPv4."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from allranks.api.status import Status
from allranks.core.objects import pods
from allranks.pod_bundle import HELPERS
from support.builders import CLUSTER, environment, job

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

PYTORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("total", total.item())
"""
JAX = """
import jax
from jax.experimental import multihost_utils
jax.distributed.initialize()
total = multihost_utils.process_allgather(jax.numpy.ones(1) * (jax.process_index() + 1)).sum()
print("total", float(total))
"""
NETWORK = "ip link set lo up; ip addr del 127.0.0.1/8 dev lo; mount --bind hosts /etc/hosts"
"""A network device with IPv6 alone. The file has the names that the DNS of a cluster has."""


@pytest.mark.parametrize(
    ("framework", "command"),
    [
        ("pytorch", ["torchrun", "--no-python", "python3", "-c", PYTORCH]),
        ("jax", ["python3", "-c", JAX]),
    ],
)
def test_ranks_train_without_ipv4(framework: str, command: list[str], tmp_path: Path) -> None:
    made = pods.objects(job(framework, command=command), Status(), CLUSTER)
    hosts, script = ["::1 localhost"], ["set -e", NETWORK]
    for number, pod in enumerate(made.pods):
        host = pod["spec"]["hostname"]
        hosts.append(f"fd00::{number + 1} {host}.job.team.svc {host}")
        script.append(f"ip -6 addr add fd00::{number + 1}/128 dev lo")
    for pod in made.pods:
        variables = [f"{name}={value}" for name, value in environment(made, pod).items()]
        words = [word.replace("/allranks/", f"{HELPERS}/") for word in pod["spec"]["containers"][0]["command"]]
        line = shlex.join(["env", *variables, *words])
        script.append(f'unshare --uts sh -c \'hostname "$0"; exec "$@"\' {pod["spec"]["hostname"]} {line} &')
        script.append('pids="$pids $!"')
    script.append("for pid in $pids; do wait $pid; done")
    (tmp_path / "hosts").write_text("\n".join(hosts) + "\n")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("total 3.0") == 2, done.stdout + done.stderr
