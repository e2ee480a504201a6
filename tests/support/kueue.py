"""A real Kueue beside a control plane of tests: its manager as a process on loopback, with its webhooks.

Its own manifests install it. Only what would need a cluster's network differs: the Services of its webhooks and of its
visibility server lead to ports of this machine.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from . import processes, tools
from .api import Api, ApiError, Manifest, path
from .certificates import Authority
from .controlplane import HOST, START_SECONDS, ControlPlane, DoesNotStart, free_ports

GROUP = "kueue.x-k8s.io"
NAMESPACE = "kueue-system"
WORKLOAD, CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR, PRIORITY_CLASS = (
    f"{kind}.v1beta2.{GROUP}"
    for kind in ("Workload", "ClusterQueue", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass")
)
MANAGER = "kueue-controller-manager"
"""Its Deployment and its ServiceAccount."""
WEBHOOK_SERVER = f"kueue-webhook-service.{NAMESPACE}.svc"
_WEBHOOK_SERVICE, _VISIBILITY_SERVICE = "kueue-webhook-service", "kueue-visibility-server"


def build() -> Path:
    """The folder with Kueue's manager and its manifests, built if necessary."""
    return tools.built("go-tools.sh", "kueue")


class Kueue:
    """`configuration` is merged over that of these tests, as in its ConfigMap. The control plane needs front_proxy."""

    def __init__(self, control_plane: ControlPlane, programs: Path, configuration: Mapping[str, Any] = {}) -> None:
        self._control_plane, self._programs = control_plane, programs
        self._folder = control_plane.folder / "kueue"
        self._log, self._certificates = self._folder / "kueue.log", self._folder / "certificates"
        self._webhook, self._visibility = free_ports(2)
        self._configuration = dict(configuration)
        self._process: subprocess.Popen[bytes] | None = None

    def install(self) -> None:
        """Creates its CRDs, rights, Services, webhooks and certificates, as its manifests say."""
        self._certificates.mkdir(parents=True)
        authority = Authority("kueue-ca")
        authority.issue("kueue", self._certificates / "tls.crt", self._certificates / "tls.key", [WEBHOOK_SERVER])
        rendered = self._kubectl("kustomize", str(self._programs / "manifests" / "default"))
        # CustomResourceDefinitions and the Namespace come first. They are long: other loaders take many seconds.
        manifests = [found for found in yaml.load_all(rendered, yaml.CSafeLoader) if found["kind"] != "Deployment"]
        for manifest in manifests:
            self._lead_to_this_machine(manifest, base64.b64encode(authority.certificate).decode())
        whole = {"apiVersion": "v1", "kind": "List", "items": manifests}
        self._kubectl("apply", "--server-side", "-f", "-", input=json.dumps(whole))
        self._kubectl("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/name=kueue")

    def start(self) -> None:
        """Returns when its webhooks answer. The calling thread must live as long as the process."""
        file = self._folder / "configuration.yaml"
        file.write_text(json.dumps(self._settings()))
        self._process = processes.start(
            self._programs / "kueue",
            f"--config={file}",
            log=self._log,
            environment={"VISIBILITY_PORT": str(self._visibility), "KUBECONFIG": str(self._kubeconfig())},
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise DoesNotStart(f"kueue:\n{self.log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Its webhooks stay registered, as when its pod is gone."""
        if self._process:
            processes.end(self._process)
        self._process = None

    def restart(self, configuration: Mapping[str, Any] = {}) -> None:
        """Ends it, and starts it with another configuration."""
        self.stop()
        self._configuration = dict(configuration)
        self.start()

    def log(self, lines: int = 30) -> str:
        """The end of its log."""
        return processes.end_of(self._log, lines)

    def _settings(self) -> Manifest:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": "0"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": HOST, "port": self._webhook, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 1000, "burst": 2000},
            "internalCertManagement": {"enable": False},
            "integrations": {"frameworks": ["batch/job"]},
            **self._configuration,
        }

    def _kubeconfig(self) -> Path:
        """The kubeconfig has the rights of its ServiceAccount."""
        token = self._kubectl("create", "token", MANAGER, "-n", NAMESPACE, "--duration=24h").strip()
        return self._control_plane.kubeconfig_of("kueue", token)

    def _kubectl(self, *arguments: str, input: str | None = None) -> str:
        done = self._control_plane.kubectl(*arguments, input=input)
        if done.returncode:
            raise DoesNotStart(f"kubectl {arguments[0]}: {done.stderr}")
        return done.stdout

    def _lead_to_this_machine(self, manifest: Manifest, authority: str) -> None:
        """A Service with an external name is the only one that leads an API server to loopback; ports are kept."""
        ports = {_WEBHOOK_SERVICE: self._webhook, _VISIBILITY_SERVICE: self._visibility}
        spec, name = manifest.get("spec", {}), manifest["metadata"]["name"]
        if manifest["kind"] == "Service" and name in ports:
            manifest["spec"] = {"type": "ExternalName", "externalName": HOST}
        if manifest["kind"] == "APIService":
            spec["service"]["port"] = self._visibility
        for client in clients_of(manifest):
            client["service"]["port"] = self._webhook
            client["caBundle"] = authority

    def _answers(self) -> bool:
        """Whether the API server reaches its webhooks. Kueue is ready by its own account before it serves them."""
        flavor = {"apiVersion": f"{GROUP}/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "dry-run"}}
        with contextlib.suppress(ApiError):
            self._control_plane.api.request("POST", f"{path(RESOURCE_FLAVOR)}?dryRun=All", flavor)
            return True
        return False


def clients_of(manifest: Manifest) -> list[Manifest]:
    """The `clientConfig` of each webhook of this object: its server, and the authority that the API server trusts."""
    clients = [webhook["clientConfig"] for webhook in manifest.get("webhooks", ())]
    if manifest["kind"] == "CustomResourceDefinition" and "conversion" in manifest["spec"]:
        clients.append(manifest["spec"]["conversion"]["webhook"]["clientConfig"])
    return clients


def queue_objects(name: str, quota: Mapping[str, str], **spec: Any) -> list[Manifest]:
    """A flavor, a ClusterQueue with this quota and a LocalQueue, all of one name. `spec` is the ClusterQueue's:
    cohortName, preemption and so on."""
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}
    specs: Manifest = {
        "ResourceFlavor": {},
        "ClusterQueue": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
        "LocalQueue": {"clusterQueue": name},
    }
    return [
        {"apiVersion": f"{GROUP}/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": content}
        for kind, content in specs.items()
    ]


def add_queue(api: Api, namespace: str, name: str, quota: Mapping[str, str], **spec: Any) -> None:
    """Creates `queue_objects`."""
    flavor, cluster_queue, local_queue = queue_objects(name, quota, **spec)
    api.create(flavor)
    api.create(cluster_queue)
    api.create(local_queue, namespace)


def remove_queue(api: Api, namespace: str, name: str) -> None:
    """Deletes them, and the namespace's Workloads: Kueue keeps a ClusterQueue as long as it has some."""
    for workload in api.list(WORKLOAD, namespace):
        api.delete(WORKLOAD, namespace, workload["metadata"]["name"])
    api.delete(CLUSTER_QUEUE, None, name)
    api.delete(RESOURCE_FLAVOR, None, name)
