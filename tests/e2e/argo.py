"""Argo Workflows on a cluster: programs of tools/go-tools.sh, installed by the manifests of their own module."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .cluster import REPOSITORY, Cluster

IMAGE = "localhost/argo:3.6.10"
NAMESPACE = "argo-workflows"
CONTROLLER = "deployment/workflow-controller"


@contextlib.contextmanager
def installed(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Deletes the installed objects at the end; the log of the controller stays in the folder."""
    command = [REPOSITORY / "tools" / "go-tools.sh", "argo"]
    programs = Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1500).stdout.strip())
    write_image(programs, folder / "argo.tar")
    done = cluster.script("load", str(folder / "argo.tar"))
    assert done.returncode == 0, done.stderr
    (folder / "argo.tar").unlink()  # hundreds of megabytes
    write_kustomization(programs, folder)
    try:
        # Server-side: the annotation of a client-side apply is too small for the larger CRDs.
        cluster.kubectl("apply", "--server-side", "--kustomize", str(folder))
        cluster.wait("--for=condition=Available", CONTROLLER, "-n", NAMESPACE)
        yield
    finally:
        log = cluster.ask("logs", CONTROLLER, "-n", NAMESPACE, "--tail=-1")
        (folder / "workflow-controller.log").write_text(log.stdout + log.stderr)
        cluster.kubectl("delete", "--kustomize", str(folder), "--ignore-not-found", timeout=120)


def write_image(programs: Path, archive: Path) -> None:
    """A docker-archive with both programs and a world-writable /tmp, without which argoexec ends with 64."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for name in ("argoexec", "workflow-controller"):
            tar.add(programs / name, f"bin/{name}")
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    machine = platform.machine()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "User": "8737"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, content in (("manifest.json", manifest), ("config.json", config)):
            text = json.dumps(content).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        tar.add(layer, "layer.tar")
    layer.unlink()


def write_kustomization(programs: Path, folder: Path) -> None:
    """Argo's own manifests for a cluster, without its server, with the settings that docs/platform/argo.md asks for."""
    base = os.path.relpath((programs / "manifests").resolve(), folder.resolve())
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    (folder / "namespace.yaml").write_text(json.dumps(namespace))
    # For the containers that Argo adds to a step: the Pod Security Standard "restricted" requires it.
    executor = {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    configuration = {"kind": "ConfigMap", "metadata": {"name": "workflow-controller-configmap"}}
    container = "/spec/template/spec/containers/0"
    patch = [
        {"op": "replace", "path": f"{container}/image", "value": IMAGE},
        {"op": "replace", "path": f"{container}/args", "value": [f"--executor-image={IMAGE}"]},
    ]
    kustomization = {
        "namespace": NAMESPACE,
        "resources": [
            "namespace.yaml",
            *(f"{base}/{part}" for part in ("base/crds", "base/workflow-controller")),
            f"{base}/cluster-install/workflow-controller-rbac",
        ],
        "patches": [
            {"target": {"kind": "Deployment"}, "patch": json.dumps(patch)},
            {"patch": json.dumps({"apiVersion": "v1", **configuration, "data": {"executor": json.dumps(executor)}})},
        ],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
