"""Kueue on a cluster: its own manifests, with the settings that docs/platform/queues.md asks for."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from support.certificates import Authority
from support.kueue import MANAGER, NAMESPACE, WEBHOOK_SERVER, build, clients_of, queue_objects

from . import image_archive
from .cluster import PATIENCE, Cluster
from .jobs import Manifest, Team

IMAGE = "localhost/kueue:0.15.1"
DEPLOYMENT = f"deployment/{MANAGER}"
GROUP = "kueue.x-k8s.io"
READS_JOBS = "kueue-reads-training-jobs"


@contextlib.contextmanager
def installed(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Kueue in a pod, whose webhooks see every pod of the cluster. Its log stays in the folder."""
    programs = build()
    image_archive.load(cluster, folder, IMAGE, programs / "kueue")
    rendered = cluster.kubectl("kustomize", str(programs / "manifests" / "default"))
    manifests = adapted([*yaml.load_all(rendered, yaml.CSafeLoader)], folder)
    file = folder / "kueue.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    definitions = ("crd", "-l", "app.kubernetes.io/name=kueue")
    try:
        # Server-side: the annotation of a client-side apply is too small for the larger CRDs.
        cluster.kubectl("apply", "--server-side", "-f", str(file))
        cluster.wait("--for=condition=Available", DEPLOYMENT, "-n", NAMESPACE)
        serves_webhooks(cluster)
        yield
    finally:
        log = cluster.ask("logs", DEPLOYMENT, "-n", NAMESPACE, "--tail=-1")
        (folder / "kueue.log").write_text(log.stdout + log.stderr)
        # With its definitions first: their objects have finalizers, and are converted by its webhook.
        cluster.ask("delete", *definitions, "--timeout=250s")
        cluster.kubectl("delete", "-f", str(file), "--ignore-not-found", timeout=300)


def adapted(manifests: list[Manifest], folder: Path) -> list[Manifest]:
    """The manifests with the image, the certificates and the settings of the tests.

    Kueue can make its certificates itself, but its pod then waits for a minute until the kubelet has brought them.
    Without its visibility server: it needs a front proxy, which the cluster does not have.
    """
    authority, files = Authority("kueue-ca"), {name: folder / name for name in ("tls.crt", "tls.key")}
    authority.issue("kueue", files["tls.crt"], files["tls.key"], [WEBHOOK_SERVER])
    kept = [manifest for manifest in manifests if manifest["kind"] != "APIService"]
    for manifest in kept:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        for client in clients_of(manifest):
            client["caBundle"] = base64.b64encode(authority.certificate).decode()
        if (kind, name) == ("Secret", "kueue-webhook-server-cert"):
            manifest["stringData"] = {key: file.read_text() for key, file in files.items()}
        elif (kind, name) == ("ConfigMap", "kueue-manager-config"):
            [(key, text)] = manifest["data"].items()
            manifest["data"] = {key: json.dumps(settings(yaml.safe_load(text)))}
        elif kind == "Deployment":
            [container] = manifest["spec"]["template"]["spec"]["containers"]
            container |= {"image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["/bin/kueue"]}
            container["volumeMounts"].append({"name": "cert", "mountPath": "/certificates"})  # for its metrics
    return [*kept, *rights()]


def settings(configuration: Manifest) -> Manifest:
    integrations = configuration["integrations"]
    return configuration | {
        "internalCertManagement": {"enable": False},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": integrations | {"externalFrameworks": ["DistributedTraining.v1alpha1.allranks.dev"]},
    }


def rights() -> list[Manifest]:
    """That Kueue may read training jobs."""
    version, metadata = "rbac.authorization.k8s.io/v1", {"name": READS_JOBS}
    rule = {"apiGroups": ["allranks.dev"], "resources": ["distributedtrainings"], "verbs": ["get"]}
    return [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": READS_JOBS},
            "subjects": [{"kind": "ServiceAccount", "name": MANAGER, "namespace": NAMESPACE}],
        },
    ]


def serves_webhooks(cluster: Cluster) -> None:
    """Waits for them: its pod is ready earlier."""
    flavor = {"apiVersion": f"{GROUP}/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "dry-run"}}
    deadline = time.monotonic() + PATIENCE
    while (done := cluster.ask("create", "--dry-run=server", "-f", "-", input=json.dumps(flavor))).returncode:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.5)


@contextlib.contextmanager
def queue(team: Team, quota: Mapping[str, str]) -> Iterator[str]:
    """The name of a LocalQueue of the team with this quota. Its jobs are deleted at the end: Kueue keeps a ClusterQueue
    as long as it has Workloads."""
    name = team.namespace
    items = queue_objects(name, quota)
    team.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    team.wait(f"localqueue/{name}", "--for=condition=Active")
    try:
        yield name
    finally:
        team.kubectl("delete", "dt", "--all", "--cascade=foreground", timeout=400)
        team.kubectl("delete", f"clusterqueue/{name}", f"resourceflavor/{name}", "--timeout=250s")
