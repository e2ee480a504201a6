"""Argo Workflows on a cluster: programs of tools/go-tools.sh, installed by the manifests of their own module."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from support import tools

from . import image_archive
from .cluster import Cluster

IMAGE = "localhost/argo:3.6.10"
NAMESPACE = "argo-workflows"
CONTROLLER = "deployment/workflow-controller"


@contextlib.contextmanager
def installed(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Deletes the installed objects at the end; the log of the controller stays in the folder."""
    programs = tools.built("go-tools.sh", "argo")
    image_archive.load(cluster, folder, IMAGE, *(programs / name for name in ("argoexec", "workflow-controller")))
    write_kustomization(programs, folder)
    try:
        # Server-side: the annotation of a client-side apply is too small for the larger CRDs.
        cluster.kubectl("apply", "--server-side", "--kustomize", str(folder))
        cluster.wait("--for=condition=Available", CONTROLLER, "-n", NAMESPACE)
        yield
    finally:
        log = cluster.ask("logs", CONTROLLER, "-n", NAMESPACE, "--tail=-1")
        (folder / "workflow-controller.log").write_text(log.stdout + log.stderr)
        cluster.kubectl("delete", "--kustomize", str(folder), "--ignore-not-found", timeout=300)


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
