"""A small client of the API server for tests: synchronous, one connection, plain manifests.

It shares no code with allranks.kube, which is under test. A synchronous wrapper around that client would not be much
shorter: it needs an event loop in a thread of its own.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

Manifest = dict[str, Any]

RESOURCES = {
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "Pod": ("api/v1", "pods"),
    "Service": ("api/v1", "services"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "Event": ("api/v1", "events"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "ValidatingAdmissionPolicy": ("apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": ("apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"),
    "MutatingAdmissionPolicy": ("apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicies"),
    "MutatingAdmissionPolicyBinding": ("apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings"),
    "LimitRange": ("api/v1", "limitranges"),
    "PersistentVolume": ("api/v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "DistributedTraining": ("apis/allranks.dev/v1alpha1", "distributedtrainings"),
    "TrainingPool": ("apis/allranks.dev/v1alpha1", "trainingpools"),
    "TrainingSweep": ("apis/allranks.dev/v1alpha1", "trainingsweeps"),
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "LocalQueue": ("apis/kueue.x-k8s.io/v1beta2", "localqueues"),
    "ClusterQueue": ("apis/kueue.x-k8s.io/v1beta2", "clusterqueues"),
    "ResourceFlavor": ("apis/kueue.x-k8s.io/v1beta2", "resourceflavors"),
    "WorkloadPriorityClass": ("apis/kueue.x-k8s.io/v1beta2", "workloadpriorityclasses"),
}
"""Kind -> (group and version, name in paths). Other kinds are named `Kind.version.group`, as kubectl does."""


class ApiError(Exception):
    """An error of the API server; `str()` is its message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class Api:
    """Thread-safe: requests are sent one after another."""

    def __init__(self, url: str, ca_file: Path | str, token: str, timeout: float = 300) -> None:
        self._address = urlsplit(url)
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._token, self._timeout = token, timeout
        self._connection: http.client.HTTPSConnection | None = None
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return self._address.netloc

    def close(self) -> None:
        with self._lock:
            self._drop()

    def get(self, kind: str, namespace: str | None, name: str) -> Manifest:
        return self.request("GET", path(kind, namespace, name))

    def find(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """None if it does not exist."""
        try:
            return self.get(kind, namespace, name)
        except ApiError as answer:
            if answer.code == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, **selectors: str) -> list[Manifest]:
        """`selectors` are those of the API: labelSelector, fieldSelector."""
        query = f"?{urlencode(selectors)}" if selectors else ""
        answer = self.request("GET", path(kind, namespace) + query)
        # Items of a list have no kind.
        version = answer["apiVersion"]
        return [{"apiVersion": version, "kind": kind.partition(".")[0], **item} for item in answer["items"]]

    def create(self, manifest: Manifest, namespace: str | None = None) -> Manifest:
        """`namespace` is for manifests without one."""
        where = manifest["metadata"].get("namespace", namespace)
        return self.request("POST", path(kind_of(manifest), where), manifest)

    def patch(
        self, kind: str, namespace: str | None, name: str, change: Mapping[str, Any], subresource: str = ""
    ) -> Manifest:
        """A JSON merge patch."""
        where = path(kind, namespace, name, subresource)
        return self.request("PATCH", where, change, "application/merge-patch+json")

    def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        grace: int | None = None,
        propagation: str | None = None,
        uid: str | None = None,
    ) -> Manifest:
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions"}
        options |= {} if grace is None else {"gracePeriodSeconds": grace}
        options |= {} if propagation is None else {"propagationPolicy": propagation}
        options |= {} if uid is None else {"preconditions": {"uid": uid}}
        return self.request("DELETE", path(kind, namespace, name), options)

    def request(
        self, method: str, target: str, body: Mapping[str, Any] | None = None, content_type: str = "application/json"
    ) -> Manifest:
        """Raises ApiError, and OSError without an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Content-Type": content_type}
        deadline = time.monotonic() + 30
        while True:
            with self._lock:
                answer, text = self._exchange(method, target, data, headers)
            if answer.status < 400:
                break
            if answer.status != 429 or b"storage is (re)initializing" not in text or time.monotonic() > deadline:
                raise _error(answer.status, text)
            time.sleep(0.2)  # it does not serve this kind yet
        return json.loads(text) if text[:1] == b"{" else {"text": text.decode()}

    def wait_until_ready(self, seconds: float) -> None:
        """Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.request("GET", "/readyz")
                return
            except (ApiError, OSError, http.client.HTTPException) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the API server is not ready after {seconds} s: {error}") from error
            time.sleep(0.05)

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        fresh = self._connection is None
        if self._connection is None:
            host, port = self._address.hostname or "", self._address.port
            self._connection = http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)
        try:
            self._connection.request(method, self._address.path + target, data, headers)
            with self._connection.getresponse() as answer:
                return answer, answer.read()
        except TimeoutError:  # the server may have done it, and would reject a repetition
            self._drop()
            raise
        except (OSError, http.client.HTTPException):
            self._drop()
            if fresh:
                raise
        # The server closed the idle connection, for example because it restarted.
        return self._exchange(method, target, data, headers)

    def _drop(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None


def kind_of(manifest: Manifest) -> str:
    """Its key in RESOURCES, or `Kind.version.group`."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    kind: str = manifest["kind"]
    return kind if kind in RESOURCES else f"{kind}.{version}.{group}"


def path(kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    group, plural = RESOURCES.get(kind) or _resource(*kind.split(".", 2))
    parts = [group, *(["namespaces", namespace] if namespace else []), plural, *([name] if name else [])]
    parts += [subresource] if subresource else []
    return "/" + "/".join(quote(part, safe="/") for part in parts)


def _resource(kind: str, version: str, group: str) -> tuple[str, str]:
    """The plural is the one that the tools of Kubernetes generate: Topology -> topologies."""
    name = kind.lower()
    plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"
    return f"apis/{group}/{version}", plural


def _error(code: int, text: bytes) -> ApiError:
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    return ApiError(code, status.get("reason", ""), status.get("message") or text.decode(errors="replace"))
