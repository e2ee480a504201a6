"""Installs the operator with its chart."""

from __future__ import annotations

import os
import subprocess

from support import tools

from .cluster import REPOSITORY, Cluster
from .jobs import PREFIX, TAG

NAMESPACE = "allranks-system"
DATA_CLAIM = "allranks-data"
"""The claim for inputs and outputs, which namespaces have that need it."""


def helm(cluster: Cluster, *arguments: str) -> str:
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    command = [tools.built("helm.sh") / "helm", *arguments, f"--namespace={NAMESPACE}", "--timeout=1200s"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr + cluster.ask("get", "pods,events", "-A").stdout
    return done.stdout


def install(cluster: Cluster, *arguments: str) -> None:
    """Installs or upgrades the operator and waits until it is ready."""
    image = (f"--set=image.repository={PREFIX}/operator", f"--set=image.tag={TAG}")
    data = (f"--set=data.image={PREFIX}/data:{TAG}", f"--set=data.claim={DATA_CLAIM}")
    chart = REPOSITORY / "charts" / "allranks"
    helm(
        cluster,
        "upgrade",
        "--install",
        "allranks",
        str(chart),
        "--create-namespace",
        *image,
        *data,
        *arguments,
        "--wait",
    )


def uninstall(cluster: Cluster) -> None:
    helm(cluster, "uninstall", "allranks", "--wait")
