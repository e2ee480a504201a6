"""Paths of the API: each kind's collection and object."""

from __future__ import annotations

from allranks.api.job import API_VERSION, GROUP, PLURAL, VERSION

_COLLECTIONS = {"Pod": "pods", "Service": "services", "ConfigMap": "configmaps", "Secret": "secrets", "Event": "events"}


GROUPS = "/apis"
GROUP_VERSION = f"/apis/{GROUP}/{VERSION}"
"""What the API server says of our group: the resources that it serves."""


def collection(kind: str, namespace: str | None) -> str:
    """Of one namespace, or of all (None)."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"/api/v1{inside}/{_COLLECTIONS[kind]}"


def item(kind: str, namespace: str, name: str) -> str:
    return f"{collection(kind, namespace)}/{name}"


def jobs(namespace: str | None) -> str:
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUP_VERSION}{inside}/{PLURAL}"


def job(namespace: str, name: str) -> str:
    return f"{jobs(namespace)}/{name}"


def pools() -> str:
    return f"{GROUP_VERSION}/trainingpools"


TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def lease(namespace: str, name: str = "") -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases" + (f"/{name}" if name else "")


def job_path(namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Without a namespace: of all."""
    parts = [f"/apis/{API_VERSION}", *(["namespaces", namespace] if namespace else []), PLURAL, name, subresource]
    return "/".join(part for part in parts if part)


def core_path(namespace: str | None, plural: str, name: str = "", subresource: str = "") -> str:
    parts = ["/api/v1", *(["namespaces", namespace] if namespace else []), plural, name, subresource]
    return "/".join(part for part in parts if part)
